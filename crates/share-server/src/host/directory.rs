//! The directory of a shared volume's server: its names, a new one, and what is needed to open one. Bytes:
//! `docs/formats/shared-server.md`.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use store::disk::{Disk, Local, Lock, io_error, read_file, replace_file};
use store::{Repository, StoreError, format, names};
use trust::Reject;
use trust::key::PublicKey;
use trust::signatures::Signatures;
use trust::statement::{Job, MAX_SIGNED_BYTES, Signed};
use trust::volume_id::VolumeId;
use trust_shared::genesis::Policies;
use trust_shared::note::SignedNote;
use wal::{Device as LogDevice, FileDevice, Key};

use super::{HostError, below};
use crate::blocks::Storage;

/// The temporary log.
pub const RING: &str = "log";
/// The repository of blocks.
pub const BLOCKS: &str = "blocks";
/// Files of leaves.
pub const LEAVES: &str = "leaves";
/// What the log says of its authors.
pub const SNAPSHOT: &str = "snapshot";
/// The newest Attest of each device.
pub const CONFIRMED: &str = "confirmed";
/// What checkpointers have signed.
pub const CHECKPOINTS: &str = "checkpoints";
/// Files that convict devices, for the operator.
pub const EVIDENCE: &str = "evidence";
/// The note that shows that the log was restored from a copy.
const RESTORED: &str = "restored";
const DIRECTORIES: [&str; 2] = [names::POLICY_DIR, LEAVES];
/// Bytes of the temporary log's file beside the ring.
const BESIDE_RING_BYTES: u64 = 2 << 20;
const KEY_CONTEXT: &str = "bulla 0 shared server log";
/// How long another process may keep the lock, and how often it is tried.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// Most policies of a volume that a server serves.
const MAX_POLICIES: u64 = 1 << 12;
/// Signatures of policies that are kept while a chain is verified.
pub const SIGNATURES: usize = 64;

/// What a server needs of its directory.
pub(crate) struct Place {
    /// The whole directory.
    pub root: Arc<dyn Disk>,
    /// The part of it with the log of the newest epoch: that of the first epoch is the directory itself.
    pub disk: Arc<dyn Disk>,
    pub ring: Arc<dyn LogDevice>,
    pub repository: Repository,
    /// No other server works here.
    pub _lock: Option<Lock>,
}

/// Whether a directory is that of a shared volume's server.
pub fn is_shared(dir: &Path) -> Result<bool, HostError> {
    match format::is_shared(&Local::new(dir)) {
        Err(StoreError::NoRepository { .. }) => Ok(false),
        other => Ok(other?),
    }
}

impl Place {
    /// See [`super::Host::create`].
    pub fn create(
        dir: &Path,
        genesis: &Signed,
        orderer: &PublicKey,
        ring_bytes: u64,
    ) -> Result<VolumeId, HostError> {
        let volume = founded(genesis, orderer)?;
        let disk = Local::new(dir);
        let fail = |name: &'static str| move |error| io_error(&Local::new(dir), name, error);
        make_private(dir).map_err(fail(""))?;
        let lock = take_lock(&disk)?;
        let names = disk.list("").map_err(fail(""))?;
        if let Some(strange) = names.iter().find(|name| !is_unfinished(name)) {
            let taken = io::Error::new(
                io::ErrorKind::AlreadyExists,
                format!("the directory is not empty: it has {strange}"),
            );
            return Err(io_error(&disk, "", taken).into());
        }
        let made = Place::make(dir, &disk, (volume, genesis), ring_bytes);
        if made.is_err() {
            // It takes most of the space. Whoever makes the directory again makes it anew.
            let _ = std::fs::remove_file(dir.join(RING));
        }
        made?;
        drop(lock);
        Ok(volume)
    }

    /// Makes the files of an empty directory.
    fn make(
        dir: &Path,
        disk: &Local,
        (volume, genesis): (VolumeId, &Signed),
        ring_bytes: u64,
    ) -> Result<(), HostError> {
        let fail = |name: &'static str| move |error| io_error(&Local::new(dir), name, error);
        let path = dir.join(RING);
        let file = File::create(&path).map_err(fail(RING))?;
        let len = ring_bytes.saturating_add(BESIDE_RING_BYTES);
        file.set_len(len)
            .and_then(|()| file.sync_all())
            .map_err(fail(RING))?;
        let ring = open_ring(&path).map_err(fail(RING))?;
        Repository::open_or_create(dir.join(BLOCKS))?;
        found(disk, &ring, volume, genesis, ring_bytes)
    }

    /// Opens a directory, and locks it.
    pub fn open(dir: &Path) -> Result<Place, HostError> {
        if !is_shared(dir)? {
            return Err(HostError::NotShared {
                path: dir.to_owned(),
            });
        }
        let disk = Local::new(dir);
        let lock = take_lock(&disk)?;
        let ring = open_ring(&dir.join(RING)).map_err(|e| io_error(&disk, RING, e))?;
        let (policies, _) = read_policies(&disk)?;
        let blocks: Arc<dyn Disk> = Arc::new(Local::new(dir.join(BLOCKS)));
        if Repository::restore_index_on(&blocks, &policies.chain().hasher())? {
            let place = blocks.place();
            tracing::warn!(
                place,
                "the index of the blocks was damaged, and is made anew"
            );
        }
        let repository = Repository::open_on(blocks)?;
        Place::of(Arc::new(disk), Arc::new(ring), repository, Some(lock))
    }

    /// What a server needs of these disks.
    pub fn of(
        root: Arc<dyn Disk>,
        ring: Arc<dyn LogDevice>,
        repository: Repository,
        lock: Option<Lock>,
    ) -> Result<Place, HostError> {
        let mut place = Place {
            disk: Arc::clone(&root),
            root,
            ring,
            repository,
            _lock: lock,
        };
        let (policies, _) = place.policies()?;
        place.disk = below::disk(&place.root, policies.newest_epoch().number);
        Ok(place)
    }

    /// See [`read_policies`].
    pub fn policies(&self) -> Result<(Policies, Vec<Signed>), HostError> {
        read_policies(&*self.root)
    }

    /// Refuses a directory that was found to be restored from a copy.
    pub fn is_not_restored(&self) -> Result<(), HostError> {
        match read_file(&*self.disk, RESTORED, MAX_SIGNED_BYTES)? {
            None => Ok(()),
            Some(_) => Err(restored()),
        }
    }

    /// Remembers that the directory was restored from a copy, as this note of its own orderer shows.
    pub fn write_restored(
        &self,
        note: &SignedNote,
        volume: VolumeId,
        orderer: &PublicKey,
    ) -> Result<HostError, HostError> {
        let text = note.to_text(volume, orderer);
        let temporary = format!("{RESTORED}{}", names::TEMPORARY);
        replace_file(&*self.disk, RESTORED, &temporary, "", text.as_bytes())?;
        Ok(restored())
    }

    pub fn io_error(&self, name: &str, error: io::Error) -> HostError {
        io_error(&*self.disk, name, error).into()
    }
}

/// The verified policies, and their bytes.
pub fn read_policies(disk: &dyn Disk) -> Result<(Policies, Vec<Signed>), HostError> {
    let mut signatures = Signatures::new(SIGNATURES);
    let mut all = Vec::new();
    let mut verified: Option<Policies> = None;
    for number in 0..MAX_POLICIES {
        let name = names::policy(number);
        let Some(bytes) = read_file(disk, &name, MAX_SIGNED_BYTES)? else {
            break;
        };
        let refused = |why| refused_policy(disk, &name, why);
        let signed = Signed::from_bytes_of(Job::Shared, &bytes).map_err(refused)?;
        verified = Some(match verified {
            None => begin(&signed, &mut signatures).map_err(refused)?,
            Some(mut chain) => {
                chain.extend(&signed, &mut signatures).map_err(refused)?;
                chain
            }
        });
        all.push(signed);
    }
    let next = names::policy(all.len() as u64);
    let is_missing = all.is_empty() || policy_numbers(disk)?.any(|it| it >= all.len() as u64);
    match verified.filter(|_| !is_missing) {
        Some(verified) => Ok((verified, all)),
        // Without the newest ones, the server would go on with an epoch that is over.
        None => Err(store::disk::damaged(disk, &next, "is missing").into()),
    }
}

/// The numbers of the policies that a directory has, in any order.
pub fn policy_numbers(disk: &dyn Disk) -> Result<impl Iterator<Item = u64> + use<>, HostError> {
    let listed = disk.list(names::POLICY_DIR);
    let listed = listed.map_err(|e| io_error(disk, names::POLICY_DIR, e))?;
    let number = |name: String| name.parse().ok().filter(|it: &u64| it.to_string() == name);
    Ok(listed.into_iter().filter_map(number))
}

/// A policy of the directory was verified before it was written. So one that is refused is damaged, or of a later bulla.
fn refused_policy(disk: &dyn Disk, name: &str, why: Reject) -> HostError {
    match why {
        Reject::Unsupported { .. } => HostError::Policy(why),
        why => store::disk::damaged(disk, name, &why.to_string()).into(),
    }
}

fn restored() -> HostError {
    let why = format!("the note that shows it is in the file `{RESTORED}` of the repository");
    HostError::Restored { why: why.into() }
}

/// The temporary log's key. It guards against rot and mistakes: whoever can write the directory can read it.
pub fn ring_key(volume: VolumeId) -> Key {
    Key::new(blake3::derive_key(KEY_CONTEXT, volume.as_bytes()))
}

/// The temporary log's name for the volume.
pub fn log_id(volume: VolumeId) -> wal::VolumeId {
    let (short, _) = volume.as_bytes().split_at(16);
    wal::VolumeId(short.try_into().unwrap_or_default())
}

/// The volume that a genesis policy founds, with this orderer.
pub fn founded(genesis: &Signed, orderer: &PublicKey) -> Result<VolumeId, HostError> {
    let policies = begin(genesis, &mut Signatures::new(SIGNATURES));
    let policies = policies.map_err(HostError::Policy)?;
    is_orderer(&policies, orderer)?;
    Ok(policies.chain().volume())
}

fn begin(genesis: &Signed, signatures: &mut Signatures) -> Result<Policies, Reject> {
    let volume = VolumeId::from_bytes(genesis.statement().hash());
    Policies::begin(volume, genesis, signatures)
}

/// Whether the key is the newest orderer's.
pub fn is_orderer(policies: &Policies, orderer: &PublicKey) -> Result<(), HostError> {
    let expected = policies.newest_epoch().orderer;
    match expected == *orderer {
        true => Ok(()),
        false => Err(HostError::OtherOrderer {
            expected,
            found: *orderer,
        }),
    }
}

/// Makes everything but the repository of blocks. The format file comes last: it makes the directory a server's.
pub fn found(
    disk: &dyn Disk,
    ring: &dyn LogDevice,
    volume: VolumeId,
    genesis: &Signed,
    ring_bytes: u64,
) -> Result<(), HostError> {
    for dir in DIRECTORIES {
        disk.make_dir(dir).map_err(|e| io_error(disk, dir, e))?;
    }
    let policy = names::policy(0);
    let write = |name: &str, dir: &str, bytes: &[u8]| {
        let temporary = format!("{name}{}", names::TEMPORARY);
        replace_file(disk, name, &temporary, dir, bytes)
    };
    write(&policy, names::POLICY_DIR, &genesis.to_bytes())?;
    Storage::format(ring, &ring_key(volume), log_id(volume), ring_bytes)?;
    disk.sync_dir("").map_err(|e| io_error(disk, "", e))?;
    write(names::FORMAT_FILE, "", format::SHARED_TEXT.as_bytes())?;
    Ok(())
}

/// Makes a directory that other users of this machine cannot enter: its files have what members may read. One that is
/// there keeps its mode.
fn make_private(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let parent = dir.parent().filter(|it| !it.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent)?;
    std::fs::DirBuilder::new().mode(0o700).create(dir)?;
    File::open(parent)?.sync_all()
}

/// Whether a name is one that an interrupted `create` leaves.
fn is_unfinished(name: &str) -> bool {
    let ours = [RING, BLOCKS, names::LOCK_FILE];
    ours.contains(&name) || DIRECTORIES.contains(&name) || name.ends_with(names::TEMPORARY)
}

/// Locks the directory. When a server is killed while it starts a process, that process has the lock until it runs its
/// program, so somebody who starts the server again must not fail at once.
pub fn take_lock(disk: &dyn Disk) -> Result<Lock, HostError> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        let lock = disk.lock(names::LOCK_FILE);
        if let Some(lock) = lock.map_err(|e| io_error(disk, names::LOCK_FILE, e))? {
            return Ok(lock);
        }
        if Instant::now() >= until {
            let path = disk.path("");
            return Err(StoreError::Locked { path }.into());
        }
        std::thread::sleep(LOCK_PAUSE);
    }
}

/// Opens the temporary log, which has a lock too: such a process may give it up a moment later than the directory's.
pub fn open_ring(path: &Path) -> io::Result<FileDevice> {
    let until = Instant::now() + LOCK_PATIENCE;
    loop {
        match FileDevice::open(path) {
            Err(error) if is_locked(&error) && Instant::now() < until => {
                std::thread::sleep(LOCK_PAUSE);
            }
            opened => return opened,
        }
    }
}

fn is_locked(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy
    )
}
