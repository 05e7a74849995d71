//! Copies the policies that the new head relies on and does not carry. The files are in the repository before its
//! head names them: readers of this replica that know less than its head need them.
//!
//! They are fetched in their order, and each is verified before it is written.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use store::object::ObjectName;
use store::{Replica, Writer};
use trust::Reject;
use trust::floor::Floor;
use trust::signatures::Signatures;
use trust::statement::{MAX_SIGNED_BYTES, Signed};
use volume::error::VolumeError;

use super::heads::Offered;
use super::{Here, PullError};

/// Policies that a source is asked for at a time.
const REQUESTS: usize = 16;

/// Writes the policies that the repository lacks for the head of `offered`. It has those on which `here`, its own
/// head, relies. A source may take `patience` for each.
///
/// # Errors
/// [`VolumeError`] (unavailable) when no source has all of them; [`PullError::Store`].
pub(crate) async fn carry(
    sources: &[Arc<dyn Replica>],
    writer: &mut Writer,
    here: Option<&Here>,
    offered: &Offered,
    patience: Duration,
) -> Result<(), PullError> {
    let begins = offered.head.begins();
    let known = here.map_or(1, |here| here.head.newest_policy().saturating_add(1));
    if begins > known {
        let base = base(writer, here, offered)?;
        let first = offered.source.iter().map(|(_, source)| source);
        let mut causes = Vec::new();
        let mut copied = false;
        for source in first.chain(sources) {
            let copy = copy(&**source, writer, base.clone(), offered, patience);
            match copy.await? {
                Ok(()) => {
                    copied = true;
                    break;
                }
                Err(cause) => {
                    tracing::warn!(replica = source.place(), %cause, "cannot copy the policies");
                    causes.push(format!("{}: {cause}", source.place()));
                }
            }
        }
        if !copied {
            let what = format!("the policies before {begins}");
            return Err(VolumeError::unavailable(what, causes.join("; ")).into());
        }
    }
    Ok(writer.put_policies(&offered.head)?)
}

/// The floor of a reader that knows the policies in the repository.
fn base(writer: &Writer, here: Option<&Here>, offered: &Offered) -> Result<Floor, PullError> {
    let mut signatures = Signatures::default();
    if let Some(here) = here {
        let known = writer.repository().floor(&here.head, &mut signatures);
        let known = known.map(|known| known.learn(&here.head, u64::MAX, &mut signatures));
        match known {
            Ok(Ok(known)) => return Ok(known),
            Ok(Err(why)) => tracing::warn!(%why, "the replica's own policies are copied again"),
            Err(error) => tracing::warn!(%error, "the replica's own policies are copied again"),
        }
    }
    let place = || "the newest head".to_owned();
    let refused = |why| VolumeError::Statement {
        place: place(),
        why,
    };
    let genesis = offered.head.policies.first();
    let genesis = genesis.ok_or_else(|| refused(Reject::NotPinned("a head without policies")))?;
    let none = Floor::new(offered.offer.chain.volume());
    Ok(none.after(genesis, &mut signatures).map_err(refused)?)
}

/// Copies from one source. The inner error says why it has not all of them, or has wrong ones.
async fn copy(
    source: &dyn Replica,
    writer: &mut Writer,
    mut known: Floor,
    offered: &Offered,
    patience: Duration,
) -> Result<Result<(), String>, PullError> {
    let Some(objects) = source.objects() else {
        return Ok(Err("it shows no files".to_owned()));
    };
    let mut signatures = Signatures::default();
    let from = known
        .policy()
        .map_or(1, |(number, _)| number.saturating_add(1));
    let ask = |number| async move {
        let name = ObjectName::Policy(number);
        let range = objects.range(name, 0, MAX_SIGNED_BYTES.saturating_add(1));
        (number, tokio::time::timeout(patience, range).await)
    };
    let numbers = from..offered.head.begins();
    let mut answers = stream::iter(numbers).map(ask).buffered(REQUESTS);
    while let Some((number, answer)) = answers.next().await {
        let bytes = match answer {
            Ok(Ok(Some(bytes))) => bytes,
            Ok(Ok(None)) => return Ok(Err(format!("policy {number} is missing"))),
            Ok(Err(error)) => return Ok(Err(error.to_string())),
            Err(_) => return Ok(Err(format!("policy {number} does not come in time"))),
        };
        let next =
            Signed::from_bytes(&bytes).and_then(|policy| known.after(&policy, &mut signatures));
        match next {
            Ok(next) => known = next,
            Err(why) => return Ok(Err(format!("policy {number}: {why}"))),
        }
        if let Some(policy) = known.policies().last() {
            writer.put_policy(number, &policy.to_bytes())?;
        }
    }
    // Another branch does not lead to the head.
    Ok(match known.known_chain(&offered.head, &mut signatures) {
        Ok(_) => Ok(()),
        Err(why) => Err(why.to_string()),
    })
}
