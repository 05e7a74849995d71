//! A shared volume and its server, which ends with the test.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serve::net::{Limits, Resources};
use serve::shared::{Server, limits};
use share_server::host::{Host, HostError, HostOptions};
use sim::time::wait_until;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use trust::frame::Packer;
use trust::key::SecretKey;
use trust::policy::{Genesis, Roles, Threshold};
use trust::signatures::Signatures;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust::{Hasher, Kind, Record};
use trust_shared::genesis::{Founder, Policies, SharedRoles, Silence, genesis};
use wire::shared::ServerAddress;

pub const USER: [u8; 32] = [0x0a; 32];

pub fn key(seed: u8) -> SecretKey {
    SecretKey::from_seed(&[seed; 32])
}

/// The orderer of every volume here.
pub fn orderer() -> SecretKey {
    key(2)
}

/// The founder's device.
pub fn founder() -> SecretKey {
    key(3)
}

pub fn policy() -> (VolumeId, Signed) {
    policy_named("shared")
}

/// Another name is another volume.
pub fn policy_named(name: &str) -> (VolumeId, Signed) {
    let roles = Roles::single(key(1).public());
    let base = Genesis::new(name, [1; 32], [2; 32], roles).unwrap();
    let statement = genesis(
        &base,
        &SharedRoles {
            orderer: orderer().public(),
            checkpointers: Threshold::single(key(4).public()),
            silence: Silence::Strict,
            patience_ms: 60_000,
            founder: Some(Founder {
                user: USER,
                name: "ada".to_owned(),
                device: founder().public(),
            }),
        },
    );
    let volume = VolumeId::from_bytes(statement.hash());
    (volume, statement.sign(&[&key(1)]))
}

pub fn hasher() -> Hasher {
    let (volume, policy) = policy();
    let policies = Policies::begin(volume, &policy, &mut Signatures::new(4));
    policies.unwrap().chain().hasher()
}

pub fn block(seed: u64, len: usize) -> Record {
    let plain = sim::random::noise(seed, len);
    Record {
        handle: hasher().name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

pub fn options() -> HostOptions {
    HostOptions {
        // Three heartbeats are the longest silence that a client accepts: long enough for a busy machine.
        heartbeat: Duration::from_secs(10),
        ..HostOptions::default()
    }
}

/// Opens a directory once nobody else has its log: a process that another test starts has a copy of the descriptor, and
/// its lock, until it runs its program.
fn open(dir: &Path, options: HostOptions) -> Arc<Host> {
    let mut opened = Host::open(dir, orderer(), options);
    wait_until("nobody else has the log", || {
        let locked = |error: &HostError| format!("{error:?}").contains("WouldBlock");
        let waits = opened.as_ref().err().is_some_and(locked);
        if waits {
            opened = Host::open(dir, orderer(), options);
        }
        !waits
    });
    opened.unwrap()
}

/// A server that runs.
pub struct Running {
    pub address: ServerAddress,
    pub resources: Arc<Resources>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Running {
    /// Opens the directory and serves it.
    pub fn start(dir: &Path, options: HostOptions, limits: Limits) -> Running {
        Running::start_all(&[dir], options, limits)
    }

    /// Opens the directories and serves them at one address.
    pub fn start_all(dirs: &[&Path], options: HostOptions, limits: Limits) -> Running {
        let hosts = dirs.iter().map(|dir| open(dir, options));
        let mut server = Server::new(hosts, &orderer(), limits).unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let local = server.listen(any).unwrap();
        let resources = Arc::clone(server.resources());
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(server.run(async move {
            let _ = stopped.await;
        }));
        Running {
            address: ServerAddress {
                host: "127.0.0.1".to_owned(),
                port: local.port(),
            },
            resources,
            stop: Some(stop),
            task,
        }
    }

    /// Stops in order.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        self.task.await.unwrap();
    }
}

/// The directory of a new server.
pub fn directory() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    Host::create(dir.path(), &policy().1, &orderer().public(), 16 << 20).unwrap();
    dir
}

/// A new volume, served.
pub fn serve() -> (TempDir, Running) {
    let dir = directory();
    let running = Running::start(dir.path(), options(), limits());
    (dir, running)
}
