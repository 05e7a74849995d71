//! Signing on another machine than the one that has the tree (publish.md, *Publishing*): the request
//! file on its way there and back. `publish_unsigned` makes it, [`sign`] signs it on the machine with the
//! key, [`install`] completes the publication.
//!
//! Neither machine trusts the other. The machine with the key signs only what continues the versions that
//! it remembers to have signed. The machine with the tree judges the head as a reader would, and requires
//! that every block of the version is in the repository.

use std::path::{Path, PathBuf};

use store::repository::Repository;
use store::writer::Writer;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Freshness, MAX_AHEAD_SECONDS, Offer, Terms};
use trust::key::PublicKey;
use trust::request::{Base, Examined, MAX_REQUEST_BYTES, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::{Signed, VolumeId};
use trust::tally::Tally;
use trust::timestamp_request::TimestampRequest;

use crate::closure;
use crate::confirming::{self, Confirming};
use crate::cosigning::{self, Gathered, Gathering};
use crate::memory::{Memory, NextHead};
use crate::pipeline::PublishOptions;
use crate::publish_error::{Missing, PublishError};
use crate::stamping;
use crate::succession::{Succession, check_validity};
use crate::travelling::{read_file, write_file};

/// Writes a request to a file, which appears whole or not at all.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn write(path: &Path, request: &Request) -> Result<u64, PublishError> {
    write_file(path, &request.encode()?)
}

/// Reads a request and checks all of it that can be checked before it is signed.
///
/// # Errors
/// [`PublishError::RequestFile`], [`PublishError::BadRequest`].
pub fn read(path: &Path) -> Result<Received, PublishError> {
    let bytes = read_file(path, MAX_REQUEST_BYTES)?;
    let bad = |why| PublishError::BadRequest {
        path: path.to_owned(),
        why,
    };
    let request = Request::decode(&bytes).map_err(bad)?;
    let examined = request.examine(&mut Signatures::default()).map_err(bad)?;
    Ok(Received {
        path: path.to_owned(),
        request,
        examined,
    })
}

/// A request whose parts fit together; see [`Request::examine`].
#[derive(Debug, Clone)]
pub struct Received {
    /// The file.
    pub path: PathBuf,
    /// Its decoded content.
    pub request: Request,
    /// The result of examining it.
    pub examined: Examined,
}

/// Whether `key` may sign a part of the request.
///
/// # Errors
/// [`PublishError::WrongKey`].
pub fn check_signer(received: &Received, key: &PublicKey) -> Result<(), PublishError> {
    match received.examined.may_sign(key) {
        true => Ok(()),
        false => Err(PublishError::WrongKey {
            volume: received.examined.volume.to_string(),
        }),
    }
}

/// Whether this machine has signed a version under the same policy before. Its roles are then known to it.
///
/// # Errors
/// [`PublishError::State`]; [`PublishError::Memory`] when the memory is damaged.
pub fn is_known_policy(
    received: &Received,
    options: &PublishOptions,
) -> Result<bool, PublishError> {
    let examined = &received.examined;
    let Some(last) = Memory::lock(&examined.volume, options.state_dir.as_deref())?.last()? else {
        return Ok(false);
    };
    let signed: RootRecord = last.record.statement().read(examined.volume)?;
    Ok(signed.policy_hash == examined.record.policy_hash)
}

/// A request that was signed.
#[derive(Debug, Clone)]
pub struct Countersigned {
    /// The request, with its signature.
    pub request: Request,
    /// Hash of the record as it was signed.
    pub record_hash: [u8; 32],
    /// Begin of its validity, unix seconds.
    pub start: u64,
    /// End of its validity, unix seconds.
    pub valid_until: u64,
    /// Whether this key signed the record. An owner who is no publisher signs the policy of a new volume only.
    pub signs_record: bool,
    /// Whether the same record had been signed before.
    pub again: bool,
    /// The roles of which more keys must sign.
    pub missing: Vec<Tally>,
}

/// Signs a request. Where one publisher suffices, the validity begins now and lasts as long as `options` say; where
/// several must sign, the request says it. A second request for the same version of the same tree gets the same record
/// again. The signature is remembered before it is returned.
///
/// # Errors
/// [`PublishError::Contradiction`] for a request that does not follow the version that this machine
/// remembers to have signed; [`PublishError::WrongKey`]; [`PublishError::ClockBehind`];
/// [`PublishError::BadRequest`] for a validity that no reader would accept; [`PublishError::NoSignature`].
pub fn sign(
    received: &Received,
    key: &dyn Signer,
    options: &PublishOptions,
) -> Result<Countersigned, PublishError> {
    let Received {
        path,
        request,
        examined,
    } = received;
    check_signer(received, &key.public())?;
    if !examined.publishers.has(&key.public()) {
        // An owner of a new volume. There is nothing to contradict: another policy is another volume.
        let mut request = request.clone();
        request.sign(examined, 0, 0, key)?;
        return countersigned(request, key, false);
    }
    let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
    if let Some(last) = memory.last()? {
        if let Some(again) = signed_already(request, examined, &last)? {
            let mut request = again;
            let examined = request.examine(&mut Signatures::default())?;
            let RootRecord {
                start, duration, ..
            } = examined.record;
            request.sign(&examined, start, duration, key)?;
            return countersigned(request, key, true);
        }
        check_follows(request, examined, &last, options.accept_skipped_versions)?;
    }
    let start = options.clock.now();
    check_begin(examined, start, options.accept_clock)?;
    let seconds = options.valid.as_secs();
    if examined.sets_validity() {
        check_validity(&examined.roles, seconds)?;
    }
    let mut request = request.clone();
    request.sign(examined, start, seconds, key)?;
    let signed = countersigned(request, key, false)?;
    check_time(&signed.request, start).map_err(|why| PublishError::BadRequest {
        path: path.clone(),
        why,
    })?;
    let examined = signed.request.examine(&mut Signatures::default())?;
    memory.keep(&signed.request.head(&examined).encode()?)?;
    Ok(signed)
}

/// Refuses a version that would begin before the one before it. Where several publishers must sign, the request says
/// when it begins; otherwise it begins now.
fn check_begin(examined: &Examined, now: u64, accept_clock: bool) -> Result<(), PublishError> {
    let start = match examined.sets_validity() {
        true => now,
        false => examined.record.start,
    };
    let before = examined.previous.as_ref();
    let previous = before.map_or(0, |(record, _)| record.start);
    if start < previous && !accept_clock {
        return Err(PublishError::ClockBehind {
            now: start,
            previous,
        });
    }
    Ok(())
}

/// The result for a request that was just signed.
fn countersigned(
    request: Request,
    key: &dyn Signer,
    again: bool,
) -> Result<Countersigned, PublishError> {
    let examined = request.examine(&mut Signatures::default())?;
    Ok(Countersigned {
        record_hash: request.record.hash(),
        start: examined.record.start,
        valid_until: examined.record.until(),
        signs_record: examined.publishers.has(&key.public()),
        again,
        missing: examined.missing(),
        request,
    })
}

/// Whether readers would accept the validity of the request's record at the time `now`: rule 2, and the longest
/// validity of the policy.
fn check_time(request: &Request, now: u64) -> Result<(), Reject> {
    let examined = request.examine(&mut Signatures::default())?;
    let record = &examined.record;
    if record.duration > examined.roles.record_max {
        return Err(Reject::NotSigned(
            "root record, valid for longer than the policy allows",
        ));
    }
    if record.start > now.saturating_add(MAX_AHEAD_SECONDS) {
        return Err(Reject::NotYetValid {
            start: record.start,
            now,
        });
    }
    let until = record.until().min(examined.not_after);
    if now >= until {
        return Err(Reject::Expired { until, now });
    }
    Ok(())
}

/// Whether the request continues the version that this machine signed last.
fn check_follows(
    request: &Request,
    examined: &Examined,
    last: &Head,
    accept_skipped_versions: bool,
) -> Result<(), PublishError> {
    let version = examined.record.version;
    match examined.follows(&request.base, last) {
        Err(Reject::Unproved) if accept_skipped_versions => Ok(()),
        Err(Reject::Unproved) => Err(PublishError::Skipped { version }),
        Err(why) => Err(PublishError::Contradiction { version, why }),
        Ok(()) => Ok(()),
    }
}

/// The request with the record that this machine signed before, if it is the same version of the same tree.
fn signed_already(
    request: &Request,
    examined: &Examined,
    last: &Head,
) -> Result<Option<Request>, PublishError> {
    if request.record.hash() == last.record.hash() {
        return Ok(Some(request.clone()));
    }
    let signed: RootRecord = last.record.statement().read(examined.volume)?;
    let asked = RootRecord {
        start: signed.start,
        duration: signed.duration,
        ..examined.record.clone()
    };
    let name = |record: &Signed| record.statement().version_name();
    let is_other = !examined.publishers.signed.is_empty()
        || examined.publishers.needed > 1
        || name(&request.record) != name(&last.record);
    if asked != signed || is_other {
        return Ok(None);
    }
    Ok(Some(Request {
        base: request.base.clone(),
        record: last.record.clone(),
    }))
}

/// What a reader says of a head. If the publisher accepts it, a version may begin in the future: readers do not believe it
/// until then, but another one can follow it.
fn judge(known: &Floor, head: &Head, options: &PublishOptions) -> Result<Offer, PublishError> {
    let strict = Terms::strict(options.clock.now());
    let mut signatures = Signatures::default();
    match known.judge(head, &strict, &mut signatures) {
        Err(Reject::NotYetValid { .. }) if options.accept_clock => {
            let record: RootRecord = head.record.statement().read(head.volume()?)?;
            let freshness = pinned(&record, head);
            let mut offer = known.judge(
                head,
                &Terms {
                    freshness,
                    ..strict
                },
                &mut signatures,
            )?;
            offer.valid_until = record.until();
            Ok(offer)
        }
        judged => Ok(judged?),
    }
}

/// Any time is right for this record.
fn pinned(record: &RootRecord, head: &Head) -> Freshness {
    Freshness::Pinned {
        version: record.version,
        record_hash: head.record.hash(),
    }
}

/// A version that was installed.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The volume.
    pub volume: VolumeId,
    /// The version.
    pub version: u64,
    /// Its record's hash.
    pub record_hash: [u8; 32],
    /// End of its validity, unix seconds.
    pub valid_until: u64,
    /// Whether readers do not believe this new volume before its first timestamp.
    pub waits_for_timestamp: bool,
    /// Whether a file was written for witnesses to cosign, and nothing was installed yet.
    pub waits_for_witnesses: bool,
    /// Whether it had been installed before.
    pub again: bool,
}

/// Makes a signed request the newest version of `repository`. `paths` are copies of one request, with signatures of
/// several keys. `keys` confirm the version where the policy demands a timestamp; a new volume may get its first
/// timestamp later. They sign the log's checkpoint for witnesses, too. Uses only validity (of the timestamp), clock, state
/// directory, signed timestamps, witnesses, and what is accepted of `options`.
///
/// # Errors
/// [`PublishError::SignaturesMissing`], [`PublishError::NoTimestamp`], [`PublishError::NotCosigned`];
/// [`PublishError::BadRequest`] for bad signatures and for a validity that has ended;
/// [`PublishError::NotNext`] if the repository shows another version than the one that it builds on;
/// [`PublishError::Incomplete`] if a block is missing.
pub fn install(
    paths: &[PathBuf],
    repository: &Path,
    keys: &[&dyn Signer],
    options: &PublishOptions,
) -> Result<Installed, PublishError> {
    let (
        path,
        Received {
            request, examined, ..
        },
    ) = complete(paths, options)?;
    let refused = |error| match error {
        PublishError::Tree(why) => PublishError::BadRequest {
            path: path.to_owned(),
            why,
        },
        other => other,
    };
    let opened = Repository::open(repository)?;
    let mut writer = Writer::begin(&opened)?;
    let statements = writer.statements().clone();
    let shown = match statements.is_empty() {
        true => None,
        false => Some(
            Head::decode(&statements).map_err(|why| PublishError::BadHead {
                path: repository.to_owned(),
                why,
            })?,
        ),
    };
    let mut next = NextHead::of(&request)?;
    let known = opened.floor(&next.head, &mut Signatures::default())?;
    if let Some(shown) = &shown
        && shown.record.hash() == next.record_hash
    {
        let judged = judge(&known, shown, options).ok();
        return Ok(Installed {
            valid_until: judged.map_or(next.record_until, |offer| offer.valid_until),
            again: true,
            ..Installed::new(examined.volume, &next)
        });
    }
    let offer = shown_as(&known, &request, &mut next.head, keys, options).map_err(refused)?;
    let needs_witnesses = offer.chain.newest().roles().witnesses.needed() > 0;
    let mut installed = Installed {
        valid_until: offer.valid_until,
        waits_for_timestamp: next.head.timestamp.is_none()
            && !offer.chain.newest().roles().timestamps.is_empty(),
        ..Installed::new(examined.volume, &next)
    };
    let not_next = |why| PublishError::NotNext {
        path: repository.to_owned(),
        version: offer.record.version,
        why,
    };
    check_next(&request, &examined, shown.as_ref()).map_err(not_next)?;
    let base = shown
        .as_ref()
        .map(|_| Succession::follow(&statements, &opened));
    let base = base.transpose()?.and_then(|succession| succession.previous);
    let missing = closure::missing(
        &opened,
        &offer.chain.hasher(),
        base.as_ref().map(|record| &record.root),
        &offer.record.root,
    )?;
    if missing > 0 {
        return Err(PublishError::Incomplete {
            path: repository.to_owned(),
            version: offer.record.version,
            missing,
        });
    }
    if let Base::Head(before) = &request.base {
        // The log has these leaves already, unless the repository was set back.
        let log = |record: &RootRecord| (record.log.epoch, record.log.size);
        if let Some((record, _)) = &examined.previous {
            let (epoch, index) = log(record);
            next.leaves
                .push((epoch, index, before.record.to_bytes().into()));
        }
    }
    let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
    if let Some(last) = memory.last()? {
        // Versions in between were signed elsewhere. Readers are shown that they continue this one.
        let accept_skipped_versions = true;
        if last.record.hash() != offer.record_hash {
            check_follows(&request, &examined, &last, accept_skipped_versions)?;
        }
    }
    let gathering = Gathering {
        keys,
        cosigning: &options.cosigning,
        memory: &memory,
        repository,
    };
    if gathering.gather(&mut writer, &mut next)? == Gathered::Waits {
        installed.waits_for_witnesses = true;
        return Ok(installed);
    }
    if needs_witnesses && !installed.waits_for_timestamp {
        // Only a head that a reader would accept is committed.
        let offer = judge(&known, &next.head, options).map_err(refused)?;
        installed.valid_until = offer.valid_until;
    }
    memory.show(&mut writer, &next)?;
    Ok(installed)
}

impl Installed {
    fn new(volume: VolumeId, next: &NextHead) -> Installed {
        Installed {
            volume,
            version: next.version,
            record_hash: next.record_hash,
            valid_until: next.record_until,
            waits_for_timestamp: false,
            waits_for_witnesses: false,
            again: false,
        }
    }
}

/// The request of a timestamp for the version that [`install`] would make the newest one, for timestamp keys on other
/// machines. Uses only validity (of the timestamp) and clock of `options`.
///
/// # Errors
/// As [`install`] about the request; [`PublishError::Impossible`] if the policy has no timestamp keys.
pub fn timestamp_request(
    paths: &[PathBuf],
    repository: &Path,
    options: &PublishOptions,
) -> Result<TimestampRequest, PublishError> {
    let (_, received) = complete(paths, options)?;
    let next = NextHead::of(&received.request)?;
    stamping::request_for(&Repository::open(repository)?, &next.head, options)
}

/// A request that enough keys have signed and that is valid now, and the name of the first file.
fn complete<'a>(
    paths: &'a [PathBuf],
    options: &PublishOptions,
) -> Result<(&'a Path, Received), PublishError> {
    let (path, received) = gathered(paths)?;
    let missing = received.examined.missing();
    if !missing.is_empty() {
        return Err(PublishError::SignaturesMissing {
            path: path.to_owned(),
            missing: Missing(missing),
        });
    }
    match check_time(&received.request, options.clock.now()) {
        Err(Reject::NotYetValid { .. }) if options.accept_clock => {}
        checked => checked.map_err(|why| PublishError::BadRequest {
            path: path.to_owned(),
            why,
        })?,
    }
    Ok((path, received))
}

/// The copies of one request, merged, and the name of the first file.
fn gathered(paths: &[PathBuf]) -> Result<(&Path, Received), PublishError> {
    let Some((first, others)) = paths.split_first() else {
        return Err(PublishError::Impossible("no file to install"));
    };
    let mut received = read(first)?;
    for path in others {
        let other = read(path)?;
        let Received {
            request, examined, ..
        } = &mut received;
        let differs = |why| PublishError::OtherCopy {
            path: path.clone(),
            why,
        };
        let merged = request.merge(examined, &other.request, &other.examined);
        merged.map_err(differs)?;
        *examined = request
            .examine(&mut Signatures::default())
            .map_err(differs)?;
    }
    Ok((first, received))
}

/// What readers will say of the version. Where the policy demands a timestamp, `keys` make it; a new volume may be shown
/// without.
fn shown_as(
    known: &Floor,
    request: &Request,
    head: &mut Head,
    keys: &[&dyn Signer],
    options: &PublishOptions,
) -> Result<Offer, PublishError> {
    let now = options.clock.now();
    let volume = head.volume()?;
    let record: RootRecord = head.record.statement().read(volume)?;
    let chain = known.known_chain(head, &mut Signatures::default())?;
    let policy = (chain.newest(), chain.newest_hash());
    let roles = policy.0.roles();
    let public: Vec<PublicKey> = keys.iter().map(|key| key.public()).collect();
    cosigning::check(roles, &public, &options.cosigning, record.version)?;
    let is_new = matches!(request.base, Base::Genesis(_));
    let gathered = stamping::gathered(options)?;
    let terms = Terms {
        freshness: pinned(&record, head),
        ..Terms::strict(now)
    };
    if is_new && keys.is_empty() && gathered.is_none() && !roles.timestamps.is_empty() {
        let mut offer = known.judge(head, &terms, &mut Signatures::default())?;
        offer.valid_until = record.until();
        return Ok(offer);
    }
    let confirming = Confirming {
        keys,
        now,
        valid: options.valid,
        gathered: gathered.as_ref(),
    };
    let until = confirming::confirm(head, volume, policy, &confirming)?;
    if roles.witnesses.needed() > 0 {
        // Without its cosignatures, which come last. It is judged again with them.
        let mut offer = known.judge(head, &terms, &mut Signatures::default())?;
        offer.valid_until = record.until().min(until);
        return Ok(offer);
    }
    judge(known, head, options)
}

/// Whether the repository shows what the request builds on, or something older of the same volume
/// (it was set back after the request was made; the request then proves what stood there).
fn check_next(request: &Request, examined: &Examined, shown: Option<&Head>) -> Result<(), Reject> {
    let (base, shown) = match (&request.base, shown) {
        (Base::Genesis(_), None) => return Ok(()),
        (Base::Genesis(genesis), Some(shown)) => {
            let same = shown.policies.first().map(|p| p.hash()) == Some(genesis.hash());
            return Err(match same {
                true => rollback(examined, shown)?,
                false => Reject::WrongVolume,
            });
        }
        (Base::Head(_), None) => {
            return Err(Reject::BadHistory("the repository has no version yet"));
        }
        (Base::Head(base), Some(shown)) => (base, shown),
    };
    check_policies(base, shown)?;
    if shown.record.hash() == base.record.hash() {
        return Ok(());
    }
    let record: RootRecord = shown.record.statement().read(examined.volume)?;
    if record.version >= examined.record.version {
        return Err(rollback(examined, shown)?);
    }
    match &examined.previous {
        Some((previous, _)) if record.version < previous.version => Ok(()),
        _ => Err(Reject::Fork(
            "it builds on another record of the version before",
        )),
    }
}

/// Refuses a base that lacks a policy which the repository shows: the version would take the policy out of the repository,
/// and the keys that it replaced would count again.
fn check_policies(base: &Head, shown: &Head) -> Result<(), Reject> {
    let newest = |head: &Head| Ok::<_, Reject>(Floor::trusting(head)?.policy());
    match (newest(shown)?, newest(base)?) {
        (Some(shown), Some(base)) if shown.0 > base.0 => Err(Reject::BadHistory(
            "a policy was installed after the request was made",
        )),
        (Some(shown), Some(base)) if shown.0 == base.0 && shown.1 != base.1 => {
            Err(Reject::Fork("it builds on another policy"))
        }
        _ => Ok(()),
    }
}

fn rollback(examined: &Examined, shown: &Head) -> Result<Reject, Reject> {
    let record: RootRecord = shown.record.statement().read(examined.volume)?;
    Ok(match record.version == examined.record.version {
        true => Reject::Fork("another record of that version stands there"),
        false => Reject::Rollback {
            offered: examined.record.version,
            floor: record.version,
        },
    })
}
