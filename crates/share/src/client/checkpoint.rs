//! Making a checkpoint: the state of this device's log at a position, from its own floor (decision 0058).
//!
//! The log is read again from the floor, beside the running engine: so a position in the past has a state too, and the
//! engine is never stopped. What evaluation misses is fetched as the engine would fetch it.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{BlockSink, StoreError};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout_at};
use trust::frame::Packer;
use trust::{Record, Reject};
use trust_shared::checkpoint::{Checkpoint, PolicyRow};
use trust_shared::effect::Missing;
use trust_shared::genesis::Policies;
use trust_shared::note::SignedNote;

use super::begin::posted;
use super::connection::{Line, Lost};
use super::core::{Lacks, read_body};
use super::driver::Command;
use super::fetch::fetch;
use super::{Client, ClientError, Status};
use crate::checkpoint::{Making, Progress, Start};
use crate::files::{Files, Made, NoRows, Shelf};
use crate::home::Home;
use ordering::ledger::Ledger;
use ordering::prefixes::Recent;
use ordering::roster::Product;
use ordering::scheme::Leaf;
use trust_shared::checkpoint::Posted;

/// Leaves that are read at a time.
const LEAVES: u64 = 256;
/// Bytes of blocks that are stored at a time.
const STORE_BYTES: usize = 1 << 20;
/// Blocks that are stored in one call.
const BLOCKS: usize = 64;
/// How often the state of the engine is looked at, and silent devices are asked.
const LOOK: Duration = Duration::from_millis(100);

/// A prefix of the log that a checkpointer may sign.
#[derive(Debug, Clone)]
pub enum Signable {
    /// Every entry of it is attested or accepted, and this device's floor has it durably.
    Yes(Box<SignedNote>),
    /// Nothing speaks for the last entries of some devices. The state of the engine says which.
    Silent(Box<Status>),
}

impl Client {
    /// The checkpoints that the server has. Nothing is verified.
    ///
    /// # Errors
    /// [`ClientError::Deadline`], [`ClientError::Closed`].
    pub async fn checkpoints(&self, deadline: Instant) -> Result<Vec<Posted>, ClientError> {
        let line = self.line(deadline).await?;
        posted(&*line).await.map_err(lost)
    }

    /// Gives the server a checkpoint to keep.
    ///
    /// # Errors
    /// [`ClientError::Deadline`], also when the server refuses it; [`ClientError::Closed`].
    pub async fn post_checkpoint(
        &self,
        posted: &Posted,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let line = self.line(deadline).await?;
        line.post_checkpoint(posted.encode()).await.map_err(lost)
    }

    /// Waits until every entry of a prefix of the log is attested or accepted, and durable in this device's floor. Asks
    /// devices that are silent. `note` names the prefix; without one it is the log as it is now.
    ///
    /// # Errors
    /// [`ClientError::Stopped`], [`ClientError::Closed`]; [`ClientError::Deadline`] when there is no log yet.
    pub async fn signable(
        &self,
        note: Option<SignedNote>,
        deadline: Instant,
    ) -> Result<Signable, ClientError> {
        let mut wanted = note;
        loop {
            let status = self.status(deadline).await?;
            if let super::Phase::Stopped(why) = &status.phase {
                return Err(why.clone().into());
            }
            let noted = status
                .note
                .filter(|note| note.note().log.size == status.log.size);
            wanted = wanted.or(noted);
            let size = wanted.map(|note| note.note().log.size);
            if let (Some(note), Some(size)) = (wanted, size)
                && status.supported >= size
                && status.kept >= size
                && status.own_attested
            {
                return Ok(Signable::Yes(Box::new(note)));
            }
            if Instant::now() + LOOK >= deadline {
                return Ok(Signable::Silent(Box::new(status)));
            }
            // Whoever drives the engine may be gone: the next look says so.
            let _ = self.0.commands.send(Command::Ask);
            sleep(LOOK).await;
        }
    }

    /// The state of this device's log after so many leaves, as a checkpoint states it. With `store` its rows are stored at
    /// the server. `told` is told how many leaves were read. `patience`: how long each step may take that needs the disk or
    /// the server.
    ///
    /// # Errors
    /// [`ClientError`]; [`ClientError::Unsupported`] where this device cannot tell.
    pub async fn state_at(
        &self,
        home: &Home,
        size: u64,
        store: bool,
        patience: Duration,
        told: impl Fn(u64),
    ) -> Result<Checkpoint, ClientError> {
        self.has_engine()?;
        let shelf = Arc::new(Shelf::default());
        let ledger = self.ledger_at(home, size, &shelf, patience, told).await?;
        let policies = self.policies();
        let epoch = policies.newest_epoch().number;
        let policy = begins(policies);
        let mut making = Making::new(ledger, epoch, policy, self.hasher());
        let mut waiting: Vec<Made> = Vec::new();
        loop {
            let step = spawn_blocking(move || {
                let step = making.step();
                (making, step)
            });
            let (back, step) = step.await.map_err(|_| ClientError::Closed)?;
            making = back;
            waiting.extend(making.blocks());
            let done = match step {
                Ok(Progress::More) => None,
                Ok(Progress::Done(checkpoint)) => Some(checkpoint),
                Err(NoRows::Missing(missing)) => {
                    let deadline = Instant::now() + patience;
                    self.supply(&missing, &shelf, deadline).await?;
                    None
                }
                Err(NoRows::Refused(why)) => return Err(ClientError::Unsupported(why.to_string())),
            };
            let bytes: usize = waiting.iter().map(|made| made.bytes.len()).sum();
            if !store {
                waiting.clear();
            } else if done.is_some() || bytes >= STORE_BYTES {
                let deadline = Instant::now() + patience;
                self.store(std::mem::take(&mut waiting), deadline).await?;
            }
            if let Some(checkpoint) = done {
                return Ok(checkpoint);
            }
        }
    }

    /// Reads the log again, from the floor.
    async fn ledger_at(
        &self,
        home: &Home,
        size: u64,
        shelf: &Arc<Shelf>,
        patience: Duration,
        told: impl Fn(u64),
    ) -> Result<Ledger<Product, Files>, ClientError> {
        let malformed = |why: Reject| ClientError::Home(why.to_string());
        let epoch = self.policies().newest_epoch().number;
        let memory = home.memory(epoch);
        let mut ledger = match Start::read(&memory, self.volume(), epoch)? {
            None => {
                let files = Files::new(self.policies(), Arc::clone(shelf)).map_err(malformed)?;
                Ledger::new(Recent::default(), files)
            }
            Some(start) => start.ledger(self.policies(), Arc::clone(shelf)).0,
        };
        if ledger.size() > size {
            let why = format!(
                "this device began with a checkpoint of {}, and cannot tell how the volume was before",
                ledger.size()
            );
            return Err(ClientError::Unsupported(why));
        }
        while ledger.size() < size {
            let from = ledger.size();
            let to = size.min(from.saturating_add(LEAVES));
            let leaves = self.leaves(from, to, Instant::now() + patience).await?;
            let extended = spawn_blocking(move || {
                for (_, leaf) in &leaves {
                    ledger.extend(leaf);
                }
                ledger
            });
            ledger = extended.await.map_err(|_| ClientError::Closed)?;
            if ledger.size() != to {
                let why = "this device does not have so much of the log yet";
                return Err(ClientError::Unsupported(why.to_owned()));
            }
            told(to);
        }
        Ok(ledger)
    }

    async fn leaves(
        &self,
        from: u64,
        to: u64,
        deadline: Instant,
    ) -> Result<Vec<(u64, Leaf<Product>)>, ClientError> {
        let command = |answer| Command::Leaves { from, to, answer };
        Ok(self.ask(deadline, command).await??)
    }

    /// Puts on the shelf what is missing: bodies from the floor or the server, blocks from the server.
    async fn supply(
        &self,
        missing: &Missing,
        shelf: &Arc<Shelf>,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let mut lacks = Lacks {
            bodies: Vec::new(),
            blocks: missing.blocks.clone(),
        };
        let positions: BTreeSet<u64> = missing.bodies.iter().copied().collect();
        for position in positions {
            let leaves = self
                .leaves(position, position.saturating_add(1), deadline)
                .await?;
            for (at, leaf) in leaves {
                let Leaf::Entry(entry) = leaf else { continue };
                match (entry.body(), entry.signed().entry().ops()) {
                    (Some(body), _) => shelf.put_body(at, read_body(body)),
                    (None, Some(ops)) => lacks.bodies.push((at, ops.body_hash)),
                    (None, None) => {}
                }
            }
        }
        if lacks.bodies.is_empty() && lacks.blocks.is_empty() {
            return Ok(());
        }
        let line = self.line(deadline).await?;
        let hasher = self.hasher().clone();
        let fetched = fetch(line, Arc::clone(shelf), hasher, lacks);
        match timeout_at(deadline.into(), fetched).await {
            Ok(fetched) => fetched.failed.map_or(Ok(()), |why| Err(lost(why))),
            Err(_) => Err(self.late()),
        }
    }

    async fn store(&self, made: Vec<Made>, deadline: Instant) -> Result<(), ClientError> {
        let mut packer = Packer::new();
        // A block that lies in several places of the tree is stored once.
        let made: HashMap<_, _> = made.into_iter().map(|made| (made.handle, made)).collect();
        let mut records = Vec::new();
        for made in made.into_values() {
            let frame = packer.pack(made.kind, &made.bytes);
            let frame = frame.map_err(|why| ClientError::Unsupported(why.to_string()))?;
            let handle = made.handle;
            records.push(Record { handle, frame });
        }
        let sink = self.sink(deadline.saturating_duration_since(Instant::now()));
        for records in records.chunks(BLOCKS) {
            match timeout_at(deadline.into(), sink.put(records)).await {
                Ok(Ok(())) => {}
                Err(_) | Ok(Err(StoreError::Unavailable { .. })) => return Err(self.late()),
                Ok(Err(error)) => return Err(ClientError::Unsupported(error.to_string())),
            }
        }
        Ok(())
    }

    /// A connection to the server.
    pub(super) async fn line(&self, deadline: Instant) -> Result<Arc<dyn Line>, ClientError> {
        self.has_engine()?;
        loop {
            if let Some(line) = self.ask(deadline, Command::Line).await? {
                return Ok(line);
            }
            if Instant::now() + LOOK >= deadline {
                return Err(self.late());
            }
            sleep(LOOK).await;
        }
    }

    /// Checkpoints are made where the engine runs.
    fn has_engine(&self) -> Result<(), ClientError> {
        match self.view().process {
            None => Ok(()),
            Some(process) => Err(ClientError::EngineElsewhere { process }),
        }
    }

    fn late(&self) -> ClientError {
        ClientError::Deadline {
            connection: self.view().connection,
        }
    }
}

/// The policy that begins the newest epoch. All devices of the epoch know it, and not all know a later one.
fn begins(policies: &Policies) -> PolicyRow {
    let (chain, epoch) = (policies.chain(), policies.newest_epoch().number);
    let row = |number: u64| {
        let (policy, hash) = chain.get(number)?;
        (policy.log_epoch() == epoch).then_some(PolicyRow { number, hash })
    };
    (0..chain.len()).find_map(row).unwrap_or(PolicyRow {
        number: chain.len().saturating_sub(1),
        hash: chain.newest_hash(),
    })
}

pub(super) fn lost(lost: Lost) -> ClientError {
    ClientError::Deadline {
        connection: super::Connection::Offline(lost),
    }
}
