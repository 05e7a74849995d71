//! From a home to a running engine.

use std::sync::Arc;
use std::time::{Duration, Instant};

use reader::Blocks;
use store::Replica;
use store::mirrors::Mirrors;
use tokio::sync::{Semaphore, mpsc, watch};
use trust::shared::effect::Volume as Fixed;
use trust::shared::genesis::Policies;
use wire::shared::ServerAddress;

use super::connection::{Connection, Dial};
use super::core::{Core, Folding};
use super::driver::{Driver, Shown};
use super::evidence::Court;
use super::link::Server;
use super::place::{Place, Sink};
use super::status::{Phase, View};
use super::{Client, ClientError, Inner, Options};
use crate::disk::Disk;
use crate::engine::{Delays, Setup};
use crate::files::{Files, Shelf};
use crate::home::{Home, Timekeeper};
use crate::ledger::Ledger;
use crate::prefixes::Recent;
use crate::roster::Product;
use crate::scheme::Signer;
use crate::signed::{Signed, Source};

const EVIDENCE: &str = "evidence";

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
}

impl Parts {
    /// Reads a home.
    pub(super) fn of(home: &Home, options: &Options) -> Result<Parts, ClientError> {
        let policies = home.policies()?;
        let epoch = *policies.newest_epoch();
        if epoch.start.size != 0 {
            let why = "the log was begun again after a fork";
            return Err(ClientError::Unsupported(why.to_owned()));
        }
        let scheme = Signed::new(
            home.volume(),
            epoch.number,
            epoch.orderer,
            home.key()?,
            Arc::new(Random),
        );
        let roles = policies.roles();
        Ok(Parts {
            shelf: Arc::new(Shelf::new(options.shelf_bytes)),
            scheme,
            court: Court {
                directory: home.directory().join(EVIDENCE),
                volume: home.volume(),
                epoch: epoch.number,
                policies: home.signed_policies()?,
            },
            setup: Setup {
                silence: roles.silence,
                // Calls whose programs are gone stay until their entry has its place.
                calls: options.calls.max(1).saturating_mul(2).saturating_add(1),
            },
            folding: options.folding,
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
    pub(super) fn open(self, home: &Home, deadline: Instant) -> Result<Core, ClientError> {
        let files = Files::new(&self.policies, Arc::clone(&self.shelf));
        let files = files.map_err(|why| ClientError::Home(why.to_string()))?;
        let files = files.of(self.scheme.me());
        let ledger = Ledger::new(Recent::default(), files);
        let opened = Disk::open(home.directory(), deadline, ledger)?;
        let begins = home.begins().copied();
        let begins = begins.filter(|begins| begins.epoch == self.court.epoch);
        Ok(Core::new(
            self.scheme,
            self.setup,
            (self.delays, self.folding),
            opened,
            self.shelf,
            (self.court, Timekeeper::open(home.directory())),
            begins,
        ))
    }
}

/// Where the server of a home is.
pub(super) fn server(
    home: &Home,
    policies: &Policies,
    options: &Options,
) -> Result<Server, ClientError> {
    let to: ServerAddress = home
        .server()
        .parse()
        .map_err(|why: wire::LocationError| ClientError::Home(why.to_string()))?;
    Ok(Server {
        to,
        volume: home.volume(),
        orderer: policies.newest_epoch().orderer,
        device: home.key()?,
        options: options.link.clone(),
    })
}

impl Client {
    /// Starts the engine of a home on this runtime, and connects to its server, again and again. Waits for another
    /// process that runs the engine, until the deadline.
    ///
    /// # Errors
    /// [`ClientError::Home`], [`ClientError::Disk`], [`ClientError::Unsupported`]. A server that does not answer is no
    /// error here: [`Client::running`] waits for it.
    pub async fn start(
        home: &Home,
        options: Options,
        deadline: Instant,
    ) -> Result<Client, ClientError> {
        let parts = Parts::of(home, &options)?;
        let server = server(home, &parts.policies, &options)?;
        let (policies, shelf) = (parts.policies.clone(), Arc::clone(&parts.shelf));
        let from = home.clone();
        let opening = tokio::task::spawn_blocking(move || parts.open(&from, deadline));
        let core = opening.await.map_err(|_| ClientError::Closed)??;
        let dial = Arc::new(server);
        Ok(Client::run(
            core,
            policies,
            shelf,
            dial,
            home.server(),
            &options,
        ))
    }

    /// Runs an engine on this runtime.
    pub(super) fn run(
        core: Core,
        policies: Policies,
        shelf: Arc<Shelf>,
        dial: Arc<dyn Dial>,
        name: &str,
        options: &Options,
    ) -> Client {
        let volume = policies.chain().volume();
        let hasher = policies.chain().hasher();
        let (commands, received) = mpsc::unbounded_channel();
        let (view, views) = watch::channel(View {
            connection: Connection::Connecting,
            phase: match core.convicted() {
                Some(why) => Phase::Stopped(why.clone()),
                None => Phase::of(core.engine()),
            },
            size: core.engine().ledger().size(),
        });
        let (line, lines) = watch::channel(None);
        let place: Arc<dyn Replica> = Arc::new(Place {
            name: name.to_owned(),
            lines: lines.clone(),
        });
        let mirrors = Arc::new(Mirrors::new(vec![place]));
        let cache = options.cache.clone();
        let blocks = Blocks::new(hasher.clone(), mirrors, options.cache_bytes, cache);
        let shown = Shown { view, line };
        let driver = Driver::new(core, received, dial, shown, shelf, hasher.clone());
        tokio::spawn(driver.run());
        Client(Arc::new(Inner {
            volume,
            root: Fixed::new(volume, hasher.clone()).root,
            hasher,
            policies,
            commands,
            view: views,
            places: Semaphore::new(options.calls.max(1)),
            tickets: Default::default(),
            blocks: Arc::new(blocks),
            sink: Sink {
                name: name.into(),
                lines,
            },
        }))
    }
}
