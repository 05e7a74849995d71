//! `bulla share`: volumes that several devices write (design `share.md`). One module for each subject.
//!
//! | module | commands |
//! |---|---|
//! | `init` | `share init`: a new volume |
//! | `admit` | `share invite`, `share device add` |
//! | `join` | `share join` |
//! | `members` | `share device`, `user`, `group`, `grant`, `revoke`, `accept` |
//! | `checkpoint` | `share checkpoint`: what the log comes to, signed for new devices |
//! | `status` | `share status` |
//! | `metrics` | what `share run` tells a monitoring system |
//! | `run` | `share run`: the engine for all programs of a user |
//! | `beacon` | `share beacon`: devices that must write again and again |
//! | `compare` | `share compare`: whether two devices were shown one log |
//! | `check` | `share check`: evidence against a server or a device |
//! | `recover` | `share recover`: another log stands after a fork |
//! | `follow` | `share follow`: a device goes over to it, and gets its work back |
//! | `forget` | `share forget`: a machine gives its device up |
//! | `conflicts` | `share conflicts`: copies of what two devices wrote at the same time |
//! | `export` | `share export`: a snapshot as a published volume |

use crate::args::{Global, ShareCommand, ShareDeviceCommand, ShareGroupCommand, ShareUserCommand};
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output};

mod admit;
mod beacon;
pub mod check;
mod checkpoint;
mod compare;
mod conflicts;
mod export;
mod follow;
mod forget;
mod init;
mod join;
pub mod members;
mod metrics;
mod recover;
mod run;
mod snapshots;
mod status;

/// Runs a command.
pub fn run(
    command: &ShareCommand,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    match command {
        ShareCommand::Init(args) => init::run(args, global, config, output),
        ShareCommand::Invite(args) => admit::invite(args, global, config, output),
        ShareCommand::Join(args) => join::run(args, config, output),
        ShareCommand::Device(command) => match command {
            ShareDeviceCommand::Add(args) => admit::add(args, config, output),
            ShareDeviceCommand::Remove(args) => members::remove_device(args, config, output),
            ShareDeviceCommand::Name(args) => members::name_device(args, config, output),
            ShareDeviceCommand::List(args) => members::devices(args, config, output),
        },
        ShareCommand::User(command) => match command {
            ShareUserCommand::Add(args) => members::add_user(args, config, output),
            ShareUserCommand::List(args) => members::users(args, config, output),
        },
        ShareCommand::Group(command) => match command {
            ShareGroupCommand::Add(args) => members::add_group(args, config, output),
            ShareGroupCommand::Remove(args) => members::remove_group(args, config, output),
            ShareGroupCommand::List(args) => members::groups(args, config, output),
        },
        ShareCommand::Grant(args) => members::grant(args, config, output),
        ShareCommand::Revoke(args) => members::revoke(args, config, output),
        ShareCommand::Accept(args) => members::accept(args, config, output),
        ShareCommand::Checkpoint(args) => checkpoint::run(args, global, config, output),
        ShareCommand::Snapshot(args) => snapshots::snapshot(args, config, output),
        ShareCommand::Conflicts(args) => conflicts::run(args, config, output),
        ShareCommand::Snapshots(args) => snapshots::list(args, config, output),
        ShareCommand::Retain(args) => snapshots::retain(args, config, output),
        ShareCommand::Export(args) => export::run(args, global, config, output),
        ShareCommand::Forget(args) => forget::run(args, global, config, output),
        ShareCommand::Recover(args) => recover::recover(args, global, config, output),
        ShareCommand::Follow(args) => follow::run(args, config, output),
        ShareCommand::Status(args) => status::run(args, config, output),
        ShareCommand::Run(args) => run::run(args, config, output),
        ShareCommand::Beacon(args) => beacon::run(args, config, output),
        ShareCommand::Compare(args) => compare::run(args, config, output),
        ShareCommand::Check(args) => check::run(args, output),
    }
}
