//! The files of a volume, as one device sees them: calls of programs, and their answers.
mod answer;
mod call;
mod codec;
mod shelf;

pub use answer::{Answer, Basis, File, Listed, Refused, Roll};
pub use call::{
    Attributes, Call, MAX_LISTED, MAX_LISTED_INODES, MAX_PLACE_NAMES, Over, Place, Which,
};
pub use shelf::{DEFAULT_SHELF_BYTES, Shelf};
