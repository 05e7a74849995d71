//! `bulla serve` for a shared volume: a directory becomes its server (`--accept`), and serves its devices inside TLS with
//! the orderer's key. No device trusts this server; what it signs, it is held to.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ::serve::shared::{Server, limits};
use ::share::host::{Host, HostOptions};
use serde_json::json;
use trust::key::SecretKey;
use trust::statement::{Job, MAX_SIGNED_BYTES, Signed, VolumeId};

use crate::address::listen_address;
use crate::args::{Global, Serve, ServeShared};
use crate::commands::key;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Output, fields};

/// Where devices connect, if the operator does not say.
const ADDRESS: &str = "127.0.0.1:28553";
/// Space for what has not moved to its place yet.
const RING_BYTES: u64 = 256 << 20;

/// A directory that is the server of a shared volume, open.
pub struct Ordering {
    path: PathBuf,
    host: Arc<Host>,
    key: SecretKey,
}

/// A server on its address.
pub struct Listening {
    server: Server,
}

impl Ordering {
    /// Opens the one shared volume among the repositories, if there is one; `--accept` makes it.
    pub fn open(args: &Serve, global: &Global) -> Outcome<Option<Ordering>> {
        let flags = &args.shared;
        let Some(path) = which(args)? else {
            let unused = [
                (flags.accept.is_some(), "--accept"),
                (flags.orderer_key.is_some(), "--orderer-key"),
            ];
            return match unused.iter().find(|(is_given, _)| *is_given) {
                None => Ok(None),
                Some((_, flag)) => Err(needless(flag)),
            };
        };
        let key = flags.orderer_key.as_ref().ok_or_else(|| {
            let error = format!("{} is a shared volume, and no key is given", path.display());
            let hint = "name the key file of this server with --orderer-key FILE";
            Failure::new(Kind::Usage, error).with_hint(hint)
        })?;
        let key = key::load(key, &flags.passphrase, global.no_input)?;
        if let Some(genesis) = &flags.accept {
            accept(path, genesis, &key, flags)?;
        }
        let host = Host::open(path, key.clone(), HostOptions::default())?;
        let path = path.to_owned();
        Ok(Some(Ordering { path, host, key }))
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Listens for the devices, and prints where.
    pub fn listen(self, args: &Serve, output: &mut Output) -> Outcome<Listening> {
        let at = listen_address(args.shared.shared.as_deref().unwrap_or(ADDRESS))?;
        let mut limits = limits();
        if let Some(connections) = args.max_connections {
            limits.max_connections = connections.max(1);
        }
        if let Some(connections) = args.max_per_client {
            limits.max_per_client = connections.max(1);
        }
        let volume = self.host.volume();
        let mut server = Server::new(self.host, &self.key, limits)?;
        let at = server.listen(at)?;
        announce(output, &volume, &self.path, at)?;
        Ok(Listening { server })
    }
}

impl Listening {
    /// Serves until `stop` completes.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        self.server.run(stop).await;
    }
}

/// The repository that is a shared volume, or shall become one.
fn which(args: &Serve) -> Outcome<Option<&PathBuf>> {
    if args.shared.accept.is_some() {
        return match args.repo.as_slice() {
            [path] => Ok(Some(path)),
            _ => {
                let error = "--accept needs exactly one REPO";
                let hint = "run it once with this REPO; later `bulla serve` takes several";
                Err(Failure::new(Kind::Usage, error).with_hint(hint))
            }
        };
    }
    let mut found = None;
    for path in &args.repo {
        if Host::is_at(path)? && found.replace(path).is_some() {
            let error = "two of the repositories are shared volumes";
            let hint = "serve each in a process of its own, with its own --shared ADDR";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
    }
    Ok(found)
}

fn needless(flag: &str) -> Failure {
    let error = format!("{flag} is given, and no REPO is a shared volume");
    let hint = "make one with --accept GENESIS, which `bulla share init` wrote";
    Failure::new(Kind::Usage, error).with_hint(hint)
}

/// Makes the directory, unless it is the server of this volume already.
fn accept(path: &Path, genesis: &Path, key: &SecretKey, flags: &ServeShared) -> Outcome<()> {
    let signed = read(genesis)?;
    let volume = VolumeId::from_bytes(signed.statement().hash());
    if !Host::is_at(path)? {
        let ring = flags.ring.unwrap_or(RING_BYTES);
        Host::create(path, &signed, &key.public(), ring)?;
        return Ok(());
    }
    let host = Host::open(path, key.clone(), HostOptions::default())?;
    if host.volume() == volume {
        return Ok(());
    }
    let error = format!(
        "{} is the server of {}, and not of {volume}",
        path.display(),
        host.volume()
    );
    Err(Failure::new(Kind::OtherVolume, error))
}

/// Reads a genesis policy.
fn read(path: &Path) -> Outcome<Signed> {
    let shown = path.display();
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {shown}"), &e);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let limit = MAX_SIGNED_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Signed::from_bytes_of(Job::Shared, &bytes).map_err(|why| {
        let error = format!("{shown} founds no shared volume");
        Failure::of(Kind::BadGenesis, error, &why)
    })
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
