//! One module per command, and the dispatch to them.

use crate::args::{
    Cli, Command, ConfigCommand, ForkCommand, KeyCommand, OrdererCommand, PolicyCommand,
};
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output};

mod alterations;
mod cat;
mod check;
mod completing;
mod config;
mod damage_report;
mod doctor;
mod excluded;
mod expiry_notes;
mod extract;
mod files;
mod fork;
mod key;
mod log;
mod log_compare;
mod ls;
mod manual;
mod mount;
mod new_volume;
mod orderer;
mod policy;
mod prefetch;
mod protect;
mod prove;
mod prune;
mod publish;
mod pull;
mod refer;
mod renew;
pub mod serve;
mod share;
mod sign;
mod source;
mod stat;
mod status;
mod timestamp;
mod verify;
mod witness;

/// Runs a command.
pub fn run(cli: &Cli, config: &Config, output: &mut Output) -> Outcome<Done> {
    let global = &cli.global;
    match &cli.command {
        Command::Key(KeyCommand::New(args)) => key::new(args, global, output),
        Command::Key(KeyCommand::Refer(args)) => refer::run(args, output),
        Command::Key(KeyCommand::Show(args)) => key::show(args, output),
        Command::Key(KeyCommand::List(args)) => key::list(args, config, output),
        Command::Publish(args) => publish::run(args, global, config, output),
        Command::Sign(args) => sign::sign(args, global, config, output),
        Command::Renew(args) => renew::run(args, global, config, output),
        Command::Policy(PolicyCommand::Show(args)) => policy::show(args, output),
        Command::Policy(PolicyCommand::New(args)) => policy::new(args, output),
        Command::Policy(PolicyCommand::Sign(args)) => policy::sign(args, global, config, output),
        Command::Policy(PolicyCommand::Install(args)) => {
            policy::install(args, global, config, output)
        }
        Command::Fork(ForkCommand::Show(args)) => fork::show(args, config, output),
        Command::Fork(ForkCommand::Settle(args)) => fork::settle(args, global, config, output),
        Command::Log(args) => log::log(args, config, output),
        Command::Diff(args) => log::compare(args, config, output),
        Command::Prove(args) => prove::run(args, config, output),
        Command::Check(args) => check::run(args, config, output),
        Command::Witness(command) => witness::run(command, global, config, output),
        Command::Serve(args) => serve::run(args, global, config, output),
        Command::Pull(args) => pull::run(args, config, output),
        Command::Prune(args) => prune::run(args, output),
        Command::Mount(args) => mount::mount(args, global, config, output),
        Command::Protect(command) => protect::run(command, global, config, output),
        Command::Orderer(OrdererCommand::New(args)) => orderer::new(args, global, output),
        Command::Share(command) => share::run(command, global, config, output),
        Command::Put(args) => files::put::run(args, config, output),
        Command::Mkdir(args) => files::names::mkdir(args, config, output),
        Command::Mv(args) => files::names::mv(args, config, output),
        Command::Rm(args) => files::remove::run(args, config, output),
        Command::Restore(args) => files::restore::run(args, config, output),
        Command::Umount(args) => mount::umount(args, config, output),
        Command::Source(command) => source::run(command, config, output),
        Command::Status(args) => status::run(args, config, output),
        Command::Doctor(args) => doctor::run(args, config, output),
        Command::Ls(args) => ls::run(args, config, output),
        Command::Cat(args) => cat::run(args, config, output),
        Command::Stat(args) => stat::run(args, config, output),
        Command::Extract(args) => extract::run(args, config, output),
        Command::Verify(args) => verify::run(args, config, output),
        Command::Prefetch(args) => prefetch::run(args, config, output),
        Command::Config(ConfigCommand::Show) => config::show(config, output),
        Command::Completions(args) => completing::completions(args, output),
        Command::Man(args) => manual::man(args, output),
        Command::Version => manual::version(output),
    }
}
