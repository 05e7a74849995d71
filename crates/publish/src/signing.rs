//! Signing on another machine than the one that has the tree (publish.md, *Publishing*): the request
//! file on its way there and back. `publish_unsigned` makes it, [`sign`] signs it on the machine with the
//! key, [`crate::installing`] completes the publication.
//!
//! Neither machine trusts the other. The machine with the key signs only what continues the versions that
//! it remembers to have signed.

use std::path::{Path, PathBuf};

use trust::Reject;
use trust::head::Head;
use trust::judge::MAX_AHEAD_SECONDS;
use trust::key::PublicKey;
use trust::request::{Examined, MAX_REQUEST_BYTES, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::Signed;
use trust::tally::Tally;

use crate::pipeline::PublishOptions;
use crate::publish_error::PublishError;
use crate::signing_files::{read_file, write_file};
use crate::signing_memory::Memory;
use crate::succession::check_validity;

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
pub(crate) fn check_time(request: &Request, now: u64) -> Result<(), Reject> {
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
pub(crate) fn check_follows(
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
