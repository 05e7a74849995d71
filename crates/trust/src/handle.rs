//! Handles: the names of blocks (SFSRO 3.2, `H(x) = SHA-1(iv, x)`, with today's hash).
//!
//! `H(x) = BLAKE3-keyed(key_kind, x)` over the *uncompressed* block, where
//! `key_kind = BLAKE3-derive-key("bulla 0 block <kind>", iv)`. One key per kind separates data, array
//! nodes, map nodes and inodes as a kind prefix would, and keeps the input aligned so that hashing
//! costs what BLAKE3 alone costs (docs/decisions/0003-handles.md).

use std::cmp::Ordering;
use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;

use crate::error::Reject;
use crate::text::{Noun, write};

pub use crate::kind::Kind;

/// A marker type for one kind of block. Implemented only by the types below.
pub trait BlockKind: Copy + Send + Sync + 'static {
    /// The kind that this marker stands for.
    const KIND: Kind;
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident => $kind:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name;
        impl BlockKind for $name { const KIND: Kind = Kind::$kind; }
    )*};
}

kinds! {
    /// Marks handles of file content.
    Data => Data,
    /// Marks handles of array-tree nodes.
    ArrayNode => Array,
    /// Marks handles of map-tree nodes.
    MapNode => Map,
    /// Marks handles of inodes in blocks of their own.
    InodeBlock => Inode,
}

/// Marks a handle whose kind is not known: for look-ups in stores, never for verifying.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Any;

/// The 32-byte name of a block of kind `K`.
///
/// A `Handle<Data>` is not a `Handle<MapNode>`. [`Handle::any`] drops the kind, because stores look up
/// without it; nothing restores it.
pub struct Handle<K = Any> {
    bytes: [u8; 32],
    kind: PhantomData<fn() -> K>,
}

impl<K> Handle<K> {
    /// A handle from its 32 bytes, as a verified parent gives them.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Handle {
            bytes,
            kind: PhantomData,
        }
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.bytes
    }

    /// The same name without its kind, for stores.
    pub const fn any(&self) -> Handle<Any> {
        Handle {
            bytes: self.bytes,
            kind: PhantomData,
        }
    }
}

impl<K> Clone for Handle<K> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<K> Copy for Handle<K> {}
impl<K> PartialEq for Handle<K> {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}
impl<K> Eq for Handle<K> {}
impl<K> PartialOrd for Handle<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<K> Ord for Handle<K> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bytes.cmp(&other.bytes)
    }
}
impl<K> std::hash::Hash for Handle<K> {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bytes.hash(state);
    }
}
impl<K> fmt::Debug for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write(Noun::Block, &self.bytes))
    }
}
impl<K> fmt::Display for Handle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&write(Noun::Block, &self.bytes))
    }
}

/// The plaintext of a block that has been proved to match its handle.
///
/// Made only by [`Hasher::check`] and [`Hasher::seal`].
pub struct Block<K> {
    bytes: Bytes,
    kind: PhantomData<fn() -> K>,
}

impl<K> Block<K> {
    /// The verified plaintext.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Takes the verified plaintext out.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl<K> Clone for Block<K> {
    fn clone(&self) -> Self {
        Block {
            bytes: self.bytes.clone(),
            kind: PhantomData,
        }
    }
}
impl<K: BlockKind> fmt::Debug for Block<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Block<{:?}>({} bytes)", K::KIND, self.bytes.len())
    }
}

/// The hash function of one volume: `iv` expanded to a key per kind, and one for hard-link sets.
#[derive(Clone)]
pub struct Hasher {
    keys: [[u8; 32]; 4],
    link_set: [u8; 32],
}

impl Hasher {
    /// The hash function under this `iv` (32 random bytes in the volume's genesis policy).
    pub fn new(iv: &[u8; 32]) -> Self {
        let key = |context: &str| blake3::derive_key(context, iv);
        Hasher {
            keys: [
                key("bulla 0 block data"),
                key("bulla 0 block array"),
                key("bulla 0 block map"),
                key("bulla 0 block inode"),
            ],
            link_set: key("bulla 0 hard-link set"),
        }
    }

    fn key(&self, kind: Kind) -> &[u8; 32] {
        let [data, array, map, inode] = &self.keys;
        match kind {
            Kind::Data => data,
            Kind::Array => array,
            Kind::Map => map,
            Kind::Inode => inode,
        }
    }

    /// The handle of a plaintext whose kind is known at run time only (read-around, caches).
    pub fn name(&self, kind: Kind, plaintext: &[u8]) -> Handle<Any> {
        Handle::from_bytes(*blake3::keyed_hash(self.key(kind), plaintext).as_bytes())
    }

    /// The identity of the hard-link set whose first path is `first_path`. No block's handle, because the key
    /// is another one.
    pub(crate) fn link_group(&self, first_path: &[u8]) -> [u8; 16] {
        let hash = blake3::keyed_hash(&self.link_set, first_path);
        let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = *hash.as_bytes();
        half
    }

    /// The handle of a plaintext.
    pub fn handle<K: BlockKind>(&self, plaintext: &[u8]) -> Handle<K> {
        Handle::from_bytes(*self.name(K::KIND, plaintext).as_bytes())
    }

    /// Proves that `plaintext` hashes to `handle`.
    ///
    /// # Errors
    /// [`Reject::WrongBlock`] when it does not.
    pub fn check<K: BlockKind>(
        &self,
        handle: &Handle<K>,
        plaintext: Bytes,
    ) -> Result<Block<K>, Reject> {
        if self.handle::<K>(&plaintext) == *handle {
            Ok(Block {
                bytes: plaintext,
                kind: PhantomData,
            })
        } else {
            Err(Reject::WrongBlock)
        }
    }

    /// Names a block that this program made itself.
    pub fn seal<K: BlockKind>(&self, plaintext: Bytes) -> (Handle<K>, Block<K>) {
        (
            self.handle(&plaintext),
            Block {
                bytes: plaintext,
                kind: PhantomData,
            },
        )
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frozen bytes: docs/formats/blocks.md gives the same.
    #[test]
    fn vectors() {
        let hasher = Hasher::new(&std::array::from_fn(|i| i as u8));
        let expected = [
            (
                Kind::Data,
                "e63b7c8e56163e62ee730951dbc7f7dc9f54a515dd109e86e911948438abf24b",
            ),
            (
                Kind::Array,
                "ca05cc8236deec10b286a8f764365b5cb734346a9b55b550ed48ac5fffc843b8",
            ),
            (
                Kind::Map,
                "830aa07db6302b13725b551c11c29c56db56ee93f9e8a7ae0e05a29bce4360ae",
            ),
            (
                Kind::Inode,
                "8e716bc160e2bff6727c782faf9837c0d68c6ef3c21637192f3480cb985c515a",
            ),
        ];
        for (kind, hex) in expected {
            let handle = hasher.name(kind, b"bulla");
            let found: String = handle
                .as_bytes()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            assert_eq!(found, hex, "{kind:?}");
        }
        let empty = hasher.handle::<Data>(b"");
        assert_eq!(
            empty.to_string(),
            "blk18qux0umnt5v5u839za5ktus0pgfvlf6h7j9x478r3d9h5n4zq72q53ne8h"
        );
    }
}
