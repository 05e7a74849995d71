//! Signing on another machine than the one that has the tree (publish.md, *Publishing*): the request
//! file on its way there and back. `publish_unsigned` makes it, [`sign`] signs it on the machine with the
//! key, [`install`] completes the publication.
//!
//! Neither machine trusts the other. The machine with the key signs only what continues the versions that
//! it remembers to have signed. The machine with the tree judges the head as a reader would, and requires
//! that every block of the version is in the repository.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use store::repository::Repository;
use store::writer::Writer;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Offer, Terms};
use trust::key::{PublicKey, SecretKey};
use trust::request::{Base, Examined, MAX_REQUEST_BYTES, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

use crate::closure;
use crate::memory::{Memory, NextHead};
use crate::pipeline::PublishOptions;
use crate::publish_error::PublishError;
use crate::succession::{Succession, check_validity};

/// Writes a request to a file, which appears whole or not at all.
///
/// # Errors
/// [`PublishError::RequestFile`].
pub fn write(path: &Path, request: &Request) -> Result<u64, PublishError> {
    let bytes = request.encode()?;
    let failed = |source| PublishError::RequestFile {
        path: path.to_owned(),
        source,
    };
    let mut name = path.as_os_str().to_owned();
    name.push(".tmp");
    let temporary = Path::new(&name);
    let write = || -> std::io::Result<()> {
        // The directory may be on a stick that a stranger has used: a link in place of the file is removed,
        // not followed.
        if fs::symlink_metadata(temporary).is_ok() {
            fs::remove_file(temporary)?;
        }
        let mut file = File::create_new(temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(temporary, path)
    };
    write().map_err(failed)?;
    Ok(bytes.len() as u64)
}

/// Reads a request and checks all of it that can be checked before it is signed.
///
/// # Errors
/// [`PublishError::RequestFile`], [`PublishError::BadRequest`].
pub fn read(path: &Path) -> Result<Received, PublishError> {
    let failed = |source| PublishError::RequestFile {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    // One byte more than allowed, so that a file that is too long is noticed.
    let mut file = file.take(MAX_REQUEST_BYTES as u64 + 1);
    file.read_to_end(&mut bytes).map_err(failed)?;
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
    /// What it holds.
    pub request: Request,
    /// The result of examining it.
    pub examined: Examined,
}

/// Whether `key` may sign the request.
///
/// # Errors
/// [`PublishError::WrongKey`].
pub fn check_signer(received: &Received, key: &PublicKey) -> Result<(), PublishError> {
    let Examined { roles, volume, .. } = &received.examined;
    match roles.publishers.keys().contains(key) {
        true => Ok(()),
        false => Err(PublishError::WrongKey {
            volume: volume.to_string(),
        }),
    }
}

/// Whether this machine has signed a version under the same policy before. Its roles are then known to it.
///
/// # Errors
/// [`PublishError::State`]; [`PublishError::Tree`] when the memory is damaged.
pub fn is_known_policy(
    received: &Received,
    options: &PublishOptions,
) -> Result<bool, PublishError> {
    let examined = &received.examined;
    let Some(last) = Memory::lock(&examined.volume, options.state_dir.as_deref())?.last()? else {
        return Ok(false);
    };
    let last = Head::decode(&last)?;
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
    /// Whether the same record had been signed before.
    pub again: bool,
}

/// Signs a request; its validity begins now and lasts as long as `options` say. A second request for the
/// same version of the same tree gets the same record again. The signature is remembered before it is
/// returned.
///
/// # Errors
/// [`PublishError::Contradiction`] for a request that does not follow the version that this machine
/// remembers to have signed; [`PublishError::WrongKey`]; [`PublishError::ClockBehind`].
pub fn sign(
    received: &Received,
    key: &SecretKey,
    options: &PublishOptions,
) -> Result<Countersigned, PublishError> {
    let Received {
        path,
        request,
        examined,
    } = received;
    check_signer(received, &key.public())?;
    let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
    if let Some(last) = memory.last()? {
        let last = Head::decode(&last)?;
        if let Some(again) = signed_already(request, examined, &last)? {
            return Ok(again);
        }
        check_follows(request, examined, &last, options.accept_skipped_versions)?;
    }
    let start = options.clock.now();
    let previous = examined
        .previous
        .as_ref()
        .map_or(0, |(record, _)| record.start);
    if start < previous {
        return Err(PublishError::ClockBehind {
            now: start,
            previous,
        });
    }
    let mut request = Request {
        record: request.record.statement().sign(&[]),
        base: request.base.clone(),
    };
    let seconds = options.valid.as_secs();
    check_validity(&examined.roles, seconds)?;
    request.sign(examined, start, seconds, key)?;
    let head = request.head(examined);
    let offer = judge(&Floor::trusting(&head)?, &head, start).map_err(|why| match why {
        Reject::NotSigned(_) => PublishError::Impossible(
            "the policy of this volume asks for more signatures than one key's",
        ),
        why => PublishError::BadRequest {
            path: path.clone(),
            why,
        },
    })?;
    memory.keep(&head.encode()?)?;
    Ok(Countersigned {
        request,
        record_hash: offer.record_hash,
        start,
        valid_until: offer.valid_until,
        again: false,
    })
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

/// The same version of the same tree, as it was signed before.
fn signed_already(
    request: &Request,
    examined: &Examined,
    last: &Head,
) -> Result<Option<Countersigned>, PublishError> {
    let signed: RootRecord = last.record.statement().read(examined.volume)?;
    let asked = RootRecord {
        start: signed.start,
        duration: signed.duration,
        ..examined.record.clone()
    };
    if asked != signed {
        return Ok(None);
    }
    let base = match (&request.base, last.policies.first()) {
        (Base::Genesis(_), Some(genesis)) => Base::Genesis(genesis.clone()),
        _ => request.base.clone(),
    };
    Ok(Some(Countersigned {
        request: Request {
            base,
            record: last.record.clone(),
        },
        record_hash: last.record.hash(),
        start: signed.start,
        valid_until: signed.until(),
        again: true,
    }))
}

fn judge(known: &Floor, head: &Head, now: u64) -> Result<Offer, Reject> {
    known.judge(head, &Terms::strict(now), &mut Signatures::default())
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
    /// Whether it had been installed before.
    pub again: bool,
}

/// Makes a signed request the newest version of `repository`. Uses only clock and state directory of
/// `options`.
///
/// # Errors
/// [`PublishError::BadRequest`] for bad or missing signatures and for a validity that has ended;
/// [`PublishError::NotNext`] if the repository shows another version than the one that it builds on;
/// [`PublishError::Incomplete`] if a block is missing.
pub fn install(
    path: &Path,
    repository: &Path,
    options: &PublishOptions,
) -> Result<Installed, PublishError> {
    let Received {
        request, examined, ..
    } = read(path)?;
    let bad = |why| PublishError::BadRequest {
        path: path.to_owned(),
        why,
    };
    if request.signers(&examined).is_empty() {
        return Err(PublishError::NotYetSigned {
            path: path.to_owned(),
        });
    }
    let head = request.head(&examined);
    let opened = Repository::open(repository)?;
    let known = opened.floor(&head, &mut Signatures::default())?;
    let offer = judge(&known, &head, options.clock.now()).map_err(bad)?;
    let mut installed = Installed {
        volume: examined.volume,
        version: offer.record.version,
        record_hash: offer.record_hash,
        valid_until: offer.valid_until,
        again: false,
    };
    let mut writer = Writer::begin(&opened)?;
    let statements = writer.statements().clone();
    let mut next = NextHead::of(&request)?;
    let shown = match statements.is_empty() {
        true => None,
        false => Some(
            Head::decode(&statements).map_err(|why| PublishError::BadHead {
                path: repository.to_owned(),
                why,
            })?,
        ),
    };
    if shown.as_ref().map(|head| head.record.hash()) == Some(offer.record_hash) {
        installed.again = true;
        return Ok(installed);
    }
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
        let last = Head::decode(&last)?;
        // Versions in between were signed elsewhere. Readers are shown that they continue this one.
        let accept_skipped_versions = true;
        if last.record.hash() != offer.record_hash {
            check_follows(&request, &examined, &last, accept_skipped_versions)?;
        }
    }
    memory.show(&mut writer, &next)?;
    Ok(installed)
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
