//! `publish`: a directory becomes the next version of the volume in a repository (publish.md, *Publishing*;
//! SFSRO's sfsrodb). `work` shows how the threads are connected.
//!
//! The previous version stays valid until the last step, the writer's commit. If the work ends earlier, the
//! next writer removes or reuses what it left.

use std::collections::{HashMap, HashSet};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use crossbeam_channel::bounded;
use rustix::fs::{Mode, OFlags};
use store::StoreError;
use store::repository::Repository;
use store::writer::Writer;
use trust::key::PublicKey;
use trust::request::Request;
use trust::signer::Signer;

use crate::assemble::{Assembler, Tree};
use crate::blocks_out::{Cutter, Seen};
use crate::changes::Comparison;
use crate::cosigning::{Gathered, Gathering};
use crate::creation_guard::CreationGuard;
use crate::destination::{Counting, Destination, Writing};
use crate::gather::{Gatherer, State};
use crate::new_volume::NewVolume;
use crate::progress::{Observer, Published, Silent};
use crate::publish_error::PublishError;
use crate::reading::{self, Publishing};
use crate::signing_memory::Memory;
use crate::statcache::{self, Binding, CacheReader, CacheWriter};
use crate::succession::{NextVersion, Signing, check_validity, only_installed};
use crate::tar;
use crate::walk::{self, Scope, stat_open};
use crate::work::{Event, FileId};
use content::attributes::Stamp;

pub use crate::options::PublishOptions;

/// Places in each queue for one reader; a place usually holds at most half a MiB of content. Enough for the
/// readers to go on while a segment is being written.
const PLACES_PER_READER: usize = 16;
/// Places in a queue at most, whatever the number of readers.
const MAX_PLACES: usize = 64;

/// The keys that sign the new version: keys on this machine, or those of another machine.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SignedBy<'a> {
    /// These keys, now.
    Keys(&'a [&'a dyn Signer]),
    /// Other machines, later.
    Later,
}

/// The tree that is to be published.
#[derive(Clone, Copy)]
pub enum Input<'a> {
    /// A directory of this machine.
    Directory(&'a Path),
    /// A tar stream; called once.
    Tar(&'a (dyn Fn() -> Box<dyn Read> + Sync)),
}

impl std::fmt::Debug for Input<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Input::Directory(path) => f.debug_tuple("Directory").field(path).finish(),
            Input::Tar(_) => f.write_str("Tar"),
        }
    }
}

impl<'a> From<&'a Path> for Input<'a> {
    fn from(path: &'a Path) -> Self {
        Input::Directory(path)
    }
}

impl<'a> From<&'a PathBuf> for Input<'a> {
    fn from(path: &'a PathBuf) -> Self {
        Input::Directory(path)
    }
}

/// Publishes a tree into the repository at `repository`, which is made if there is none.
///
/// # Errors
/// [`PublishError`]; nothing has been published then.
pub fn publish<'a>(
    input: impl Into<Input<'a>>,
    repository: &Path,
    key: &dyn Signer,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<Published, PublishError> {
    publish_with(input.into(), repository, &[key], options, observer)
}

/// [`publish`] with several keys. Each signs what its role must sign: owners the policy of a new volume, publishers the
/// version, timestamp keys that it is current.
///
/// # Errors
/// [`PublishError`]; [`PublishError::TooFewKeys`] and [`PublishError::NoTimestamp`] when more keys must sign;
/// [`PublishError::NoSignature`] for a key that does not.
pub fn publish_with(
    input: Input<'_>,
    repository: &Path,
    keys: &[&dyn Signer],
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<Published, PublishError> {
    let by = SignedBy::Keys(keys);
    make(input, repository, by, options, observer).map(|(made, _)| made)
}

/// Does all of [`publish`] except signing and committing the head. The blocks are in the repository
/// when this returns, and the small [`Request`] holds what is left to do (see [`crate::signing`]). For a new volume,
/// the options must say who may sign. A dry run gives no request.
///
/// # Errors
/// [`PublishError`].
pub fn publish_unsigned<'a>(
    input: impl Into<Input<'a>>,
    repository: &Path,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<(Published, Option<Request>), PublishError> {
    make(input.into(), repository, SignedBy::Later, options, observer)
}

fn make(
    input: Input<'_>,
    repository: &Path,
    by: SignedBy<'_>,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<(Published, Option<Request>), PublishError> {
    let top = match input {
        Input::Directory(path) => Some(open_directory(path)?),
        Input::Tar(_) => None,
    };
    if options.valid.as_secs() == 0 {
        return Err(PublishError::Impossible("a validity of less than a second"));
    }
    if options.dry_run {
        let rehearsed = rehearse(input, top.as_ref(), repository, by, options, observer)?;
        return Ok((rehearsed, None));
    }
    let found = Repository::open(repository);
    let is_new = matches!(found, Err(StoreError::NoRepository { .. }));
    if is_new && matches!(by, SignedBy::Later) && options.new_volume.is_none() {
        return Err(PublishError::NoPublisher);
    }
    let before = is_new.then(|| CreationGuard::look(repository));
    let made = found
        .or_else(|error| match error {
            StoreError::NoRepository { .. } => Repository::create(repository),
            other => Err(other),
        })
        .map_err(PublishError::from)
        .and_then(|opened| {
            let top = top.as_ref();
            write(input, top, &opened, repository, by, options, observer)
        });
    if let (Err(_), Some(before)) = (&made, before) {
        before.take_back();
    }
    made
}

/// Publishes into a repository that exists.
fn write(
    input: Input<'_>,
    top: Option<&OwnedFd>,
    opened: &Repository,
    repository: &Path,
    by: SignedBy<'_>,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<(Published, Option<Request>), PublishError> {
    let mut writing = Writing {
        writer: Writer::begin(opened)?,
        committed_bytes: 0,
    };
    let statements = writing.writer.statements().clone();
    let place = (repository, Some(opened));
    let succession = succession(&statements, place, by, options)?;
    let publication = Publication {
        input,
        top,
        repository: Some(writing.writer.repository().clone()),
        forbidden: identity(repository),
        succession: &succession,
        options,
        cache: cache_file(input, repository, options),
    };
    let mut tree = publication.tree(&mut writing, observer)?;
    let cache = publication.cache.clone().zip(tree.cache.take());
    let binding = Binding {
        volume: *succession.volume.as_bytes(),
        root: *tree.root.as_bytes(),
        with_owner: options.with_owner,
        publish_keys: options.publish_keys,
    };
    let (published, request) = conclude(writing, succession, tree, by, repository, options)?;
    if let Some((path, cache)) = cache {
        cache.finish(&path, &binding).unwrap_or_else(no_cache);
    }
    Ok((published, request))
}

/// The last steps: sign the head and commit it, or make a request for another machine to sign.
pub(crate) fn conclude(
    mut writing: Writing,
    succession: NextVersion,
    tree: Tree,
    by: SignedBy<'_>,
    repository: &Path,
    options: &PublishOptions,
) -> Result<(Published, Option<Request>), PublishError> {
    let succession = succession.named(options.version_name.clone());
    let mut published = told(&succession, &tree, options);
    published.skipped = tree.skipped;
    let (committed, request) = match by {
        SignedBy::Keys(keys) => {
            // Before the lock is taken: the disk may need long for the blocks.
            writing.writer.prepare()?;
            let memory = Memory::lock(&succession.volume, options.state_dir.as_deref())?;
            let signing = Signing {
                keys,
                clock: &options.clock,
                accept_clock: options.accept_clock,
                valid: options.valid,
                memory: &memory,
                cosigning: &options.cosigning,
                repository,
            };
            let signed = succession.sign(tree.root, tree.totals, &signing);
            let mut head = signed.map_err(|error| cut_off(error, options))?;
            let gathering = Gathering {
                keys,
                cosigning: &options.cosigning,
                memory: &memory,
                stamped: None,
                repository,
            };
            match gathering.gather(&mut writing.writer, &mut head)? {
                Gathered::Enough(bytes) => writing.committed_bytes += bytes,
                Gathered::Waits => return Err(only_installed()),
            }
            published.version = head.version;
            published.record_hash = Some(head.record_hash);
            published.valid_until = head.valid_until;
            published.record_until = head.record_until;
            published.waits_for_timestamp = head.waits_for_timestamp;
            (memory.show(&mut writing.writer, &head)?, None)
        }
        SignedBy::Later => {
            let (start, seconds) = (options.clock.now(), options.valid.as_secs());
            let request = succession.propose(tree.root, tree.totals, start, seconds);
            (writing.writer.checkpoint()?, Some(request))
        }
    };
    published.new_bytes = writing.committed_bytes + committed.segment_bytes + committed.index_bytes;
    Ok((published, request))
}

/// Ctrl-C ends the program of a token too, which then signs nothing.
fn cut_off(error: PublishError, options: &PublishOptions) -> PublishError {
    match error {
        PublishError::NoSignature(_) if options.cancel.load(Ordering::Relaxed) => {
            PublishError::Interrupted
        }
        other => other,
    }
}

/// A dry run: does everything except writing.
fn rehearse(
    input: Input<'_>,
    top: Option<&OwnedFd>,
    path: &Path,
    by: SignedBy<'_>,
    options: &PublishOptions,
    observer: &dyn Observer,
) -> Result<Published, PublishError> {
    let repository = match Repository::open(path) {
        Ok(repository) => Some(repository),
        Err(StoreError::NoRepository { .. }) => None,
        Err(e) => return Err(e.into()),
    };
    let statements = repository.as_ref().map(Repository::statements);
    let statements = statements.unwrap_or_default();
    let succession = succession(&statements, (path, repository.as_ref()), by, options)?;
    let mut counting = Counting {
        repository: repository.clone(),
        new: HashSet::new(),
        bytes: 0,
    };
    let publication = Publication {
        input,
        top,
        repository,
        forbidden: identity(path),
        succession: &succession,
        options,
        cache: cache_file(input, path, options),
    };
    let tree = publication.tree(&mut counting, observer)?;
    Ok(Published {
        new_bytes: counting.bytes,
        skipped: tree.skipped.clone(),
        changes: tree.changes.clone(),
        ..told(&succession, &tree, options)
    })
}

pub(crate) fn succession(
    statements: &[u8],
    (path, opened): (&Path, Option<&Repository>),
    by: SignedBy<'_>,
    options: &PublishOptions,
) -> Result<NextVersion, PublishError> {
    let keys = match by {
        SignedBy::Keys(keys) => keys,
        SignedBy::Later => &[],
    };
    let public: Vec<PublicKey> = keys.iter().map(|key| key.public()).collect();
    let succession = match opened.filter(|_| !statements.is_empty()) {
        Some(opened) => NextVersion::follow(statements, opened)?,
        None => {
            let alone = |key: &PublicKey| NewVolume::single(*key, options.valid);
            let single = public.first().map(alone);
            let new = options.new_volume.clone().or(single);
            NextVersion::begin(&options.name, &new.ok_or(PublishError::NoPublisher)?)?
        }
    };
    let memory = Memory::lock(&succession.volume, options.state_dir.as_deref())?;
    let succession = succession.go_on_from(&memory, path)?;
    if let Some(new) = &options.new_volume {
        succession.check_described(new, path)?;
    }
    match by {
        SignedBy::Keys(_) => {
            succession.check_signers(&public)?;
            succession.check_cosigning(&public, &options.cosigning)?;
        }
        SignedBy::Later => check_validity(succession.roles(), options.valid.as_secs())?,
    }
    succession.check_clock(options.clock.now(), options.accept_clock)?;
    Ok(succession)
}

fn told(succession: &NextVersion, tree: &Tree, options: &PublishOptions) -> Published {
    let previous = succession.previous.as_ref();
    Published {
        volume: succession.volume,
        new_volume: previous.is_none(),
        version: succession.version,
        record_hash: None,
        valid_until: options.clock.now().saturating_add(options.valid.as_secs()),
        record_until: options.clock.now().saturating_add(options.valid.as_secs()),
        waits_for_timestamp: false,
        previous_until: previous.map(|record| record.until()),
        unchanged: previous.is_some_and(|record| record.root == tree.root),
        totals: tree.totals,
        skipped_count: tree.skipped_count,
        skipped: Vec::new(),
        changes: Vec::new(),
        new_bytes: 0,
    }
}

fn open_directory(path: &Path) -> Result<OwnedFd, PublishError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| PublishError::NoDirectory {
        path: path.to_owned(),
        source: errno.into(),
    })
}

fn publishing(options: &PublishOptions) -> Publishing {
    Publishing {
        owner: options.with_owner,
        keys: options.publish_keys,
    }
}

fn cache_file(input: Input<'_>, repository: &Path, options: &PublishOptions) -> Option<PathBuf> {
    let directory = options.cache_dir.as_ref()?;
    match input {
        Input::Directory(tree) => Some(statcache::file_name(directory, tree, repository)),
        Input::Tar(_) => None,
    }
}

fn no_cache(error: std::io::Error) {
    tracing::warn!(%error, "no stat cache: the next publication will read every file");
}

/// Where temporary files lie: on disk, if there is a choice, because they may be large.
fn spool_dir(options: &PublishOptions) -> PathBuf {
    let cache = options.cache_dir.clone();
    let made = cache.filter(|dir| std::fs::create_dir_all(dir).is_ok());
    made.unwrap_or_else(std::env::temp_dir)
}

/// Device and inode number of a directory that must not be published into itself.
fn identity(path: &Path) -> Option<FileId> {
    let fd = open_directory(path).ok()?;
    Some(Stamp::of(&stat_open(&fd).ok()?).file)
}

/// One publication under way.
struct Publication<'a> {
    input: Input<'a>,
    /// The published directory, open; `None` for an archive.
    top: Option<&'a OwnedFd>,
    repository: Option<Repository>,
    forbidden: Option<FileId>,
    succession: &'a NextVersion,
    options: &'a PublishOptions,
    /// The stat cache.
    cache: Option<PathBuf>,
}

impl Publication<'_> {
    /// Walks the tree. If files turn out to have names outside of it, walks it a second time, because the
    /// number of their names inside is published. The second walk takes unchanged files from the cache
    /// that the first one wrote.
    fn tree<D: Destination>(
        &self,
        destination: &mut D,
        observer: &dyn Observer,
    ) -> Result<Tree, PublishError> {
        if let Input::Tar(open) = self.input {
            return self.archive(open(), destination, observer);
        }
        let mut binding = Binding {
            volume: *self.succession.volume.as_bytes(),
            root: (self.succession.previous.as_ref())
                .map_or([0; 32], |record| *record.root.as_bytes()),
            with_owner: self.options.with_owner,
            publish_keys: self.options.publish_keys,
        };
        let usable = self.cache.as_ref().filter(|_| !self.options.paranoid);
        let old = usable.and_then(|path| CacheReader::open(path, &binding));
        let mut tree = self.pass(destination, observer, &HashMap::new(), old)?;
        if tree.names_elsewhere.is_empty() {
            return Ok(tree);
        }
        // No version has this root, so no other publication can use this cache.
        binding.root = [0xff; 32];
        let first = self.cache.as_ref().zip(tree.cache.take());
        let old = first.and_then(|(path, cache)| {
            let path = path.with_extension("first");
            cache.finish(&path, &binding).unwrap_or_else(no_cache);
            let old = CacheReader::open(&path, &binding);
            // The open file stays readable without a name.
            drop(std::fs::remove_file(&path));
            old
        });
        let known = tree.names_elsewhere.into_iter().collect();
        self.pass(destination, &Silent, &known, old)
    }

    fn archive<D: Destination>(
        &self,
        input: Box<dyn Read>,
        destination: &mut D,
        observer: &dyn Observer,
    ) -> Result<Tree, PublishError> {
        let options = self.options;
        let seen = Seen::new();
        let hasher = &self.succession.hasher;
        let cutter = || Cutter::new(hasher, self.repository.as_ref(), &seen);
        let unpacking = tar::Unpacking {
            exclude: &options.exclude,
            publishing: publishing(options),
            cancel: &options.cancel,
            observer,
            spool_dir: spool_dir(options),
        };
        let unpacked = tar::unpack(input, &unpacking, cutter(), destination)?;
        let comparison = self.comparison()?;
        let assembler = Assembler::new(cutter(), destination, false, observer, None, comparison);
        tar::assemble(unpacked, hasher, &options.cancel, assembler)
    }

    /// The comparison with the version before, if it is asked for.
    fn comparison(&self) -> Result<Option<Comparison<'_>>, PublishError> {
        let begin = || {
            Comparison::new(
                self.repository.as_ref(),
                &self.succession.hasher,
                self.succession.previous.as_ref().map(|record| &record.root),
            )
        };
        self.options.dry_run.then(begin).transpose()
    }

    fn pass<D: Destination>(
        &self,
        destination: &mut D,
        observer: &dyn Observer,
        known_names: &HashMap<FileId, u32>,
        cache: Option<CacheReader>,
    ) -> Result<Tree, PublishError> {
        let options = self.options;
        let seen = Seen::new();
        let cutter = || Cutter::new(&self.succession.hasher, self.repository.as_ref(), &seen);
        let processors = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let readers = options.readers.unwrap_or_else(processors).max(1);
        let places = (readers * PLACES_PER_READER).min(MAX_PLACES);
        let comparison = self.comparison()?;
        let next_cache = match &self.cache {
            Some(path) if !options.dry_run => CacheWriter::begin(path, options.clock.now())
                .inspect_err(|error| tracing::warn!(%error, "no stat cache"))
                .ok(),
            _ => None,
        };
        let (jobs, to_do) = bounded(places);
        let (events, told) = bounded(places);
        std::thread::scope(|scope| {
            for _ in 0..readers {
                let (to_do, cutter) = (to_do.clone(), cutter());
                scope.spawn(move || reading::work(&to_do, cutter, publishing(options)));
            }
            drop(to_do);
            let gatherer = Gatherer {
                cutter: cutter(),
                publishing: publishing(options),
                jobs,
                events,
                cancel: &options.cancel,
                observer,
                known_names,
                cache,
                state: State::default(),
            };
            scope.spawn(move || self.gather(gatherer));
            let assembler = Assembler::new(
                cutter(),
                destination,
                options.skip_unreadable,
                observer,
                next_cache,
                comparison,
            );
            let tree = assembler.run(&told);
            // If the assembler failed, this stops the other threads.
            drop(told);
            tree
        })
    }

    fn gather(&self, mut gatherer: Gatherer<'_>) {
        let scope = Scope {
            exclude: &self.options.exclude,
            one_file_system: self.options.one_file_system,
            forbidden: self.forbidden,
            state: (self.options.state_dir.as_deref())
                .filter(|_| !self.options.publish_keys)
                .and_then(identity),
        };
        let walked = match self.top {
            Some(top) => walk::walk(top, &scope, &mut gatherer),
            None => Err(PublishError::WorkerDied),
        };
        let last = match walked {
            Ok(()) => Event::End(gatherer.state.names_elsewhere()),
            Err(e) => Event::Failed(e),
        };
        // If the receiver is gone, the assembler has failed and reports why.
        drop(gatherer.events.send(last));
    }
}
