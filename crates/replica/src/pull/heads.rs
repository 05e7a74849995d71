//! The round of heads of a pull: `volume::heads`, with the head that the replica itself has judged among
//! the others. A head that contradicts an earlier pull is a fork, not a newer version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{join, join_all};
use store::Replica;
use store::object::ObjectName;
use trust::Reject;
use trust::head::Head;
use trust::judge::Offer;

use volume::error::{VolumeError, gravest};
use volume::heads::{Fetched, HeadRound, VerifiedHead};

/// How long the other heads are waited for once one has come. Longer than a reader waits, because no user
/// waits for a pull, and the newest version is worth two more seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// A version that may be followed.
pub(crate) struct Offered {
    /// The source that announces it; `None` is the replica itself.
    pub source: Option<(usize, Arc<dyn Replica>)>,
    pub bytes: Bytes,
    pub head: Head,
    /// Judged under all known policies, even those that the source did not send.
    pub offer: Offer,
    /// The head file of the source, if it shows its files.
    pub files: Option<Bytes>,
}

/// The answers of all sources: their heads, and the head files that name the other files. Only the heads
/// are verified; the files are hints.
pub(crate) struct Answers {
    pub fetched: Fetched,
    pub files: Vec<Option<Bytes>>,
}

/// Asks all sources at once for their heads and their head files.
pub(crate) async fn ask(
    round: &HeadRound<'_>,
    sources: &[Arc<dyn Replica>],
    deadline: Instant,
) -> Answers {
    let files = join_all(sources.iter().map(|source| head_file(&**source)));
    let mut asked = round.ask();
    let (fetched, files) = join(round.next(&mut asked, deadline), files).await;
    let fetched = fetched.unwrap_or_default();
    Answers { fetched, files }
}

async fn head_file(source: &dyn Replica) -> Option<Bytes> {
    let objects = source.objects()?;
    let range = objects.range(ObjectName::Head, 0, store::head::MAX_HEAD_BYTES);
    // Only a hint, so it is not waited for long.
    let range = tokio::time::timeout(PATIENCE, range).await;
    range.ok()?.ok().flatten()
}

/// The versions that pass the floor, newest first, and what is wrong with the other answers. `own` is
/// the replica's own head.
///
/// # Errors
/// As [`HeadRound::verify`].
pub(crate) async fn verify(
    round: &HeadRound<'_>,
    sources: &[Arc<dyn Replica>],
    answers: Answers,
    own: Option<Bytes>,
    deadline: Instant,
) -> Result<(Vec<Offered>, Vec<VolumeError>), VolumeError> {
    let Answers { fetched, mut files } = answers;
    let (verified, mut errors) = round.verify(fetched, own, deadline).await?;
    let mut offered = Vec::new();
    for head in verified {
        let place = head.place.clone();
        let source = head.mirror;
        let source = source.and_then(|n| Some((n, sources.get(n)?.clone())));
        let files = source
            .as_ref()
            .and_then(|(number, _)| files.get_mut(*number)?.take());
        match complete(head) {
            Ok((head, bytes, offer)) => offered.push(Offered {
                source,
                bytes,
                head,
                offer,
                files,
            }),
            Err(why) => errors.push(VolumeError::Statement { place, why }),
        }
    }
    if offered.iter().all(|offered| offered.source.is_none()) {
        return Err(gravest(errors));
    }
    Ok((offered, errors))
}

/// The head, its bytes and its offer. The head was reduced, so it has the policies by which it was judged.
fn complete(verified: VerifiedHead) -> Result<(Head, Bytes, Offer), Reject> {
    let offer = verified.offer;
    let head = verified.head;
    let (head, bytes) = head.ok_or(Reject::NotPinned("a record without its head"))?;
    Ok((head, bytes, offer))
}
