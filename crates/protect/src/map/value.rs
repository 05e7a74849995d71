//! What the map knows about one block of the data device.

use wal::Digest;

/// A cell of a page: 16 bytes, read as a big-endian number.
pub(super) type Cell = [u8; 16];

/// Numbers below this are fills, in leaves and in interior pages.
pub(super) const FIRST_DIGEST: u128 = 1 << 64;

/// What the map says about a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value {
    /// The block reads as zeros, whatever the data device has there.
    Zero,
    /// The block has not been read yet: the first read believes the data device.
    Unseen,
    /// Nobody knows what the block should be: it cannot be read before it is written.
    Bad,
    /// The digest of the block's content.
    Digest(Digest),
}

/// A value without a digest. A whole subtree of the map can have it without having pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fill {
    Zero,
    Unseen,
    Bad,
}

impl Value {
    /// The cell of a leaf, or nothing for a digest below 2^64. `DigestKey` yields none.
    pub(super) fn encode(self) -> Option<Cell> {
        match self {
            Value::Zero => Some(Fill::Zero.encode()),
            Value::Unseen => Some(Fill::Unseen.encode()),
            Value::Bad => Some(Fill::Bad.encode()),
            Value::Digest(digest) => {
                (u128::from_be_bytes(digest.0) >= FIRST_DIGEST).then_some(digest.0)
            }
        }
    }

    pub(super) fn decode(cell: Cell) -> Value {
        if u128::from_be_bytes(cell) >= FIRST_DIGEST {
            return Value::Digest(Digest(cell));
        }
        Fill::decode(cell).into()
    }

    pub(super) fn fill(self) -> Option<Fill> {
        match self {
            Value::Zero => Some(Fill::Zero),
            Value::Unseen => Some(Fill::Unseen),
            Value::Bad => Some(Fill::Bad),
            Value::Digest(_) => None,
        }
    }
}

impl Fill {
    pub(super) fn encode(self) -> Cell {
        let number: u128 = match self {
            Fill::Zero => 0,
            Fill::Unseen => 1,
            Fill::Bad => 2,
        };
        number.to_be_bytes()
    }

    /// A number that means nothing is `Bad`: nothing below it can be read.
    pub(super) fn decode(cell: Cell) -> Fill {
        match u128::from_be_bytes(cell) {
            0 => Fill::Zero,
            1 => Fill::Unseen,
            _ => Fill::Bad,
        }
    }
}

impl From<Fill> for Value {
    fn from(fill: Fill) -> Value {
        match fill {
            Fill::Zero => Value::Zero,
            Fill::Unseen => Value::Unseen,
            Fill::Bad => Value::Bad,
        }
    }
}
