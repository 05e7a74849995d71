//! Marks: random nonces that the orderer puts under the leaf of a group commit (docs/formats/shared.md, *Marks*). A
//! device that finds its nonce there knows that the log which it is shown is newer than its question.
//!
//! The nonces of a group commit are the leaves of a binary tree in which the bits of a nonce are its place. So a
//! nonce is in it once or not at all, its proof shows just that, and the log's leaf has the root alone: devices do
//! not fetch the nonces of others.
//!
//! ```text
//! tree of no nonce       32 zero bytes
//! tree of one nonce      SHA-256(0 ‖ nonce)
//! tree of more           SHA-256(1 ‖ tree of those whose next bit is 0 ‖ tree of those whose next bit is 1)
//! ```

use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::history::{leaf_hash, node_hash};

/// 32 random bytes of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce([u8; 32]);

impl Nonce {
    /// A nonce by its bytes.
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Nonce(bytes)
    }

    /// The 32 bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Whether the bit at `depth` is 1; the first bit is the highest of the first byte.
    fn bit(&self, depth: usize) -> bool {
        let byte = self.0.get(depth / 8).copied().unwrap_or(0);
        byte >> (7 - depth % 8) & 1 == 1
    }
}

/// First byte of the leaf with a group commit's marks.
pub(super) const MARKS: u8 = 3;
/// Bits of a nonce, and the longest proof, hashes.
const BITS: usize = 256;
const NOBODY: [u8; 32] = [0; 32];
const WHAT: &str = "marks";

/// The leaf of a group commit that covers the nonces of its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    root: [u8; 32],
}

impl Marks {
    /// The leaf's bytes: a byte 3, and the root.
    pub fn encode(&self) -> [u8; 33] {
        let mut bytes = [MARKS; 33];
        let (_, root) = bytes.split_at_mut(1);
        root.copy_from_slice(&self.root);
        bytes
    }

    /// Reads a leaf.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything else.
    pub fn decode(bytes: &[u8]) -> Result<Marks, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        if d.u8()? != MARKS {
            return Err(d.bad("another kind of leaf"));
        }
        let root = d.array()?;
        if root == NOBODY {
            return Err(d.bad("a leaf without marks"));
        }
        d.finish()?;
        Ok(Marks { root })
    }

    /// Whether `proof` shows that the nonce is among these marks. Then it is there exactly once.
    pub fn contain(&self, nonce: &Nonce, proof: &MarkProof) -> bool {
        let hash = proof.siblings.iter().enumerate().rev();
        let root = hash.fold(leaf_hash(&nonce.0), |hash, (depth, sibling)| {
            match nonce.bit(depth) {
                false => node_hash(&hash, sibling),
                true => node_hash(sibling, &hash),
            }
        });
        root == self.root
    }
}

/// The way of a nonce to the root: the tree beside it at each depth, the root's child first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MarkProof {
    siblings: Vec<[u8; 32]>,
}

impl MarkProof {
    /// Appends `count varint | count × hash [32]`.
    pub fn encode(&self, out: &mut Encoder) {
        out.varint(self.siblings.len() as u64);
        for sibling in &self.siblings {
            out.raw(sibling);
        }
    }

    /// Reads what [`MarkProof::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for more hashes than a nonce has bits, or too few bytes.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Self, Reject> {
        let count = d.bounded(BITS as u64, "a proof deeper than a nonce")?;
        let siblings = (0..count).map(|_| d.array()).collect::<Result<_, _>>()?;
        Ok(MarkProof { siblings })
    }
}

/// The marks of a group commit with what is needed to prove each of them: for the orderer.
#[derive(Debug)]
pub struct MarkTree {
    /// Sorted, each once.
    nonces: Vec<Nonce>,
    /// The first of them are the leaves, in the order of the nonces.
    nodes: Vec<TreeNode>,
    root: [u8; 32],
}

#[derive(Debug, Clone, Copy)]
struct TreeNode {
    /// The tree beside this one.
    sibling: [u8; 32],
    parent: Option<usize>,
}

impl MarkTree {
    /// The tree of these nonces. One that comes twice is there once. `None` without nonces, because then there is no
    /// leaf.
    pub fn new(mut nonces: Vec<Nonce>) -> Option<MarkTree> {
        nonces.sort_unstable();
        nonces.dedup();
        let leaf = TreeNode {
            sibling: NOBODY,
            parent: None,
        };
        let mut nodes = vec![leaf; nonces.len()];
        let (root, _) = subtree(&nonces, 0, 0, &mut nodes)?;
        Some(MarkTree {
            nonces,
            nodes,
            root,
        })
    }

    /// The log's leaf.
    pub fn marks(&self) -> Marks {
        Marks { root: self.root }
    }

    /// The proof for one of its nonces.
    pub fn prove(&self, nonce: &Nonce) -> Option<MarkProof> {
        let mut at = self.nonces.binary_search(nonce).ok()?;
        let mut siblings = Vec::new();
        while let Some(node) = self.nodes.get(at)
            && let Some(parent) = node.parent
        {
            siblings.push(node.sibling);
            at = parent;
        }
        siblings.reverse();
        Some(MarkProof { siblings })
    }
}

/// Builds the tree of nonces that agree in `depth` bits; the first of them is number `first` of all. Gives its hash
/// and its node. `None` for no nonces.
fn subtree(
    nonces: &[Nonce],
    first: usize,
    depth: usize,
    nodes: &mut Vec<TreeNode>,
) -> Option<([u8; 32], usize)> {
    let [nonce, others @ ..] = nonces else {
        return None;
    };
    if others.is_empty() {
        return Some((leaf_hash(&nonce.0), first));
    }
    let zeros = nonces.partition_point(|nonce| !nonce.bit(depth));
    let (left, right) = nonces.split_at(zeros);
    let below = depth.saturating_add(1);
    let left = subtree(left, first, below, nodes);
    let right = subtree(right, first.saturating_add(zeros), below, nodes);
    let hash = |side: Option<([u8; 32], usize)>| side.map_or(NOBODY, |(hash, _)| hash);
    let (left_hash, right_hash) = (hash(left), hash(right));
    let parent = nodes.len();
    nodes.push(TreeNode {
        sibling: NOBODY,
        parent: None,
    });
    for (side, sibling) in [(left, right_hash), (right, left_hash)] {
        if let Some((_, at)) = side
            && let Some(node) = nodes.get_mut(at)
        {
            *node = TreeNode {
                sibling,
                parent: Some(parent),
            };
        }
    }
    Some((node_hash(&left_hash, &right_hash), parent))
}

#[cfg(test)]
mod tests;
