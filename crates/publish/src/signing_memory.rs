//! What this machine remembers of its own signatures: the newest head that it signed, and the last leaves of
//! that head's log.
//!
//! Two records of one version are a fork for every reader. So each command that signs does the following under
//! one lock of this memory (`state::SigningState`): it compares, signs, keeps the new head, and shows it in the repository.
//!
//! A head that witnesses are to cosign is kept as *pending* until it is shown: others have seen it, readers have not.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::Bytes;
use state::{SigningState, VolumeState};
use store::writer::{Committed, Writer};
use trust::chain::Chain;
use trust::floor::Floor;
use trust::head::Head;
use trust::history::LogPoint;
use trust::policy::Roles;
use trust::request::Request;
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::{Signed, VolumeId};

use crate::publish_error::PublishError;

/// How long another process may keep the lock.
const PATIENCE: Duration = Duration::from_secs(30);

/// The memory of one volume, locked until dropped. Empty where the caller keeps no state: the repository is then
/// trusted to show what was signed.
pub(crate) struct Memory(Option<SigningState>);

/// A head to be committed, and the leaves of the log that come with it.
pub(crate) struct NextHead {
    pub head: Head,
    pub version: u64,
    pub record_hash: [u8; 32],
    pub valid_until: u64,
    /// End of the validity of the record alone.
    pub record_until: u64,
    /// Whether readers do not believe it before its first timestamp.
    pub waits_for_timestamp: bool,
    /// Epoch, index, leaf.
    pub leaves: Vec<(u64, u64, Bytes)>,
    /// The log with all of them.
    pub log: LogPoint,
    /// The keys of the newest policy.
    pub roles: Roles,
}

impl Memory {
    /// Takes the lock, waiting for other publishers.
    pub(crate) fn lock(
        volume: &VolumeId,
        state_directory: Option<&Path>,
    ) -> Result<Memory, PublishError> {
        let Some(directory) = state_directory else {
            return Ok(Memory::none());
        };
        let state = VolumeState::at(directory, volume);
        Ok(Memory(Some(state.lock_signing(Instant::now() + PATIENCE)?)))
    }

    /// A memory that keeps nothing.
    pub(crate) fn none() -> Memory {
        Memory(None)
    }

    /// The head that was signed last, whether it was shown or is pending. Owners may take readers back to lower versions, so
    /// the policy comes first.
    pub(crate) fn last(&self) -> Result<Option<Head>, PublishError> {
        let (signed, pending) = (self.signed()?, self.pending()?);
        let is_newer = match (&signed, &pending) {
            (Some(signed), Some(pending)) => place_of(pending)? > place_of(signed)?,
            _ => pending.is_some(),
        };
        Ok(if is_newer { pending } else { signed })
    }

    /// The head that readers may have seen last, as far as this machine knows; `version` is the one that the repository shows.
    /// What `bulla sign` has signed counts, because somebody else may have shown it, unless it waits for witnesses here.
    pub(crate) fn shown(&self, version: u64) -> Result<Option<Head>, PublishError> {
        let Some(signed) = self.signed()? else {
            return Ok(None);
        };
        let waits = self.waits(&signed)? && version_of(&signed)? > version;
        Ok((!waits).then_some(signed))
    }

    /// Whether this head waits for witnesses, or did when it was shown.
    pub(crate) fn waits(&self, head: &Head) -> Result<bool, PublishError> {
        let pending = self.pending()?;
        Ok(pending.is_some_and(|pending| is_same(&pending, head)))
    }

    /// The head that this machine keeps as signed.
    fn signed(&self) -> Result<Option<Head>, PublishError> {
        match &self.0 {
            Some(state) => state.signed()?.map(decode).transpose(),
            None => Ok(None),
        }
    }

    /// The head that witnesses have heard of. It waits until a repository shows its version or a later one.
    pub(crate) fn pending(&self) -> Result<Option<Head>, PublishError> {
        match &self.0 {
            Some(state) => state.pending()?.map(decode).transpose(),
            None => Ok(None),
        }
    }

    /// Forgets the pending head if the repository shows it: a process that ended between the two has left it.
    pub(crate) fn settle(&self, shown: &Head) -> Result<(), PublishError> {
        match self.waits(shown)? {
            true => self.forget_pending(),
            false => Ok(()),
        }
    }

    /// Keeps a head before any witness hears of it.
    pub(crate) fn keep_pending(&self, head: &[u8]) -> Result<(), PublishError> {
        match &self.0 {
            Some(state) => Ok(state.keep_pending(Some(head))?),
            None => Ok(()),
        }
    }

    /// Forgets the pending head: what is shown continues it, or the owners have taken readers back from it.
    fn forget_pending(&self) -> Result<(), PublishError> {
        match &self.0 {
            Some(state) => Ok(state.keep_pending(None)?),
            None => Ok(()),
        }
    }

    /// Whether this machine has signed a later version than `version` of the volume with these policies, and still stands
    /// by it: no policy since has taken readers back from it.
    pub(crate) fn is_later(&self, chain: &Chain, version: u64) -> Result<bool, PublishError> {
        match self.last()? {
            Some(last) => Ok(version_of(&last)? > version && !is_taken_back(&last, chain)?),
            None => Ok(false),
        }
    }

    /// The head that a timestamp key confirmed last here, for a repository elsewhere.
    pub(crate) fn confirmed(&self) -> Result<Option<Head>, PublishError> {
        match &self.0 {
            Some(state) => state.confirmed()?.map(decode).transpose(),
            None => Ok(None),
        }
    }

    /// Keeps a head before anybody else sees its timestamp's signature.
    pub(crate) fn keep_confirmed(&self, head: &[u8]) -> Result<(), PublishError> {
        match &self.0 {
            Some(state) => Ok(state.keep_confirmed(head)?),
            None => Ok(()),
        }
    }

    /// The policy that an owner's key signed last here.
    pub(crate) fn policy(&self) -> Result<Option<Signed>, PublishError> {
        let signed = match &self.0 {
            Some(state) => state.signed_policy()?,
            None => None,
        };
        let read = signed.map(|bytes| Signed::from_bytes(&bytes));
        read.transpose().map_err(PublishError::Memory)
    }

    /// Keeps a policy before anybody else sees its signature.
    pub(crate) fn keep_policy(&self, policy: &[u8]) -> Result<(), PublishError> {
        match &self.0 {
            Some(state) => Ok(state.keep_signed_policy(policy)?),
            None => Ok(()),
        }
    }

    /// The kept leaves `from..until` of a log.
    pub(crate) fn leaves(&self, epoch: u64, from: u64, until: u64) -> Vec<(u64, Bytes)> {
        let state = self.0.as_ref();
        state.map_or_else(Vec::new, |state| state.leaves(epoch, from, until))
    }

    /// Whether this machine has kept another leaf in the place of the record that a repository shows: somebody else has signed
    /// another history with its key.
    pub(crate) fn contradicts(&self, shown: &Head, record: &RootRecord) -> bool {
        let (epoch, index) = (record.log.epoch, record.log.size);
        let kept = self.leaves(epoch, index, index.saturating_add(1));
        let hash = |leaf: &Bytes| Signed::from_bytes(leaf).map(|signed| signed.hash());
        (kept.first()).is_some_and(|(_, leaf)| hash(leaf) != Ok(shown.record.hash()))
    }

    /// Keeps a head before anybody else sees it.
    pub(crate) fn keep(&self, head: &[u8]) -> Result<(), PublishError> {
        match &self.0 {
            Some(state) => Ok(state.keep_signed(head)?),
            None => Ok(()),
        }
    }

    /// Makes all parts of a signed version durable but its head, and keeps the head as pending. After this, witnesses may hear of
    /// it.
    pub(crate) fn prepare(
        &self,
        writer: &mut Writer,
        head: &NextHead,
    ) -> Result<Committed, PublishError> {
        for (epoch, index, leaf) in &head.leaves {
            writer.put_log_leaf(*epoch, *index, leaf)?;
            if let Some(state) = &self.0 {
                state.keep_leaf(*epoch, *index, leaf)?;
            }
        }
        writer.tile_log(&head.log);
        let written = writer.checkpoint()?;
        self.keep_pending(&head.head.encode()?)?;
        Ok(written)
    }

    /// Makes a signed version the repository's newest, in the order that survives a crash: policies and the log,
    /// this memory, the head.
    pub(crate) fn show(
        &self,
        writer: &mut Writer,
        head: &NextHead,
    ) -> Result<Committed, PublishError> {
        let bytes = head.head.encode()?;
        writer.put_policies(&head.head)?;
        for (epoch, index, leaf) in &head.leaves {
            writer.put_log_leaf(*epoch, *index, leaf)?;
            if let Some(state) = &self.0 {
                state.keep_leaf(*epoch, *index, leaf)?;
            }
        }
        writer.tile_log(&head.log);
        self.keep(&bytes)?;
        let committed = writer.commit(&bytes)?;
        // Last: until the head is visible, the next command goes on from the pending one.
        self.forget_pending()?;
        Ok(committed)
    }
}

/// Whether one of these policies, newer than those of the head that this machine signed last, takes readers back from the
/// version of that head. The machine that signs does not contradict itself then.
pub(crate) fn is_taken_back(last: &Head, chain: &Chain) -> Result<bool, PublishError> {
    let known = Floor::trusting(last)?.policy();
    let record: RootRecord = last.record.statement().read(chain.volume())?;
    Ok(known.is_some_and(|(number, _)| chain.takes_back(number, record.version)))
}

impl NextHead {
    /// The head of a signed request. Does not check whether its signatures suffice.
    pub(crate) fn of(request: &Request) -> Result<NextHead, PublishError> {
        let examined = request.examine(&mut Signatures::default())?;
        let head = request.head(&examined);
        let mut log = head.frontier.clone();
        log.push(head.record.statement().bytes())?;
        Ok(NextHead {
            head,
            log: log.point(examined.record.log.epoch),
            version: examined.record.version,
            record_hash: request.record.hash(),
            valid_until: examined.record.until(),
            record_until: examined.record.until(),
            waits_for_timestamp: false,
            leaves: request.leaves(&examined),
            roles: examined.roles,
        })
    }
}

/// Whether two heads are of one version.
fn is_same(one: &Head, other: &Head) -> bool {
    one.record.hash() == other.record.hash()
}

/// A head that this machine has kept.
fn decode(bytes: Vec<u8>) -> Result<Head, PublishError> {
    Head::decode(&bytes).map_err(PublishError::Memory)
}

/// The newest policy and the version of a head that this machine has kept: what was signed later has a greater one.
fn place_of(head: &Head) -> Result<(u64, u64), PublishError> {
    Ok((head.newest_policy(), version_of(head)?))
}

/// The version of a head that this machine has kept.
fn version_of(head: &Head) -> Result<u64, PublishError> {
    let volume = head.volume().map_err(PublishError::Memory)?;
    let record = head.record.statement().read::<RootRecord>(volume);
    Ok(record.map_err(PublishError::Memory)?.version)
}
