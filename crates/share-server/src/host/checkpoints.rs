//! Checkpoints that checkpointers have signed, for devices that begin with one. The server keeps the newest of each
//! checkpointer, and the newest that enough of them have signed, in one small file. It is not trusted with them: devices
//! verify signatures and rows. Who is no checkpointer cannot make it keep anything.
//!
//! Bytes: `docs/formats/shared-server.md`.

use bytes::Bytes;
use store::disk::{Disk, read_file, replace_file};
use store::names::TEMPORARY;
use trust::Reject;
use trust::key::PublicKey;
use trust::roles::MAX_ROLE_KEYS;
use trust::signatures::Signatures;
use trust::volume_id::VolumeId;
use trust_shared::checkpoint::Checkpoint;
use trust_shared::genesis::Policies;

use super::directory::CHECKPOINTS;
use super::session::Session;
use super::{Core, HostError};
use crate::blocks::storage::lock;
use ordering::checked_file::FileKind;
use trust_shared::checkpoint::{MAX_POSTED_BYTES, Posted};

const FORM: FileKind = FileKind {
    what: "file of checkpoints",
    magic: *b"bullack\n",
};
/// One of each checkpointer, and the newest that is whole.
const MAX_KEPT: usize = MAX_ROLE_KEYS + 1;
pub(super) const MAX_BYTES: usize = (MAX_KEPT + 1) * (MAX_POSTED_BYTES + 8);

/// The checkpoints of a file. None of them is verified.
pub(super) fn decode(bytes: &[u8], volume: VolumeId, epoch: u64) -> Result<Vec<Bytes>, Reject> {
    let mut d = FORM.open(bytes, volume, epoch)?;
    let count = d.bounded(MAX_KEPT as u64, "too many")?;
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(Bytes::copy_from_slice(d.bytes(MAX_POSTED_BYTES)?));
    }
    d.finish()?;
    Ok(all)
}

/// What is kept.
#[derive(Debug)]
pub(super) struct Board {
    policies: Policies,
    kept: Vec<Kept>,
}

#[derive(Debug, Clone)]
struct Kept {
    size: u64,
    /// Whose signatures it has.
    by: Vec<PublicKey>,
    is_whole: bool,
    bytes: Bytes,
}

impl Board {
    /// Reads the file. Without it, or if it is damaged, checkpointers sign anew.
    pub(super) fn read(disk: &dyn Disk, policies: Policies) -> Board {
        let mut board = Board {
            policies,
            kept: Vec::new(),
        };
        let read = match read_file(disk, CHECKPOINTS, MAX_BYTES) {
            Ok(None) => return board,
            Ok(Some(bytes)) => {
                let volume = board.policies.chain().volume();
                decode(&bytes, volume, board.epoch()).map_err(|why| why.to_string())
            }
            Err(error) => Err(error.to_string()),
        };
        match read {
            // Each is verified again: a policy may have come since.
            Ok(all) => all.into_iter().for_each(|posted| drop(board.add(posted))),
            Err(error) => tracing::warn!(%error, "the checkpoints are not used"),
        }
        board
    }

    /// What is kept, as it was read.
    pub(super) fn checkpoints(&self) -> impl Iterator<Item = Checkpoint> + '_ {
        let read = |kept: &Kept| Posted::decode(&kept.bytes)?.read(&self.policies);
        self.kept.iter().filter_map(move |kept| read(kept).ok())
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = FORM.begin(self.policies.chain().volume(), self.epoch());
        out.varint(self.kept.len() as u64);
        for kept in &self.kept {
            out.bytes(&kept.bytes);
        }
        FileKind::end(out)
    }

    fn epoch(&self) -> u64 {
        self.policies.newest_epoch().number
    }

    /// Takes a checkpoint. Gives whether anything has changed.
    fn add(&mut self, bytes: Bytes) -> Result<bool, Reject> {
        let posted = Posted::decode(&bytes)?;
        let checkpoint: Checkpoint = posted.read(&self.policies)?;
        let by = posted.signers(&self.policies);
        if by.is_empty() {
            return Err(Reject::NotSigned("a checkpointer of this volume"));
        }
        let role = &self.policies.roles().checkpointers;
        let signatures = &mut Signatures::default();
        let whole = signatures.require(&posted.signed, role, "checkpoint");
        let new = Kept {
            size: checkpoint.log.size,
            by,
            is_whole: whole.is_ok(),
            bytes,
        };
        let newer =
            |old: &Kept| new.size > old.size || new.size == old.size && new.by.len() > old.by.len();
        let mut old_whole = self.kept.iter().filter(|kept| kept.is_whole);
        let is_newest = new.is_whole && old_whole.all(&newer);
        let of = |key: &PublicKey| self.kept.iter().find(|kept| kept.by.contains(key));
        let is_news = is_newest || new.by.iter().any(|key| of(key).is_none_or(&newer));
        if !is_news {
            return Ok(false);
        }
        self.kept.push(new);
        self.forget();
        Ok(true)
    }

    /// Keeps the newest of each checkpointer, and the newest whole one.
    fn forget(&mut self) {
        self.kept
            .sort_by_key(|kept| std::cmp::Reverse((kept.size, kept.by.len())));
        let (mut seen, mut has_whole): (Vec<PublicKey>, bool) = (Vec::new(), false);
        self.kept.retain(|kept| {
            let is_newest_whole = kept.is_whole && !has_whole;
            has_whole |= kept.is_whole;
            let is_newest_of = kept.by.iter().any(|key| !seen.contains(key));
            seen.extend(&kept.by);
            is_newest_whole || is_newest_of
        });
        self.kept.truncate(MAX_KEPT);
    }
}

impl Core {
    /// Takes a checkpoint, durably.
    pub(super) fn keep_checkpoint(&self, bytes: Bytes) -> Result<(), HostError> {
        let mut board = lock(&self.board);
        let before = board.kept.clone();
        if !board.add(bytes).map_err(HostError::Checkpoint)? {
            return Ok(());
        }
        let temporary = format!("{CHECKPOINTS}{TEMPORARY}");
        let disk = &*self.place.disk;
        let written = replace_file(disk, CHECKPOINTS, &temporary, "", &board.encode());
        if written.is_err() {
            board.kept = before;
        }
        Ok(written?)
    }
}

impl Session {
    /// Takes a checkpoint that a checkpointer has signed. Durable when this returns. Writes to the disk.
    ///
    /// # Errors
    /// [`HostError::Checkpoint`] for one that no checkpointer of the volume signed, or of another log;
    /// [`HostError::NoMember`], [`HostError::Superseded`], [`HostError::Disk`].
    pub fn post_checkpoint(&self, bytes: Bytes) -> Result<(), HostError> {
        self.is_valid()?;
        self.core().keep_checkpoint(bytes)
    }

    /// The checkpoints that are kept, the newest first.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Superseded`].
    pub fn checkpoints(&self) -> Result<Vec<Bytes>, HostError> {
        self.is_valid()?;
        let board = lock(&self.core().board);
        Ok(board.kept.iter().map(|kept| kept.bytes.clone()).collect())
    }
}
