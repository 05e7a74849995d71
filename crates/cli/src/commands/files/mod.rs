//! Commands about the files of a shared volume: `bulla put`, `mkdir`, `mv`, `rm`, `restore`; and its `log`.
//!
//! | module | commands |
//! |---|---|
//! | `put` | `put`: files of this machine into the volume |
//! | `descent` | in which order `put` takes them, and how many at a time |
//! | `overwriting` | what `put` may replace, and what it tells of that |
//! | `words` | FILE... VOLUME [PATH] |
//! | `names` | `mkdir`, `mv` |
//! | `remove` | `rm` |
//! | `restore` | `restore` |
//! | `log` | who did what |
//! | `entry_words`, `entry_paths` | what an op of the log does, in words; the paths of its files |

mod descent;
mod entry_paths;
mod entry_words;
pub mod log;
pub mod names;
mod overwriting;
pub mod put;
pub mod remove;
pub mod restore;
mod words;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use content::upload::UploadError;

use crate::failure::{Failure, Kind};
use crate::text;

/// The failure for a file of this machine that cannot be read.
fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let shown = text::printable(path.as_os_str().as_bytes());
    let mut failure = Failure::io(format!("cannot read {shown}"), error);
    if !matches!(failure.kind, Kind::NoFile) {
        failure = failure.with_hint("make the file readable, or leave it out");
    }
    failure
}

/// The failure for a file whose content is not in the volume.
fn not_uploaded(path: &Path, why: UploadError) -> Failure {
    match why {
        UploadError::Read(error) => unreadable(path, &error),
        UploadError::Sink(error) => error.into(),
        UploadError::Defect(why) => {
            Failure::of(Kind::Defect, "a file cannot be cut into blocks", &why)
        }
    }
}
