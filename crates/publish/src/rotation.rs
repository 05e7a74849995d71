//! The next policy of a volume (design `trees.md`, *Policy*): [`propose`] makes a proposal where the repository is,
//! [`sign`] signs it where an owner's key is, [`install`] shows it to readers.
//!
//! No machine trusts another. The machine with a key signs only what follows the policy that it remembers to have signed.
//! The machine with the repository judges the new head as a reader would.

use std::path::{Path, PathBuf};

use store::repository::Repository;
use store::writer::Writer;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::Terms;
use trust::key::PublicKey;
use trust::policy::Policy;
use trust::proposal::{self, Decided, ExaminedProposal, MAX_PROPOSAL_BYTES, Proposal};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::{Signed, VolumeId};
use trust::timestamp_request::TimestampRequest;

use crate::completeness;
use crate::cosigning::Gathered;
use crate::pipeline::PublishOptions;
use crate::publish_error::{Missing, PublishError};
use crate::release::{self, Showing};
use crate::signing_files::{read_file, write_file};
use crate::signing_memory::{Memory, NextHead};
use crate::stamping;
use crate::succession::{NextVersion, only_installed};

/// The newest policy of a repository.
#[derive(Debug, Clone)]
pub struct Current {
    /// The volume.
    pub volume: VolumeId,
    /// Its name in the genesis policy.
    pub name: String,
    /// The newest policy.
    pub policy: Policy,
    /// Its hash.
    pub hash: [u8; 32],
    head: Head,
}

/// Reads the newest policy of `repository`, and verifies the chain that leads to it.
///
/// # Errors
/// [`PublishError::NothingPublished`], [`PublishError::BadHead`].
pub fn current(repository: &Path) -> Result<Current, PublishError> {
    let opened = Repository::open(repository)?;
    let statements = opened.statements();
    if statements.is_empty() {
        return Err(PublishError::NothingPublished {
            path: repository.to_owned(),
        });
    }
    let bad = |why| PublishError::BadHead {
        path: repository.to_owned(),
        why,
    };
    let head = Head::decode(&statements).map_err(bad)?;
    let mut signatures = Signatures::default();
    let floor = opened.floor(&head, &mut signatures)?;
    let chain = floor.known_chain(&head, &mut signatures).map_err(bad)?;
    Ok(Current {
        volume: chain.volume(),
        name: chain.genesis().name.clone(),
        policy: chain.newest().clone(),
        hash: chain.newest_hash(),
        head,
    })
}

/// The proposal of the next policy after `current`.
///
/// # Errors
/// [`PublishError::BadHead`] for a volume that was revoked.
pub fn propose(
    current: &Current,
    repository: &Path,
    decided: Decided,
) -> Result<Proposal, PublishError> {
    let proposed = Proposal::new(current.head.clone(), decided, &mut Signatures::default());
    proposed.map_err(|why| PublishError::BadHead {
        path: repository.to_owned(),
        why,
    })
}

/// A proposal whose parts fit together; see [`Proposal::examine`].
#[derive(Debug, Clone)]
pub struct ReceivedProposal {
    /// The file.
    pub path: PathBuf,
    /// Its decoded content.
    pub proposal: Proposal,
    /// The result of examining it.
    pub examined: ExaminedProposal,
}

/// Writes a proposal to a file, which appears whole or not at all.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn write(path: &Path, proposal: &Proposal) -> Result<u64, PublishError> {
    write_file(path, &proposal.encode()?)
}

/// Reads a proposal and checks all of it that can be checked before it is signed.
///
/// # Errors
/// [`PublishError::RequestFile`], [`PublishError::BadProposal`].
pub fn read(path: &Path) -> Result<ReceivedProposal, PublishError> {
    let bad = |why| PublishError::BadProposal {
        path: path.to_owned(),
        why,
    };
    let bytes = read_file(path, MAX_PROPOSAL_BYTES)?;
    let proposal = Proposal::decode(&bytes).map_err(bad)?;
    let examined = proposal.examine(&mut Signatures::default()).map_err(bad)?;
    Ok(ReceivedProposal {
        path: path.to_owned(),
        proposal,
        examined,
    })
}

/// Whether `key` is an owner's.
///
/// # Errors
/// [`PublishError::NotOwner`].
pub fn check_owner(received: &ReceivedProposal, key: &PublicKey) -> Result<(), PublishError> {
    match received.examined.may_sign(key) {
        true => Ok(()),
        false => Err(PublishError::NotOwner {
            volume: received.examined.volume.to_string(),
        }),
    }
}

/// What an owner accepts besides the proposal itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Accepted {
    /// Another policy of the same number than the one that this machine has signed. If both find enough owners, every
    /// reader sees a fork.
    pub other_policy: bool,
    /// Policies between the one that this machine has signed and this one, which the file does not show. If this machine has
    /// signed none, policies between the genesis and this one.
    pub skipped_policies: bool,
}

/// Signs a proposal. The signature is remembered before it is returned.
///
/// # Errors
/// [`PublishError::PolicyContradiction`] for a policy that does not follow the one that this machine has signed last;
/// [`PublishError::SkippedPolicies`] for one that follows others which nothing here shows;
/// [`PublishError::NotOwner`]; [`PublishError::NoSignature`].
pub fn sign(
    received: &ReceivedProposal,
    key: &dyn Signer,
    accepted: Accepted,
    options: &PublishOptions,
) -> Result<(Proposal, ExaminedProposal), PublishError> {
    check_owner(received, &key.public())?;
    let examined = &received.examined;
    let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
    let number = examined.policy.number;
    let follows = match memory.policy()? {
        Some(signed) => examined.follows(&signed),
        None if examined.shows_all_policies() => Ok(()),
        None => Err(Reject::Unproved),
    };
    match follows {
        Ok(()) => {}
        Err(Reject::Fork(_)) if accepted.other_policy => {}
        Err(Reject::Unproved) if accepted.skipped_policies => {}
        Err(Reject::Unproved) => return Err(PublishError::SkippedPolicies { number }),
        Err(why) => return Err(PublishError::PolicyContradiction { number, why }),
    }
    let mut proposal = received.proposal.clone();
    proposal.sign(examined, key)?;
    memory.keep_policy(&proposal.policy.to_bytes())?;
    let examined = proposal.examine(&mut Signatures::default())?;
    Ok((proposal, examined))
}

/// A policy that was installed.
#[derive(Debug, Clone)]
pub struct InstalledPolicy {
    /// What it is.
    pub examined: ExaminedProposal,
    /// Until when readers may believe the newest version now, unix seconds; `None` if it has ended, and for a volume that
    /// has ended.
    pub valid_until: Option<u64>,
    /// Whether it had been installed before.
    pub again: bool,
    /// Whether a file was written for witnesses to cosign, and nothing was installed yet.
    pub waits_for_witnesses: bool,
}

/// Makes a signed policy the newest one of `repository`. `paths` are copies of one proposal, with signatures of several
/// owners. `keys` confirm the newest version where the new policy demands a timestamp, and sign the log's checkpoint for
/// witnesses. Uses only validity (of the timestamp), clock, state directory and witnesses of `options`.
///
/// A version that waits for witnesses becomes visible with the policy: otherwise witnesses that are gone could never be
/// replaced, because those that are left have cosigned a log with that version in it.
///
/// # Errors
/// [`PublishError::PolicyNotSigned`]; [`PublishError::NoTimestamp`]; [`PublishError::PolicyNotNext`] if the repository
/// has another policy in its place, or a version that does not count under it; [`PublishError::SetBack`] if this machine
/// knows a later version.
pub fn install(
    paths: &[PathBuf],
    repository: &Path,
    keys: &[&dyn Signer],
    options: &PublishOptions,
) -> Result<InstalledPolicy, PublishError> {
    let received = complete(paths)?;
    let stamped = stamping::gathered(options)?;
    let mut rotation = match Rotation::begin(received, repository, options)? {
        Begun::Again(installed) => return Ok(*installed),
        Begun::Next(rotation) => rotation,
    };
    if rotation.examined.policy.revoked.is_none() {
        let confirming = release::confirming(keys, stamped.as_ref(), options);
        if options.cosigning.checkpoint_out.is_none() {
            unless_over(rotation.showing.check_timestamp(&confirming))?;
        }
        // They are of a version that was signed before, so witnesses learn nothing that must be remembered.
        let memory = Memory::none();
        let gathered = (rotation.showing).gather(&memory, keys, stamped.as_ref(), options)?;
        if gathered == Gathered::Waits {
            return Ok(InstalledPolicy {
                waits_for_witnesses: true,
                ..InstalledPolicy::new(rotation.examined, None)
            });
        }
        unless_over(rotation.showing.confirm(&confirming))?;
    }
    rotation.show(options)
}

impl InstalledPolicy {
    fn new(examined: ExaminedProposal, valid_until: Option<u64>) -> InstalledPolicy {
        InstalledPolicy {
            examined,
            valid_until,
            again: false,
            waits_for_witnesses: false,
        }
    }
}

/// A policy on its way into a repository, which is locked.
struct Rotation<'a> {
    examined: ExaminedProposal,
    memory: Memory,
    /// Whether the memory stays as it is: what this machine has signed and the repository does not show must not be forgotten.
    keeps_memory: bool,
    showing: Showing<'a>,
}

enum Begun<'a> {
    /// The policy stands there already.
    Again(Box<InstalledPolicy>),
    Next(Box<Rotation<'a>>),
}

impl<'a> Rotation<'a> {
    fn begin(
        received: ReceivedProposal,
        repository: &'a Path,
        options: &PublishOptions,
    ) -> Result<Begun<'a>, PublishError> {
        let examined = received.examined;
        let not_next = |why| PublishError::PolicyNotNext {
            path: repository.to_owned(),
            number: examined.policy.number,
            why,
        };
        let opened = Repository::open(repository)?;
        let writer = Writer::begin(&opened)?;
        let shown = current(repository)?;
        if shown.volume != examined.volume {
            return Err(not_next(Reject::WrongVolume));
        }
        let mut signatures = Signatures::default();
        if shown.hash == examined.hash {
            let known = opened.floor(&shown.head, &mut signatures)?;
            let until = judged(&known, &shown.head, options.clock.now());
            let again = InstalledPolicy {
                again: true,
                ..InstalledPolicy::new(examined, until)
            };
            return Ok(Begun::Again(Box::new(again)));
        }
        let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
        let shown = match examined.policy.lower {
            false => with_pending(shown, &memory, &opened)?,
            true => shown,
        };
        let known = opened.floor(&shown.head, &mut signatures)?;
        let policy = &received.proposal.policy;
        let head = proposal::installed(&known, &shown.head, policy, &mut signatures);
        let head = head.map_err(not_next)?;
        let record: RootRecord = head.record.statement().read(shown.volume)?;
        let keeps_memory = waits_for_others(&memory, &head, &record, repository)?;
        let next = next_head(&shown, head, &record, policy, &examined)?;
        let policy = Policy::Successor(examined.policy.clone());
        let policy = (policy, examined.hash);
        Ok(Begun::Next(Box::new(Rotation {
            examined,
            memory,
            keeps_memory,
            showing: Showing {
                repository,
                writer,
                known,
                next,
                policy,
            },
        })))
    }

    fn show(
        mut self: Box<Self>,
        options: &PublishOptions,
    ) -> Result<InstalledPolicy, PublishError> {
        let none = Memory::none();
        let memory = if self.keeps_memory {
            &none
        } else {
            &self.memory
        };
        let showing = &mut self.showing;
        memory.show(&mut showing.writer, &showing.next)?;
        let until = judged(&showing.known, &showing.next.head, options.clock.now());
        Ok(InstalledPolicy::new(self.examined, until))
    }
}

/// The head with the version that waits for witnesses, if there is one and the repository has all of it; else the one that the
/// repository shows.
fn with_pending(
    shown: Current,
    memory: &Memory,
    opened: &Repository,
) -> Result<Current, PublishError> {
    let Some(head) = memory.pending()? else {
        return Ok(shown);
    };
    let record =
        |head: &Head| -> Result<RootRecord, Reject> { head.record.statement().read(shown.volume) };
    let (before, after) = (record(&shown.head)?, record(&head)?);
    let last = |head: &Head| head.policies.last().map(Signed::hash);
    if after.version <= before.version || last(&head) != last(&shown.head) {
        return Ok(shown);
    }
    if memory.contradicts(&shown.head, &before) {
        return Err(PublishError::Forked {
            path: opened.disk_shared().path(""),
            version: before.version,
        });
    }
    let known = opened.floor(&head, &mut Signatures::default())?;
    let hasher = known
        .known_chain(&head, &mut Signatures::default())?
        .hasher();
    match completeness::missing(opened, &hasher, Some(&before.root), &after.root)? {
        0 => Ok(Current { head, ..shown }),
        _ => Ok(shown),
    }
}

/// The request of a timestamp for the newest version under the policy that [`install`] would make the newest one, for
/// timestamp keys on other machines. Where the policy has a quorum, the version is cosigned first, with `keys` of the log.
/// Uses only validity (of the timestamp), clock, state directory and witnesses of `options`.
///
/// # Errors
/// As [`install`] about the proposal and the witnesses; [`PublishError::Impossible`] if the policy has no timestamp keys.
pub fn timestamp_request(
    paths: &[PathBuf],
    repository: &Path,
    keys: &[&dyn Signer],
    options: &PublishOptions,
) -> Result<TimestampRequest, PublishError> {
    match Rotation::begin(complete(paths)?, repository, options)? {
        // It is there already, and needs the version's next timestamp.
        Begun::Again(installed) => {
            stamping::check_demanded(&installed.examined.policy.roles, keys)?;
            stamping::request(repository, options)
        }
        Begun::Next(mut rotation) => {
            stamping::check_demanded(&rotation.examined.policy.roles, keys)?;
            let showing = &mut rotation.showing;
            match showing.gather(&Memory::none(), keys, None, options)? {
                Gathered::Enough(_) => {}
                Gathered::Waits => return Err(only_installed()),
            }
            stamping::request_for(showing.writer.repository(), &showing.next.head, options)
        }
    }
}

/// A proposal that enough owners have signed.
fn complete(paths: &[PathBuf]) -> Result<ReceivedProposal, PublishError> {
    let received = gathered(paths)?;
    let missing = received.examined.missing();
    match missing.is_empty() {
        true => Ok(received),
        false => Err(PublishError::PolicyNotSigned {
            path: received.path,
            missing: Missing(missing),
        }),
    }
}

/// The copies of one proposal, merged.
fn gathered(paths: &[PathBuf]) -> Result<ReceivedProposal, PublishError> {
    let Some((first, others)) = paths.split_first() else {
        return Err(PublishError::Impossible("no file to install"));
    };
    let mut received = read(first)?;
    for path in others {
        let other = read(path)?;
        let differs = |why| PublishError::OtherCopy {
            path: path.clone(),
            why,
        };
        received.proposal.merge(&other.proposal).map_err(differs)?;
    }
    let examined = received.proposal.examine(&mut Signatures::default());
    received.examined = examined?;
    Ok(received)
}

/// A version that has ended needs no timestamp: nobody reads it until it is renewed.
fn unless_over(confirmed: Result<(), PublishError>) -> Result<(), PublishError> {
    match confirmed {
        Ok(_) | Err(PublishError::RecordOver { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Until when a reader who knows nothing else may believe the head.
fn judged(known: &Floor, head: &Head, now: u64) -> Option<u64> {
    let judged = known.judge(head, &Terms::strict(now), &mut Signatures::default());
    judged.ok().map(|offer| offer.valid_until)
}

/// Whether this machine has signed a later version which others have not signed yet. The policy does not wait for them.
///
/// # Errors
/// [`PublishError::SetBack`] for a later version that is signed.
fn waits_for_others(
    memory: &Memory,
    head: &Head,
    record: &RootRecord,
    repository: &Path,
) -> Result<bool, PublishError> {
    let chain = Floor::trusting(head)?.chain(&mut Signatures::default())?;
    let is_later = chain.map(|chain| memory.is_later(&chain, record.version));
    if is_later.transpose()? != Some(true) {
        return Ok(false);
    }
    match memory
        .last()?
        .map(NextVersion::of_own)
        .transpose()?
        .flatten()
    {
        Some(whole) => Err(PublishError::SetBack {
            path: repository.to_owned(),
            shows: record.version,
            signed: whole.version.saturating_sub(1),
        }),
        None => Ok(true),
    }
}

/// The head with the new policy, and what it adds to the log.
fn next_head(
    shown: &Current,
    head: Head,
    record: &RootRecord,
    policy: &Signed,
    examined: &ExaminedProposal,
) -> Result<NextHead, PublishError> {
    let (log, _) = head.next_log(shown.volume)?;
    let index = log.size.saturating_sub(1);
    Ok(NextHead {
        version: record.version,
        record_hash: head.record.hash(),
        valid_until: record.until(),
        record_until: record.until(),
        waits_for_timestamp: false,
        leaves: vec![(log.epoch, index, policy.to_bytes().into())],
        log,
        roles: examined.policy.roles.clone(),
        head,
    })
}
