//! Opening a server's directory. What was acknowledged before a crash is read again: the heads of the files of leaves,
//! the last leaves in them, the snapshot of what the log says, and the leaves in the temporary log.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use store::disk::damaged;
use store::names;
use trust::Reject;
use trust::history::Frontier;
use trust::key::SecretKey;
use trust_shared::genesis::Policies;
use wal::Lsn;

use super::checkpoints::Board;
use super::commit::Signals;
use super::confirmed;
use super::directory::{LEAVES, Place, is_orderer, ring_key};
use super::gather::Gather;
use super::leaves::{Found, Leaves};
use super::mailbox::Mailbox;
use super::moving::Released;
use super::options::quarters;
use super::rate::Rates;
use super::record::{LEAVES as KIND, StoredLeaf, read_record};
use super::tail::Tail;
use super::trail::{Snapshot, Trail};
use super::{Blocks, Core, Counts, HostError, HostOptions, State};
use crate::blocks::{self, Clock, Device, Storage};
use crate::collect::book::{Book, Times};
use ordering::ledger::Ledger;
use ordering::orderer::Orderer;
use ordering::prefixes::{PAGE, Recent, WINDOW};
use ordering::roster::{Product, Roster};
use ordering::scheme::{Leaf, Log};
use ordering::signed::{Signed, Source};

/// Leaves that are read at once.
const AT_ONCE: u64 = 4 * PAGE;

/// An orderer draws nothing.
struct NoSource;

impl Source for NoSource {
    fn draw(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// Opens a directory. `blocks` puts the block server to work.
pub(super) fn start(
    place: Place,
    key: SecretKey,
    options: HostOptions,
    clock: Clock,
    blocks: impl FnOnce(Storage) -> Result<Blocks, HostError>,
) -> Result<Core, HostError> {
    place.is_not_restored()?;
    let (policies, signed) = place.policies()?;
    let orderer = key.public();
    is_orderer(&policies, &orderer)?;
    let volume = policies.chain().volume();
    let epoch = policies.newest_epoch().number;
    let (storage, found) = open_blocks(&place, &policies, options.blocks, Arc::clone(&clock))?;
    let times = Times {
        tick: options.collection.quarter,
        window: quarters(options.collection.keep),
        boot: options.collection.boot,
    };
    let book = Book::open(Arc::clone(&place.disk), (volume, epoch), clock, times)?;
    let book = Arc::new(book);
    storage.keep_ages(Arc::clone(&book));
    let Opened {
        leaves,
        trail,
        ledger,
        tail,
    } = read_log(&place, &policies, &storage, found)?;
    // All of this log is durable. While it grows, time may go on before what it decides is looked at again, and forgets
    // what is older than the window.
    let keep = options.collection.kept_for(ledger.volume().members());
    book.with(|ages| ages.set_window(keep));
    let scheme = Signed::of(&policies, key, Arc::new(NoSource));
    let rates = Rates::new(options.entries);
    let notary = scheme.clone();
    let mut ordering = Orderer::start(scheme, options.limits, rates, ledger);
    for attest in confirmed::read(&*place.disk, volume, epoch) {
        ordering.remember(&attest);
    }
    let own = storage.open_session(Device(*orderer.as_bytes()))?;
    Ok(Core {
        volume,
        epoch,
        orderer,
        notary,
        policies: signed.iter().map(|it| it.to_bytes().into()).collect(),
        options,
        own,
        blocks: blocks(storage)?,
        state: Mutex::new(State {
            orderer: ordering,
            slots: HashMap::new(),
            last_slot: 0,
            beat_at: Instant::now(),
            entry_bytes: Rates::new(options.entry_bytes),
            owners: HashMap::new(),
            waiting_bytes: 0,
            commit: None,
            gather: Gather::new(options.gather, Instant::now()),
            twice: Vec::new(),
            counts: Counts::default(),
            stopped: None,
        }),
        meter: Mutex::new(Rates::new(options.bytes)),
        tail: Mutex::new(tail),
        leaves,
        trail: Mutex::new(trail),
        mailbox: Mutex::new(Mailbox::new(options.mailbox)),
        board: Mutex::new(Board::read(&*place.disk, policies)),
        signals: Arc::new(Signals::default()),
        failure: Mutex::default(),
        book,
        collected: Mutex::default(),
        place,
    })
}

/// The log of a directory.
pub(super) struct Opened {
    pub leaves: Leaves,
    pub trail: Trail,
    pub ledger: Ledger<Product, Roster>,
    pub tail: Tail,
}

/// Reads the log of the newest epoch. `found`: records of leaves in the temporary log. Those of an earlier epoch are
/// given up first: what stands of that epoch is in files.
pub(super) fn read_log(
    place: &Place,
    policies: &Policies,
    storage: &Storage,
    found: Vec<Recorded>,
) -> Result<Opened, HostError> {
    let (volume, epoch) = (policies.chain().volume(), *policies.newest_epoch());
    let (leaves, heads) = Leaves::open(Arc::clone(&place.disk))?;
    let mut released = Released::decode(&storage.entries_cookie());
    let mut found = found;
    let of = released.map_or(0, |released| released.epoch);
    if of > epoch.number {
        // To go on with an epoch that is over would give up all leaves of the new one.
        let why = format!("one is missing: the temporary log is of epoch {of}");
        return Err(damaged(&*place.root, names::POLICY_DIR, &why).into());
    }
    if of != epoch.number {
        let begun = Released {
            size: epoch.start.size,
            root: epoch.start.root,
            epoch: epoch.number,
        };
        let end = found.last().map_or(Lsn(0), |(_, end)| *end);
        storage.release_entries(end, &begun.encode())?;
        found.clear();
        released = Some(begun);
    }
    let roster = Roster::new(volume, policies.founder()).map_err(HostError::Policy)?;
    let snapshot = Snapshot::read(&*place.disk, volume, epoch.number);
    let reading = Reading {
        place,
        leaves: &leaves,
        heads,
    };
    let (trail, recent) = reading.log(roster, snapshot, released)?;
    let ledger = Ledger::resume(recent, trail.authors.clone(), trail.roster.clone(), 0);
    let (ledger, tail) = reading.tail(ledger, found)?;
    Ok(Opened {
        leaves,
        trail,
        ledger,
        tail,
    })
}

/// A record of leaves in the temporary log, and where its frame ends.
pub(super) type Recorded = (Bytes, Lsn);

/// Opens the block server, and reads the records of leaves that the temporary log holds.
pub(super) fn open_blocks(
    place: &Place,
    policies: &Policies,
    options: blocks::Options,
    clock: Clock,
) -> Result<(Storage, Vec<Recorded>), HostError> {
    let mut found = Vec::new();
    let mut strange = None;
    let storage = Storage::open(
        Arc::clone(&place.ring),
        &ring_key(policies.chain().volume()),
        place.repository.clone(),
        policies.chain().hasher(),
        clock,
        options,
        &mut |entry| match entry.kind {
            KIND => found.push((entry.body, entry.frame_end)),
            kind => strange = Some(kind),
        },
    )?;
    match strange {
        None => Ok((storage, found)),
        Some(kind) => Err(HostError::Policy(Reject::Unsupported {
            what: "record of the orderer",
            why: format!("kind {kind}"),
        })),
    }
}

/// The files of leaves at a start.
struct Reading<'a> {
    place: &'a Place,
    leaves: &'a Leaves,
    heads: Found,
}

impl Reading<'_> {
    fn damaged(&self, why: &str) -> HostError {
        damaged(&*self.place.disk, LEAVES, why).into()
    }

    /// The log of the files: what it says of its authors, and its tree.
    fn log(
        &self,
        roster: Roster,
        snapshot: Option<Snapshot>,
        released: Option<Released>,
    ) -> Result<(Trail, Recent), HostError> {
        let end = self.leaves.end();
        if let Some(released) = released.filter(|released| released.size > end) {
            let why = format!(
                "there are {end} leaves, and {} were written: files of leaves are missing",
                released.size
            );
            return Err(self.damaged(&why));
        }
        let recent = self.tree(end)?;
        let root = Log::<Product>::root(&recent);
        if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.frontier.size() <= end) {
            let trail = self.continued(self.resumed(roster.clone(), snapshot)?)?;
            if trail.frontier.root() == root {
                return Ok((trail, recent));
            }
            tracing::warn!("the snapshot of the log is of another log, and not used");
        }
        let trail = self.continued(Trail::new(roster))?;
        match trail.frontier.root() == root {
            true => Ok((trail, recent)),
            false => Err(self.damaged("the files of leaves do not continue each other")),
        }
    }

    /// The log's tree, with the hashes of the last leaves.
    fn tree(&self, end: u64) -> Result<Recent, HostError> {
        let oldest = end.saturating_sub(WINDOW);
        let before = |frontier: &&Frontier| frontier.size() <= oldest;
        let mut frontier = match self.heads.frontiers.iter().rfind(before) {
            Some(frontier) => frontier.clone(),
            None => Frontier::new(),
        };
        let first_page = frontier.size().next_multiple_of(PAGE);
        let mut recent: Option<Recent> = None;
        let resume = |frontier: &Frontier| {
            let pages = usize::try_from(frontier.size() / PAGE).unwrap_or(usize::MAX);
            let roots = self.heads.roots.get(..pages).map(<[_]>::to_vec);
            roots.map(|roots| Recent::resume(frontier.clone(), roots))
        };
        if frontier.size() == first_page {
            recent = resume(&frontier);
        }
        self.each(frontier.size(), end, |_, stored| {
            let hash = trust::history::leaf_hash(&stored.leaf);
            match &mut recent {
                Some(recent) => recent.append(hash),
                None => {
                    frontier.push_hash(hash)?;
                    if frontier.size() == first_page {
                        recent = resume(&frontier);
                    }
                }
            }
            Ok(())
        })?;
        recent.ok_or_else(|| self.damaged("the files of leaves have too few roots"))
    }

    /// What a snapshot says, with the members that follow from its entries.
    fn resumed(&self, mut roster: Roster, snapshot: Snapshot) -> Result<Trail, HostError> {
        for &at in &snapshot.deciding {
            self.each(at, at + 1, |at, stored| {
                if let Leaf::Entry(entry) = stored.decode()? {
                    ordering::volume::Roll::extend(&mut roster, at, &entry);
                }
                Ok(())
            })?;
        }
        Ok(Trail {
            frontier: snapshot.frontier,
            authors: snapshot.authors,
            roster,
            deciding: snapshot.deciding,
        })
    }

    /// Adds the leaves after a trail.
    fn continued(&self, mut trail: Trail) -> Result<Trail, HostError> {
        let from = trail.frontier.size();
        self.each(from, self.leaves.end(), |_, stored| {
            trail.push(&stored.decode()?);
            Ok(())
        })?;
        Ok(trail)
    }

    fn each(
        &self,
        from: u64,
        to: u64,
        mut leaf: impl FnMut(u64, &StoredLeaf) -> Result<(), Reject>,
    ) -> Result<(), HostError> {
        let mut next = from;
        while next < to {
            let until = to.min(next.saturating_add(AT_ONCE));
            for (at, stored) in (next..).zip(self.leaves.read(next..until)?) {
                leaf(at, &stored).map_err(|why| self.damaged(&format!("leaf {at}: {why}")))?;
            }
            next = until;
        }
        Ok(())
    }

    /// Adds the leaves of the temporary log.
    fn tail(
        &self,
        mut ledger: Ledger<Product, Roster>,
        found: Vec<Recorded>,
    ) -> Result<(Ledger<Product, Roster>, Tail), HostError> {
        let mut tail = Tail::new(ledger.size());
        for (body, lsn) in found {
            let (first, leaves) = read_record(&body)
                .map_err(|why| self.damaged(&format!("a record of leaves: {why}")))?;
            let mut new = Vec::new();
            for (at, stored) in (first..).zip(leaves) {
                // A crash came before the temporary log was told that they are in a file.
                if at < ledger.size() {
                    continue;
                }
                if at > ledger.size() {
                    let why = format!("leaves {} to {at} are missing", ledger.size());
                    return Err(self.damaged(&why));
                }
                let leaf = stored.decode();
                let leaf = leaf.map_err(|why| self.damaged(&format!("leaf {at}: {why}")))?;
                ledger.extend(&leaf);
                new.push((leaf, stored));
            }
            tail.extend(new, lsn);
        }
        Ok((ledger, tail))
    }
}
