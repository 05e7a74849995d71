//! Commands about the files of a shared volume: `bulla put`, `mkdir`, `mv`, `rm`; and `extract` and `verify` there.
//!
//! | module | commands |
//! |---|---|
//! | `put` | `put`: files of this machine into the volume |
//! | `local` | files of this machine, below a directory that the user names |
//! | `descent` | in which order `put` takes them, and how many at a time |
//! | `overwriting` | what `put` may replace, and what it tells of that |
//! | `words` | FILE... VOLUME [PATH] |
//! | `names` | `mkdir`, `mv` |
//! | `remove` | `rm` |
//! | `extract`, `verify`, `log`, `diff` | the same commands as for published volumes |
//! | `acts`, `ways` | what an op of the log does, in words; the paths of its files |

mod acts;
mod descent;
pub mod diff;
pub mod extract;
mod local;
pub mod log;
pub mod names;
mod overwriting;
pub mod put;
pub mod remove;
pub mod verify;
mod ways;
mod words;
