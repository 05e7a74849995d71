//! For tests only: what lies, crashes and misbehaves, and reference models to compare with.
//!
//! | module | what it plays |
//! |---|---|
//! | [`disk`] | a disk that crashes, and one that fills up |
//! | [`liar`] | a replica that tells one named lie |
//! | [`model`] | a publisher in memory, honest or malformed |
//! | [`nginx`] | a real web server |

pub mod disk;
pub mod liar;
pub mod model;
pub mod nginx;
