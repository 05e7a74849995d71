//! The root record: which tree is the volume's, from when, and for how long (SFSRO 3.1, FSINFO).

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::{Handle, InodeBlock};
use crate::history::LogPoint;
use crate::statement::{Body, Purpose, Statement, VolumeId};
use crate::tree::inode::{Content, Inode};

/// Most mirrors that a record may name.
pub const MAX_MIRRORS: usize = 16;
/// Longest name of a mirror, bytes.
pub const MAX_MIRROR_BYTES: usize = 255;

/// The statement that a publisher signs for each version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootRecord {
    /// Counts up from 1; a number is never used again.
    pub version: u64,
    /// Start of validity, unix seconds.
    pub start: u64,
    /// Length of validity, seconds. Nothing extends it beyond `start + duration`, except a reader's own
    /// grace.
    pub duration: u64,
    /// The inode of the root directory.
    pub root: Handle<InodeBlock>,
    /// The size of the tree below it.
    pub totals: Totals,
    /// Number of the policy under which it is signed.
    pub policy_number: u64,
    /// Hash of that policy.
    pub policy_hash: [u8; 32],
    /// The volume's log before this record became a leaf of it.
    pub log: LogPoint,
    /// Locations that the publisher suggests: hints, as untrusted as any location.
    pub mirrors: Vec<String>,
}

/// The size of a tree. A sum that does not fit stops at 2⁶⁴ − 1, so that the order of adding does not matter.
///
/// The numbers are the publisher's claim: right if the publisher is honest, otherwise arbitrary. Do not
/// allocate memory by them and do not rely on them. A reader that walks the whole tree compares them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Names of regular files; a file with two names counts as two.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Names of all other files: symbolic links, FIFOs, sockets, devices.
    pub other: u64,
    /// Content of regular files, holes included, bytes; a file with several names counts once.
    pub bytes: u64,
}

impl Totals {
    /// The totals of an entry and its content, without the entries below it.
    pub fn of(inode: &Inode) -> Totals {
        let mut totals = Totals::default();
        match &inode.content {
            Content::Regular(_) => {
                totals.files = 1;
                totals.bytes = inode.content.size();
            }
            Content::Directory { .. } => totals.directories = 1,
            _ => totals.other = 1,
        }
        totals
    }

    /// Adds the totals of another part.
    pub fn add(&mut self, more: Totals) {
        self.files = self.files.saturating_add(more.files);
        self.directories = self.directories.saturating_add(more.directories);
        self.other = self.other.saturating_add(more.other);
        self.bytes = self.bytes.saturating_add(more.bytes);
    }

    /// Entries that are not directories.
    pub fn leaves(&self) -> u64 {
        self.files.saturating_add(self.other)
    }

    /// Entries of every kind, the root included.
    pub fn entries(&self) -> u64 {
        self.leaves().saturating_add(self.directories)
    }

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.files).u64(self.directories);
        out.u64(self.other).u64(self.bytes);
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        Ok(Totals {
            files: d.u64()?,
            directories: d.u64()?,
            other: d.u64()?,
            bytes: d.u64()?,
        })
    }
}

impl RootRecord {
    /// The statement to sign.
    pub fn statement(&self, volume: VolumeId) -> Statement {
        Statement::new(volume, self)
    }

    /// End of validity, unix seconds.
    pub fn until(&self) -> u64 {
        self.start.saturating_add(self.duration)
    }
}

impl Body for RootRecord {
    const PURPOSE: Purpose = Purpose::Root;

    fn encode(&self, out: &mut Encoder) {
        out.u64(self.version).u64(self.start).u64(self.duration);
        out.raw(self.root.as_bytes());
        self.totals.encode(out);
        out.u64(self.policy_number).raw(&self.policy_hash);
        self.log.encode(out);
        out.varint(self.mirrors.len() as u64);
        for mirror in &self.mirrors {
            out.bytes(mirror.as_bytes());
        }
    }

    fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let version = d.u64()?;
        if version == 0 {
            return Err(d.bad("version 0"));
        }
        let (start, duration) = (d.u64()?, d.u64()?);
        let root = Handle::from_bytes(d.array()?);
        let totals = Totals::decode(d)?;
        let (policy_number, policy_hash) = (d.u64()?, d.array()?);
        let log = LogPoint::decode(d)?;
        let count = d.bounded(MAX_MIRRORS as u64, "too many mirrors")?;
        let mut mirrors = Vec::new();
        for _ in 0..count {
            mirrors.push(location(d)?);
        }
        Ok(RootRecord {
            version,
            start,
            duration,
            root,
            totals,
            policy_number,
            policy_hash,
            log,
            mirrors,
        })
    }
}

/// Checks that a location is printable ASCII without spaces, because it is shown to people and logged.
fn location(d: &mut Decoder<'_>) -> Result<String, Reject> {
    let bytes = d.bytes(MAX_MIRROR_BYTES)?;
    if bytes.is_empty() || !bytes.iter().all(u8::is_ascii_graphic) {
        return Err(d.bad("a mirror is not printable ASCII"));
    }
    String::from_utf8(bytes.to_vec()).map_err(|_| d.bad("a mirror is not printable ASCII"))
}
