//! What a repair takes from: a copy of the server's directory, of any age, or the directory of a device of the volume.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use store::StoreError;
use store::disk::read_file;
use store::names;
use trust::statement::{Job, MAX_SIGNED_BYTES, Signed};
use trust_shared::genesis::Policies;

use super::super::HostError;
use super::super::directory::{is_shared, policy_numbers};
use super::super::parts::{Parts, has_parts};
use super::super::record::StoredLeaf;
use super::source::Source;
use super::{DeviceMemory, RepairSource};

/// See the head of this file.
pub(crate) struct Copied {
    pub path: PathBuf,
    place: Place,
}

enum Place {
    Server(Parts),
    Device(Box<dyn DeviceMemory>),
}

impl Copied {
    /// Opens it.
    pub fn open(from: RepairSource<'_>) -> Result<Copied, HostError> {
        let path = from.path;
        let memory = (from.open_device)(path).map_err(|why| {
            let path = path.to_owned();
            StoreError::Damaged { path, why }
        })?;
        if let Some(memory) = memory {
            return Ok(Copied {
                path: path.to_owned(),
                place: Place::Device(memory),
            });
        }
        if !is_shared(path)? && !has_parts(path) {
            return Err(HostError::NotShared {
                path: path.to_owned(),
            });
        }
        Ok(Copied::server(path, Parts::open_copy(path)?))
    }

    /// A copy of a server's directory.
    pub fn server(path: &Path, parts: Parts) -> Copied {
        Copied {
            path: path.to_owned(),
            place: Place::Server(parts),
        }
    }

    /// The directory of a server, if it is one.
    pub fn parts(&self) -> Option<&Parts> {
        match &self.place {
            Place::Server(parts) => Some(parts),
            Place::Device(_) => None,
        }
    }

    /// A policy, if its bytes are one.
    pub fn policy(&self, number: u64) -> Result<Option<(bytes::Bytes, Signed)>, HostError> {
        match &self.place {
            Place::Server(parts) => policy(parts, number),
            Place::Device(memory) => {
                let all = self.signed(&**memory)?;
                let place = usize::try_from(number).unwrap_or(usize::MAX);
                let signed = all.into_iter().nth(place);
                Ok(signed.map(|signed| (signed.to_bytes().into(), signed)))
            }
        }
    }

    /// Number of its policies.
    pub fn policies(&self) -> Result<u64, HostError> {
        match &self.place {
            Place::Server(parts) => count(parts),
            Place::Device(memory) => Ok(self.signed(&**memory)?.len() as u64),
        }
    }

    fn signed(&self, memory: &dyn DeviceMemory) -> Result<Vec<Signed>, HostError> {
        memory.policies().map_err(|why| self.unreadable(why))
    }

    fn unreadable(&self, why: String) -> HostError {
        let path = self.path.clone();
        StoreError::Damaged { path, why }.into()
    }

    /// The log of an epoch. None: it has none.
    pub fn log(
        &self,
        epoch: u64,
        tail: HashMap<u64, StoredLeaf>,
    ) -> Result<Option<Source>, HostError> {
        match &self.place {
            Place::Server(parts) => Ok(Some(Source::open(parts.disk(epoch), tail)?)),
            Place::Device(memory) => {
                let log = memory.log(epoch).map_err(|why| self.unreadable(why))?;
                Ok(log.map(Source::Device))
            }
        }
    }
}

/// Roots that the server itself has signed, with their sizes, if a device remembers them.
pub(super) fn noted(source: &Source, policies: &Policies, epoch: u64) -> Vec<(u64, [u8; 32])> {
    let (Source::Device(device), Some(epoch)) = (source, policies.epoch(epoch)) else {
        return Vec::new();
    };
    let volume = policies.chain().volume();
    let notes = device.notes().iter().filter(|note| {
        note.note().log.epoch == epoch.number && note.verify(volume, &epoch.orderer).is_ok()
    });
    notes
        .map(|note| (note.note().log.size, note.note().log.root))
        .collect()
}

/// A policy of a server's directory, if its bytes are one.
pub(super) fn policy(
    parts: &Parts,
    number: u64,
) -> Result<Option<(bytes::Bytes, Signed)>, HostError> {
    let bytes = match read_file(&*parts.root, &names::policy(number), MAX_SIGNED_BYTES) {
        Err(StoreError::Damaged { .. }) => None,
        other => other?,
    };
    Ok(bytes.and_then(|bytes| {
        let signed = Signed::from_bytes_of(Job::Shared, &bytes).ok()?;
        Some((bytes, signed))
    }))
}

/// One more than the highest number of a policy.
pub(super) fn count(parts: &Parts) -> Result<u64, HostError> {
    let last = policy_numbers(&*parts.root)?.max();
    Ok(last.map_or(0, |last| last.saturating_add(1)))
}
