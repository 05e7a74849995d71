//! Timestamps by keys on several machines: [`request`] and its sisters make a request where the repository is, [`sign`]
//! signs it where a timestamp key is. [`crate::renewal`], [`crate::installing`] and [`crate::rotation`] take what came back.
//!
//! The machine with the key is a reader that remembers what it confirmed last: it confirms no older version, and no other
//! record of the same one.

use std::path::{Path, PathBuf};

use store::repository::Repository;
use trust::Reject;
use trust::head::Head;
use trust::key::PublicKey;
use trust::policy::Roles;
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::VolumeId;
use trust::timestamp_request::{ExaminedTimestamp, MAX_TIMESTAMP_REQUEST_BYTES, TimestampRequest};

use crate::confirming::Stamped;
use crate::pipeline::PublishOptions;
use crate::publish_error::PublishError;
use crate::signing_files::{read_file, write_file};
use crate::signing_memory::Memory;
use crate::succession::NextVersion;

/// A request whose parts fit together; see [`TimestampRequest::examine`].
#[derive(Debug, Clone)]
pub struct ReceivedTimestamp {
    /// The file.
    pub path: PathBuf,
    /// Its decoded content.
    pub request: TimestampRequest,
    /// The result of examining it.
    pub examined: ExaminedTimestamp,
}

/// Writes a request to a file, which appears whole or not at all.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn write(path: &Path, request: &TimestampRequest) -> Result<u64, PublishError> {
    write_file(path, &request.encode()?)
}

/// Whether a file claims to be a request of a timestamp, and not one of a version.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn is_one(path: &Path) -> Result<bool, PublishError> {
    // The whole file may be large; its first bytes say what it is.
    Ok(TimestampRequest::is_claimed_by(&read_file(path, 64)?))
}

/// Reads a request and checks all of it that can be checked before it is signed.
///
/// # Errors
/// [`PublishError::RequestFile`], [`PublishError::BadRequest`].
pub fn read(path: &Path) -> Result<ReceivedTimestamp, PublishError> {
    let bad = |why| PublishError::BadRequest {
        path: path.to_owned(),
        why,
    };
    let bytes = read_file(path, MAX_TIMESTAMP_REQUEST_BYTES)?;
    let request = TimestampRequest::decode(&bytes).map_err(bad)?;
    let examined = request.examine(&mut Signatures::default()).map_err(bad)?;
    Ok(ReceivedTimestamp {
        path: path.to_owned(),
        request,
        examined,
    })
}

/// Whether `key` is a timestamp key of the volume.
///
/// # Errors
/// [`PublishError::WrongKey`].
pub fn check_signer(received: &ReceivedTimestamp, key: &PublicKey) -> Result<(), PublishError> {
    match received.examined.may_sign(key) {
        true => Ok(()),
        false => Err(PublishError::WrongKey {
            volume: received.examined.volume.to_string(),
        }),
    }
}

/// Signs a request. This machine remembers the confirmed version before the signature is returned. Uses only the clock, the
/// state directory, and what is accepted of `options`.
///
/// # Errors
/// [`PublishError::NotNewest`] for an older version than the one that this machine confirmed or signed last, and for
/// another record of it; [`PublishError::Skipped`] if nothing here shows that the log continues that one;
/// [`PublishError::BadRequest`] for a timestamp or a version that no reader would believe now;
/// [`PublishError::WrongKey`]; [`PublishError::NoSignature`].
pub fn sign(
    received: &ReceivedTimestamp,
    key: &dyn Signer,
    options: &PublishOptions,
) -> Result<(TimestampRequest, ExaminedTimestamp), PublishError> {
    check_signer(received, &key.public())?;
    let ReceivedTimestamp {
        path,
        request,
        examined,
    } = received;
    let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
    let last = last(&memory, examined.volume, examined.record.version)?;
    let now = options.clock.now();
    let version = examined.record.version;
    let mut signatures = Signatures::default();
    let time = (now, options.accept_clock);
    match request.follows(examined, last.as_ref(), time, &mut signatures) {
        Ok(()) => {}
        Err(Reject::Unproved) if options.accept_skipped_versions => {}
        Err(Reject::Unproved) => return Err(PublishError::Skipped { version }),
        Err(why @ (Reject::Rollback { .. } | Reject::Fork(_))) => {
            return Err(PublishError::NotNewest { version, why });
        }
        Err(why) => {
            return Err(PublishError::BadRequest {
                path: path.clone(),
                why,
            });
        }
    }
    let mut request = request.clone();
    request.sign(examined, key)?;
    memory.keep_confirmed(&request.head.encode()?)?;
    let examined = request.examine(&mut signatures)?;
    Ok((request, examined))
}

/// The newest head that this machine has confirmed, or signed with all others who must. One that waits for witnesses was not
/// shown, and does not count where an older `version` is to be confirmed.
fn last(memory: &Memory, volume: VolumeId, version: u64) -> Result<Option<Head>, PublishError> {
    let signed = memory.shown(version)?;
    let whole = match &signed {
        Some(signed) => NextVersion::of_own(signed.clone())?.is_some(),
        None => false,
    };
    let heads = [memory.confirmed()?, signed.filter(|_| whole)];
    let mut found = Vec::new();
    for head in heads.into_iter().flatten() {
        let record: RootRecord = head.record.statement().read(volume)?;
        found.push(((head.newest_policy(), record.version), head));
    }
    let newest = found.into_iter().max_by_key(|(place, _)| *place);
    Ok(newest.map(|(_, head)| head))
}

/// The request of a timestamp for the newest version of `repository`. Uses only validity and clock of `options`.
///
/// # Errors
/// [`PublishError::NothingPublished`]; [`PublishError::BadHead`]; [`PublishError::Impossible`] if the policy has no
/// timestamp keys; [`PublishError::RecordOver`] for a version that has ended.
pub fn request(
    repository: &Path,
    options: &PublishOptions,
) -> Result<TimestampRequest, PublishError> {
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
    request_for(&opened, &head, options)
}

/// Refuses a request where nobody needs a timestamp, and keys that would sign nothing: those of the log sign where witnesses
/// are to cosign the version first.
///
/// # Errors
/// [`PublishError::Impossible`].
pub(crate) fn check_demanded(roles: &Roles, keys: &[&dyn Signer]) -> Result<(), PublishError> {
    if roles.timestamps.is_empty() {
        return Err(PublishError::Impossible(
            "the policy of this volume has no timestamp keys, so nobody needs a timestamp",
        ));
    }
    if roles.witnesses.needed() == 0 && !keys.is_empty() {
        return Err(PublishError::Impossible(
            "a request of a timestamp needs no key here: the policy demands no cosignatures",
        ));
    }
    Ok(())
}

/// The request of a timestamp for a head that `opened` will show.
pub(crate) fn request_for(
    opened: &Repository,
    head: &Head,
    options: &PublishOptions,
) -> Result<TimestampRequest, PublishError> {
    let mut signatures = Signatures::default();
    let known = opened.floor(head, &mut signatures)?;
    let chain = known.known_chain(head, &mut signatures)?;
    check_demanded(chain.newest().roles(), &[])?;
    let record: RootRecord = head.record.statement().read(chain.volume())?;
    let now = options.clock.now();
    if now >= record.until() {
        return Err(PublishError::RecordOver {
            version: record.version,
            until: record.until(),
        });
    }
    let policy = (chain.newest(), chain.newest_hash());
    let request = TimestampRequest::new(head, policy, now, options.valid.as_secs())?;
    request.examine(&mut signatures)?;
    Ok(request)
}

/// The timestamp in copies of one request, with the signatures of all of them. `None` without a file.
///
/// # Errors
/// As [`read`]; [`PublishError::OtherCopy`]; [`PublishError::BadRequest`] for a timestamp that has ended.
pub(crate) fn gathered(options: &PublishOptions) -> Result<Option<Stamped>, PublishError> {
    let Some((first, others)) = options.timestamps.split_first() else {
        return Ok(None);
    };
    let ReceivedTimestamp { mut request, .. } = read(first)?;
    for path in others {
        let other = read(path)?.request;
        let differs = |why| PublishError::OtherCopy {
            path: path.clone(),
            why,
        };
        request.merge(&other).map_err(differs)?;
    }
    let examined = request.examine(&mut Signatures::default())?;
    let (until, now) = (examined.timestamp.until, options.clock.now());
    if now >= until {
        return Err(PublishError::BadRequest {
            path: first.clone(),
            why: Reject::Expired { until, now },
        });
    }
    Ok(Some(Stamped {
        timestamp: request.reduced(&examined),
        checkpoint: request.head.checkpoint,
    }))
}
