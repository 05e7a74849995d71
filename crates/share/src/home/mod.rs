//! Homes: the shared volumes of this user on this machine, one directory each.
//!
//! ```text
//! <state directory>/shared/<volume id>/
//!     about          name, server, and the prefix with which the log must begin (`about`)
//!     policies       the signed policies from the genesis on
//!     device.key     the key of this device, mode 0600
//!     journal        what the engine must not forget (`share::disk`)
//!     leaves         the log up to the journal's beginning
//!     invitations/   invitations that this device has given (`client::admission`)
//!     times          when the log had which size, for people (`times`)
//!     forgotten      how many entries the log has of this device that its journal has not (`forgotten`)
//!     beacons        devices that must write again and again (`beacons`)
//!     evidence/      files that convict the server, or a device; those of closed epochs in `archive/`
//!     epoch-N/       journal, leaves and times of the log's epoch N, after a fork (`epochs`)
//!     given-back     there, or beside a journal: nothing of that memory is to be given back any more
//!     returned       beside a journal of an earlier epoch: what has come back, as long as other files have not
//!     own/           content that this device wrote (`client::own`)
//!     socket         where a running engine answers other programs of this user
//! ```
//!
//! Beside it may lie `<volume id>.joining`, a device that has asked for admission (`joining`), and `<volume id>.gone`,
//! what is left of a home that was forgotten (`forgetting`).
//!
//! A home is state, not a cache: who loses it loses the device. Its files are protected against other users by their
//! modes, and by nothing against this user. Relies on `state` for durable files, on `keys` for the key, and on `trust` for policies.

mod about;
mod beacons;
mod epochs;
mod forgetting;
mod forgotten;
mod homes;
mod joining;
mod policies;
#[cfg(test)]
pub(crate) mod tests;
mod times;

use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use keys::keyfile::{self, KeyError};
use state::{StateError, private};
use trust::Reject;
use trust::history::LogPoint;
use trust::key::{PublicKey, SecretKey};
use trust::statement::Signed;
use trust::text::is_hidden;
use trust::volume_id::VolumeId;
use trust_shared::genesis::Policies;

use crate::disk::{self, DiskError};
use about::About;
pub use beacons::Beacon;
pub use epochs::Followed;
pub(crate) use epochs::GIVEN_BACK;
pub use forgetting::Idle;
pub use forgotten::Forgotten;
pub(crate) use forgotten::Memo;
use homes::{Damaged, Homes};
pub use joining::Begun;
pub use policies::{MAX_BYTES as MAX_RULES_BYTES, decode_rules, encode as encode_rules};
use policies::{decode, encode, verify};
pub(crate) use times::Timekeeper;
pub use times::{Times, When};

const SHARED: &str = "shared";
const ABOUT: &str = "about";
const POLICIES: &str = "policies";
const KEY: &str = "device.key";
/// Longest `about`, bytes.
const MAX_ABOUT_BYTES: u64 = 4 << 10;
/// Most homes that are looked at.
const MAX_HOMES: usize = 10_000;

/// A home cannot be made or used.
#[derive(Debug, thiserror::Error)]
pub enum HomeError {
    /// The state directory cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// The key of the device cannot be read or written.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The memory of the device cannot be made.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// A file of the home does not hold what it should.
    #[error("{}: {why}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Which rule it breaks.
        why: String,
    },
    /// This machine has the volume already.
    #[error("this machine has the volume already, as `{name}`")]
    Exists {
        /// Its local name.
        name: String,
    },
    /// Another volume has the name.
    #[error("`{name}` is the name of another volume here ({volume})")]
    NameTaken {
        /// The name.
        name: String,
        /// Whose name it is.
        volume: VolumeId,
    },
    /// Several volumes have the name, because one of them was damaged when another got it.
    #[error("several volumes of this machine have the name `{name}`, {volume} is one")]
    Ambiguous {
        /// The name.
        name: String,
        /// One of them.
        volume: VolumeId,
    },
    /// No volume can have this name.
    #[error("`{name}` cannot be the name of a volume: {why}")]
    BadName {
        /// The name.
        name: String,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// No server can be there.
    #[error("`{0}` cannot be the location of a server")]
    BadServer(String),
    /// Policies that do not continue those of the device: the owners have signed two rules with one number.
    #[error(
        "the policies do not continue those of this device: its owners have signed two different rules with one number"
    )]
    OtherPolicies,
    /// The device has more of the log than a policy lets stand, and the policy does not say that devices give it up.
    #[error("this device has {size} leaves of the log, and the new rules let only {start} stand")]
    GivesUp {
        /// What the device has.
        size: u64,
        /// What stands.
        start: u64,
    },
    /// The policies are not those of the volume.
    #[error("the policies of the volume: {0}")]
    Policies(#[from] Reject),
}

impl HomeError {
    /// Whether another process used the home until the deadline.
    pub fn is_locked(&self) -> bool {
        matches!(self, HomeError::Disk(DiskError::State(error)) | HomeError::State(error) if error.is_locked())
    }

    /// The same error for a caller that has waited for the home since `began`, several times.
    fn waiting_since(self, began: Instant) -> HomeError {
        match self {
            HomeError::Disk(DiskError::State(error)) => {
                HomeError::Disk(DiskError::State(error.waiting_since(began)))
            }
            error => error,
        }
    }
}

/// What a new home is made of.
#[derive(Debug)]
pub struct NewHome<'a> {
    /// The volume.
    pub volume: VolumeId,
    /// Its local name.
    pub name: &'a str,
    /// Where its server is.
    pub server: &'a str,
    /// The key of this device.
    pub key: &'a SecretKey,
    /// Its policies, from the genesis on.
    pub policies: &'a [Signed],
    /// The prefix that an invitation names: the log must begin so.
    pub begins: Option<LogPoint>,
}

/// A shared volume of this user on this machine.
#[derive(Debug, Clone)]
pub struct Home {
    directory: PathBuf,
    volume: VolumeId,
    about: About,
    device: PublicKey,
}

impl Home {
    /// Makes a home, durably.
    ///
    /// # Errors
    /// [`HomeError`]; then there is none.
    pub fn create(state_directory: &Path, new: &NewHome<'_>) -> Result<Home, HomeError> {
        let about = About {
            name: check_name(new.name)?.to_owned(),
            server: check_server(new.server)?.to_owned(),
            begins: new.begins,
        };
        let epoch = verify(new.volume, new.policies)?.newest_epoch().number;
        if let Some(home) = Home::open(state_directory, new.volume)? {
            let name = home.about.name;
            return Err(HomeError::Exists { name });
        }
        Homes::of(state_directory)?.is_free(&about.name, new.volume)?;
        let all = state_directory.join(SHARED);
        private::create_directory(&all)?;
        let directory = all.join(new.volume.to_string());
        let unfinished = all.join(format!("{}.new", new.volume));
        remove_unfinished(&unfinished)?;
        private::create_directory(&unfinished)?;
        keyfile::write(&unfinished.join(KEY), new.key, None)?;
        let memory = epochs::memory(&unfinished, epoch);
        private::create_directory(&memory)?;
        disk::create(&memory)?;
        private::replace(&unfinished.join(POLICIES), &encode(new.policies))?;
        private::replace(&unfinished.join(ABOUT), about.encode().as_bytes())?;
        fs::rename(&unfinished, &directory).map_err(|e| damaged(&directory, e))?;
        private::sync_parent(&directory)?;
        Ok(Home {
            directory,
            volume: new.volume,
            about,
            device: new.key.public(),
        })
    }

    /// The home of a volume by its local name or its id. Homes that cannot be read and have other names are in nobody's
    /// way; a warning names them.
    ///
    /// # Errors
    /// [`HomeError`] when the state directory or that home cannot be read, or when two have the name.
    pub fn find(state_directory: &Path, name_or_id: &str) -> Result<Option<Home>, HomeError> {
        if let Ok(volume) = name_or_id.parse() {
            return Home::open(state_directory, volume);
        }
        Homes::of(state_directory)?.named(name_or_id)
    }

    /// The home of a device, if the directory is one: `STATE/shared/VOLUME`.
    ///
    /// # Errors
    /// [`HomeError`] when it cannot be read.
    pub fn at(directory: &Path) -> Result<Option<Home>, HomeError> {
        if !directory.join(KEY).exists() {
            return Ok(None);
        }
        let volume = directory.file_name().and_then(|name| name.to_str());
        let volume = volume.and_then(|name| name.parse().ok());
        let state = directory.parent().and_then(Path::parent);
        match (volume, state) {
            (Some(volume), Some(state)) => Home::open(state, volume),
            _ => Ok(None),
        }
    }

    /// All homes that can be read, by their local names. A warning names each other one.
    ///
    /// # Errors
    /// [`HomeError`] when the state directory cannot be read.
    pub fn list(state_directory: &Path) -> Result<Vec<Home>, HomeError> {
        let Homes { whole, damaged } = Homes::of(state_directory)?;
        damaged.iter().for_each(Damaged::warn);
        Ok(whole)
    }

    fn open(state_directory: &Path, volume: VolumeId) -> Result<Option<Home>, HomeError> {
        let directory = state_directory.join(SHARED).join(volume.to_string());
        if !directory.try_exists().map_err(|e| damaged(&directory, e))? {
            return Ok(None);
        }
        let about = read_about(&directory)?;
        let device = keyfile::content(&directory.join(KEY))?.public();
        Ok(Some(Home {
            directory,
            volume,
            about,
            device,
        }))
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.volume
    }

    /// Its local name.
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// Where its server is.
    pub fn server(&self) -> &str {
        &self.about.server
    }

    /// The prefix with which the log must begin, by the invitation.
    pub fn begins(&self) -> Option<&LogPoint> {
        self.about.begins.as_ref()
    }

    /// The public key of this device.
    pub fn device(&self) -> &PublicKey {
        &self.device
    }

    /// The secret key of this device.
    ///
    /// # Errors
    /// [`HomeError::Key`].
    pub fn key(&self) -> Result<SecretKey, HomeError> {
        let path = self.directory.join(KEY);
        let key = keyfile::load(&path, || Err("the key of a device has none"))?;
        if key.public() != self.device {
            return Err(damaged(
                &path,
                "the secret does not belong to the public key",
            ));
        }
        Ok(key)
    }

    /// What this device knows of the times of entries.
    pub fn times(&self) -> Times {
        let epoch = self.policies().map_or(0, |it| it.newest_epoch().number);
        Times::read(&self.memory(epoch))
    }

    /// Entries of this device that the log has, and that this device does not remember.
    pub fn forgotten(&self) -> Forgotten {
        let epoch = self.policies().map_or(0, |it| it.newest_epoch().number);
        forgotten::read(&self.memory(epoch))
    }

    /// The signed policies, from the genesis on.
    ///
    /// # Errors
    /// [`HomeError`] when they cannot be read.
    pub fn signed_policies(&self) -> Result<Vec<Signed>, HomeError> {
        let path = self.directory.join(POLICIES);
        let bytes = read(&path, policies::MAX_BYTES)?;
        decode(&bytes).map_err(|why| damaged(&path, why))
    }

    /// The verified policies.
    ///
    /// # Errors
    /// [`HomeError`] when they cannot be read, or are not those of the volume.
    pub fn policies(&self) -> Result<Policies, HomeError> {
        verify(self.volume, &self.signed_policies()?)
    }

    /// Notes that the server is somewhere else, durably.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn set_server(&mut self, server: &str) -> Result<(), HomeError> {
        let mut about = self.about.clone();
        about.server = check_server(server)?.to_owned();
        self.set(about)
    }

    fn set(&mut self, about: About) -> Result<(), HomeError> {
        private::replace(&self.directory.join(ABOUT), about.encode().as_bytes())?;
        self.about = about;
        Ok(())
    }
}

/// A name that a person gives a volume. Nothing that looks like an id, a path or an option.
fn check_name(name: &str) -> Result<&str, HomeError> {
    let bad = |why| {
        let name = name.to_owned();
        Err(HomeError::BadName { name, why })
    };
    let first = name.chars().next();
    let odd = |c: char| c == ' ' || "/@:\\".contains(c);
    match first {
        None => bad("it is empty"),
        Some('-' | '.') => bad("it begins with a dash or a dot"),
        _ if name.len() > 64 => bad("it is longer than 64 bytes"),
        _ if name.chars().any(odd) => bad("it has a space or one of / @ : \\"),
        _ if name.chars().any(is_hidden) => bad("it has a character that nobody sees"),
        _ if name.parse::<VolumeId>().is_ok() => bad("it is the id of a volume"),
        _ => Ok(name),
    }
}

fn read_about(directory: &Path) -> Result<About, HomeError> {
    let path = directory.join(ABOUT);
    let bytes = read(&path, MAX_ABOUT_BYTES)?;
    let text = String::from_utf8(bytes).map_err(|_| damaged(&path, "not text"))?;
    About::decode(&text).ok_or_else(|| damaged(&path, "not about a volume"))
}

fn check_server(server: &str) -> Result<&str, HomeError> {
    let printable = server.bytes().all(|byte| byte.is_ascii_graphic());
    if server.is_empty() || server.len() > 255 || !printable {
        return Err(HomeError::BadServer(server.to_owned()));
    }
    Ok(server)
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, HomeError> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(|e| damaged(path, e))?;
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|e| damaged(path, e))?;
    if bytes.len() as u64 > most {
        return Err(damaged(path, "too long"));
    }
    Ok(bytes)
}

/// A process that was killed while it made a home leaves one that nobody uses.
fn remove_unfinished(path: &Path) -> Result<(), HomeError> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(damaged(path, e)),
        _ => Ok(()),
    }
}

fn damaged(path: &Path, why: impl std::fmt::Display) -> HomeError {
    HomeError::Damaged {
        path: path.to_owned(),
        why: why.to_string(),
    }
}
