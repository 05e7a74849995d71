//! `bulla serve` for shared volumes: a directory becomes the server of one (`--accept`), and serves its devices inside TLS
//! with the orderer's key. Several volumes of one orderer share an address. No device trusts this server; what it signs,
//! it is held to.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::serve::net::{Counters, Listen};
use ::serve::shared::{Server, limits};
use serde_json::json;
use share_server::blocks::storage::MIN_RING_BYTES;
use share_server::host::{CollectionOptions, Collections, Host, HostError, HostOptions};
use trust::key::SecretKey;
use trust::statement::VolumeId;
use wal::LogError;

use crate::address::listen_address;
use crate::args::{Collect, Global, Serve, ServeShared};
use crate::commands::key;
use crate::failure::{Failure, Kind, Outcome, io_kind};
use crate::output::{Output, fields};
use crate::sharing::recovery;
use crate::units;

/// Where devices connect, if the operator does not say.
const ADDRESS: &str = "127.0.0.1:28553";
/// Space for what has not moved to its place yet.
const RING_BYTES: u64 = 256 << 20;

/// Directories that are the servers of shared volumes, open.
pub struct Ordering {
    volumes: Vec<Opened>,
    key: SecretKey,
}

struct Opened {
    path: PathBuf,
    host: Arc<Host>,
}

/// A server on its addresses.
pub struct Listening {
    server: Server,
    volumes: Vec<Opened>,
    at: Vec<SocketAddr>,
}

impl Ordering {
    /// Opens the shared volumes among the repositories, if there are any; `--accept` makes one.
    pub fn open(args: &Serve, global: &Global) -> Outcome<Option<Ordering>> {
        let flags = &args.shared;
        let paths = which(args)?;
        let Some(first) = paths.first() else {
            let unused = [
                (flags.accept.is_some(), "--accept"),
                (flags.orderer_key.is_some(), "--orderer-key"),
                (flags.collect.is_some(), "--collect"),
                (flags.keep.is_some(), "--keep"),
            ];
            return match unused.iter().find(|(is_given, _)| *is_given) {
                None => Ok(None),
                Some((_, flag)) => Err(needless(flag)),
            };
        };
        let key = flags.orderer_key.as_ref().ok_or_else(|| {
            let error = format!(
                "{} is a shared volume, and no key is given",
                first.display()
            );
            let hint = "name the key file of this server with --orderer-key FILE";
            Failure::new(Kind::Usage, error).with_hint(hint)
        })?;
        let key = key::load(key, &flags.passphrase, global.no_input)?;
        if let Some(genesis) = &flags.accept {
            accept(first, genesis, &key, flags)?;
        }
        let volumes = paths.into_iter().map(|path| Opened::at(path, &key, flags));
        let volumes = volumes.collect::<Outcome<Vec<_>>>()?;
        if let Some((one, other)) = Opened::twins(&volumes) {
            let (one, other) = (one.display(), other.display());
            let error = format!("{one} and {other} are servers of one volume");
            let hint =
                "name only the one that the devices use: two servers would order differently";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        Ok(Some(Ordering { volumes, key }))
    }

    /// Whether this is one of the directories.
    pub fn has(&self, path: &Path) -> bool {
        self.volumes.iter().any(|volume| volume.path == path)
    }

    /// Listens for the devices: on `sockets`, if there are any.
    pub fn listen(self, args: &Serve, sockets: Vec<Listen>) -> Outcome<Listening> {
        let places = match sockets.is_empty() {
            true => {
                let at = args.shared.shared.as_deref().unwrap_or(ADDRESS);
                vec![Listen::At(listen_address(at)?)]
            }
            false => sockets,
        };
        let mut limits = limits();
        if let Some(connections) = args.max_connections {
            limits.max_connections = connections.max(1);
        }
        if let Some(connections) = args.max_per_client {
            limits.max_per_client = connections.max(1);
        }
        let hosts = self.volumes.iter().map(|volume| Arc::clone(&volume.host));
        let mut server = Server::new(hosts, &self.key, limits)?;
        let at = places.into_iter().map(|place| server.listen(place));
        Ok(Listening {
            at: at.collect::<Result<_, _>>()?,
            server,
            volumes: self.volumes,
        })
    }
}

impl Opened {
    fn at(path: &Path, key: &SecretKey, flags: &ServeShared) -> Outcome<Opened> {
        let mut options = HostOptions {
            collection: collection(flags),
            ..HostOptions::default()
        };
        if let Some(quarter) = flags.quarter {
            // Blocks leave the temporary log sooner, too.
            options.blocks.window = options.blocks.window.min(quarter);
        }
        let host = Host::open(path, key.clone(), options)?;
        let path = path.to_owned();
        Ok(Opened { path, host })
    }

    /// Two directories of one volume.
    fn twins(all: &[Opened]) -> Option<(&Path, &Path)> {
        all.iter().enumerate().find_map(|(number, one)| {
            let mut before = all.iter().take(number);
            let other = before.find(|other| other.host.volume() == one.host.volume())?;
            Some((&*other.path, &*one.path))
        })
    }
}

impl Listening {
    /// What its metrics are read from.
    pub fn watched(&self) -> (Arc<Counters>, Vec<Arc<Host>>) {
        let hosts = self.volumes.iter().map(|volume| Arc::clone(&volume.host));
        (
            Arc::clone(self.server.resources().counters()),
            hosts.collect(),
        )
    }

    /// Prints where the devices of each volume connect. Gives the number of volumes.
    pub fn announce(&self, output: &mut Output) -> Outcome<usize> {
        for volume in &self.volumes {
            for at in &self.at {
                announce(output, &volume.host.volume(), &volume.path, *at)?;
            }
        }
        Ok(self.volumes.len())
    }

    /// Serves until `stop` completes.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        self.server.run(stop).await;
    }
}

/// The repositories that are shared volumes, or the one that shall become one.
fn which(args: &Serve) -> Outcome<Vec<&Path>> {
    if args.shared.accept.is_some() {
        return match args.repo.as_slice() {
            [path] => Ok(vec![path.as_path()]),
            _ => {
                let error = "--accept needs exactly one REPO";
                let hint = "run it once with this REPO; later `bulla serve` takes several";
                Err(Failure::new(Kind::Usage, error).with_hint(hint))
            }
        };
    }
    let mut found = Vec::new();
    for path in &args.repo {
        if Host::is_at(path)? {
            found.push(&**path);
        }
    }
    Ok(found)
}

fn needless(flag: &str) -> Failure {
    let error = format!("{flag} is given, and no REPO is a shared volume");
    let hint = "make one with --accept GENESIS, which `bulla share init` wrote";
    Failure::new(Kind::Usage, error).with_hint(hint)
}

/// When blocks that nobody needs are removed.
fn collection(flags: &ServeShared) -> CollectionOptions {
    let mut options = CollectionOptions::default();
    options.runs = match flags.collect.unwrap_or(Collect::Auto) {
        Collect::Auto => Collections::Auto,
        Collect::Never => Collections::Never,
        Collect::Now => Collections::Now,
    };
    options.keep = flags.keep.unwrap_or(options.keep);
    if let Some(quarter) = flags.quarter {
        options.quarter = quarter;
        options.grace = options.grace.min(quarter);
        options.rest = options.rest.min(1);
    }
    options
}

/// Makes the directory, unless it is the server of this volume already.
fn accept(path: &Path, genesis: &Path, key: &SecretKey, flags: &ServeShared) -> Outcome<()> {
    let rules = recovery::read(genesis)?;
    let Some(first) = rules.first() else {
        let error = format!("{} has no rules", genesis.display());
        return Err(Failure::new(Kind::BadGenesis, error));
    };
    let volume = VolumeId::from_bytes(first.statement().hash());
    if !Host::is_at(path)? {
        if rules.len() > 1 {
            let error = format!("{} has no log to go on with", path.display());
            let hint = "the rules let a log stand: name the directory of a server that has it, or a copy of one";
            return Err(Failure::new(Kind::OtherStart, error).with_hint(hint));
        }
        let ring = flags.ring.unwrap_or(RING_BYTES);
        if ring < MIN_RING_BYTES {
            let error = format!("--ring {}: too small", units::size(ring));
            let hint = "give 4MiB or more";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let made = Host::create(path, first, &key.public(), ring);
        made.map_err(|error| without_room(error, ring))?;
        return Ok(());
    }
    match Host::renew(path, &rules, &key.public())? {
        is if is == volume => Ok(()),
        is => {
            let error = format!(
                "{} is the server of {is}, and not of {volume}",
                path.display()
            );
            Err(Failure::new(Kind::OtherVolume, error))
        }
    }
}

/// The failure for a directory that was not made. Most of its space is that of the ring.
fn without_room(error: HostError, ring: u64) -> Failure {
    let is_full = match &error {
        HostError::Blocks(share_server::blocks::Error::Log(LogError::Io { source, .. })) => {
            io_kind(source) == Kind::DiskFull
        }
        _ => false,
    };
    let mut failure = Failure::from(error);
    if is_full {
        failure.kind = Kind::DiskFull;
    }
    if failure.kind != Kind::DiskFull {
        return failure;
    }
    failure.with_hint(format!(
        "{} are set aside for what is written and not moved to its place yet: free so much, or give less with --ring SIZE",
        units::size(ring)
    ))
}

/// Prints where devices connect.
fn announce(output: &mut Output, volume: &VolumeId, path: &Path, at: SocketAddr) -> Outcome<()> {
    let source = format!("{volume}@bulla://{at}");
    if !output.json() {
        return output.line(&source);
    }
    let record = json!({"volume": volume.to_string(), "repository": path.display().to_string(),
        "address": at.to_string(), "source": source, "shared": true});
    output.record("serving", fields(record))
}
