//! Proofs of presence and of absence: the nodes from the root to the place of the key. Relies on `node`; a
//! proof gets the same checks as any other reading.
//!
//! ```text
//! proof = count u8 (1 to 16) | { length varint | node } * count
//! ```

use bytes::Bytes;

use super::node::{Find, Node};
use super::walk::{Nodes, load};
use super::{MAX_HEIGHT, MAX_NODE_BYTES, MapRoot};
use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::handle::Hasher;

const WHAT: &str = "map proof";

/// The nodes on the way to a key, root first. Not verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    nodes: Vec<Bytes>,
}

/// Collects the proof that the map under `root` holds `key`, or that it does not.
///
/// # Errors
/// [`Reject::BadTree`] when the tree breaks a rule; any error of `nodes`.
pub fn prove<N: Nodes>(root: &MapRoot, key: &[u8], nodes: &N) -> Result<Proof, N::Error> {
    let mut path = Vec::new();
    let mut next = Some(root.child_ref());
    while let Some(child) = next {
        let place = load(nodes, child)?;
        next = match place.node.find(key, &place.child.interval) {
            Find::Child(child) => Some(child),
            Find::Absent | Find::Value(_) => None,
        };
        path.push(place.node.into_bytes());
    }
    Ok(Proof { nodes: path })
}

impl Proof {
    /// The value of `key` in the map under `root`; `None` when it is proved to be absent.
    ///
    /// # Errors
    /// [`Reject::WrongBlock`], [`Reject::BadTree`] or [`Reject::Malformed`] unless the nodes are exactly
    /// those on the way to `key`.
    pub fn verify(
        &self,
        hasher: &Hasher,
        root: &MapRoot,
        key: &[u8],
    ) -> Result<Option<Bytes>, Reject> {
        let mut nodes = self.nodes.iter();
        let mut at = root.child_ref();
        loop {
            let Some(bytes) = nodes.next() else {
                return Err(bad("ends before the key's place"));
            };
            let node = Node::decode(&hasher.check(&at.handle, bytes.clone())?)?;
            node.check(&at)?;
            let value = match node.find(key, &at.interval) {
                Find::Child(child) => {
                    at = child;
                    continue;
                }
                Find::Absent => None,
                Find::Value(value) => Some(value),
            };
            return match nodes.next() {
                None => Ok(value),
                Some(_) => Err(bad("goes on after the key's place")),
            };
        }
    }

    /// Appends the proof's bytes.
    pub fn encode(&self, e: &mut Encoder) {
        e.u8(self.nodes.len() as u8);
        for node in &self.nodes {
            e.bytes(node);
        }
    }

    /// Reads what [`Proof::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for no nodes, too many, or one too large.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Proof, Reject> {
        let count = d.u8()?;
        if !(1..=MAX_HEIGHT).contains(&count) {
            return Err(d.bad("impossible number of nodes"));
        }
        let nodes = (0..count)
            .map(|_| Ok(Bytes::copy_from_slice(d.bytes(MAX_NODE_BYTES)?)))
            .collect::<Result<_, Reject>>()?;
        Ok(Proof { nodes })
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
