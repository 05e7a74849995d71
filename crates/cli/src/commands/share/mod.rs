//! `bulla share`: volumes that several devices write (design `share.md`). One module for each subject.
//!
//! | module | commands |
//! |---|---|
//! | `check` | `share check`: evidence against a server or a device |

use crate::args::{Global, ShareCommand};
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output};

mod check;

/// Runs a command.
pub fn run(
    command: &ShareCommand,
    _global: &Global,
    _config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    match command {
        ShareCommand::Check(args) => check::run(args, output),
    }
}
