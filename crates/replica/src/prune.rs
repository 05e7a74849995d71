//! `prune`: frees the space of blocks that no kept version reaches (design `publish.md`, *Replication*).
//!
//! The history log tells which versions there were: its leaves are the signed records. The version of the
//! head and every version that is still valid are always kept. `keep` adds more: first the newest that the
//! head continues, then those that the owners withdrew with a policy (rule 4 of `trees.md`), which have
//! higher numbers. `trust::reach` walks the kept versions; their blocks are marked here, and each node is
//! read, verified and entered once, however often it occurs. `store::collect` does the rest.
//! If anything cannot be read for certain, nothing is collected.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::collect::{Collected, Mark, Marks};
use store::disk::Disk;
use store::{BlockStore, Repository, StoreError, Writer, names};
use trust::chain::{Chain, Link};
use trust::head::Head;
use trust::history::Frontier;
use trust::reach::{Found, Reach, Refused, Wanted};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::{Purpose, Signed};
use trust::{Handle, Hasher, InodeBlock, Reject};

use crate::note::ReplicaNote;
use state::Clock;

/// How long files that only readers of the previous index need stay after a collection.
pub const GRACE: Duration = Duration::from_secs(600);

/// Options of `prune`.
#[derive(Debug, Clone)]
pub struct PruneOptions {
    /// How many of the newest versions are kept, besides those that are valid.
    pub keep: u64,
    /// Trees that are kept although no version names them yet: versions that wait for a signature.
    pub also: Vec<Handle<InodeBlock>>,
    /// Compute everything, change nothing.
    pub dry_run: bool,
    /// How long readers of the previous index still find its files.
    pub grace: Duration,
    /// The clock by which expiry is judged.
    pub clock: Clock,
}

impl Default for PruneOptions {
    fn default() -> Self {
        PruneOptions {
            keep: 1,
            also: Vec::new(),
            dry_run: false,
            grace: GRACE,
            clock: Clock::system(),
        }
    }
}

/// What was kept and collected.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pruned {
    /// Versions that are kept and present: the head's, then those before it, newest first, then those that
    /// its policies withdrew.
    pub kept: Vec<u64>,
    /// Number of versions that are present, at least in part, and are not kept.
    pub dropped: u64,
    /// The segments.
    pub collected: Collected,
}

/// Why nothing was collected.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    /// The repository failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no version in it.
    #[error("{}: nothing is published here yet", path.display())]
    Nothing {
        /// The repository.
        path: PathBuf,
    },
    /// A version to be kept cannot be read for certain, so nothing is collected.
    #[error("{}: {what}", path.display())]
    Unsure {
        /// The repository.
        path: PathBuf,
        /// What cannot be read.
        what: String,
    },
}

/// A version that the log names.
#[derive(Debug, Clone)]
struct Version {
    record_hash: [u8; 32],
    number: u64,
    root: Handle<InodeBlock>,
    until: u64,
    /// Whether the head's record continues it. If not, another version may have the same number.
    in_line: bool,
}

/// Collects the blocks in the repository on `disk` that no kept version reaches.
///
/// # Errors
/// [`PruneError`]; nothing has changed then.
pub fn prune(disk: Arc<dyn Disk>, options: &PruneOptions) -> Result<Pruned, PruneError> {
    let repository = Repository::open_on(disk)?;
    let mut writer = Writer::begin(&repository)?;
    collect(&mut writer, options)
}

/// The same for a process that writes the repository already and has committed everything.
pub(crate) fn collect(writer: &mut Writer, options: &PruneOptions) -> Result<Pruned, PruneError> {
    let repository = writer.repository().clone();
    let path = repository.disk_shared().path("");
    if writer.statements().is_empty() {
        return Err(PruneError::Nothing { path });
    }
    let bad = |why: Reject| refused(&repository, format!("its head: {why}"), &why);
    let head = Head::decode(writer.statements()).map_err(bad)?;
    let mut signatures = Signatures::default();
    let known = repository.floor(&head, &mut signatures)?;
    let chain = known.known_chain(&head, &mut signatures);
    let chain = chain.map_err(bad)?;
    let hasher = chain.hasher();
    let versions = versions(&repository, &head, &chain)?;
    // Only a replica that held a part of a version may lack blocks.
    let partial = ReplicaNote::load(&repository)?.is_some_and(|note| note.partial);
    let mut marking = Marking {
        marks: writer.marks(),
        repository: &repository,
        hasher,
        partial,
    };
    let now = options.clock.now();
    let mut pruned = Pruned::default();
    for (rank, version) in versions.iter().enumerate() {
        if !repository.contains(&version.root.any())? {
            if rank == 0 {
                let what = "the root that its head names is not here".to_owned();
                return Err(PruneError::Unsure { path, what });
            }
            continue;
        }
        if rank == 0 || (rank as u64) < options.keep || version.until > now {
            marking.tree(&version.root)?;
            pruned.kept.push(version.number);
        } else {
            pruned.dropped += 1;
        }
    }
    for root in &options.also {
        marking.tree(root)?;
    }
    let marks = marking.marks;
    pruned.collected = if options.dry_run {
        marks.estimate()?
    } else {
        writer.collect(&marks, options.grace)?
    };
    Ok(pruned)
}

/// The version that the head names, then all others that the leaves of the log name: first those that it
/// continues, newest first, then the rest. Each record counts once.
fn versions(
    repository: &Repository,
    head: &Head,
    chain: &Chain,
) -> Result<Vec<Version>, PruneError> {
    let volume = chain.volume();
    let unsure = |what: String| PruneError::Unsure {
        path: repository.disk_shared().path(names::LOG_DIR),
        what,
    };
    let newest: RootRecord = head
        .record
        .statement()
        .read(volume)
        .map_err(|why| refused(repository, format!("its head: {why}"), &why))?;
    let disk = repository.disk_shared();
    let list = |dir: &str| match disk.list(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        listed => listed.map_err(|e| unsure(e.to_string())),
    };
    let stands = head.record.hash();
    let line = line(repository, &newest, chain)?;
    let mut versions = vec![version(&newest, stands, true)];
    let mut frontier = Frontier::new();
    for epoch in list(names::LOG_DIR)? {
        let Ok(epoch) = epoch.parse::<u64>() else {
            continue;
        };
        let listed = list(&format!("{}/{epoch}", names::LOG_DIR))?;
        let mut indexes: Vec<u64> = listed.iter().filter_map(|name| name.parse().ok()).collect();
        indexes.sort_unstable();
        for index in indexes {
            let leaf = repository.log_leaf(epoch, index)?.unwrap_or_default();
            let bad = |why: Reject| {
                let what = format!("leaf {epoch}/{index} of its log: {why}");
                refused(repository, what, &why)
            };
            let signed = Signed::from_bytes(&leaf).map_err(bad)?;
            let statement = signed.statement();
            let (current, log) = (epoch == newest.log.epoch, &newest.log);
            if current && index == frontier.size() && index < log.size {
                frontier.push(statement.bytes()).map_err(bad)?;
            }
            if statement.purpose() == Purpose::Root {
                let record = statement.read(volume).map_err(bad)?;
                let in_line = line.get(&epoch).is_some_and(|size| index < *size);
                versions.push(version(&record, signed.hash(), in_line));
            }
        }
    }
    // A complete log must be the signed one. Of an incomplete log, the present leaves are used.
    if frontier.size() == newest.log.size && frontier.root() != newest.log.root {
        return Err(unsure(
            "its leaves are not those that were signed".to_owned(),
        ));
    }
    versions.sort_by_key(|v| Reverse((v.record_hash == stands, v.in_line, v.number)));
    let mut seen = HashSet::new();
    versions.retain(|version| seen.insert(version.record_hash));
    Ok(versions)
}

/// How many leaves of each log the head's record continues. A policy that begins the next log says how
/// many leaves of the previous one count. If several policies name a log, the newest one decides.
fn line(
    repository: &Repository,
    newest: &RootRecord,
    chain: &Chain,
) -> Result<HashMap<u64, u64>, PruneError> {
    let mut line = HashMap::from([(newest.log.epoch, newest.log.size)]);
    let logs = chain.newest().log_epoch().saturating_add(1);
    for number in (0..chain.len()).rev() {
        if line.len() as u64 == logs {
            break;
        }
        let link = match chain.link(number) {
            Some(link) => Some(link.clone()),
            None => {
                let policy = repository.policy(number)?.unwrap_or_default();
                let policy = Signed::from_bytes(&policy);
                policy
                    .and_then(|policy| Link::read(chain.volume(), &policy))
                    .ok()
            }
        };
        if let Some(last) = link.as_ref().and_then(|link| link.policy.last()) {
            line.entry(last.log.epoch).or_insert(last.log.size);
        }
    }
    Ok(line)
}

/// The error about bytes that are refused. Those of a later bulla are not damaged.
fn refused(repository: &Repository, what: String, why: &Reject) -> PruneError {
    match why {
        Reject::Unsupported { what, why } => PruneError::Store(StoreError::Unsupported {
            place: repository.place().to_owned(),
            why: format!("{what}, {why}"),
        }),
        _ => PruneError::Unsure {
            path: repository.disk_shared().path(""),
            what,
        },
    }
}

fn version(record: &RootRecord, record_hash: [u8; 32], in_line: bool) -> Version {
    Version {
        record_hash,
        number: record.version,
        root: record.root,
        until: record.until(),
        in_line,
    }
}

/// A walk that marks the blocks in the repository.
struct Marking<'a> {
    marks: Marks,
    repository: &'a Repository,
    hasher: Hasher,
    partial: bool,
}

impl Marking<'_> {
    /// Marks all blocks that a root reaches. Skips marked ones, because they have been walked.
    fn tree(&mut self, root: &Handle<InodeBlock>) -> Result<(), PruneError> {
        let mut reach = Reach::default();
        reach.root(*root, None);
        while let Some(need) = reach.needs(1).map_err(|why| self.malformed(&why))?.pop() {
            let handle = need.handle();
            match self.marks.mark(&handle)? {
                Mark::Known => reach.skip(need),
                Mark::Absent if self.partial => reach.lack(need),
                Mark::Absent => return Err(self.unsure(&format!("block {handle} is missing"))),
                // Data blocks have no children: they are marked and not read.
                Mark::New if matches!(need.wanted(), Wanted::Data { .. }) => reach.skip(need),
                Mark::New => {
                    let found = self.read(need.wanted())?;
                    let supplied = reach.supply(need, found);
                    supplied.map_err(|why| self.malformed(&why))?;
                }
            }
        }
        Ok(())
    }

    fn read(&self, wanted: &Wanted) -> Result<Found, PruneError> {
        let read = self.repository.read_wanted(wanted, &self.hasher);
        read.map_err(|error| match error {
            StoreError::NoBlock { .. } | StoreError::WrongBlock { .. } => {
                self.unsure(&error.to_string())
            }
            other => other.into(),
        })
    }

    fn malformed(&self, malformed: &Refused) -> PruneError {
        let what = format!("a version that is kept: {malformed}");
        refused(self.repository, what, &malformed.why)
    }

    fn unsure(&self, what: &str) -> PruneError {
        PruneError::Unsure {
            path: self.repository.disk_shared().path(""),
            what: format!("a version that is kept: {what}"),
        }
    }
}
