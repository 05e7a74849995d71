//! Proofs for paths (docs/formats/path-proof.md): what a reader of a volume writes into a file, so that others can check
//! it without a network.
//!
//! The proof is made from the head of the version in use and from the blocks on the way to the path, so it shows what
//! this reader sees. It is verified once before it is given out. Relies on `trust::path_proof`.

use std::time::Instant;

use bytes::Bytes;
use reader::{Expect, Fetch, ReadError};
use trust::Reject;
use trust::head::Head;
use trust::path_proof::{Demands, PathProof, Prover, Shown};
use trust::reach::Wanted;

use crate::error::VolumeError;
use crate::snapshot::Snapshot;
use crate::volume::Volume;

impl Volume {
    /// Proves that `path` (names with `/` between them) is in the version in use, or that it is not. Symbolic links are
    /// not followed.
    ///
    /// # Errors
    /// [`VolumeError::Expired`]; [`VolumeError::Statement`] for an impossible path, and for a version that is in use
    /// only because of the grace or a pin, since nobody else would believe it; as [`Volume::open`] for what cannot be
    /// fetched.
    pub async fn prove(&self, path: &[u8]) -> Result<(PathProof, Shown), VolumeError> {
        let deadline = self.deadline();
        let snapshot = self.current()?;
        let head = self.head_of(&snapshot, deadline).await?;
        let begin = |older: &[_]| Prover::new(&head, older, self.id(), path);
        let mut prover = self.with_older(&head, deadline, begin).await?;
        let how = Fetch::Until(deadline);
        while let Some(wanted) = prover.wants() {
            let plaintext = plaintext(&snapshot, wanted, how).await?;
            prover.supply(plaintext).map_err(refused)?;
        }
        let proof = prover.finish().map_err(refused)?;
        let demands = Demands {
            now: self.now(),
            least_policy: 0,
        };
        let shown = proof.verify(self.id(), path, &demands).map_err(refused)?;
        Ok((proof, shown))
    }

    /// The head of a version in use: as it was kept at its adoption, or as a replica shows it now.
    pub(crate) async fn head_of(
        &self,
        snapshot: &Snapshot,
        deadline: Instant,
    ) -> Result<Head, VolumeError> {
        let round = self.round();
        let kept = round.update(deadline, |locked| Ok(locked.adopted_head().ok().flatten()));
        let kept = kept.await?.and_then(|bytes| Head::decode(&bytes).ok());
        if let Some(head) = kept
            && head.record.hash() == *snapshot.record_hash()
        {
            return Ok(head);
        }
        let heads = self.search().verified_heads(deadline).await?;
        let same = |head: &(Head, Bytes)| head.0.record.hash() == *snapshot.record_hash();
        let mut shown = heads.into_iter().filter_map(|head| head.head);
        let head = shown.find(same).map(|(head, _)| head);
        head.ok_or_else(|| {
            let version = snapshot.record().version;
            let cause = "the locations show another version by now";
            VolumeError::unavailable(format!("the head of version {version}"), cause)
        })
    }
}

/// The plaintext of a block on the way. Decoders take canonical bytes only, so encoding gives the block's bytes back.
async fn plaintext(snapshot: &Snapshot, wanted: Wanted, how: Fetch) -> Result<Bytes, ReadError> {
    let blocks = snapshot.blocks();
    match wanted {
        Wanted::Map(handle) => {
            let node = blocks.get(&handle, Expect::Near, how).await?;
            Ok(node.as_bytes().clone())
        }
        Wanted::Inode(handle) => {
            let inode = blocks.get(&handle, Expect::Near, how).await?;
            Ok(inode.encode().into())
        }
        // Content is never on the way to a name.
        Wanted::Data { .. } | Wanted::Array { .. } => Err(ReadError::of_signed(Reject::WrongBlock)),
    }
}

fn refused(why: Reject) -> VolumeError {
    let place = "the version in use".to_owned();
    VolumeError::Statement { place, why }
}
