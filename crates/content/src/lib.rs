//! What becomes blocks, for all jobs that write: content is cut, named by its hash, packed and put. And the files of this
//! machine that it comes from or goes to.
//!
//! | module | content |
//! |---|---|
//! | [`chunk`] | cuts content into pieces and holes |
//! | [`blocks`] | names and packs blocks; data will be sealed here, between the cut and the name |
//! | [`source`] | content that comes piece by piece: a stream, or a file of which holes are not read |
//! | [`upload`] | content of one file on its way into a sink, in bounded memory |
//! | [`gathering`] | blocks of many files on their way into one sink, in batches |
//! | [`attributes`], [`access`] | attributes of a local file as they are published, and what an access control list leaves |
//! | [`local`] | directories and files of this machine, opened without following links |
//! | [`room`] | whether a file system has room for more |
//!
//! Relies on `store` for sinks and on `trust` for trees. Knows no volume, no log and no network.

pub mod access;
pub mod attributes;
pub mod blocks;
pub mod chunk;
pub mod gathering;
pub mod local;
pub mod room;
pub mod source;
pub mod upload;
