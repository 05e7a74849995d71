//! The name of a volume. Relies on [`crate::text`] for how it is written.

use std::fmt;
use std::str::FromStr;

use crate::text::{self, BadText, Noun};

/// The self-certifying name of a volume: the hash of its genesis policy. In text `vol1…`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VolumeId([u8; 32]);

impl VolumeId {
    /// The volume field of a genesis policy, whose hash is not known yet.
    pub const UNBORN: VolumeId = VolumeId([0; 32]);

    /// An id from its 32 bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        VolumeId(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&text::write(Noun::Volume, &self.0))
    }
}

impl fmt::Debug for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for VolumeId {
    type Err = BadText;

    fn from_str(s: &str) -> Result<Self, BadText> {
        text::read(Noun::Volume, s).map(VolumeId)
    }
}
