//! `bulla put`, `mkdir`, `mv`, `rm`: changes of a shared volume.
//!
//! | module | commands |
//! |---|---|
//! | `put` | `put`: files of this machine into the volume |
//! | `words` | FILE... VOLUME [PATH] |
//! | `names` | `mkdir`, `mv` |
//! | `remove` | `rm` |

pub mod names;
pub mod put;
pub mod remove;
mod words;
