//! Names and packs blocks. Every data block that a publisher or `put` makes comes through here between its cut and its
//! name, so this is the place where it can be sealed. Nodes of trees get their names in the builders of `trust`.

use trust::frame::Packer;
use trust::{BlockKind, Frame, Handle, Hasher, Kind, Record, Reject};

/// Names and packs blocks, for one thread.
pub struct Blocks<'a> {
    hasher: &'a Hasher,
    packer: Packer,
}

impl<'a> Blocks<'a> {
    /// Names blocks by the volume's hash function.
    pub fn new(hasher: &'a Hasher) -> Blocks<'a> {
        Blocks {
            hasher,
            packer: Packer::new(),
        }
    }

    /// The volume's hash function.
    pub fn hasher(&self) -> &'a Hasher {
        self.hasher
    }

    /// The name of a block.
    pub fn name<K: BlockKind>(&self, plain: &[u8]) -> Handle<K> {
        self.hasher.handle::<K>(plain)
    }

    /// A block as it is stored.
    ///
    /// # Errors
    /// [`Reject`] for a block that is longer than the format allows.
    pub fn pack(&mut self, kind: Kind, plain: &[u8]) -> Result<Frame, Reject> {
        self.packer.pack(kind, plain)
    }

    /// Names and packs a block.
    ///
    /// # Errors
    /// As [`Blocks::pack`].
    pub fn record<K: BlockKind>(&mut self, plain: &[u8]) -> Result<(Handle<K>, Record), Reject> {
        let handle = self.name::<K>(plain);
        let record = Record {
            handle: handle.any(),
            frame: self.pack(K::KIND, plain)?,
        };
        Ok((handle, record))
    }
}
