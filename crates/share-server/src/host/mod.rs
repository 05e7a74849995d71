//! The server of one shared volume, without a network: the orderer, the block server, the log's leaves, the policies
//! and the mailbox, in one directory (`docs/formats/shared-server.md`). Why it is as it is:
//! `docs/decisions/0047-server-of-a-shared-volume.md`.
//!
//! Entries and marks that wait become one commit. Its leaves go into the temporary log together with the blocks that
//! clients store at that time, so one sync serves both. Then the orderer signs a note, and the sessions are woken.
//! Leaves leave the temporary log in bulk for files that are never changed. A restart reads these files' heads, the
//! last leaves, a snapshot of what the log says of its authors, and the temporary log.
//!
//! Nothing of this is trusted by the volume's devices. What it promises to its operator: what was acknowledged is
//! there after a crash; memory is bounded; an orderer that finds out that its directory was restored from a copy signs
//! nothing any more.
//!
//! | module | what lives there |
//! |---|---|
//! | `session` | [`Session`]: one connection of a device |
//! | `commit` | what waits becomes durable, and gets its note |
//! | `gather` | when a commit waits for more entries |
//! | [`promise`] | an entry is ordered after the blocks that came before it |
//! | `moving` | leaves go from the temporary log to files |
//! | `pulse` | when each device is sent a heartbeat |
//! | `worker` | the threads that call these |
//! | `start` | reading the directory |
//! | `directory` | the names in it; a new one |
//! | `below` | where the log of each epoch lies |
//! | `epochs` | the log begins again with a prefix of it, after a fork |
//! | [`leaves`] | the files of leaves |
//! | `tail` | the newest leaves, which are in the temporary log and in memory |
//! | `trail` | what the log says of its authors, and the file that keeps it for a restart |
//! | [`record`] | stored leaves as bytes |
//! | [`mailbox`] | messages between an inviter and a joiner |
//! | [`rate`] | how much each device may send |
//! | `accused` | files of evidence against devices that have signed twice |
//! | `counts` | [`Counts`]: what the server has done |
//! | `checkpoints` | what checkpointers have signed, and the file that keeps it |
//! | `confirmed` | the newest Attest of each device, and the file that keeps them |
//! | `examine` | [`Examined`]: a check of the whole directory |
//! | `outside` | [`Outside`]: the blocks in the directory, for another program |
//! | `repair` | [`Repaired`]: what is damaged is made again |
//! | `parts`, `small` | the parts of a directory, and its small files, for these two |
//! | `pace` | work and rest of a collection |
//! | `collected` | what a collection did, or why it did not |
//! | `collecting` | a collection, and when it runs |
//! | `options`, `error` | [`HostOptions`], [`HostError`] |

mod accused;
mod below;
mod checkpoints;
mod collected;
mod collecting;
mod commit;
mod confirmed;
mod counts;
mod directory;
mod draft;
mod epochs;
mod error;
mod examine;
mod gather;
pub mod leaves;
pub mod mailbox;
mod moving;
mod options;
mod outside;
mod pace;
pub(crate) mod parts;
pub mod promise;
mod pulse;
pub mod rate;
pub mod record;
mod repair;
mod session;
mod small;
mod start;
mod tail;
#[cfg(test)]
mod tests;
mod trail;
mod worker;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use trust::Record;
use trust::device::DeviceKey;
use trust::key::{PublicKey, SecretKey};
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust_shared::mark::{MarkProof, Nonce};

use self::commit::{Commit, Signals};
use self::directory::Place;
use self::leaves::Leaves;
use self::mailbox::{BoxId, Mailbox, Taken};
use self::tail::Tail;
use self::trail::Trail;
use crate::blocks::storage::lock;
use crate::blocks::{self, Batch, Done, Server, Storage};
use crate::collect::book::Book;
use ordering::orderer::Orderer;
use ordering::roster::{Product, Roster};

pub use collected::{Collected, Uncollected};
pub use counts::Counts;
pub use draft::{Delivery, Draft};
pub use error::HostError;
pub use examine::{Examined, Fault, Watch};
pub use options::{CollectionOptions, Collections, HostOptions, MIN_KEEP};
pub use outside::Outside;
pub use record::StoredLeaf;
pub use repair::{DeviceLog, DeviceMemory, OpenDevice, RepairSource, Repaired};
pub use session::{Session, Wake};

/// See the head of this file. Dropping it ends its threads; sessions that are left get [`HostError::Stopped`].
pub struct Host {
    core: Arc<Core>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

/// What a server says of itself.
#[derive(Debug, Clone)]
pub struct Status {
    /// Leaves that are durable and noted.
    pub leaves: u64,
    /// Devices with a session.
    pub sessions: usize,
    /// Leaves that are in the temporary log only.
    pub waiting_to_move: u64,
    /// Bytes that are free in the temporary log, and its length.
    pub log_bytes: (u64, u64),
    /// What was done since the start.
    pub counts: Counts,
    /// Why the server does not order entries any more. It must be opened anew, if that helps.
    pub stopped: Option<HostError>,
    /// Why leaves or blocks did not move out of the temporary log when they were to last.
    pub failure: Option<HostError>,
    /// The last collection since the start.
    pub collected: Option<Collected>,
}

impl Host {
    /// Whether a directory is that of a shared volume's server.
    ///
    /// # Errors
    /// [`HostError::Disk`] when the directory cannot be read, or has a format that this build does not know.
    pub fn is_at(dir: &Path) -> Result<bool, HostError> {
        directory::is_shared(dir)
    }

    /// Makes the directory of a server for the volume of this genesis policy. It must be empty or not exist, or hold
    /// what an interrupted call left. `ring_bytes`: length of the temporary log.
    ///
    /// # Errors
    /// [`HostError::Policy`] for a policy that founds no shared volume, [`HostError::OtherOrderer`] when it names
    /// another orderer's key, [`HostError::Disk`], [`HostError::Blocks`].
    pub fn create(
        dir: &Path,
        genesis: &Signed,
        orderer: &PublicKey,
        ring_bytes: u64,
    ) -> Result<VolumeId, HostError> {
        Place::create(dir, genesis, orderer, ring_bytes)
    }

    /// Opens a server. `key`: the orderer's.
    ///
    /// # Errors
    /// [`HostError::NotShared`], [`HostError::OtherOrderer`], [`HostError::Restored`],
    /// [`HostError::Policy`], [`HostError::Disk`], [`HostError::Blocks`].
    pub fn open(dir: &Path, key: SecretKey, options: HostOptions) -> Result<Arc<Host>, HostError> {
        let place = Place::open(dir)?;
        let start = Instant::now();
        let clock: blocks::Clock = Arc::new(move || start.elapsed());
        let core = start::start(place, key, options, clock, Blocks::threads)?;
        Host::run(Arc::new(core))
    }

    /// Gives the directory of a server the policies of its volume from the genesis on, durably. If they begin another
    /// epoch of the log, its log begins with the prefix that they name. No server may run there. Gives the volume; if
    /// that is another one than the policies', nothing has changed.
    ///
    /// # Errors
    /// [`HostError::OtherPolicies`], [`HostError::OtherStart`], [`HostError::OtherOrderer`] and [`HostError::Policy`]:
    /// nothing has changed. [`HostError::Disk`], [`HostError::Blocks`].
    pub fn renew(
        dir: &Path,
        policies: &[Signed],
        orderer: &PublicKey,
    ) -> Result<VolumeId, HostError> {
        epochs::renew(&Place::open(dir)?, policies, orderer)
    }

    /// Whether a directory has the parts of a server's directory, whatever its format file says.
    pub fn looks_like(dir: &Path) -> bool {
        parts::has_parts(dir)
    }

    /// Checks the directory of a server: all leaves, their tree and signatures, all that a start reads, and, if it is to
    /// read them, all blocks. No server may run there. `watch` is shown how far it is. Nothing changes.
    ///
    /// # Errors
    /// [`HostError::Policy`] and [`HostError::Disk`] where nothing can be read. What is damaged is no error.
    pub fn examine(
        dir: &Path,
        reads_blocks: bool,
        watch: &mut Watch<'_>,
    ) -> Result<Examined, HostError> {
        examine::examine(dir, reads_blocks, watch)
    }

    /// Mends the directory of a server, in which no server may run. `from`: where what it lacks is taken.
    /// Damaged files are kept. A repair that is killed may be begun again.
    ///
    /// # Errors
    /// [`HostError::Unmended`], [`HostError::CopyOfOther`], [`HostError::ForkedCopy`], [`HostError::NewerCopy`]: nothing has
    /// changed. [`HostError::Policy`], [`HostError::Disk`], [`HostError::Blocks`].
    pub fn repair(
        dir: &Path,
        from: Option<RepairSource<'_>>,
        reads_blocks: bool,
        watch: &mut Watch<'_>,
    ) -> Result<Repaired, HostError> {
        repair::repair(dir, from, reads_blocks, watch)
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.core.volume
    }

    /// The epoch of the log.
    pub fn epoch(&self) -> u64 {
        self.core.epoch
    }

    /// The orderer's key. Clients accept no other from this server.
    pub fn orderer(&self) -> &PublicKey {
        &self.core.orderer
    }

    /// The volume's signed policies, from the genesis on.
    pub fn policies(&self) -> &[Bytes] {
        &self.core.policies
    }

    /// How it works.
    pub fn options(&self) -> &HostOptions {
        &self.core.options
    }

    /// Begins a session of a device that has proved its key. A session that it had is over. `wake` is called when
    /// [`Session::draw`] may have something; it must be short, and may be called from any thread.
    ///
    /// # Errors
    /// [`HostError::NoMember`], [`HostError::Turned`] when there are too many sessions, [`HostError::Blocks`].
    pub fn connect(&self, device: DeviceKey, wake: Wake) -> Result<Session, HostError> {
        Session::begin(&self.core, device, wake)
    }

    /// Puts a message into the mailbox. Anybody may.
    ///
    /// # Errors
    /// [`HostError::Mailbox`].
    pub fn post(&self, id: &BoxId, slot: u8, message: Bytes) -> Result<(), HostError> {
        let calls = lock(&self.core.mailbox).post(id, slot, message, Instant::now())?;
        mailbox::call(calls);
        Ok(())
    }

    /// Takes a message from the mailbox: `taken` is given it now, when it comes, or nothing at the deadline. Wishes of
    /// members make the box.
    ///
    /// # Errors
    /// [`HostError::Mailbox`]; `taken` is dropped then.
    pub fn take(
        &self,
        member: Option<&Session>,
        id: &BoxId,
        slot: u8,
        deadline: Instant,
        taken: Taken,
    ) -> Result<(), HostError> {
        let member = member.map(Session::device);
        let times = (Instant::now(), deadline);
        let calls = lock(&self.core.mailbox).take(member, id, slot, times, taken)?;
        mailbox::call(calls);
        self.core.signals.look_at_deadlines();
        Ok(())
    }

    /// What the server says of itself.
    pub fn status(&self) -> Status {
        self.core.status()
    }
}

/// A server without its threads: each step is a call.
pub(crate) struct Core {
    volume: VolumeId,
    epoch: u64,
    orderer: PublicKey,
    /// Signs notes.
    notary: Product,
    policies: Vec<Bytes>,
    options: HostOptions,
    place: Place,
    blocks: Blocks,
    /// The server's own session: its batches have no blocks.
    own: blocks::Session,
    state: Mutex<State>,
    /// Bytes of messages and answers of each device.
    meter: Mutex<rate::Rates>,
    tail: Mutex<Tail>,
    leaves: Leaves,
    trail: Mutex<Trail>,
    mailbox: Mutex<Mailbox>,
    board: Mutex<checkpoints::Board>,
    signals: Arc<Signals>,
    failure: Mutex<Option<HostError>>,
    /// When blocks were used last.
    book: Arc<Book>,
    /// The last collection.
    collected: Mutex<Option<Collected>>,
}

/// What is changed by messages and commits.
struct State {
    orderer: Orderer<Product, Roster, rate::Rates>,
    slots: HashMap<DeviceKey, Slot>,
    last_slot: u64,
    /// No device is due for a heartbeat before.
    beat_at: Instant,
    /// Bytes of entries that each device may write.
    entry_bytes: rate::Rates,
    /// Who waits for which mark of the next commit.
    owners: HashMap<Nonce, DeviceKey>,
    /// Bytes of entries that wait for the next commit.
    waiting_bytes: u64,
    /// The commit that is under way.
    commit: Option<Commit>,
    gather: gather::Gather,
    /// Entries whose numbers their devices have used for others.
    twice: Vec<accused::Twice>,
    counts: Counts,
    stopped: Option<HostError>,
}

/// A session as the server sees it.
struct Slot {
    number: u64,
    bell: Arc<session::Bell>,
    pulse: pulse::Pulse,
    /// Proofs of the device's marks that it was not sent yet: the leaf's position, and the mark.
    proofs: Vec<(u64, Nonce, MarkProof)>,
}

/// The block server: with its threads, or as steps that a test calls.
pub(crate) enum Blocks {
    Threads(Server),
    #[cfg(test)]
    Steps(Box<Storage>),
}

impl Blocks {
    fn threads(storage: Storage) -> Result<Blocks, HostError> {
        let started = Server::start(storage).map_err(|error| blocks::Error::Full {
            cause: error.to_string().into(),
        });
        Ok(Blocks::Threads(started?))
    }

    fn storage(&self) -> &Storage {
        match self {
            Blocks::Threads(server) => server.storage(),
            #[cfg(test)]
            Blocks::Steps(storage) => storage,
        }
    }

    fn submit(&self, batch: Batch, done: Done) {
        match self {
            Blocks::Threads(server) => server.submit(batch, done),
            #[cfg(test)]
            Blocks::Steps(storage) => storage.submit(batch, done),
        }
    }

    fn submit_entries(&self, session: blocks::Session, batches: Vec<(Vec<wal::Record>, Done)>) {
        match self {
            Blocks::Threads(server) => server.submit_entries(session, batches),
            #[cfg(test)]
            Blocks::Steps(storage) => storage.submit_entries(session, batches),
        }
    }

    fn submit_permanent(&self, session: blocks::Session, block: Record, done: Done) {
        match self {
            Blocks::Threads(server) => server.submit_permanent(session, block, done),
            #[cfg(test)]
            Blocks::Steps(storage) => storage.pstore(session, block, done),
        }
    }

    /// Ends the threads of the block server: nothing holds the server after that but its sessions.
    fn stop(&self) {
        match self {
            Blocks::Threads(server) => server.stop(),
            #[cfg(test)]
            Blocks::Steps(_) => {}
        }
    }

    /// Entries were released.
    fn look_at_space(&self) {
        match self {
            Blocks::Threads(server) => server.look_at_space(),
            #[cfg(test)]
            Blocks::Steps(_) => {}
        }
    }

    fn failure(&self) -> Option<blocks::Error> {
        match self {
            Blocks::Threads(server) => server.failure(),
            #[cfg(test)]
            Blocks::Steps(_) => None,
        }
    }
}

impl Core {
    fn status(&self) -> Status {
        let state = lock(&self.state);
        let published = state.orderer.published();
        let failure = lock(&self.failure).clone();
        let log = self.blocks.storage().log();
        Status {
            leaves: published,
            sessions: state.slots.len(),
            waiting_to_move: published.saturating_sub(self.leaves.end()),
            log_bytes: (log.free(), log.ring_bytes()),
            counts: state.counts,
            stopped: state.stopped.clone(),
            collected: lock(&self.collected).clone(),
            failure: failure.or_else(|| self.blocks.failure().map(HostError::Blocks)),
        }
    }
}
