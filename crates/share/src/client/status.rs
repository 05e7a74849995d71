//! What a client says about itself.

use trust::device::DeviceKey;
use trust_shared::entry::Prefix;
use trust_shared::note::SignedNote;

use super::beacons::BeaconStatus;
use super::connection::Connection;
use super::core::Ticket;
use super::error::{Differing, Stopped};
use crate::files::Files;
use ordering::engine::Engine;
use ordering::roster::Product;
use ordering::volume::Roll;

/// What an engine may do.
#[derive(Debug, Clone)]
pub enum Phase {
    /// The device is no member, as far as it knows.
    Outside,
    /// It catches up, and then begins its incarnation.
    Resuming,
    /// It reads and writes.
    Running,
    /// It writes no more.
    Stopped(Stopped),
}

impl Phase {
    pub(super) fn of(engine: &Engine<Product, Files, Ticket>) -> Phase {
        if engine.is_running() {
            Phase::Running
        } else if engine.is_outside() {
            Phase::Outside
        } else {
            Phase::Resuming
        }
    }

    pub(crate) fn kind(&self) -> u8 {
        match self {
            Phase::Outside => 0,
            Phase::Resuming => 1,
            Phase::Running => 2,
            Phase::Stopped(_) => 3,
        }
    }
}

/// What clients see without asking.
#[derive(Debug, Clone)]
pub struct View {
    /// The connection to the server.
    pub connection: Connection,
    /// What the engine may do.
    pub phase: Phase,
    /// Size of the log that was verified.
    pub size: u64,
    /// The other process that runs the engine. None: this one does.
    pub process: Option<u32>,
}

/// What the log says about a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceStatus {
    /// The device.
    pub device: DeviceKey,
    /// Position of its last entry.
    pub last_at: u64,
    /// Size of the prefix that it attests.
    pub attested: u64,
    /// It is a member.
    pub active: bool,
}

/// The state of an engine.
#[derive(Debug, Clone)]
pub struct Status {
    /// The connection to the server.
    pub connection: Connection,
    /// What the engine may do.
    pub phase: Phase,
    /// The log that was verified.
    pub log: Prefix,
    /// The orderer's note that names it.
    pub note: Option<SignedNote>,
    /// Size of the floor that a power cut leaves.
    pub kept: u64,
    /// Ops whose outlines are in memory: those that are not folded and forgotten.
    pub outlines: u64,
    /// A prefix in which every entry is attested or accepted.
    pub supported: u64,
    /// Devices whose last entry nothing speaks for yet, each with its position.
    pub unsupported: Vec<(DeviceKey, u64)>,
    /// This device attests what it wrote last.
    pub own_attested: bool,
    /// Size of the log with which a checkpoint began; 0 without one.
    pub begins: u64,
    /// Devices that have written.
    pub devices: Vec<DeviceStatus>,
    /// Devices for which answers wait.
    pub awaited: Vec<DeviceKey>,
    /// Devices that attest another log.
    pub differing: Vec<Differing>,
    /// The beacons that this home asks for.
    pub beacons: Vec<BeaconStatus>,
}

impl Status {
    pub(super) fn of(
        engine: &Engine<Product, Files, Ticket>,
        connection: Connection,
        stopped: Option<Stopped>,
        differing: Vec<Differing>,
    ) -> Status {
        let ledger = engine.ledger();
        let devices = ledger.authors().map(|(device, row)| DeviceStatus {
            device,
            last_at: row.last_at,
            attested: engine.attested(device),
            active: ledger.volume().active(device),
        });
        Status {
            connection,
            phase: stopped.map_or_else(|| Phase::of(engine), Phase::Stopped),
            log: ledger.point(),
            note: ledger.note().copied(),
            kept: engine.kept(),
            supported: match engine.is_unverified() {
                true => 0,
                false => engine.foldable(),
            },
            unsupported: engine.unsupported(),
            own_attested: engine.has_attested(),
            begins: ledger.begins(),
            outlines: ledger.volume().kept_ops(),
            devices: devices.collect(),
            awaited: engine.awaited(),
            differing,
            beacons: Vec::new(),
        }
    }

    /// So far all member devices that have written attest the same log.
    pub fn agreed(&self) -> u64 {
        let members = self.devices.iter().filter(|device| device.active);
        members.map(|device| device.attested).min().unwrap_or(0)
    }
}
