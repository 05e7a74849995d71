//! Devices whose key has signed two entries with one number. The orderer refuses the second one. Both together convict
//! the key in anybody's eyes, so they become a file of evidence in the server's directory, for the operator to hand to
//! the members. It costs that device only, and it does not say who used the key.
//!
//! Only the device's last entry in the log is compared: a copy of a device that runs on, or a thief with its key and
//! journal, goes on after the entry that both know.

use store::disk::replace_file;
use store::names::TEMPORARY;
use trust::Reject;
use trust::device::DeviceKey;
use trust_shared::entry::SignedEntry;
use trust_shared::evidence::{Evidence, Offence};

use super::directory::EVIDENCE;
use super::{Core, HostError, State};
use crate::blocks::storage::lock;
use ordering::roster::Product;
use ordering::scheme::Scheme;
use ordering::signed::Entry;

/// Most entries that wait until the one with the same number is durable.
const MAX_WAITING: usize = 64;
/// Most files of evidence. Each device has one.
const MAX_FILES: usize = 1024;

/// An entry whose number its device has used for another one.
pub(super) struct Twice {
    device: DeviceKey,
    entry: SignedEntry,
    /// Position of the other one.
    at: u64,
}

impl State {
    /// The orderer has judged an entry with a good signature.
    pub(super) fn compare(&mut self, entry: &Entry) {
        let device = Product::author(entry);
        let Some(row) = self.orderer.ledger().author(device) else {
            return;
        };
        let heading = Product::heading(entry);
        let same_number = (row.incarnation, row.n) == (heading.incarnation, heading.n);
        let is_known = self.twice.iter().any(|twice| twice.device == device);
        if same_number
            && row.last != Product::id(entry)
            && !is_known
            && self.twice.len() < MAX_WAITING
        {
            self.twice.push(Twice {
                device,
                entry: entry.signed().clone(),
                at: row.last_at,
            });
        }
    }
}

impl Core {
    /// Makes files of what was noted, where the other entry is durable.
    pub(super) fn accuse(&self) {
        let ready: Vec<Twice> = {
            let mut state = lock(&self.state);
            let published = state.orderer.published();
            let ready = state.twice.extract_if(.., |twice| twice.at < published);
            ready.collect()
        };
        for twice in ready {
            let device = twice.device;
            match self.keep_evidence(twice) {
                Ok(Some(name)) => {
                    let file = self.place.disk.path(&name);
                    tracing::warn!(%device, file = %file.display(), "a device has signed two entries with one number");
                }
                Ok(None) => {}
                Err(error) => tracing::warn!(%device, %error, "no evidence was kept"),
            }
        }
    }

    /// Writes the file, unless the device has one. Gives its name.
    fn keep_evidence(&self, twice: Twice) -> Result<Option<String>, HostError> {
        let Some(bytes) = self.evidence(&twice)? else {
            return Ok(None);
        };
        let disk = &*self.place.disk;
        let failed = |e| HostError::from(store::disk::io_error(disk, EVIDENCE, e));
        disk.make_dir(EVIDENCE).map_err(failed)?;
        let key: String = twice.device.as_bytes()[..8]
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect();
        let (own, known) = (
            format!("{key}.evidence"),
            disk.list(EVIDENCE).map_err(failed)?,
        );
        if known.contains(&own) || known.len() >= MAX_FILES {
            return Ok(None);
        }
        let name = format!("{EVIDENCE}/{own}");
        let temporary = format!("{name}{TEMPORARY}");
        replace_file(disk, &name, &temporary, EVIDENCE, &bytes)?;
        Ok(Some(name))
    }

    /// The file's bytes. None: the two entries convict nobody.
    fn evidence(&self, twice: &Twice) -> Result<Option<Vec<u8>>, HostError> {
        let stored = self.read(twice.at..twice.at.saturating_add(1))?;
        let Some(stored) = stored.into_iter().next() else {
            return Ok(None);
        };
        let file = || -> Result<Vec<u8>, Reject> {
            let other = SignedEntry::decode(stored.leaf)?;
            let evidence = Evidence {
                volume: self.volume,
                epoch: self.epoch,
                policies: Vec::new(),
                offence: Offence::signed_twice(other, twice.entry.clone()),
            };
            evidence.judge()?;
            evidence.encode()
        };
        Ok(file().ok())
    }
}
