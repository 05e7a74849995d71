//! The state of a ledger as a tree of rows. It is made in steps, so that the caller can fetch what is missing, and store
//! nodes, between them; one step looks at so many keys at most, and keeps no row after its node is finished.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use trust::handle::{Handle, Hasher, MapNode};
use trust::history::LogPoint;
use trust::{Kind, Reject};
use trust_shared::checkpoint::{Builder, Checkpoint, PolicyRow, Row};

use crate::files::{Files, Made, NoRows, Refused};
use ordering::ledger::Ledger;
use ordering::roster::Product;
use ordering::scheme::Log;

/// Keys that one step looks at.
const KEYS: usize = 1024;

type Sink = Box<dyn FnMut(Handle<MapNode>, &Bytes) + Send>;

/// How far the tree is.
#[derive(Debug)]
pub enum Progress {
    /// There is more to do.
    More,
    /// It is whole.
    Done(Checkpoint),
}

/// A tree of rows that is being made.
pub struct Making {
    ledger: Ledger<Product, Files>,
    epoch: u64,
    policy: PolicyRow,
    builder: Option<Builder<Sink>>,
    made: Arc<Mutex<Vec<Made>>>,
    after: Option<Row>,
    has_begun: bool,
}

impl std::fmt::Debug for Making {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Making({:?}, after {:?})", self.ledger, self.after)
    }
}

impl Making {
    /// Begins with the state at the end of a ledger.
    pub fn new(
        ledger: Ledger<Product, Files>,
        epoch: u64,
        policy: PolicyRow,
        hasher: &Hasher,
    ) -> Making {
        let made: Arc<Mutex<Vec<Made>>> = Arc::default();
        let nodes = Arc::clone(&made);
        let sink: Sink = Box::new(move |handle, bytes| {
            let node = Made {
                kind: Kind::Map,
                handle: handle.any(),
                bytes: bytes.clone(),
            };
            nodes
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(node);
        });
        Making {
            ledger,
            epoch,
            policy,
            builder: Some(Builder::new(hasher, sink)),
            made,
            after: None,
            has_begun: false,
        }
    }

    /// The ledger.
    pub fn ledger(&self) -> &Ledger<Product, Files> {
        &self.ledger
    }

    /// Takes a step.
    ///
    /// # Errors
    /// [`NoRows::Missing`]: the step is taken again when that is on the shelf.
    pub fn step(&mut self) -> Result<Progress, NoRows> {
        let malformed = |why: Reject| NoRows::Refused(Refused::from(why));
        let files = self.ledger.volume();
        let Some(builder) = &mut self.builder else {
            return Err(NoRows::Refused(Refused::Stale));
        };
        if !self.has_begun {
            let begun = builder.policy(self.policy.number, &self.policy.hash);
            begun.map_err(malformed)?;
            for (device, author) in self.ledger.authors() {
                builder.author(&device, author).map_err(malformed)?;
            }
            builder.rows(files.members().rows()).map_err(malformed)?;
            self.has_begun = true;
            return Ok(Progress::More);
        }
        let page = files.rows(self.after.as_ref(), KEYS)?;
        builder.rows(page.rows).map_err(malformed)?;
        let blocks = page.blocks.into_iter().map(|(handle, bytes)| Made {
            kind: Kind::Inode,
            handle: handle.any(),
            bytes,
        });
        self.made
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(blocks);
        if page.next.is_some() {
            self.after = page.next;
            return Ok(Progress::More);
        }
        let late = files.members().last_rows().map_err(malformed)?;
        builder.rows(late).map_err(malformed)?;
        let window = self.ledger.log().window();
        builder.rows(window.rows()).map_err(malformed)?;
        let point = Log::<Product>::point(self.ledger.log());
        let state = self.builder.take().map(Builder::finish);
        let state = state.transpose().map_err(malformed)?;
        let state = state.ok_or(NoRows::Refused(Refused::Stale))?;
        let log = LogPoint {
            epoch: self.epoch,
            size: point.size,
            root: point.root,
        };
        Ok(Progress::Done(Checkpoint { log, state }))
    }

    /// Takes the blocks that were made since the last time.
    pub fn blocks(&mut self) -> Vec<Made> {
        std::mem::take(&mut self.made.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
