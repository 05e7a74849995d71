//! What the log's superblock says about a protected device: its cookie. Bytes: `docs/formats/protect.md`.

use trust::Reject;
use trust::encode::{Decoder, Encoder};

use crate::core::BLOCK_BYTES;
use crate::map::Root;

/// The form of the cookie that this program writes and reads.
const FORM: u8 = 0;

/// Length and sectors of the data device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Length in bytes: a multiple of the sector.
    pub bytes: u64,
    /// The logical sector in bytes: 512 or 4096.
    pub sector_bytes: u32,
}

impl Shape {
    /// Number of blocks; the last one may be short.
    pub fn blocks(&self) -> u64 {
        self.bytes.div_ceil(BLOCK_BYTES as u64)
    }
}

/// The cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// The data device.
    pub shape: Shape,
    /// The map of what is settled.
    pub root: Root,
}

impl Cookie {
    /// The bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.u8(FORM)
            .u64(self.shape.bytes)
            .u32(self.shape.sector_bytes);
        out.raw(&self.root.to_bytes());
        out.finish()
    }

    /// Decodes the bytes.
    ///
    /// # Errors
    /// Another version of bulla wrote them.
    pub fn decode(bytes: &[u8]) -> Result<Cookie, Reject> {
        let mut from = Decoder::new(bytes, "cookie of a protected device");
        if from.u8()? != FORM {
            return Err(from.bad("unknown form"));
        }
        let (bytes, sector_bytes) = (from.u64()?, from.u32()?);
        let is_whole = matches!(sector_bytes, 512 | 4096)
            && bytes > 0
            && bytes.is_multiple_of(sector_bytes.into());
        if !is_whole {
            return Err(from.bad("not whole sectors"));
        }
        let root = Root::from_bytes(from.array()?);
        from.finish()?;
        Ok(Cookie {
            shape: Shape {
                bytes,
                sector_bytes,
            },
            root,
        })
    }
}
