//! A disk that crashes and a disk that fills up, for `store` (design `quality.md`, 5).
//!
//! The model is the weakest that POSIX allows. A write is durable when its file was synced, a name when its
//! directory was synced. A change that was not synced may survive a crash or be lost, and a write may
//! survive in part, in any combination and order. A rename is atomic. Directories themselves are durable at
//! once, which `Disk::make_dir` promises.
//!
//! Every mutating call is an operation with a number. At a chosen one the machine stops: that operation is
//! in flight, all later calls fail, and [`CrashDisk::reborn`] gives the disk that a restarted machine may
//! find.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use store::disk::{Disk, DiskFile, Lock};

use crate::random::Random;

type Syncs = dyn Fn(&str) -> bool + Send + Sync;

/// A disk in memory that remembers which changes are durable.
pub struct CrashDisk {
    state: Mutex<State>,
    ignored_syncs: Box<Syncs>,
    me: std::sync::Weak<CrashDisk>,
}

#[derive(Default)]
struct State {
    inodes: Vec<Inode>,
    dirs: BTreeSet<String>,
    live: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    names: Vec<NameChange>,
    locks: BTreeSet<String>,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    full_from: Option<u64>,
}

#[derive(Default, Clone)]
struct Inode {
    live: Vec<u8>,
    durable: Vec<u8>,
    writes: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone)]
struct NameChange {
    dir: String,
    removed: Option<String>,
    added: Option<(String, usize)>,
}

/// Which of the changes that were not synced survive. One digit for each change of a name and each write,
/// in order: 0 lost, 1 whole, 2 (writes only) the first half.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome(Vec<u8>);

impl CrashDisk {
    /// An empty disk.
    pub fn new() -> Arc<CrashDisk> {
        CrashDisk::with(State::default(), Box::new(|_| false))
    }

    /// An empty disk that ignores syncs of the files and directories (by name) for which `ignored` is
    /// true. The negative control of a crash test.
    pub fn ignoring_syncs(
        ignored: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Arc<CrashDisk> {
        CrashDisk::with(State::default(), Box::new(ignored))
    }

    fn with(state: State, ignored_syncs: Box<Syncs>) -> Arc<CrashDisk> {
        Arc::new_cyclic(|me| CrashDisk {
            state: Mutex::new(state),
            ignored_syncs,
            me: me.clone(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Mutating calls so far.
    pub fn operations(&self) -> u64 {
        self.state().operations
    }

    /// Stops the machine at this operation.
    pub fn crash_at(&self, operation: u64) {
        self.state().crash_at = Some(operation);
    }

    /// Whether it has stopped.
    pub fn crashed(&self) -> bool {
        self.state().crashed
    }

    /// Refuses space from this operation on; a write that meets it is cut in half.
    pub fn full_from(&self, operation: u64) {
        self.state().full_from = Some(operation);
    }

    /// There is space again.
    pub fn free_space(&self) {
        self.state().full_from = None;
    }

    /// All files, by name.
    pub fn files(&self) -> Vec<String> {
        self.state().live.keys().cloned().collect()
    }

    /// How many outcomes a crash now may have.
    pub fn combinations(&self) -> usize {
        let state = self.state();
        let names = state.names.iter().map(|_| 2);
        let writes = state.inodes.iter().flat_map(|i| &i.writes).map(|_| 3);
        names.chain(writes).fold(1, usize::saturating_mul)
    }

    /// The outcomes that a crash now may have: all of them when they are no more than `most`, else
    /// all lost, all kept, names without data, data without names, and others by seed.
    pub fn outcomes(&self, most: usize) -> Vec<Outcome> {
        let all = self.combinations();
        let state = self.state();
        let names = state.names.len();
        let writes: usize = state.inodes.iter().map(|i| i.writes.len()).sum();
        let digits = |name: &mut dyn FnMut() -> u8, write: &mut dyn FnMut() -> u8| {
            let mut digits: Vec<u8> = (0..names).map(|_| name()).collect();
            digits.extend((0..writes).map(|_| write()));
            Outcome(digits)
        };
        if all <= most {
            let outcome = |number: usize| {
                let rest = std::cell::Cell::new(number);
                let digit = |radix: usize| {
                    let digit = rest.get() % radix;
                    rest.set(rest.get() / radix);
                    digit as u8
                };
                digits(&mut || digit(2), &mut || digit(3))
            };
            return (0..all).map(outcome).collect();
        }
        let corner = |n: u8, w: u8| digits(&mut || n, &mut || w);
        let mut outcomes = vec![
            corner(0, 0),
            corner(1, 1),
            corner(1, 0),
            corner(0, 1),
            corner(1, 2),
        ];
        for seed in outcomes.len()..most {
            let random =
                std::cell::RefCell::new(Random::new(seed as u64 + state.operations * 1_000_003));
            let below = |n| random.borrow_mut().below(n) as u8;
            outcomes.push(digits(&mut || below(2), &mut || below(3)));
        }
        outcomes
    }

    /// The disk that a restarted machine finds after a crash now, with that outcome. It ignores no
    /// syncs.
    pub fn reborn(&self, outcome: &Outcome) -> Arc<CrashDisk> {
        let state = self.state();
        let mut digits = outcome.0.iter().copied();
        let mut next = || digits.next().unwrap_or_default();
        let mut names = state.durable.clone();
        for change in &state.names {
            if next() != 0 {
                change.apply(&mut names);
            }
        }
        let mut inodes = Vec::with_capacity(state.inodes.len());
        for inode in &state.inodes {
            let mut bytes = inode.durable.clone();
            for (offset, write) in &inode.writes {
                match next() {
                    0 => {}
                    1 => overwrite(&mut bytes, *offset, write),
                    _ => overwrite(&mut bytes, *offset, &write[..write.len() / 2]),
                }
            }
            inodes.push(Inode {
                live: bytes.clone(),
                durable: bytes,
                writes: Vec::new(),
            });
        }
        let state = State {
            inodes,
            dirs: state.dirs.clone(),
            live: names.clone(),
            durable: names,
            ..State::default()
        };
        CrashDisk::with(state, Box::new(|_| false))
    }

    /// Counts a mutating call. `Ok(true)` when it happens; `Ok(false)` when it is in flight as the
    /// machine stops: its change may survive or be lost, and its caller gets an error.
    fn operation(&self, state: &mut State) -> io::Result<bool> {
        if state.crashed {
            return Err(stopped());
        }
        let number = state.operations;
        state.operations += 1;
        state.crashed = state.crash_at == Some(number);
        Ok(!state.crashed)
    }

    fn change_name(&self, state: &mut State, change: NameChange) -> io::Result<()> {
        let happens = self.operation(state)?;
        change.apply(&mut state.live);
        state.names.push(change);
        if happens { Ok(()) } else { Err(stopped()) }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        if let Some(name) = &self.removed {
            names.remove(name);
        }
        if let Some((name, inode)) = &self.added {
            names.insert(name.clone(), *inode);
        }
    }
}

impl State {
    fn no_space(&self) -> bool {
        self.full_from.is_some_and(|from| self.operations >= from)
    }

    fn find(&self, name: &str) -> io::Result<usize> {
        if self.crashed {
            return Err(stopped());
        }
        let inode = self.live.get(name).copied();
        inode.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

fn stopped() -> io::Error {
    io::Error::other("the machine has stopped")
}

fn overwrite(bytes: &mut Vec<u8>, offset: usize, write: &[u8]) {
    let end = offset + write.len();
    if bytes.len() < end {
        bytes.resize(end, 0);
    }
    bytes[offset..end].copy_from_slice(write);
}

fn dir_of(name: &str) -> String {
    name.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned()
}

impl Disk for CrashDisk {
    fn place(&self) -> &str {
        "simulated disk"
    }

    fn path(&self, name: &str) -> PathBuf {
        PathBuf::from("/simulated").join(name)
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let mut state = self.state();
        if state.no_space() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let dir = dir_of(name);
        if !dir.is_empty() && !state.dirs.contains(&dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let inode = state.inodes.len();
        state.inodes.push(Inode::default());
        let change = NameChange {
            dir,
            removed: None,
            added: Some((name.to_owned(), inode)),
        };
        self.change_name(&mut state, change)?;
        Ok(self.file(name, inode))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.state().find(name)?;
        Ok(self.file(name, inode))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.no_space() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let change = NameChange {
            dir: dir_of(from),
            removed: Some(from.to_owned()),
            added: Some((to.to_owned(), state.find(from)?)),
        };
        self.change_name(&mut state, change)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.find(name)?;
        let change = NameChange {
            dir: dir_of(name),
            removed: Some(name.to_owned()),
            added: None,
        };
        self.change_name(&mut state, change)
    }

    fn make_dir(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if state.dirs.contains(name) || name.is_empty() {
            return Ok(());
        }
        if state.no_space() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if !self.operation(&mut state)? {
            return Err(stopped());
        }
        for (end, _) in name.match_indices('/') {
            state.dirs.insert(name[..end].to_owned());
        }
        state.dirs.insert(name.to_owned());
        Ok(())
    }

    fn sync_dir(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if !self.operation(&mut state)? {
            return Err(stopped());
        }
        if (self.ignored_syncs)(name) {
            return Ok(());
        }
        let names = std::mem::take(&mut state.names);
        let (synced, left): (Vec<_>, Vec<_>) = names.into_iter().partition(|c| c.dir == name);
        for change in synced {
            change.apply(&mut state.durable);
        }
        state.names = left;
        Ok(())
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        let state = self.state();
        if state.crashed {
            return Err(stopped());
        }
        if !dir.is_empty() && !state.dirs.contains(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let names = state.live.keys().chain(&state.dirs);
        let here = names.filter(|n| !n.is_empty() && dir_of(n) == dir);
        Ok(here
            .map(|n| n.rsplit('/').next().unwrap_or_default().to_owned())
            .collect())
    }

    fn lock(&self, name: &str) -> io::Result<Option<Lock>> {
        let mut state = self.state();
        if state.crashed {
            return Err(stopped());
        }
        let free = state.locks.insert(name.to_owned());
        Ok(free.then(|| {
            Box::new(HeldLock {
                disk: self.me.clone(),
                name: name.to_owned(),
            }) as Lock
        }))
    }
}

impl CrashDisk {
    fn file(&self, name: &str, inode: usize) -> Arc<dyn DiskFile> {
        Arc::new(CrashFile {
            disk: self.me.clone(),
            name: name.to_owned(),
            inode,
        })
    }
}

struct HeldLock {
    disk: std::sync::Weak<CrashDisk>,
    name: String,
}

impl Drop for HeldLock {
    fn drop(&mut self) {
        if let Some(disk) = self.disk.upgrade() {
            disk.state().locks.remove(&self.name);
        }
    }
}

struct CrashFile {
    disk: std::sync::Weak<CrashDisk>,
    name: String,
    inode: usize,
}

impl CrashFile {
    fn disk(&self) -> io::Result<Arc<CrashDisk>> {
        self.disk.upgrade().ok_or_else(stopped)
    }
}

impl DiskFile for CrashFile {
    fn len_bytes(&self) -> io::Result<u64> {
        let disk = self.disk()?;
        let state = disk.state();
        if state.crashed {
            return Err(stopped());
        }
        Ok(state.inodes[self.inode].live.len() as u64)
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let disk = self.disk()?;
        let state = disk.state();
        if state.crashed {
            return Err(stopped());
        }
        let live = &state.inodes[self.inode].live;
        let rest = live.get(offset as usize..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn read_at_if_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
        self.read_at(buf, offset).map(Some)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let disk = self.disk()?;
        let mut state = disk.state();
        let full = state.no_space();
        let happens = disk.operation(&mut state)?;
        let bytes = if full {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        let inode = &mut state.inodes[self.inode];
        overwrite(&mut inode.live, offset as usize, bytes);
        inode.writes.push((offset as usize, bytes.to_vec()));
        match (happens, full) {
            (false, _) => Err(stopped()),
            (true, true) => Err(io::ErrorKind::StorageFull.into()),
            (true, false) => Ok(()),
        }
    }

    fn sync(&self) -> io::Result<()> {
        let disk = self.disk()?;
        let mut state = disk.state();
        if !disk.operation(&mut state)? {
            return Err(stopped());
        }
        if !(disk.ignored_syncs)(&self.name) {
            let inode = &mut state.inodes[self.inode];
            inode.durable = inode.live.clone();
            inode.writes.clear();
        }
        Ok(())
    }
}
