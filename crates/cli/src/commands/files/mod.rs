//! Commands about the files of a shared volume: `bulla put`, `mkdir`, `mv`, `rm`; and `extract` and `verify` there.
//!
//! | module | commands |
//! |---|---|
//! | `put` | `put`: files of this machine into the volume |
//! | `words` | FILE... VOLUME [PATH] |
//! | `names` | `mkdir`, `mv` |
//! | `remove` | `rm` |
//! | `extract`, `verify` | the same commands as for published volumes |

pub mod extract;
pub mod names;
pub mod put;
pub mod remove;
pub mod verify;
mod words;
