//! `renew`: extends the validity of the newest version (SFSRO 3.1). A publisher's key signs a new record of
//! the same root; a timestamp key signs a new timestamp for the existing record. The key decides which of
//! the two happens.
//!
//! Holds the writer's lock and ends with the writer's commit: it never runs beside a publication, and a
//! crash leaves either the old head or the new one.

use std::path::Path;

use store::repository::Repository;
use store::writer::Writer;
use trust::Reject;
use trust::head::Head;
use trust::judge::{Freshness, Terms};
use trust::key::PublicKey;
use trust::policy::Roles;
use trust::request::Request;
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::{Signed, VolumeId};
use trust::timestamp::Timestamp;

use crate::completeness;
use crate::confirming::{self, Confirming};
use crate::cosigning::{Gathered, Gathering};
use crate::pipeline::PublishOptions;
use crate::publish_error::PublishError;
use crate::signing_memory::Memory;
use crate::stamping;
use crate::succession::{NextVersion, Signing, check_validity, only_installed};

/// What was renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// The record: the volume has a new version of the same tree.
    Record,
    /// The timestamp of the newest version, which stays the newest.
    Timestamp,
}

/// A version whose validity was extended.
#[derive(Debug, Clone)]
pub struct Renewed {
    /// The volume.
    pub volume: VolumeId,
    /// What was signed.
    pub what: What,
    /// The version.
    pub version: u64,
    /// Its record's hash.
    pub record_hash: [u8; 32],
    /// Until when readers may believe it now, unix seconds.
    pub valid_until: u64,
}

/// Renews the newest version of `repository`. Uses only validity, clock, state directory and signed timestamps of
/// `options`. A timestamp is never valid for longer than its policy allows.
///
/// # Errors
/// [`PublishError::WrongKey`] for a key that may sign neither, [`PublishError::Locked`] while
/// another process publishes, [`PublishError::SetBack`] if this machine knows a later version,
/// [`PublishError::NoSignature`].
pub fn renew(
    repository: &Path,
    key: &dyn Signer,
    options: &PublishOptions,
) -> Result<Renewed, PublishError> {
    renew_with(repository, &[key], options)
}

/// [`renew`] with several keys: for thresholds above one, and for a publisher's key together with timestamp keys.
///
/// # Errors
/// As [`renew`]; [`PublishError::TooFewKeys`] and [`PublishError::NoTimestamp`] when more keys must sign.
pub fn renew_with(
    repository: &Path,
    keys: &[&dyn Signer],
    options: &PublishOptions,
) -> Result<Renewed, PublishError> {
    if options.valid.as_secs() == 0 {
        return Err(PublishError::Impossible("a validity of less than a second"));
    }
    let opened = Repository::open(repository)?;
    let mut writer = Writer::begin(&opened)?;
    let statements = writer.statements().clone();
    if statements.is_empty() {
        return Err(PublishError::NothingPublished {
            path: repository.to_owned(),
        });
    }
    let shown = NextVersion::follow(&statements, &opened)?;
    let memory = Memory::lock(&shown.volume, options.state_dir.as_deref())?;
    memory.settle(&Head::decode(&statements)?)?;
    let signing = Signing {
        keys,
        clock: &options.clock,
        accept_clock: options.accept_clock,
        valid: options.valid,
        memory: &memory,
        cosigning: &options.cosigning,
        repository,
    };
    let roles = shown.roles();
    let public: Vec<PublicKey> = keys.iter().map(|key| key.public()).collect();
    if (public.iter()).all(|key| confirms_only(roles, key)) {
        check_newest(&shown, &memory, repository)?;
        let gathered = stamping::gathered(options)?;
        let gathered = gathered.as_ref().map(|stamped| &stamped.timestamp);
        return stamp(&mut writer, &statements, gathered, &signing);
    }
    if !options.timestamps.is_empty() {
        return Err(PublishError::Impossible(
            "a signed timestamp confirms the version that is there, and a publisher's key makes another one",
        ));
    }
    let succession = beside_memory(shown, &memory, &opened, repository)?;
    succession.check_signers(&public)?;
    let Some(previous) = succession.previous.clone() else {
        return Err(PublishError::NothingPublished {
            path: repository.to_owned(),
        });
    };
    let volume = succession.volume;
    let mut head = succession.sign(previous.root, previous.totals, &signing)?;
    let gathering = Gathering {
        keys,
        cosigning: &options.cosigning,
        memory: &memory,
        stamped: None,
        repository,
    };
    match gathering.gather(&mut writer, &mut head)? {
        Gathered::Enough(_) => {}
        Gathered::Waits => return Err(only_installed()),
    }
    memory.show(&mut writer, &head)?;
    Ok(Renewed {
        volume,
        what: What::Record,
        version: head.version,
        record_hash: head.record_hash,
        valid_until: head.valid_until,
    })
}

/// The request to renew the newest version of `repository`, for publishers on other machines. Its tree is that of the
/// newest version. Uses only validity, clock and state directory of `options`.
///
/// # Errors
/// [`PublishError::NothingPublished`]; [`PublishError::SetBack`] if this machine knows a later version.
pub fn propose(
    repository: &Path,
    options: &PublishOptions,
) -> Result<(Request, RootRecord), PublishError> {
    let opened = Repository::open(repository)?;
    let nothing = || PublishError::NothingPublished {
        path: repository.to_owned(),
    };
    let statements = opened.statements();
    if statements.is_empty() {
        return Err(nothing());
    }
    let shown = NextVersion::follow(&statements, &opened)?;
    let memory = Memory::lock(&shown.volume, options.state_dir.as_deref())?;
    let succession = beside_memory(shown, &memory, &opened, repository)?;
    let now = options.clock.now();
    succession.check_clock(now, options.accept_clock)?;
    check_validity(succession.roles(), options.valid.as_secs())?;
    let previous = succession.previous.clone().ok_or_else(nothing)?;
    let seconds = options.valid.as_secs();
    let request = succession.propose(previous.root, previous.totals, now, seconds);
    Ok((request, previous))
}

/// Whether this key can sign timestamps and no versions.
fn confirms_only(roles: &Roles, key: &PublicKey) -> bool {
    roles.timestamps.keys().contains(key) && !roles.publishers.keys().contains(key)
}

/// Refuses to confirm an older version than the newest one that this machine has shown. One that waits for witnesses was not
/// shown, and does not matter: until it is, the version before is current.
fn check_newest(
    shown: &NextVersion,
    memory: &Memory,
    repository: &Path,
) -> Result<(), PublishError> {
    let Some(signed) = memory.shown(shown.version.saturating_sub(1))? else {
        return Ok(());
    };
    if shown.takes_back(&signed)? {
        return Ok(());
    }
    let Some(last) = NextVersion::of_own(signed)? else {
        return Ok(());
    };
    let (shows, signed) = (
        shown.version.saturating_sub(1),
        last.version.saturating_sub(1),
    );
    let path = repository.to_owned();
    if last.volume != shown.volume || signed < shows {
        return Ok(());
    }
    match signed == shows {
        true if last.base_hash() == shown.base_hash() => Ok(()),
        true => Err(PublishError::Forked {
            path,
            version: shows,
        }),
        false => Err(PublishError::SetBack {
            path,
            shows,
            signed,
        }),
    }
}

/// Refuses to renew an older version than the one that this machine signed last: readers of the newer
/// one would be taken back, or would see a fork. If the newer one has the same tree (because a renewal
/// was interrupted), continues from it, and also if it waits for witnesses and the repository has all of it.
fn beside_memory(
    succession: NextVersion,
    memory: &Memory,
    opened: &Repository,
    repository: &Path,
) -> Result<NextVersion, PublishError> {
    let Some(signed) = memory.last()? else {
        return Ok(succession);
    };
    let (is_taken_back, waits) = (succession.takes_back(&signed)?, memory.waits(&signed)?);
    let Some(last) = NextVersion::of_own(signed)? else {
        return succession.go_on_from(memory, repository);
    };
    if is_taken_back || last.volume != succession.volume || last.version <= succession.version {
        return succession.go_on_from(memory, repository);
    }
    succession.check_uncontradicted(memory, repository)?;
    let root = |succession: &NextVersion| succession.previous.as_ref().map(|record| record.root);
    if root(&last) != root(&succession) {
        if waits
            && let (before, Some(next)) = (root(&succession), root(&last))
            && completeness::missing(opened, &last.hasher, before.as_ref(), &next)? == 0
        {
            let previous = last.previous;
            let mut succession = succession.go_on_from(memory, repository)?;
            succession.previous = previous;
            return Ok(succession);
        }
        return Err(PublishError::SetBack {
            path: repository.to_owned(),
            shows: succession.version.saturating_sub(1),
            signed: last.version.saturating_sub(1),
        });
    }
    succession.go_on_from(memory, repository)
}

/// Signs a new timestamp for the newest record.
fn stamp(
    writer: &mut Writer,
    statements: &[u8],
    gathered: Option<&Signed>,
    signing: &Signing<'_>,
) -> Result<Renewed, PublishError> {
    let bad = |why| PublishError::BadHead {
        path: signing.repository.to_owned(),
        why,
    };
    let mut head = Head::decode(statements).map_err(bad)?;
    let genesis = head.policies.first();
    let genesis = genesis.ok_or(bad(Reject::NotSigned("there is no genesis policy")))?;
    let volume = VolumeId::from_bytes(genesis.hash());
    let record: RootRecord = head.record.statement().read(volume).map_err(bad)?;
    let terms = Terms {
        freshness: Freshness::Pinned {
            version: record.version,
            record_hash: head.record.hash(),
        },
        ..Terms::strict(record.start)
    };
    let mut signatures = Signatures::default();
    let floor = writer.repository().floor(&head, &mut signatures)?;
    let offer = floor.judge(&head, &terms, &mut signatures).map_err(bad)?;
    let issued = signing.clock.now();
    let confirming = Confirming {
        keys: signing.keys,
        now: issued,
        valid: signing.valid,
        gathered,
    };
    let policy = (offer.chain.newest(), offer.chain.newest_hash());
    let shown = floor.judge(&head, &Terms::strict(issued), &mut signatures);
    let before = match (shown, &head.timestamp) {
        (Ok(_), Some(shown)) => {
            shown
                .statement()
                .read::<Timestamp>(volume)
                .map_err(bad)?
                .until
        }
        _ => 0,
    };
    let until = confirming::confirm(&mut head, volume, policy, &confirming)?;
    if gathered.is_some() && until < before {
        return Err(PublishError::OlderTimestamp { until, before });
    }
    // Only a head that a reader would accept is committed.
    let judged = floor.judge(&head, &Terms::strict(issued), &mut signatures);
    let valid_until = judged.map_err(bad)?.valid_until;
    let bytes = head.encode()?;
    // What this machine has signed together with others, and nobody shows yet, must not be forgotten.
    if !signing.memory.is_later(&offer.chain, record.version)? {
        signing.memory.keep(&bytes)?;
    }
    writer.commit(&bytes)?;
    Ok(Renewed {
        volume,
        what: What::Timestamp,
        version: record.version,
        record_hash: offer.record_hash,
        valid_until,
    })
}
