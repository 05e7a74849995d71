//! The server of a shared volume as a process of its own: this program, which calls itself. So its processor time and
//! memory are its own, and it can be killed.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serve::shared::{Server, limits};
use share_server::host::{Host, HostOptions};

use super::volume::orderer;
use crate::field::Field;
use crate::process::{self, Daemon};

/// The subcommand that [`start`] calls.
pub const SUBCOMMAND: &str = "serve-shared";

/// Serves a directory at a free port of 127.0.0.1.
pub fn start(field: &Field, dir: &Path) -> Result<(Daemon, u16)> {
    let port = process::free_port()?;
    Ok((start_at(field, dir, port)?, port))
}

/// Serves a directory at this port of 127.0.0.1.
pub fn start_at(field: &Field, dir: &Path, port: u16) -> Result<Daemon> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(SUBCOMMAND).arg(dir).arg(port.to_string());
    let mut daemon = Daemon::start(SUBCOMMAND, &mut command, &field.log(SUBCOMMAND))?;
    daemon.wait_for_port(port)?;
    Ok(daemon)
}

/// What the process does: it serves until it is ended.
pub fn run(dir: &Path, port: u16) -> Result<()> {
    let host = Host::open(dir, orderer(), HostOptions::default())?;
    let mut server = Server::new([host], &orderer(), limits())?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        server.listen(at).context("listening")?;
        server.run(std::future::pending()).await;
        Ok(())
    })
}
