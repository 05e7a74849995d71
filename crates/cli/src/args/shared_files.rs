//! Arguments of commands that change files of shared volumes.

use std::ffi::OsString;

use clap::Args;
use trust_shared::decision::Label;
use volume::VersionRef;

use super::labels::parse_label;
use super::reading::parse_version_or_name;
use super::waiting::Waiting;

/// `bulla put`.
#[derive(Debug, Args)]
#[command(override_usage = "bulla put [OPTIONS] <FILE>... <VOLUME> [PATH]")]
pub struct Put {
    /// FILE... VOLUME [PATH]: the files, or `-` for stdin; the shared volume (its name on this machine, or its id); and
    /// the path in it [default: its root directory]
    #[arg(value_name = "FILE... VOLUME [PATH]", required = true, num_args = 2..)]
    pub words: Vec<OsString>,
    /// Also put directories, with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// Replace nothing that was changed after entry N (`bulla log VOLUME` shows the numbers), and make no file where somebody
    /// else has made one since
    #[arg(long, value_name = "N")]
    pub expect: Option<u64>,
    /// Put key files and other files of bulla's own too, which every member then has
    #[arg(long)]
    pub publish_keys: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla mkdir`.
#[derive(Debug, Args)]
pub struct Mkdir {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The directories to make
    #[arg(required = true)]
    pub path: Vec<OsString>,
    /// Also make the directories above that do not exist, and accept those that exist
    #[arg(short, long)]
    pub parents: bool,
    /// The group whose members may use it [default: the owner of the directory above]
    #[arg(long, value_name = "GROUP", value_parser = parse_label)]
    pub group: Option<Label>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla mv`.
#[derive(Debug, Args)]
#[command(override_usage = "bulla mv [OPTIONS] <VOLUME> <FROM>... <TO>")]
pub struct Mv {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// FROM... TO: the files or directories, and the new path. If a directory is there, they go into it; a file that is
    /// there is replaced
    #[arg(value_name = "FROM... TO", required = true, num_args = 2..)]
    pub path: Vec<OsString>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla rm`.
#[derive(Debug, Args)]
pub struct Rm {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// The files to remove
    #[arg(required = true)]
    pub path: Vec<OsString>,
    /// Also remove directories, with all that is in them
    #[arg(short, long)]
    pub recursive: bool,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}

/// `bulla restore`.
#[derive(Debug, Args)]
pub struct Restore {
    /// The shared volume: its name on this machine, or its id
    pub volume: String,
    /// What to restore: a file, or a directory with all that was in it
    pub path: OsString,
    /// As it was after entry N, or at a snapshot by its name. `bulla log` and `bulla share snapshots` show them
    #[arg(long, value_name = "N", value_parser = parse_version_or_name)]
    pub at: VersionRef,
    /// Restore it as NEW, in a directory that is there [default: where it was]
    #[arg(long, value_name = "NEW")]
    pub to: Option<OsString>,
    /// The flags.
    #[command(flatten)]
    pub waiting: Waiting,
}
