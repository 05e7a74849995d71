//! The kinds of blocks. A module without dependencies, because errors name kinds too.

/// The kind of a block. It is hashed into the handle: equal bytes of two kinds have two handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Content of a file (a leaf of an array tree).
    Data = 1,
    /// Interior node of an array tree.
    Array = 2,
    /// Node of a map tree.
    Map = 3,
    /// An inode stored outside of a directory entry (the root's, or an oversize one).
    Inode = 4,
}

impl Kind {
    /// All kinds in the order of their bytes.
    pub const ALL: [Kind; 4] = [Kind::Data, Kind::Array, Kind::Map, Kind::Inode];

    /// Reads the kind byte of a frame.
    pub fn from_byte(byte: u8) -> Option<Kind> {
        Kind::ALL.into_iter().find(|k| *k as u8 == byte)
    }
}
