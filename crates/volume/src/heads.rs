//! One round of heads (SFSRO 3.2, freshness): ask all replicas for their heads, judge the answers
//! together against the floor, and adopt one. Readers, `history` and `replica::pull` use this one round.
//!
//! [`FetchedHead`] (what a replica sent) → [`HeadRound::verify`] → [`VerifiedHead`] (signed, in time, not
//! below the floor) → [`HeadRound::prove_log`] (`consistency`) → [`HeadRound::adopt`].

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use state::{LockedState, VolumeState};
use store::StoreError;
use store::mirrors::{Asking, Heads, Mirrors};
use trust::Reject;
use trust::chain::Chain;
use trust::error::Class;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Freshness, Offer, Terms};
use trust::signatures::Signatures;

use crate::error::{VolumeError, gravest, is_evidence, is_old};
use crate::kept::{self, lock};

/// Time for access to the state when the replicas have used up the deadline. A write takes milliseconds,
/// unless the disk or the holder of the lock hangs.
const STATE_PATIENCE: Duration = Duration::from_secs(2);

/// What a round works with.
#[derive(Clone, Copy)]
pub struct HeadRound<'a> {
    /// The replicas.
    pub mirrors: &'a Arc<Mirrors>,
    /// The floor and the files beside it.
    pub state: &'a VolumeState,
    /// Signatures that were verified before.
    pub signatures: &'a Arc<Mutex<Signatures>>,
    /// How fresh a statement must be.
    pub freshness: Freshness,
    /// The hash of a policy that the policies of every head must contain (verification.md, *Pin*).
    pub policy_pin: Option<[u8; 32]>,
    /// The time of the wall clock, unix seconds.
    pub wall: u64,
    /// The reader's time, unix seconds; not before the wall clock or the newest statement verified.
    pub now: u64,
    /// The path that is read first, `/` between its names. Far replicas may send its blocks together
    /// with the head. Only a hint.
    pub toward: Option<&'a [u8]>,
    /// How long the other heads are waited for once one has come (`store::mirrors::Heads` has all rules).
    pub patience: Duration,
    /// Whether replicas that do not answer are asked again while no usable head has come.
    pub through_outages: bool,
}

/// A head as a replica sent it, not verified.
#[derive(Debug, Clone)]
pub struct FetchedHead {
    /// The replica's number; `None` for the caller's own head.
    pub mirror: Option<usize>,
    /// The replica's name.
    pub place: String,
    /// The head.
    pub bytes: Bytes,
}

/// What the replicas answered.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Their heads.
    pub heads: Vec<FetchedHead>,
    /// What went wrong, and at which replica.
    pub errors: Vec<(Option<usize>, VolumeError)>,
}

/// A head that passed the floor.
#[derive(Debug, Clone)]
pub struct VerifiedHead {
    /// The replica's number; `None` for the caller's own head.
    pub mirror: Option<usize>,
    /// The replica's name.
    pub place: String,
    /// What it says, judged under all policies that are known.
    pub offer: Offer,
    /// The head and its bytes; `None` for a record that was found in a log.
    pub head: Option<(Head, Bytes)>,
}

impl VerifiedHead {
    /// The bytes of the head; none for a record that was found in a log.
    pub fn bytes(&self) -> Option<&Bytes> {
        self.head.as_ref().map(|(_, bytes)| bytes)
    }

    fn policies(&self) -> u64 {
        let head = self.head.as_ref();
        head.map_or(0, |(head, _)| head.newest_policy())
    }
}

/// The results of judging heads under the lock.
struct Judgement {
    fetched: Vec<FetchedHead>,
    heads: Vec<Head>,
    offers: Vec<Result<Offer, Reject>>,
}

impl HeadRound<'_> {
    /// Begins to ask all replicas at once.
    pub fn ask(&self) -> Heads<'_> {
        self.mirrors.heads(Asking {
            toward: self.toward,
            patience: self.patience,
            through_outages: self.through_outages,
        })
    }

    /// The heads that pass the floor, as [`HeadRound::verify`] gives them. If it refuses those that came first and the
    /// round waits for outages, the next ones are taken: a replica that is old or lies does not end the wait for others.
    ///
    /// # Errors
    /// As [`HeadRound::verify`].
    pub async fn heads(&self, deadline: Instant) -> Result<Vec<VerifiedHead>, VolumeError> {
        let (mut asked, mut errors) = (self.ask(), Vec::new());
        while let Some(fetched) = self.next(&mut asked, deadline).await {
            match self.verify(fetched, None, deadline).await {
                Ok((heads, _)) => return Ok(heads),
                Err(error @ VolumeError::State(_)) => return Err(error),
                Err(error) if error.class() == Some(Class::Fork) => return Err(error),
                Err(error) => errors.push(error),
            }
            if !self.through_outages {
                break;
            }
        }
        Err(gravest(errors))
    }

    /// The next answers of replicas; `None` if no more come.
    pub async fn next(&self, asked: &mut Heads<'_>, deadline: Instant) -> Option<Fetched> {
        let answers = asked.next(deadline).await?;
        let places: Vec<&str> = self.mirrors.replicas().map(|r| r.place()).collect();
        let place = |mirror: usize| places.get(mirror).copied().unwrap_or_default().to_owned();
        let mut fetched = Fetched::default();
        for (mirror, answer) in answers {
            let place = place(mirror);
            let mirror = Some(mirror);
            match answer {
                // An empty repository is not an attack.
                Ok(bytes) if bytes.is_empty() => {
                    let error = nothing_published(&place);
                    fetched.errors.push((mirror, error));
                }
                Ok(bytes) => fetched.heads.push(FetchedHead {
                    mirror,
                    place,
                    bytes,
                }),
                Err(error) => {
                    let error = VolumeError::from_store("the head", &error);
                    fetched.errors.push((mirror, error));
                }
            }
        }
        Some(fetched)
    }

    /// The heads that pass the floor, and what is wrong with the others. Newest first, those that are valid
    /// only by the grace last; of heads about one record, those with most policies and then those with the
    /// longest validity first. `own` is the caller's own head. It is judged with the others, so that a
    /// replica that contradicts it is found; it may have expired.
    ///
    /// All are judged together under the lock of the floor, so that two processes see one order of
    /// events. New policies and the newest start are stored at once; adoption comes later.
    ///
    /// # Errors
    /// A fork, at once; the gravest error when no replica is left; [`VolumeError::State`].
    pub async fn verify(
        &self,
        fetched: Fetched,
        own: Option<Bytes>,
        deadline: Instant,
    ) -> Result<(Vec<VerifiedHead>, Vec<VolumeError>), VolumeError> {
        let Fetched { heads, mut errors } = fetched;
        let own = own.map(|bytes| FetchedHead {
            mirror: None,
            place: "the replica itself".to_owned(),
            bytes,
        });
        let (mut decoded, mut fetched) = (Vec::new(), Vec::new());
        for told in heads.into_iter().chain(own) {
            match self.decoded(&told) {
                Ok(head) => {
                    decoded.push(head);
                    fetched.push(told);
                }
                Err(error) => {
                    if let VolumeError::Statement { why, .. } = &error {
                        self.blame(told.mirror, why);
                    }
                    errors.push((told.mirror, error));
                }
            }
        }
        let mirrors = fetched.iter().map(|told| told.mirror);
        let heads: Vec<_> = mirrors.zip(&decoded).collect();
        let pinned = matches!(self.freshness, Freshness::Pinned { .. });
        let learned = self.learn_policies(&heads, !pinned, deadline).await?;
        let known = pinned.then(|| learned.floor.clone());
        let mut judgement = self.judge(fetched, decoded, known, deadline).await?;
        let offers = judgement.offers.into_iter().enumerate();
        let offers = offers.map(|(at, offer)| offer.map_err(|why| learned.reason(at, why)));
        judgement.offers = offers.collect();
        let mut verified = self.sort_out(judgement, &mut errors);
        verified.sort_by_key(|j| {
            let version = Reverse(j.offer.record.version);
            let best = (Reverse(j.policies()), Reverse(j.offer.valid_until));
            let newest = (j.offer.stale, version, j.offer.record_hash);
            (newest, best, j.mirror.is_none())
        });
        let outside = verified.iter().any(|head| head.mirror.is_some());
        let fork = |(_, error): &(_, VolumeError)| error.class() == Some(Class::Fork);
        if !outside || errors.iter().any(fork) {
            let errors = errors.into_iter().map(|(_, error)| error);
            return Err(gravest(errors.collect()));
        }
        self.log_news(&verified, &errors);
        let errors = errors.into_iter().map(|(_, error)| error);
        Ok((verified, errors.collect()))
    }

    /// The head that a replica sent.
    ///
    /// A directory or a web server does not know which volume is asked for. If it has another one, that is no lie
    /// about this one, and the error is that of a server which says that it does not have the volume.
    ///
    /// # Errors
    /// [`VolumeError::Statement`] for bytes that are no head; [`VolumeError::Place`] for one of another volume.
    pub(crate) fn decoded(&self, told: &FetchedHead) -> Result<Head, VolumeError> {
        let place = || told.place.clone();
        let head = Head::decode(&told.bytes).map_err(|why| VolumeError::Statement {
            place: place(),
            why,
        })?;
        match told.mirror {
            Some(_) if self.is_of_another_volume(&head) => {
                let error = StoreError::NoVolume { place: place() };
                Err(VolumeError::from_store("the head", &error))
            }
            _ => Ok(head),
        }
    }

    /// Whether a head begins with the genesis policy of another volume, signed by its owners. Bytes of this volume that
    /// were changed on the way are not, so they stay evidence.
    fn is_of_another_volume(&self, head: &Head) -> bool {
        let (Ok(id), Some(genesis)) = (head.volume(), head.policies.first()) else {
            return false;
        };
        id != self.state.volume() && Chain::begin(id, genesis, &mut Signatures::default()).is_ok()
    }

    /// Judges heads under the lock of the floor; stores their policies, the newest start, and evidence. A pinned
    /// reader judges by the floor `pinned` instead and stores nothing.
    async fn judge(
        &self,
        fetched: Vec<FetchedHead>,
        heads: Vec<Head>,
        pinned: Option<Floor>,
        deadline: Instant,
    ) -> Result<Judgement, VolumeError> {
        if heads.is_empty() {
            let offers = Vec::new();
            return Ok(Judgement {
                fetched,
                heads,
                offers,
            });
        }
        let terms = self.terms();
        let signatures = self.signatures.clone();
        self.update(deadline, move |locked| {
            let before = match pinned {
                Some(floor) => floor,
                None => locked.load()?,
            };
            let mut signatures = lock(&signatures);
            let verdict = before.judge_all(&heads, &terms, &mut signatures);
            let judged = || fetched.iter().zip(&verdict.offers);
            let nobody = !judged().any(|(told, offer)| told.mirror.is_some() && offer.is_ok());
            for ((told, offer), head) in judged().zip(&heads) {
                if let Err(why) = offer
                    && told.mirror.is_some()
                    && is_evidence(why, nobody)
                {
                    let evidence = verdict.floor.evidence(head, why, &mut signatures);
                    kept::keep_evidence(locked, &verdict.floor, &evidence, &mut signatures)?;
                }
            }
            if verdict.floor != before {
                locked.store(&verdict.floor)?;
            }
            Ok(Judgement {
                offers: verdict.offers,
                fetched,
                heads,
            })
        })
        .await
    }

    /// The heads that passed. The others are logged and noted with their replicas.
    fn sort_out(
        &self,
        judgement: Judgement,
        errors: &mut Vec<(Option<usize>, VolumeError)>,
    ) -> Vec<VerifiedHead> {
        let (mut verified, mut refused) = (Vec::new(), Vec::new());
        let heads = judgement.fetched.into_iter().zip(judgement.heads);
        for ((told, head), offer) in heads.zip(judgement.offers) {
            match offer {
                Ok(offer) => verified.push(VerifiedHead {
                    mirror: told.mirror,
                    place: told.place,
                    head: Some(reduced(&offer, head, told.bytes)),
                    offer,
                }),
                Err(why) => refused.push((told, why)),
            }
        }
        let nobody = verified.iter().all(|head| head.mirror.is_none());
        for (told, why) in refused {
            match (told.mirror, why.class()) {
                // The caller's own head may have expired: that is why it asks for others.
                (None, class) if class != Class::Fork => continue,
                // A replica that lags still has old blocks. If all heads have expired, none lags.
                (Some(mirror), Class::Rollback) => self.mirrors.set_behind(mirror, true),
                (Some(mirror), Class::Expired) => self.mirrors.set_behind(mirror, !nobody),
                // The policies between may be at another replica, or come in the next round.
                _ if matches!(why, Reject::PoliciesMissing { .. }) => {}
                // The signers made both statements. An honest replica shows one of them, or what a remembered
                // fork keeps from being adopted.
                (_, Class::Fork) => {}
                // It need not know how the user of this machine settled a fork.
                _ if matches!(why, Reject::Refused(_)) => {}
                // It may lag behind the pinned policy, as a replica may.
                _ if matches!(why, Reject::NotPinned(_)) => {}
                (mirror, _) => self.blame(mirror, &why),
            }
            if why.class() == Class::Unsupported {
                tracing::warn!(replica = %told.place, %why, "a head of a later bulla");
            } else if nobody || !is_old(&why) {
                tracing::error!(replica = %told.place, %why, "head refused");
            }
            let place = told.place;
            errors.push((told.mirror, VolumeError::Statement { place, why }));
        }
        verified
    }

    /// Logs which replicas brought no head, when that begins and when it ends: readers ask often.
    fn log_news(&self, verified: &[VerifiedHead], errors: &[(Option<usize>, VolumeError)]) {
        for (mirror, error) in errors {
            if !mirror.is_none_or(|mirror| {
                self.mirrors
                    .set_head_refusal(mirror, Some(error.to_string()))
            }) {
                continue;
            }
            if matches!(error, VolumeError::Statement { why, .. } if is_old(why)) {
                tracing::info!(%error, "a replica is behind: it is asked for blocks only");
            } else {
                tracing::warn!(%error, "a replica brings no usable head");
            }
        }
        for head in verified {
            if let Some(mirror) = head.mirror
                && self.mirrors.set_head_refusal(mirror, None)
            {
                tracing::info!(replica = head.place, "a replica brings the head again");
            }
        }
    }

    /// Notes which replicas are behind the version in use.
    pub fn compare(&self, heads: &[VerifiedHead], version: u64) {
        for head in heads {
            if let Some(mirror) = head.mirror {
                let behind = head.offer.record.version < version;
                self.mirrors.set_behind(mirror, behind);
            }
        }
    }

    pub(crate) fn blame(&self, mirror: Option<usize>, why: &Reject) {
        let words = format!("head: {why}");
        match mirror {
            Some(mirror) if why.class() == Class::Unsupported => {
                self.mirrors.record_unsupported(mirror, words);
            }
            Some(mirror) => self.mirrors.record_lie(mirror, words),
            None => {}
        }
    }

    /// Stores a version as adopted. Its head is kept too, unless a better one about the same record is: for a
    /// start without any replica, and as evidence if another head contradicts it. A failure to keep the head
    /// is only logged.
    ///
    /// # Errors
    /// [`VolumeError::Statement`] when another process has adopted something newer meanwhile;
    /// [`VolumeError::State`].
    pub async fn adopt(
        &self,
        offer: &Offer,
        head: Option<Bytes>,
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let (offer, terms, signatures) = (offer.clone(), self.terms(), self.signatures.clone());
        self.update(deadline, move |locked| {
            let floor = locked.load()?;
            let adopted = adopted(&floor, &offer)?;
            if adopted != floor {
                locked.store(&adopted)?;
            }
            if let Some(head) = &head
                && let Err(error) = kept::keep(locked, &adopted, head, &terms, &signatures)
            {
                tracing::warn!(%error, "cannot keep the adopted head");
            }
            Ok(())
        })
        .await
    }

    /// Whether a version could be adopted now.
    ///
    /// # Errors
    /// As [`HeadRound::adopt`].
    pub async fn check_adoptable(
        &self,
        offer: &Offer,
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        adopted(&self.floor(deadline).await?, offer).map(drop)
    }

    /// Keeps the head of the version in use, unless another process has adopted another version or a better
    /// head is kept.
    ///
    /// # Errors
    /// [`VolumeError::State`].
    pub async fn keep(
        &self,
        head: Bytes,
        record_hash: [u8; 32],
        deadline: Instant,
    ) -> Result<(), VolumeError> {
        let (terms, signatures) = (self.terms(), self.signatures.clone());
        self.update(deadline, move |locked| {
            let floor = locked.load()?;
            if floor
                .adopted()
                .is_some_and(|it| it.record_hash == record_hash)
            {
                kept::keep(locked, &floor, &head, &terms, &signatures)?;
            }
            Ok(())
        })
        .await
    }

    /// The floor as it is now.
    ///
    /// # Errors
    /// [`VolumeError::State`].
    pub async fn floor(&self, deadline: Instant) -> Result<Floor, VolumeError> {
        self.update(deadline, |locked| Ok(locked.load()?)).await
    }

    /// The terms by which heads are judged in this round.
    pub fn terms(&self) -> Terms {
        Terms {
            wall: self.wall,
            freshness: self.freshness,
            policy_pin: self.policy_pin,
            ..Terms::strict(self.now)
        }
    }

    pub(crate) fn signatures(&self) -> MutexGuard<'_, Signatures> {
        lock(self.signatures)
    }

    /// Runs `work` on the pool of blocking threads, under the lock of the state.
    pub(crate) async fn update<T: Send + 'static>(
        &self,
        deadline: Instant,
        work: impl FnOnce(&LockedState) -> Result<T, VolumeError> + Send + 'static,
    ) -> Result<T, VolumeError> {
        let deadline = deadline.max(Instant::now() + STATE_PATIENCE);
        self.state.update(deadline, work).await
    }
}

/// The head without what no policy requires, which the replica may have added.
fn reduced(offer: &Offer, head: Head, bytes: Bytes) -> (Head, Bytes) {
    let reduced = offer.reduced(&head).ok().filter(|reduced| *reduced != head);
    match reduced.map(|head| (head.encode(), head)) {
        Some((Ok(bytes), head)) => (head, bytes.into()),
        _ => (head, bytes),
    }
}

fn adopted(floor: &Floor, offer: &Offer) -> Result<Floor, VolumeError> {
    floor.adopt(offer).map_err(|why| VolumeError::Statement {
        place: "the version to be adopted".to_owned(),
        why,
    })
}

/// The error about a replica that has no head yet.
pub(crate) fn nothing_published(place: &str) -> VolumeError {
    VolumeError::Place(format!("{place}: nothing is published here yet"))
}
