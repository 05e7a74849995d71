//! Completing a publication that was signed on other machines: [`install`] makes the signed version the newest one of the
//! repository, and [`timestamp_request`] asks timestamp keys elsewhere to confirm it.
//!
//! The machine with the repository does not trust those with the keys. It judges the head as a reader would, and requires
//! that every block of the version is there. Cosignatures come before the timestamp: a key that has confirmed a version
//! confirms no older one any more, also while witnesses take their time.

use std::path::{Path, PathBuf};

use store::repository::Repository;
use store::writer::Writer;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Freshness, Offer, Terms};
use trust::request::{Base, Examined, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::VolumeId;
use trust::timestamp_request::TimestampRequest;

use crate::completeness;
use crate::confirming::Confirming;
use crate::cosigning::Gathered;
use crate::pipeline::PublishOptions;
use crate::publish_error::{Missing, PublishError};
use crate::release::{self, Showing};
use crate::signing::{Received, check_follows, check_time, read};
use crate::signing_memory::{Memory, NextHead};
use crate::stamping;
use crate::succession::{NextVersion, only_installed};

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
    let stamped = stamping::gathered(options)?;
    let (path, received) = complete(paths, options)?;
    let mut installation = Installation::begin(path, received, repository)?;
    if let Some(installed) = installation.done(options) {
        return Ok(installed);
    }
    let memory = installation.check(options)?;
    let confirming = release::confirming(keys, stamped.as_ref(), options);
    let waits_for_timestamp = installation.may_wait(&confirming);
    if !waits_for_timestamp && options.cosigning.checkpoint_out.is_none() {
        installation.showing.check_timestamp(&confirming)?;
    }
    let gathered = installation
        .showing
        .gather(&memory, keys, stamped.as_ref(), options)?;
    if gathered == Gathered::Waits {
        return Ok(Installed {
            waits_for_witnesses: true,
            ..installation.installed()
        });
    }
    let mut valid_until = installation.showing.next.record_until;
    if !waits_for_timestamp {
        installation.showing.confirm(&confirming)?;
        valid_until = installation.judge(options)?.valid_until;
    }
    let showing = &mut installation.showing;
    memory.show(&mut showing.writer, &showing.next)?;
    Ok(Installed {
        valid_until,
        waits_for_timestamp,
        ..installation.installed()
    })
}

/// The request of a timestamp for the version that [`install`] would make the newest one, for timestamp keys on other
/// machines. Where the policy has a quorum, the version is cosigned first, with `keys` of the log. Uses only validity (of the
/// timestamp), clock, state directory and witnesses of `options`.
///
/// # Errors
/// As [`install`] about the request and the witnesses; [`PublishError::Impossible`] if the policy has no timestamp keys.
pub fn timestamp_request(
    paths: &[PathBuf],
    repository: &Path,
    keys: &[&dyn Signer],
    options: &PublishOptions,
) -> Result<TimestampRequest, PublishError> {
    let (path, received) = complete(paths, options)?;
    let mut installation = Installation::begin(path, received, repository)?;
    stamping::check_demanded(&installation.showing.next.roles, keys)?;
    if let (Some(_), Some(shown)) = (installation.done(options), &installation.shown) {
        // It is there already, and needs its next timestamp.
        let opened = installation.showing.writer.repository();
        return stamping::request_for(opened, shown, options);
    }
    let memory = installation.check(options)?;
    let showing = &mut installation.showing;
    match showing.gather(&memory, keys, None, options)? {
        Gathered::Enough(_) => {}
        Gathered::Waits => return Err(only_installed()),
    }
    stamping::request_for(showing.writer.repository(), &showing.next.head, options)
}

/// A version on its way into a repository, which is locked.
struct Installation<'a> {
    /// The file with the request, for messages.
    path: &'a Path,
    request: Request,
    examined: Examined,
    /// The head that the repository shows.
    shown: Option<Head>,
    showing: Showing<'a>,
}

impl<'a> Installation<'a> {
    fn begin(
        path: &'a Path,
        received: Received,
        repository: &'a Path,
    ) -> Result<Installation<'a>, PublishError> {
        let Received {
            request, examined, ..
        } = received;
        let opened = Repository::open(repository)?;
        let writer = Writer::begin(&opened)?;
        let decoded = match writer.statements().is_empty() {
            true => Ok(None),
            false => Head::decode(writer.statements()).map(Some),
        };
        let shown = decoded.map_err(|why| PublishError::BadHead {
            path: repository.to_owned(),
            why,
        })?;
        let next = NextHead::of(&request)?;
        let mut signatures = Signatures::default();
        let known = opened.floor(&next.head, &mut signatures)?;
        let chain = known.known_chain(&next.head, &mut signatures);
        let chain = chain.map_err(|why| refused(path, why.into()))?;
        Ok(Installation {
            path,
            request,
            examined,
            shown,
            showing: Showing {
                repository,
                writer,
                known,
                next,
                policy: (chain.newest().clone(), chain.newest_hash()),
            },
        })
    }

    /// The result, if the version stands there already.
    fn done(&self, options: &PublishOptions) -> Option<Installed> {
        let shown =
            (self.shown.as_ref()).filter(|it| it.record.hash() == self.showing.next.record_hash)?;
        let until = judge(&self.showing.known, shown, options).map(|offer| offer.valid_until);
        Some(Installed {
            valid_until: until.unwrap_or(self.showing.next.record_until),
            again: true,
            ..self.installed()
        })
    }

    /// Whether the version is the next one here and whole, and contradicts nothing that this machine has signed.
    fn check(&mut self, options: &PublishOptions) -> Result<Memory, PublishError> {
        let Installation {
            path,
            request,
            examined,
            shown,
            showing:
                Showing {
                    repository,
                    writer,
                    known,
                    next,
                    ..
                },
        } = self;
        let version = next.version;
        let pinned = Terms {
            freshness: pinned(&examined.record, &next.head),
            ..Terms::strict(options.clock.now())
        };
        let judged = known.judge(&next.head, &pinned, &mut Signatures::default());
        let offer = judged.map_err(|why| refused(path, why.into()))?;
        check_next(request, examined, shown.as_ref()).map_err(|why| PublishError::NotNext {
            path: repository.to_owned(),
            version,
            why,
        })?;
        let opened = writer.repository();
        let base = (shown.as_ref()).map(|_| NextVersion::follow(writer.statements(), opened));
        let base = base.transpose()?.and_then(|succession| succession.previous);
        let missing = completeness::missing(
            opened,
            &offer.chain.hasher(),
            base.as_ref().map(|record| &record.root),
            &offer.record.root,
        )?;
        if missing > 0 {
            return Err(PublishError::Incomplete {
                path: repository.to_owned(),
                version,
                missing,
            });
        }
        if let (Base::Head(before), Some((record, _))) = (&request.base, &examined.previous) {
            // The log has this leaf already, unless the repository was set back.
            let leaf = before.record.to_bytes().into();
            next.leaves.push((record.log.epoch, record.log.size, leaf));
        }
        let memory = Memory::lock(&examined.volume, options.state_dir.as_deref())?;
        if let Some(last) = memory.last()?
            && last.record.hash() != next.record_hash
        {
            // Versions in between were signed elsewhere. Readers are shown that they continue this one.
            let accept_skipped_versions = true;
            check_follows(request, examined, &last, accept_skipped_versions)?;
        }
        if let Some(pending) = memory.pending()?
            && pending.record.hash() == next.record_hash
        {
            // Cosignatures that came when this was tried before.
            next.head.checkpoint = pending.checkpoint;
        }
        Ok(memory)
    }

    /// Whether this is a new volume, whose first timestamp may come later.
    fn may_wait(&self, confirming: &Confirming<'_>) -> bool {
        matches!(self.request.base, Base::Genesis(_))
            && confirming.keys.is_empty()
            && confirming.gathered.is_none()
            && !self.showing.next.roles.timestamps.is_empty()
    }

    /// Only a head that a reader would accept is shown.
    fn judge(&self, options: &PublishOptions) -> Result<Offer, PublishError> {
        judge(&self.showing.known, &self.showing.next.head, options)
            .map_err(|error| refused(self.path, error))
    }

    fn installed(&self) -> Installed {
        Installed {
            volume: self.examined.volume,
            version: self.showing.next.version,
            record_hash: self.showing.next.record_hash,
            valid_until: self.showing.next.record_until,
            waits_for_timestamp: false,
            waits_for_witnesses: false,
            again: false,
        }
    }
}

/// The error about the file, where a reader would refuse the head.
fn refused(path: &Path, error: PublishError) -> PublishError {
    match error {
        PublishError::Tree(why) => PublishError::BadRequest {
            path: path.to_owned(),
            why,
        },
        other => other,
    }
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
