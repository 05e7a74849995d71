//! The forms in which verified blocks are used: decoded once, kept decoded.

use std::sync::Arc;

use trust::inode::Inode;
use trust::{ArrayNode, Block, BlockKind, Data, InodeBlock, MapNode, Reject, array, map};

/// A verified block in the form in which it is used.
#[derive(Debug, Clone)]
pub enum Verified {
    /// File content.
    Data(Block<Data>),
    /// A node of an array tree, decoded.
    Array(Arc<array::Node>),
    /// A node of a map tree, decoded.
    Map(Arc<map::Node>),
    /// An inode in a block of its own, decoded.
    Inode(Arc<Inode>),
}

impl Verified {
    /// Memory behind it, bytes.
    pub(super) fn payload_bytes(&self) -> u64 {
        const INODE_BYTES: u64 = 1024;
        match self {
            Verified::Data(block) => block.bytes().len() as u64,
            Verified::Array(node) => node.weight_bytes() as u64,
            Verified::Map(node) => node.weight_bytes() as u64,
            Verified::Inode(_) => INODE_BYTES,
        }
    }
}

/// A kind of block that can be taken out of [`Verified`].
pub trait Open: BlockKind {
    /// The form in which it is used.
    type Form: Clone + Send;
    /// Decodes a verified block.
    ///
    /// # Errors
    /// A [`Reject`] against the publisher: the block is what was signed, and malformed.
    fn decode(block: Block<Self>) -> Result<Verified, Reject>;
    /// The form, if `verified` is of this kind.
    fn form(verified: &Verified) -> Option<Self::Form>;
}

macro_rules! open {
    ($kind:ident, $form:ty, $variant:ident, $decode:expr) => {
        impl Open for $kind {
            type Form = $form;
            fn decode(block: Block<Self>) -> Result<Verified, Reject> {
                #[allow(clippy::redundant_closure_call)]
                $decode(block)
            }
            fn form(verified: &Verified) -> Option<$form> {
                match verified {
                    Verified::$variant(form) => Some(form.clone()),
                    _ => None,
                }
            }
        }
    };
}
open!(Data, Block<Data>, Data, |b| Ok(Verified::Data(b)));
open!(ArrayNode, Arc<array::Node>, Array, |b: Block<ArrayNode>| {
    Ok(Verified::Array(Arc::new(array::Node::decode(&b)?)))
});
open!(MapNode, Arc<map::Node>, Map, |b: Block<MapNode>| {
    Ok(Verified::Map(Arc::new(map::Node::decode(&b)?)))
});
open!(InodeBlock, Arc<Inode>, Inode, |b: Block<InodeBlock>| {
    Ok(Verified::Inode(Arc::new(Inode::from_block(&b)?)))
});
