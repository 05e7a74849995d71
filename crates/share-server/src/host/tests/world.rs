//! A volume, simulated storage for its server, and steps that the tests call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sim::device::Machine;
use sim::disk::CrashDisk;
use store::Repository;
use trust::key::SecretKey;
use trust::statement::Signed;
use trust::statement::policy::Genesis;
use trust::statement::roles::{Roles, Threshold};
use trust::volume_id::VolumeId;
use trust_shared::genesis::{self, Founder, SharedRoles, Silence};
use wal::Device as _;

use super::super::directory::{self, Place};
use super::super::parts::Parts;
use super::super::start::start;
use super::super::{Blocks, Core, HostError, HostOptions};
use crate::blocks::Progress;

pub const RING_BYTES: u64 = 4 << 20;
const DEVICE_BYTES: u64 = RING_BYTES + (2 << 20);

pub fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

/// The orderer's key.
pub fn orderer() -> SecretKey {
    key(200)
}

pub fn checkpointer() -> SecretKey {
    key(201)
}

/// The genesis policy of a volume whose first device is number 1.
pub fn genesis_policy() -> (VolumeId, Signed) {
    let roles = Roles::single(key(100).public());
    let genesis = Genesis::new("seed", [1; 32], [2; 32], roles).unwrap();
    let shared = SharedRoles {
        orderer: orderer().public(),
        checkpointers: Threshold::single(checkpointer().public()),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: Some(Founder {
            user: [6; 32],
            name: "ada".to_owned(),
            device: key(1).public(),
        }),
    };
    let statement = genesis::genesis(&genesis, &shared);
    let volume = VolumeId::from_bytes(statement.hash());
    (volume, statement.sign(&[&key(100)]))
}

/// The storage of one server: its temporary log, its own files, and its repository.
#[derive(Clone)]
pub struct World {
    pub machine: Machine,
    pub disk: Arc<CrashDisk>,
    pub blocks: Arc<CrashDisk>,
    time: Arc<AtomicU64>,
}

impl World {
    /// A new directory.
    pub fn new() -> World {
        World::on(CrashDisk::new())
    }

    /// A new directory on this disk.
    pub fn on(disk: Arc<CrashDisk>) -> World {
        let machine = Machine::new(&[("log", DEVICE_BYTES)]);
        let (volume, genesis) = genesis_policy();
        let ring = machine.device("log");
        directory::found(&*disk, &*ring, volume, &genesis, RING_BYTES).unwrap();
        ring.sync().unwrap();
        let blocks = CrashDisk::new();
        Repository::create_on(blocks.clone()).unwrap();
        World::of(machine, disk, blocks)
    }

    pub fn of(machine: Machine, disk: Arc<CrashDisk>, blocks: Arc<CrashDisk>) -> World {
        World {
            machine,
            disk,
            blocks,
            time: Arc::default(),
        }
    }

    pub fn open(&self) -> Result<Arc<Core>, HostError> {
        self.open_with(HostOptions::default())
    }

    pub fn open_with(&self, options: HostOptions) -> Result<Arc<Core>, HostError> {
        let place = self.place()?;
        // Steps wait for no time to pass.
        let options = HostOptions {
            gather: Duration::ZERO,
            ..options
        };
        let time = self.time.clone();
        let clock = Arc::new(move || Duration::from_millis(time.load(Ordering::Relaxed)));
        let steps = |storage| Ok(Blocks::Steps(Box::new(storage)));
        start(place, orderer(), options, clock, steps).map(Arc::new)
    }

    pub fn place(&self) -> Result<Place, HostError> {
        let repository = Repository::open_on(self.blocks.clone())?;
        Place::of(
            self.disk.clone(),
            self.machine.device("log"),
            repository,
            None,
        )
    }

    pub fn parts(&self) -> Parts {
        Parts {
            root: self.disk.clone(),
            blocks: self.blocks.clone(),
            ring: Ok(self.machine.device("log")),
            ring_path: None,
            _lock: None,
        }
    }

    pub fn pass(&self, time: Duration) {
        self.time
            .fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// Nothing happens any more.
    pub fn stop(&self) {
        self.machine.stop();
        for disk in [&self.disk, &self.blocks] {
            disk.crash_at(disk.operations());
        }
    }
}

impl Core {
    /// Makes everything durable that waits. Returns whether the temporary log is full.
    pub fn pump(self: &Arc<Self>) -> bool {
        loop {
            let progress = self.blocks.storage().commit();
            self.sign_note();
            match progress {
                Progress::Full => return true,
                Progress::Idle if !self.blocks.storage().has_batches() => return false,
                _ => {}
            }
        }
    }
}
