//! What is asked of an extraction, and what comes of it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use content::room::Room;
use trust::root::Totals;

use crate::error::Error;

/// What the caller asks for.
#[derive(Debug, Clone, Default)]
pub struct ExtractOptions {
    /// Set owners, set-user-id bits, capabilities and devices as published. Needs root. The publisher can
    /// then take over this machine.
    pub owner: bool,
    /// Leave out what cannot be made here instead of giving up.
    pub skip_special: bool,
    /// What stays free in the target's file system.
    pub keep_free: Room,
}

/// Attributes that the file system refused.
#[derive(Debug, Default)]
pub struct Refused {
    /// Entries whose mode it did not take.
    pub modes: u64,
    /// Entries whose owner it did not take.
    pub owners: u64,
    /// Entries whose time it did not take.
    pub times: u64,
    /// The first of them, and why.
    pub first: Option<(PathBuf, io::Error)>,
}

/// What was made.
#[derive(Debug, Default)]
pub struct Extracted {
    /// What was made, in numbers; the content of a hard-linked file counts once.
    pub totals: Totals,
    /// Entries and attributes that were left out.
    pub skipped_count: u64,
    /// The first of them: path, and why.
    pub skipped: Vec<(PathBuf, String)>,
    /// What the file system refused.
    pub refused: Refused,
    /// Whether an interrupted extraction went on.
    pub went_on: bool,
    /// Regular files that were there with the right content.
    pub kept: u64,
    /// Entries in the directories of the tree that the tree does not have; they are left alone.
    pub extra_count: u64,
    /// The first of them.
    pub extra: Vec<PathBuf>,
    /// Names of a shared volume that were left out, because this user may not read their files, or because they are gone or
    /// damaged.
    pub hidden: u64,
}

/// Why a tree could not be extracted. Files that were made until then stay.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The bytes cannot be fetched, or cannot be proved.
    #[error("{}", path.display())]
    Read {
        /// Inside the volume.
        path: PathBuf,
        /// Why not.
        #[source]
        why: Box<Error>,
    },
    /// The volume does not answer.
    #[error(transparent)]
    Volume(Error),
    /// The target is neither empty nor an unfinished extraction of the same.
    #[error(
        "{} is not an empty directory, nor an unfinished extraction of this volume and path",
        path.display()
    )]
    NotEmpty {
        /// The target.
        path: PathBuf,
    },
    /// Another process extracts to the target.
    #[error("another process extracts to {}", path.display())]
    InUse {
        /// The target.
        path: PathBuf,
    },
    /// The file system takes two names of the tree for one, or somebody removes files.
    #[error(
        "{}: fewer entries are there than were made: the file system takes two names for one, or another program \
         removes files",
        path.display()
    )]
    Fewer {
        /// The directory, inside the target.
        path: PathBuf,
    },
    /// The system returned an error.
    #[error("cannot make {}", path.display())]
    System {
        /// Inside the target.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Another program has replaced a file that was made.
    #[error("{}: another program has replaced it", path.display())]
    Replaced {
        /// Inside the target.
        path: PathBuf,
    },
    /// A device or another entry that only root may make, and only for a trusted publisher.
    #[error("{} is a {what}, which is made only by root and with --owner", path.display())]
    Special {
        /// Inside the target.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The tree needs more space than there is.
    #[error(
        "{}: the target's file system is nearly full; the tree is larger than what it can hold",
        path.display()
    )]
    NoRoom {
        /// What was being made, inside the target.
        path: PathBuf,
    },
    /// The tree is deeper than [`crate::walk::MAX_DEPTH`].
    #[error("{} is nested too deeply", path.display())]
    TooDeep {
        /// Inside the target.
        path: PathBuf,
    },
    /// A task ended without a result, which is a defect of this program.
    #[error("a task died: {0}")]
    Died(String),
}

impl ExtractError {
    /// What could not be read at a path of the volume. That a shared volume does not answer is no matter of one path.
    pub(super) fn read(path: &[u8], why: Error) -> ExtractError {
        match why {
            Error::Read(_) | Error::Volume(_) => ExtractError::Read {
                path: shown(path),
                why: Box::new(why),
            },
            why => ExtractError::Volume(why),
        }
    }
}

/// A path of the volume, for people.
pub(super) fn shown(path: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(if path.is_empty() { b"." } else { path }))
}
