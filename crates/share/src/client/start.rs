//! From a home to an engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use trust_shared::genesis::Policies;
use wire::shared::ServerAddress;

use super::connection::Connection;
use super::core::{Core, Folding, Snapshots};
use super::evidence::Court;
use super::link::{Offered, Server};
use super::status::{Phase, View};
use super::{ClientError, Options};
use crate::checkpoint::Start;
use crate::disk::Disk;
use crate::files::{Files, Shelf};
use crate::home::{Home, Memo, Timekeeper};
use crate::snapshot;
use ordering::engine::{Delays, Setup};
use ordering::ledger::Ledger;
use ordering::prefixes::Recent;
use ordering::roster::Product;
use ordering::scheme::DeviceScheme;
use ordering::signed::{Signed, Source};

/// The system's randomness.
struct Random;

impl Source for Random {
    fn draw(&self) -> [u8; 32] {
        let mut bytes = [0; 32];
        // Without randomness no number may be drawn. The system has it from the first seconds on.
        while getrandom::fill(&mut bytes).is_err() {
            std::thread::sleep(Duration::from_millis(10));
        }
        bytes
    }
}

/// What an engine is made of, but for the files of the volume.
pub(super) struct Parts {
    pub(super) policies: Policies,
    pub(super) shelf: Arc<Shelf>,
    scheme: Product,
    court: Court,
    setup: Setup,
    delays: Delays,
    folding: Folding,
    snapshots: Snapshots,
}

impl Parts {
    /// Reads a home.
    pub(super) fn of(home: &Home, options: &Options) -> Result<Parts, ClientError> {
        let policies = home.policies()?;
        // A list that cannot be read must not mean that there are no beacons.
        home.beacons()?;
        let scheme = Signed::of(&policies, home.key()?, Arc::new(Random));
        let roles = policies.roles();
        let court = Court::new(home.directory(), &policies, home.signed_policies()?);
        Ok(Parts {
            shelf: Arc::new(Shelf::new(options.shelf)),
            scheme,
            court,
            setup: Setup {
                silence: roles.silence,
                // Calls whose programs are gone stay until their entry has its place.
                calls: options.calls.max(1).saturating_mul(2).saturating_add(1),
            },
            folding: options.folding,
            snapshots: Snapshots::new(options.snapshot_after),
            delays: Delays {
                attest_ms: u64::try_from(options.attest_after.as_millis()).unwrap_or(u64::MAX),
                silence_ms: roles.patience_ms.into(),
                ..Delays::default()
            },
            policies,
        })
    }

    /// Opens the files of the home, and starts the engine with what they have. Waits for another process that has
    /// them open, until the deadline.
    pub(super) fn open(mut self, home: &Home, deadline: Instant) -> Result<Core, ClientError> {
        let epoch = self.court.epoch.number;
        let memory = home.memory(epoch);
        let shelf = Arc::clone(&self.shelf);
        let start = Start::read(&memory, home.volume(), epoch)?;
        let had_start = start.is_some();
        let ledger = match start {
            None => {
                let files = Files::new(&self.policies, shelf);
                let files = files.map_err(|why| ClientError::Home(why.to_string()))?;
                Ledger::new(Recent::default(), files)
            }
            Some(start) => {
                let (ledger, window) = start.ledger(&self.policies, shelf);
                self.court.window = Some(Arc::new(window));
                ledger
            }
        };
        let me = self.scheme.me();
        let ledger = ledger.with_volume(|files| files.of(me));
        let resumed = snapshot::read(&memory, (home.volume(), epoch), &ledger);
        let snapshot = resumed.as_ref().map(|resumed| resumed.span.len);
        let opened = Disk::open(&memory, deadline, ledger, resumed)?;
        self.snapshots.begin(&memory, snapshot);
        // Another process may have gone over while this one waited. Nothing is signed in an epoch that is closed.
        if home.policies()?.newest_epoch().number != epoch {
            return Err(ClientError::GoneOver);
        }
        // Or it has begun with a checkpoint, and the ledger of this one begins with the first leaf.
        if Start::is_in(&memory) != had_start {
            return Err(ClientError::GoneOver);
        }
        let before = home.earlier_memories(epoch);
        let begins = home.begins().copied();
        let begins = begins.filter(|begins| begins.epoch == epoch);
        Ok(Core::new(
            self.scheme,
            self.setup,
            (self.delays, self.folding, self.snapshots),
            opened,
            self.shelf,
            (self.court, Timekeeper::open(&memory), Memo::open(&memory)),
            (begins, before),
        ))
    }
}

/// Where the server of a home is.
pub(super) fn server(
    home: &Home,
    policies: &Policies,
    options: &Options,
    offered: &Offered,
) -> Result<Server, ClientError> {
    let to: ServerAddress = home
        .server()
        .parse()
        .map_err(|why: wire::LocationError| ClientError::Home(why.to_string()))?;
    Ok(Server {
        to,
        volume: home.volume(),
        policies: policies.clone(),
        offered: Arc::clone(offered),
        device: home.key()?,
        options: options.link.clone(),
    })
}

/// What a client sees of an engine that begins.
pub(super) fn seen(core: &Core) -> View {
    View {
        connection: Connection::Connecting,
        phase: match core.convicted() {
            Some(why) => Phase::Stopped(why.clone()),
            None => Phase::of(core.engine()),
        },
        size: core.engine().ledger().size(),
        process: None,
    }
}
