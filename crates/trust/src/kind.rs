//! The kinds of blocks. Relies on nothing, because errors name kinds too.

/// What a block is. Part of its name: equal bytes of two kinds have two handles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Kind {
    /// Content of a file (a leaf of an array tree).
    Data = 1,
    /// Interior node of an array tree.
    Array = 2,
    /// Node of a map tree.
    Map = 3,
    /// An inode that does not lie in a directory entry (the root's, or an oversize one).
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
