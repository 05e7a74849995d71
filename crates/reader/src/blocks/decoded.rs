//! Decoded blocks. A block is decoded once, when it is verified, and cached in this form.

use std::sync::Arc;

use trust::frame::MAX_BLOCK_BYTES;
use trust::inode::{Inode, MAX_INODE_BYTES};
use trust::{ArrayNode, Block, BlockKind, Data, InodeBlock, MapNode, Reject, array, map};

/// A verified block, decoded.
#[derive(Debug, Clone)]
pub enum DecodedBlock {
    /// File content.
    Data(Block<Data>),
    /// A node of an array tree, decoded.
    Array(Arc<array::Node>),
    /// A node of a map tree, decoded.
    Map(Arc<map::Node>),
    /// An inode in a block of its own, decoded.
    Inode(Arc<Inode>),
}

impl DecodedBlock {
    /// Memory that its payload takes, bytes.
    pub(super) fn payload_bytes(&self) -> u64 {
        match self {
            DecodedBlock::Data(block) => block.bytes().len() as u64,
            DecodedBlock::Array(node) => node.weight_bytes() as u64,
            DecodedBlock::Map(node) => node.weight_bytes() as u64,
            DecodedBlock::Inode(inode) => inode.weight_bytes() as u64,
        }
    }
}

/// A kind of block that [`crate::Blocks`] can decode.
pub trait Decode: BlockKind {
    /// What a block of this kind decodes to.
    type Decoded: Clone + Send;
    /// Longest block of this kind, bytes of plaintext.
    const MOST_BYTES: usize;
    /// Decodes a verified block.
    ///
    /// # Errors
    /// A [`Reject`] against the publisher: the block is the signed one, and malformed.
    fn decode(block: Block<Self>) -> Result<DecodedBlock, Reject>;
    /// The block, if it is of this kind.
    fn take(decoded: &DecodedBlock) -> Option<Self::Decoded>;
}

macro_rules! decode {
    ($kind:ident, $most_bytes:expr, $decoded:ty, $variant:ident, $decode:expr) => {
        impl Decode for $kind {
            type Decoded = $decoded;
            const MOST_BYTES: usize = $most_bytes;
            fn decode(block: Block<Self>) -> Result<DecodedBlock, Reject> {
                #[allow(clippy::redundant_closure_call)]
                $decode(block)
            }
            fn take(decoded: &DecodedBlock) -> Option<$decoded> {
                match decoded {
                    DecodedBlock::$variant(block) => Some(block.clone()),
                    _ => None,
                }
            }
        }
    };
}
decode!(Data, MAX_BLOCK_BYTES, Block<Data>, Data, |b| Ok(
    DecodedBlock::Data(b)
));
decode!(
    ArrayNode,
    array::MAX_NODE_BYTES,
    Arc<array::Node>,
    Array,
    |b: Block<ArrayNode>| { Ok(DecodedBlock::Array(Arc::new(array::Node::decode(&b)?))) }
);
decode!(
    MapNode,
    map::MAX_NODE_BYTES,
    Arc<map::Node>,
    Map,
    |b: Block<MapNode>| { Ok(DecodedBlock::Map(Arc::new(map::Node::decode(&b)?))) }
);
decode!(
    InodeBlock,
    MAX_INODE_BYTES,
    Arc<Inode>,
    Inode,
    |b: Block<InodeBlock>| { Ok(DecodedBlock::Inode(Arc::new(Inode::from_block(&b)?))) }
);
