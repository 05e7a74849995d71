//! A server that forks a shared volume: it has two copies of the server's directory, shows one to the first device that
//! enters (or to those that are named) and the other to every other device, and orders in both with the orderer's key. Each copy is served by the
//! product's own code, so each device meets a server that keeps all rules, but for the other copy. It can also drop
//! messages of devices.
//!
//! For tests, the benchmarks and the tour in the README; no part of the package. Relies on [`serve::shared`] for the
//! protocol and on [`share_server::host`] for the two logs.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use clap::{Parser, ValueEnum};
use keys::keyfile;
use serve::net::{Opening, Request, Resources, Responder, Server, Service};
use serve::shared::{Session, SharedService, limits};
use share_server::host::{Host, HostOptions};
use tokio::signal::unix::{SignalKind, signal};
use trust::Reject;
use trust::device::DeviceKey;
use trust::key::{PublicKey, SecretKey};
use wire::session::Exporter;
use wire::session::tls;
use wire::shared::enter::{Enter, SIGNING_DOMAIN};
use wire::shared::{PROTOCOL, kind};

/// Serves a shared volume as a server does that lies: the first device that enters sees REPO, the others see COPY.
/// Without COPY all see REPO.
///
/// A tool of bulla's tests. It needs what the operator of a server has: the directory and the orderer's key.
#[derive(Debug, Parser)]
#[command(name = "forking-server")]
pub struct Args {
    /// Directory of the server, which must not run
    pub repo: PathBuf,
    /// The other directory; made as a copy of REPO if there is none
    pub copy: Option<PathBuf>,
    /// Key file of the server, without a passphrase
    #[arg(long, value_name = "FILE")]
    pub orderer_key: PathBuf,
    /// Address for the devices
    #[arg(long, value_name = "ADDR")]
    pub shared: SocketAddr,
    /// Device that sees REPO: its key, as `bulla share device list` shows it; without this, the first one that enters
    #[arg(long, value_name = "KEY")]
    pub first: Vec<PublicKey>,
    /// Drop these messages of devices
    #[arg(long, value_name = "MESSAGE")]
    pub drop: Vec<Dropped>,
}

/// A message that is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dropped {
    /// A device confirms what it has seen.
    Attest,
    /// A device asks another one to confirm.
    Ask,
    /// A device writes.
    Entry,
    /// A device asks for the newest prefix.
    Mark,
    /// A device shows the newest note that it has; an honest server stops when it does not know it
    Note,
}

impl Dropped {
    fn of(kind: u8) -> Option<Dropped> {
        match kind {
            kind::ATTEST => Some(Dropped::Attest),
            kind::ASK => Some(Dropped::Ask),
            kind::ENTRY => Some(Dropped::Entry),
            kind::MARK => Some(Dropped::Mark),
            kind::OPEN => Some(Dropped::Note),
            _ => None,
        }
    }
}

/// Runs the program with these arguments, the first of which is its name, until SIGTERM or SIGINT. Prints `serving` and
/// where when devices can connect, and then which device sees which directory.
///
/// # Errors
/// When a directory, the key or the address cannot be used.
pub fn main(args: impl IntoIterator<Item = OsString>) -> Result<()> {
    let args = Args::parse_from(args);
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build()?;
    runtime.block_on(serve(&args))
}

async fn serve(args: &Args) -> Result<()> {
    let key = keyfile::load(&args.orderer_key, || Err("the key has a passphrase"));
    let key = key.context("reading the orderer's key")?;
    if let Some(to) = args.copy.as_deref().filter(|copy| !copy.exists()) {
        copy(&args.repo, to)?;
    }
    let open = |path: &PathBuf| Branch::open(path, &key);
    let service = Forking {
        first: open(&args.repo)?,
        second: args.copy.as_ref().map(open).transpose()?,
        first_devices: Mutex::new(args.first.iter().map(DeviceKey::from).collect()),
        dropped: args.drop.clone(),
    };
    let mut server = Server::new(service, Resources::new(limits()));
    let config = tls::server(&key).map_err(anyhow::Error::msg)?;
    let at = server.tls(args.shared, config)?;
    let mut terminate = signal(SignalKind::terminate())?;
    tell(&format!("serving bulla://{at}"));
    server
        .run(async move {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminate.recv() => {}
            }
        })
        .await;
    Ok(())
}

/// Copies a directory as it is. The temporary log has holes, which stay holes.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status()?;
    ensure!(status.success(), "cp -a of {} failed", from.display());
    Ok(())
}

fn tell(line: &str) {
    // Nobody may read it.
    let _ = writeln!(std::io::stdout(), "{line}");
    let _ = std::io::stdout().flush();
}

/// One of the two logs.
struct Branch {
    path: PathBuf,
    service: SharedService,
}

impl Branch {
    fn open(path: &Path, key: &SecretKey) -> Result<Branch> {
        // An honest server that was shown a note of the other branch would sign nothing any more.
        match std::fs::remove_file(path.join("restored")) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        let host = Host::open(path, key.clone(), HostOptions::default());
        let host = host.with_context(|| format!("opening {}", path.display()))?;
        Ok(Branch {
            path: path.to_owned(),
            service: SharedService::new([host]),
        })
    }
}

/// Two services, one of which a connection gets by its device.
struct Forking {
    first: Branch,
    second: Option<Branch>,
    /// The devices that see the first branch.
    first_devices: Mutex<Vec<DeviceKey>>,
    dropped: Vec<Dropped>,
}

/// A connection. Before it has entered it is of the first branch, and so are guests.
struct Connection {
    session: Session,
    exporter: Option<Exporter>,
    is_of_second: bool,
}

impl Forking {
    fn branch(&self, connection: &Connection) -> &Branch {
        let second = self.second.as_ref();
        second
            .filter(|_| connection.is_of_second)
            .unwrap_or(&self.first)
    }

    /// Whether the sender of an ENTER sees the second branch.
    fn sees_second(&self, body: &[u8], exporter: Option<Exporter>) -> bool {
        let Some(device) = entering(body, exporter) else {
            return false;
        };
        let first = self.first_devices.lock();
        let mut first = first.unwrap_or_else(PoisonError::into_inner);
        if first.is_empty() {
            first.push(device);
        }
        !first.contains(&device)
    }
}

/// The device that proves its key in an ENTER.
fn entering(body: &[u8], exporter: Option<Exporter>) -> Option<DeviceKey> {
    let enter = Enter::decode(body).ok()?;
    enter
        .device?
        .verify(SIGNING_DOMAIN, enter.volume, &exporter?)
        .ok()
}

impl Service for Forking {
    const PROTOCOL: u8 = PROTOCOL;
    type Session = Connection;

    fn open(&self, opening: Opening<'_>) -> Connection {
        Connection {
            exporter: opening.exporter(),
            session: self.first.service.open(opening),
            is_of_second: false,
        }
    }

    fn max_body_bytes(&self, connection: &Connection, kind: u8) -> Option<usize> {
        let service = &self.branch(connection).service;
        service.max_body_bytes(&connection.session, kind)
    }

    fn request(
        &self,
        connection: &mut Connection,
        mut request: Request<'_>,
        responder: Responder<'_>,
    ) -> Result<(), Reject> {
        match Dropped::of(request.kind).filter(|it| self.dropped.contains(it)) {
            // An OPEN without a note asks for the log from its beginning.
            Some(Dropped::Note) => request.body = request.body.get(..4).unwrap_or_default(),
            Some(_) => return Ok(()),
            None => {}
        }
        if request.kind == kind::ENTER {
            connection.is_of_second = self.sees_second(request.body, connection.exporter);
            let path = self.branch(connection).path.display();
            tell(&format!("a device or guest sees {path}"));
        }
        let service = &self.branch(connection).service;
        service.request(&mut connection.session, request, responder)
    }
}
