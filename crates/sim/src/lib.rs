//! For tests only: what lies, crashes and misbehaves, and reference models to compare with.
//!
//! | module | what it plays |
//! |---|---|
//! | [`disk`] | a disk that crashes, and one that fills up |
//! | [`holder`] | a process that holds a lock and is stopped |
//! | [`liar`] | a replica that tells one named lie |
//! | [`model`] | a publisher in memory, honest or malformed |
//! | [`network`] | hosts far apart: delay, loss, partition |
//! | [`nginx`] | a real web server |

pub mod disk;
pub mod holder;
pub mod liar;
pub mod model;
pub mod network;
pub mod nginx;
