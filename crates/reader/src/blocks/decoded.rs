//! The forms in which verified blocks are used: decoded once, kept decoded.

use std::sync::Arc;

use trust::inode::Inode;
use trust::{ArrayNode, Block, BlockKind, Data, InodeBlock, MapNode, Reject, array, map};

/// A verified block in the form in which it is used.
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
    /// Memory behind it, bytes.
    pub(super) fn payload_bytes(&self) -> u64 {
        const INODE_BYTES: u64 = 1024;
        match self {
            DecodedBlock::Data(block) => block.bytes().len() as u64,
            DecodedBlock::Array(node) => node.weight_bytes() as u64,
            DecodedBlock::Map(node) => node.weight_bytes() as u64,
            DecodedBlock::Inode(_) => INODE_BYTES,
        }
    }
}

/// A kind of block that can be taken out of [`DecodedBlock`].
pub trait Decode: BlockKind {
    /// The form in which it is used.
    type Decoded: Clone + Send;
    /// Decodes a verified block.
    ///
    /// # Errors
    /// A [`Reject`] against the publisher: the block is what was signed, and malformed.
    fn decode(block: Block<Self>) -> Result<DecodedBlock, Reject>;
    /// The form, if `verified` is of this kind.
    fn form(verified: &DecodedBlock) -> Option<Self::Decoded>;
}

macro_rules! open {
    ($kind:ident, $form:ty, $variant:ident, $decode:expr) => {
        impl Decode for $kind {
            type Decoded = $form;
            fn decode(block: Block<Self>) -> Result<DecodedBlock, Reject> {
                #[allow(clippy::redundant_closure_call)]
                $decode(block)
            }
            fn form(verified: &DecodedBlock) -> Option<$form> {
                match verified {
                    DecodedBlock::$variant(form) => Some(form.clone()),
                    _ => None,
                }
            }
        }
    };
}
open!(Data, Block<Data>, Data, |b| Ok(DecodedBlock::Data(b)));
open!(ArrayNode, Arc<array::Node>, Array, |b: Block<ArrayNode>| {
    Ok(DecodedBlock::Array(Arc::new(array::Node::decode(&b)?)))
});
open!(MapNode, Arc<map::Node>, Map, |b: Block<MapNode>| {
    Ok(DecodedBlock::Map(Arc::new(map::Node::decode(&b)?)))
});
open!(InodeBlock, Arc<Inode>, Inode, |b: Block<InodeBlock>| {
    Ok(DecodedBlock::Inode(Arc::new(Inode::from_block(&b)?)))
});
