//! Clients over a server that is real but for the network: [`share_server::host::Host`] on a disk, reached by calls. The
//! connection breaks, the server stops and lies when a test says so.

mod beacon;
mod calls;
mod checkpoints;
mod epochs;
mod feed;
mod feed_histories;
mod flights;
mod hosted;
mod lies;
mod narrow;
mod snapshots;
mod tidy;
mod unstored;
mod usage;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use sim::time::eventually;
use tempfile::TempDir;
use trust::device::DeviceKey;
use trust::history::LogPoint;
use trust::key::SecretKey;
use trust::policy::Genesis;
use trust::roles::{Roles, Threshold};
use trust::statement::Signed;
use trust::tree::inode::{Content, FileContent, Inode, Time};
use trust::volume_id::VolumeId;
use trust_shared::decision::Decision;
use trust_shared::genesis::{Founder, SharedRoles, Silence, genesis};
use trust_shared::principal::{Name, Principal};

use super::driver::Driver;
use super::start::{Parts, seen};
use super::{Answered, Client, ClientError, Connection, Options};
use crate::files::{Answer, Call, Place};
use crate::home::{Home, NewHome};
use hosted::{Door, Hosted};
use share_server::host::{Host, HostOptions};

const RING_BYTES: u64 = 32 << 20;

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

pub(super) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A volume, its server, and a directory for each machine.
pub(super) struct Lab {
    dir: TempDir,
    volume: VolumeId,
    policies: Vec<Signed>,
    pub(super) door: Arc<Door>,
}

impl Lab {
    pub(super) fn new() -> Lab {
        Lab::with(Silence::Strict, 60_000)
    }

    fn with(silence: Silence, patience_ms: u32) -> Lab {
        Lab::founded(silence, patience_ms, Threshold::none())
    }

    fn founded(silence: Silence, patience_ms: u32, checkpointers: Threshold) -> Lab {
        let dir = tempfile::tempdir().unwrap();
        let owner = Roles::single(key(250).public());
        let terms = Genesis::new("lab", [1; 32], [2; 32], owner).unwrap();
        let roles = SharedRoles {
            orderer: key(251).public(),
            checkpointers,
            silence,
            patience_ms,
            founder: Some(Founder {
                user: [7; 32],
                name: "ada".to_owned(),
                device: key(1).public(),
            }),
        };
        let signed = genesis(&terms, &roles).sign(&[&key(250)]);
        let volume = VolumeId::from_bytes(signed.hash());
        let server = dir.path().join("server");
        Host::create(&server, &signed, &key(251).public(), RING_BYTES).unwrap();
        let lab = Lab {
            volume,
            policies: vec![signed],
            door: Arc::new(Door::default()),
            dir,
        };
        lab.serve();
        lab
    }

    /// Starts the server.
    pub(super) fn serve(&self) {
        let server = self.dir.path().join("server");
        let options = HostOptions {
            heartbeat: Duration::from_millis(200),
            ..HostOptions::default()
        };
        let host = Host::open(&server, key(251), options).unwrap();
        self.door.open(host);
    }

    fn machine(&self, machine: u8) -> PathBuf {
        self.dir.path().join(format!("machine {machine}"))
    }

    /// The home of the device with this key.
    pub(super) fn home(&self, machine: u8) -> Home {
        self.home_that_begins(machine, None)
    }

    fn home_that_begins(&self, machine: u8, begins: Option<LogPoint>) -> Home {
        let state = self.machine(machine);
        let id = self.volume.to_string();
        if let Some(home) = Home::find(&state, &id).unwrap() {
            return home;
        }
        let new = NewHome {
            volume: self.volume,
            name: "lab",
            server: "bulla://localhost",
            key: &key(machine),
            policies: &self.policies,
            begins,
        };
        Home::create(&state, &new).unwrap()
    }

    /// Starts a client of this machine. Its connection goes through a door of its own.
    pub(super) fn client(&self, machine: u8) -> Client {
        self.client_through(machine, &Arc::default())
    }

    fn client_through(&self, machine: u8, wire: &Arc<hosted::Wire>) -> Client {
        self.client_with(machine, wire, &Options::default())
    }

    fn client_with(&self, machine: u8, wire: &Arc<hosted::Wire>, options: &Options) -> Client {
        let home = self.home(machine);
        let parts = Parts::of(&home, options).unwrap();
        let (policies, shelf) = (parts.policies.clone(), Arc::clone(&parts.shelf));
        let core = parts.open(&home, soon()).unwrap();
        let dial = Arc::new(Hosted {
            door: Arc::clone(&self.door),
            device: DeviceKey::from(&key(machine).public()),
            wire: Arc::clone(wire),
        });
        Client::run(
            core,
            policies,
            shelf,
            (dial, Arc::default()),
            "lab",
            options,
        )
    }

    /// A client of this machine, and what runs its engine.
    pub(super) fn driver(&self, machine: u8) -> (Client, Driver) {
        self.driver_through(machine, &Arc::default())
    }

    fn driver_through(&self, machine: u8, wire: &Arc<hosted::Wire>) -> (Client, Driver) {
        let (home, options) = (self.home(machine), Options::default());
        let parts = Parts::of(&home, &options).unwrap();
        let (policies, shelf) = (parts.policies.clone(), Arc::clone(&parts.shelf));
        let core = parts.open(&home, soon()).unwrap();
        let dial = Arc::new(Hosted {
            door: Arc::clone(&self.door),
            device: DeviceKey::from(&key(machine).public()),
            wire: Arc::clone(wire),
        });
        let (client, plug) = Client::new(
            policies,
            ("lab", None),
            &options,
            seen(&core),
            Default::default(),
        );
        let driver = Driver::new(
            core,
            plug.commands,
            dial,
            plug.shown,
            shelf,
            (plug.hasher, plug.near),
        );
        (client, driver)
    }

    /// The client's process is killed: its files are what they are at that moment.
    async fn kill(&self, machine: u8, client: Client) {
        let home = self.home(machine).directory().to_owned();
        let files = ["journal", "leaves"];
        let killed: Vec<_> = files
            .map(|name| std::fs::read(home.join(name)).unwrap())
            .into();
        client.close(soon()).await.unwrap();
        for (name, bytes) in files.iter().zip(killed) {
            std::fs::write(home.join(name), bytes).unwrap();
        }
    }

    /// Admits the device of a machine as one of ada's.
    async fn admit(&self, admin: &Client, machine: u8) {
        let decision = Decision::AdmitDevice {
            device: trust_shared::principal::Device(machine.into()),
            key: key(machine).public(),
            user: Principal::from_bytes([7; 32]),
        };
        let answer = done(admin.call(Call::Decide(decision), soon()).await);
        assert_eq!(answer, Answer::Settled);
    }
}

/// Waits until the client has lost its server, or cannot reach it.
async fn offline(client: &Client) {
    let is_offline = || matches!(client.view().connection, Connection::Offline(_));
    eventually("the client is offline", is_offline).await;
}

pub(super) fn done(answered: Result<Answered, ClientError>) -> Answer {
    answered.unwrap().answer
}

pub(super) fn place(client: &Client, path: &str) -> Place {
    let names = path.split('/').filter(|name| !name.is_empty());
    Place {
        start: client.root(),
        path: names
            .map(|name| Name::new(name.as_bytes()).unwrap())
            .collect(),
    }
}

fn inode(content: &str) -> Inode {
    let content = match content {
        "" => FileContent::Empty,
        content => FileContent::Inline(Bytes::copy_from_slice(content.as_bytes())),
    };
    let time = Time {
        seconds: 1_700_000_000,
        nanos: 0,
    };
    Inode::new(0o644, time, Content::Regular(content))
}

/// A new file with this content, which is in its inode.
pub(super) fn create(client: &Client, path: &str, content: &str) -> Call {
    Call::Create {
        place: place(client, path),
        number: client.new_number().unwrap(),
        inode: Box::new(inode(content)),
        owner: None,
        replace: false.into(),
    }
}

pub(super) async fn look(client: &Client, path: &str) -> Answer {
    let place = place(client, path);
    done(
        client
            .call(
                Call::Lookup {
                    place,
                    follow: true,
                },
                soon(),
            )
            .await,
    )
}

/// The content of a file, which is in its inode.
pub(super) async fn read(client: &Client, path: &str) -> String {
    let answer = look(client, path).await;
    let Answer::Found(file) = &answer else {
        panic!("{path}: {answer:?}");
    };
    match &file.inode.content {
        Content::Regular(FileContent::Inline(bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
        Content::Regular(FileContent::Empty) => String::new(),
        other => panic!("{path}: {other:?}"),
    }
}
