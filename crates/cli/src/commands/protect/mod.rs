//! `bulla protect`: devices that are checked block by block.
//!
//! | module | content |
//! |---|---|
//! | `enrol` | a new log that says what a device holds |
//! | `attach` | from two devices and a key to a device that programs use |
//! | `attached`, `watching`, `metrics` | the attached device: its report, and what its operator must know |
//! | `answering` | its answers to other commands |
//! | `front` | loop devices and FUSE files |
//! | `status`, `scrub` | asking an attached device |
//! | `devices` | opening devices and logs, and who else uses them |
//! | `unlock` | what opens a log |
//! | `key`, `anchor` | the commands for key slots and anchors |

mod anchor;
mod answering;
mod attach;
mod attached;
mod devices;
mod enrol;
pub mod front;
mod key;
mod memory;
mod metrics;
mod scrub;
mod status;
mod unlock;
mod watching;

use crate::args::{Global, ProtectAnchorCommand, ProtectCommand, ProtectKeyCommand};
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output};

pub use status::names;

/// Runs one of the commands.
pub fn run(
    command: &ProtectCommand,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    match command {
        ProtectCommand::Enrol(args) => enrol::run(args, global, output),
        ProtectCommand::Attach(args) => attach::run(args, global, config, output),
        ProtectCommand::Detach(args) => status::detach(args, config, output),
        ProtectCommand::Status(args) => status::status(args, config, output),
        ProtectCommand::Scrub(args) => scrub::ask(args, config, output),
        ProtectCommand::Key(ProtectKeyCommand::List(args)) => key::list(args, output),
        ProtectCommand::Key(ProtectKeyCommand::Add(args)) => key::add(args, global, output),
        ProtectCommand::Key(ProtectKeyCommand::Remove(args)) => key::remove(args, global, output),
        ProtectCommand::Anchor(ProtectAnchorCommand::Set(args)) => {
            anchor::set(args, global, output)
        }
    }
}
