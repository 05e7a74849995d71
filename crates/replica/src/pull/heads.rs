//! What the places tell, judged as a reader judges it (`volume`), together with what the replica itself
//! tells: a source that contradicts what was pulled before is a fork, not news.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;
use store::object::ObjectName;
use store::{Replica, StoreError};
use trust::Reject;
use trust::error::Class;
use trust::head::Head;
use trust::judge::{Offer, Terms};
use trust::signatures::Signatures;

use state::State;
use volume::error::{VolumeError, gravest, is_evidence, is_old};

/// How long the other places' heads are waited for once one has come.
const PATIENCE: Duration = Duration::from_secs(3);

/// A head that may be followed.
pub(crate) struct Offered {
    /// Who tells it; `None` is the replica itself.
    pub place: Option<Arc<dyn Replica>>,
    pub bytes: Bytes,
    pub head: Head,
    /// Judged under all policies that are known, of which the place may have told fewer.
    pub offer: Offer,
    /// The place's head file, if it shows its files.
    pub files: Option<Bytes>,
}

/// What one place told.
pub(crate) struct Told {
    pub place: Option<Arc<dyn Replica>>,
    pub bytes: Bytes,
    pub files: Option<Bytes>,
}

impl Told {
    fn name(&self) -> &str {
        self.place
            .as_ref()
            .map_or("the replica itself", |place| place.place())
    }
}

/// Asks all places at once, for their heads and the files behind them. Once one has answered, the
/// others are not waited for much longer.
pub(crate) async fn ask(
    replicas: &[Arc<dyn Replica>],
    mut deadline: Instant,
    errors: &mut Vec<VolumeError>,
) -> Vec<Told> {
    let mut asked: FuturesUnordered<_> = replicas.iter().map(ask_one).collect();
    let mut silent: Vec<&str> = replicas.iter().map(|replica| replica.place()).collect();
    let mut told = Vec::new();
    while let Ok(Some((place, head, files))) =
        tokio::time::timeout_at(deadline.into(), asked.next()).await
    {
        if let Some(at) = silent.iter().position(|name| *name == place.place()) {
            silent.swap_remove(at);
        }
        let error = match head {
            Ok(bytes) if !bytes.is_empty() => {
                deadline = deadline.min(Instant::now() + PATIENCE);
                told.push(Told {
                    place: Some(place),
                    bytes,
                    files,
                });
                continue;
            }
            Ok(_) => {
                VolumeError::Place(format!("{}: nothing is published here yet", place.place()))
            }
            Err(error) => VolumeError::from_store("the head", &error),
        };
        tracing::warn!(replica = place.place(), %error, "is set aside");
        errors.push(error);
    }
    for place in silent {
        tracing::warn!(replica = place, "gives no head");
        let cause = format!("{place} did not answer before the deadline");
        errors.push(VolumeError::unavailable("the head", cause));
    }
    told
}

async fn ask_one(
    place: &Arc<dyn Replica>,
) -> (Arc<dyn Replica>, Result<Bytes, StoreError>, Option<Bytes>) {
    let files = async {
        let objects = place.objects()?;
        let range = objects.range(ObjectName::Head, 0, store::head::MAX_HEAD_BYTES);
        // Only a hint, and not worth much waiting.
        let range = tokio::time::timeout(PATIENCE, range).await;
        range.ok()?.ok().flatten()
    };
    let (head, files) = join(place.head(), files).await;
    (place.clone(), head, files)
}

impl Offered {
    /// The head with all policies under which it was judged: what is told on here hides none.
    fn complete(mut self) -> Result<Offered, Reject> {
        let known = self.offer.chain.signed();
        if self.head.policies.len() < known.len() {
            self.head.policies = known.to_vec();
            self.bytes = self.head.encode()?.into();
        }
        Ok(self)
    }
}

/// Judges what was told, newest first; of several that tell the same record, first who tells the most
/// policies, then the longest valid.
///
/// # Errors
/// A fork, at once; else the gravest error when no place is left. [`VolumeError::State`].
pub(crate) fn judge(
    state: &State,
    terms: &Terms,
    told: Vec<Told>,
    errors: &mut Vec<VolumeError>,
) -> Result<Vec<Offered>, VolumeError> {
    let mut heads = Vec::new();
    let mut tellers = Vec::new();
    for told in told {
        match Head::decode(&told.bytes) {
            Ok(head) => {
                heads.push(head);
                tellers.push(told);
            }
            Err(why) => errors.push(VolumeError::Statement {
                place: told.name().to_owned(),
                why,
            }),
        }
    }
    let locked = state.lock()?;
    let before = locked.load()?;
    let verdict = before.judge_all(&heads, terms, &mut Signatures::default());
    let (mut offered, mut refused) = (Vec::new(), Vec::new());
    for ((told, head), offer) in tellers.into_iter().zip(heads).zip(verdict.offers) {
        match offer {
            Ok(offer) => offered.push(Offered {
                place: told.place,
                bytes: told.bytes,
                head,
                offer,
                files: told.files,
            }),
            Err(why) => refused.push((told, why)),
        }
    }
    let nobody = offered.iter().all(|offered| offered.place.is_none());
    for (told, why) in refused {
        // What the replica itself tells may well have expired: that is why it is pulled.
        if told.place.is_none() && why.class() != Class::Fork {
            continue;
        }
        if is_old(&why) && !nobody {
            tracing::warn!(replica = told.name(), %why, "a source is behind: passed over");
        } else {
            tracing::error!(replica = told.name(), %why, "head refused");
        }
        if is_evidence(&why, nobody) && told.place.is_some() {
            locked.keep_contradiction(&told.bytes)?;
        }
        let place = told.name().to_owned();
        errors.push(VolumeError::Statement { place, why });
    }
    if verdict.floor != before {
        locked.store(&verdict.floor)?;
    }
    offered.sort_by_key(|o| {
        let told_here = o.place.is_none();
        let policies = o.head.policies.len();
        (
            std::cmp::Reverse((o.offer.record.version, policies, o.offer.valid_until)),
            told_here,
        )
    });
    let offered = offered.into_iter().filter_map(|o| {
        let place = o.place.as_ref().map_or("", |place| place.place());
        let place = place.to_owned();
        let refused = |why| errors.push(VolumeError::Statement { place, why });
        o.complete().map_err(refused).ok()
    });
    let offered: Vec<Offered> = offered.collect();
    let fork = errors.iter().any(|e| e.class() == Some(Class::Fork));
    let outside = offered.iter().any(|o| o.place.is_some());
    if fork || !outside {
        return Err(gravest(std::mem::take(errors)));
    }
    Ok(offered)
}
