//! The body of an entry: its ops, each of them guards and changes. Relies on [`super::change`], [`super::guard`]
//! and [`super::outline`].
//!
//! ```text
//! body = format u8 (0) | principals: count varint | [32] * count | ops: count varint | op * count
//! op   = count varint | guard * count | count varint | change * count
//! ```

use super::change::Change;
use super::decision::Decision;
use super::guard::Guard;
use super::key::Key;
use super::outline::{MAX_OP_CHANGES, MAX_OPS, MAX_OPS_BYTES, Outline};
use super::principal::{Principal, Reader, Writer};
use trust::error::Reject;

/// Most guards of an op, apart from the links of a path.
pub const MAX_OP_GUARDS: usize = 16;
/// Most guards of an entry.
pub const MAX_GUARDS: usize = 256;

const FORMAT: u8 = 0;
const WHAT: &str = "body of an entry";

/// One system call: all of its changes happen at the entry's position, or none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Op {
    /// What must hold.
    pub guards: Vec<Guard>,
    /// What changes: at least one, in the order of their keys, each key once.
    pub changes: Vec<Change>,
}

impl Op {
    /// An op with its changes in order.
    pub fn new(guards: Vec<Guard>, mut changes: Vec<Change>) -> Op {
        changes.sort_by_cached_key(Change::key);
        Op { guards, changes }
    }

    /// The decisions among its changes.
    pub fn decisions(&self) -> impl Iterator<Item = &Decision> {
        self.changes.iter().filter_map(|change| match change {
            Change::Decide(decision) => Some(decision),
            _ => None,
        })
    }

    fn principals(&self) -> impl Iterator<Item = Principal> {
        let guards = self.guards.iter().flat_map(Guard::principals);
        guards.chain(self.changes.iter().flat_map(Change::principals))
    }

    /// Why no entry may hold the op.
    fn fault(&self) -> Option<&'static str> {
        let links = |guard: &&Guard| matches!(guard, Guard::Linked { .. });
        let others = self
            .guards
            .len()
            .saturating_sub(self.guards.iter().filter(links).count());
        let keys: Vec<Key> = self.changes.iter().map(Change::key).collect();
        if others > MAX_OP_GUARDS {
            return Some("over 16 guards of an op");
        }
        if keys.is_empty() {
            return Some("an op without changes");
        }
        if !keys.is_sorted_by(|a, b| a < b) {
            return Some("changes not sorted, or two of one key");
        }
        None
    }
}

/// What an entry does.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Body {
    ops: Vec<Op>,
}

impl Body {
    /// A body of these ops.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when they are more than an entry may have.
    pub fn new(ops: Vec<Op>) -> Result<Body, Reject> {
        let body = Body { ops };
        let bytes = body.encode();
        if bytes.len() + body.outline().encode().len() > MAX_OPS_BYTES {
            return Err(bad("over 48 KiB with its outline"));
        }
        Body::decode(&bytes)
    }

    /// The ops in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The keys that each op changes.
    pub fn outline(&self) -> Outline {
        let keys = |op: &Op| op.changes.iter().map(Change::key).collect();
        Outline::of(self.ops.iter().map(keys).collect())
    }

    /// Whether the outline says what the body does. An orderer refuses an entry of which it does not.
    pub fn is_outlined_by(&self, outline: &Outline) -> bool {
        self.outline() == *outline
    }

    /// The canonical bytes.
    pub fn encode(&self) -> Vec<u8> {
        let principals = self.ops.iter().flat_map(Op::principals).collect();
        let mut w = Writer::new(FORMAT, principals);
        w.out.varint(self.ops.len() as u64);
        for op in &self.ops {
            w.out.varint(op.guards.len() as u64);
            op.guards.iter().for_each(|guard| guard.encode(&mut w));
            w.out.varint(op.changes.len() as u64);
            op.changes.iter().for_each(|change| change.encode(&mut w));
        }
        w.out.finish()
    }

    /// Reads the canonical bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of a body within the bounds;
    /// [`Reject::Unsupported`] for a later format.
    pub fn decode(bytes: &[u8]) -> Result<Body, Reject> {
        let mut r = Reader::new(bytes, WHAT, FORMAT)?;
        if bytes.len() > MAX_OPS_BYTES {
            return Err(r.rest.bad("over 48 KiB"));
        }
        let count = r.rest.bounded(MAX_OPS as u64, "over 1,024 ops")?;
        let (mut ops, mut all_guards) = (Vec::new(), 0);
        for _ in 0..count {
            let guards = r.rest.bounded(MAX_GUARDS as u64, "over 256 guards")?;
            all_guards += guards;
            if all_guards > MAX_GUARDS as u64 {
                return Err(r.rest.bad("over 256 guards"));
            }
            let guards: Result<Vec<Guard>, Reject> =
                (0..guards).map(|_| Guard::decode(&mut r)).collect();
            let guards = guards?;
            let changes = r
                .rest
                .bounded(MAX_OP_CHANGES as u64, "over 16 changes of an op")?;
            let changes: Result<Vec<Change>, Reject> =
                (0..changes).map(|_| Change::decode(&mut r)).collect();
            let changes = changes?;
            let op = Op { guards, changes };
            if let Some(why) = op.fault() {
                return Err(r.rest.bad(why));
            }
            ops.push(op);
        }
        r.finish()?;
        Ok(Body { ops })
    }
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
