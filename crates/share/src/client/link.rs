//! The connection of crate `wire` as the driver's [`Line`].

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture, StoreError};
use tokio::time::timeout;
use trust::Record;
use trust::key::SecretKey;
use trust::signatures::Signatures;
use trust::statement::{Job, Signed};
use trust::volume_id::VolumeId;
use trust_shared::genesis::Policies;
use wire::shared;
use wire::shared::{Delivery, Link, LinkError, LinkOptions, SentLeaf, ServerAddress, Usage};

use super::connection::{Connected, Deliveries, Dial, Flying, Line, Lost, Stored, Stores, Trouble};
use crate::home::Home;
use crate::outbox::Unstored;
use ordering::engine::{Reply, Request};
use ordering::roster::Product;
use ordering::scheme::Leaf;
use ordering::signed::{Entry, Marks};

/// Answers with policies that are asked for, at most.
const MAX_ANSWERS: usize = 16;

/// Connects to the server of a volume as one of its devices.
pub(super) struct Server {
    pub(super) to: ServerAddress,
    pub(super) volume: VolumeId,
    /// Those that the device follows.
    pub(super) policies: Policies,
    pub(super) offered: Offered,
    pub(super) device: SecretKey,
    pub(super) options: LinkOptions,
}

impl Dial for Server {
    fn dial(&self) -> BoxFuture<'_, Result<Connected, Lost>> {
        Box::pin(async move {
            let device = Some(&self.device);
            let orderer = self.policies.newest_epoch().orderer;
            let connected = Link::connect(&self.to, self.volume, &orderer, device, &self.options);
            let (link, deliveries) = connected.await.map_err(lost)?;
            let newest = self.policies.chain().newest();
            if link.welcome().newest_policy < newest.number() && newest.log_epoch() > 0 {
                let text = "the server has not accepted yet what the owners have signed";
                return Err(Lost::new(Trouble::NotAccepted, text));
            }
            if let Some(more) = offer(&link, &self.policies).await {
                *self.offered.lock().unwrap_or_else(PoisonError::into_inner) = Some(more);
                let text = "the owners have begun the volume's log again";
                return Err(Lost::new(Trouble::Successor, text));
            }
            let deliveries: Box<dyn Deliveries> = Box::new(Pushed(deliveries));
            Ok((Arc::new(link) as Arc<dyn Line>, deliveries))
        })
    }
}

/// Policies that continue those of the device and begin another epoch of the log. The
/// server has shown them; they are verified.
pub(super) type Offered = Arc<Mutex<Option<Vec<Signed>>>>;

/// Policies that the server has and the device does not know, if they begin another epoch. Those that are not valid
/// are no policies.
pub(super) async fn offer(link: &Link, known: &Policies) -> Option<Vec<Signed>> {
    let newest = known.chain().newest().number();
    if link.welcome().newest_policy <= newest {
        return None;
    }
    let mut policies = known.clone();
    let mut signatures = Signatures::new(64);
    let mut more = Vec::new();
    for _ in 0..MAX_ANSWERS {
        let from = newest.saturating_add(1).saturating_add(more.len() as u64);
        let bytes = link.policies(from).await.ok()?;
        if bytes.is_empty() {
            break;
        }
        for bytes in bytes {
            let signed = Signed::from_bytes_of(Job::Shared, &bytes);
            let extended = signed.and_then(|signed| {
                policies.extend(&signed, &mut signatures)?;
                more.push(signed);
                Ok(())
            });
            if let Err(why) = extended {
                tracing::warn!(%why, "the server shows a policy that is none of this volume");
                return None;
            }
        }
    }
    let is_later = policies.newest_epoch().number > known.newest_epoch().number;
    is_later.then_some(more)
}

/// Asks the server of a home for policies that begin another epoch of the log, from the one after the home's newest on.
/// They are verified. None: the server does not answer in time, or has none. For a device that writes nothing more,
/// because it has proof against its server.
pub async fn offered(home: &Home, patience: Duration) -> Option<Vec<Signed>> {
    let known = home.policies().ok()?;
    let to: ServerAddress = home.server().parse().ok()?;
    let asking = async {
        let options = LinkOptions::default();
        let orderer = known.newest_epoch().orderer;
        let link = Link::connect(&to, home.volume(), &orderer, None, &options).await;
        offer(&link.ok()?.0, &known).await
    };
    timeout(patience, asking).await.ok()?
}

/// What an error of a link means.
pub(super) fn lost(error: LinkError) -> Lost {
    let trouble = match &error {
        LinkError::Unavailable { .. } => Trouble::Unreachable,
        LinkError::OtherServer { .. } => Trouble::OtherServer,
        LinkError::BadAnswer { .. } | LinkError::Unsupported { .. } => Trouble::Unfit,
        LinkError::Refused { refusal, .. } => match refusal.code {
            shared::NO_VOLUME => Trouble::NoVolume,
            shared::NOT_MEMBER | shared::GUEST => Trouble::NotMember,
            shared::RESTORED => Trouble::Restored,
            shared::OTHER_LOG => Trouble::OtherLog,
            shared::OTHER_EPOCH => Trouble::OtherEpoch,
            _ => Trouble::Refused,
        },
    };
    Lost::new(trouble, error.to_string())
}

/// Why blocks are not stored.
fn unstored(error: LinkError) -> (Unstored, StoreError) {
    let why = match &error {
        LinkError::Refused { refusal, .. } => match refusal.code {
            shared::FULL | shared::QUOTA => Unstored::Full,
            _ => Unstored::Refused,
        },
        _ => Unstored::Now,
    };
    (why, StoreError::from(error))
}

impl Line for Link {
    fn send(&self, request: Request<Product>) -> Result<(), Lost> {
        let sent = match &request {
            Request::Open(note) => self.open(note.as_ref()),
            Request::Entry(entry) => {
                self.entry(entry.signed(), entry.body().map(|body| body.as_ref()))
            }
            Request::Mark(mark) => self.mark(mark),
            Request::Attest(attest) => self.attest(attest),
            Request::Ask(device) => self.ask(device),
        };
        sent.map_err(lost)
    }

    fn fly(&self, records: &[Record]) -> Option<Flying> {
        let flying = Link::fly(self, records)?;
        Some(Box::pin(async move { flying.await.map_err(unstored) }))
    }

    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Stored> {
        Box::pin(async move { Link::store(self, records).await.map_err(unstored) })
    }

    fn bodies(&self, positions: Vec<u64>) -> BoxFuture<'_, Result<Vec<(u64, Bytes)>, Lost>> {
        Box::pin(async move { Link::bodies(self, &positions).await.map_err(lost) })
    }

    fn checkpoints(&self) -> BoxFuture<'_, Result<Vec<Bytes>, Lost>> {
        Box::pin(async move { Link::checkpoints(self).await.map_err(lost) })
    }

    fn usage(&self) -> BoxFuture<'_, Result<Usage, Lost>> {
        Box::pin(async move { Link::usage(self).await.map_err(lost) })
    }

    fn post_checkpoint(&self, posted: Bytes) -> BoxFuture<'_, Result<(), Lost>> {
        Box::pin(async move { Link::post_checkpoint(self, posted).await.map_err(lost) })
    }
}

impl Stores for Link {
    fn store(&self) -> Arc<dyn BlockStore> {
        Arc::new(self.clone())
    }

    fn sink(&self) -> Arc<dyn BlockSink> {
        Arc::new(self.clone())
    }
}

struct Pushed(shared::Deliveries);

impl Deliveries for Pushed {
    fn next(&mut self) -> BoxFuture<'_, Result<Reply<Product>, Lost>> {
        Box::pin(async move {
            let delivery = self.0.next().await.map_err(lost)?;
            reply(delivery)
        })
    }
}

/// A delivery as the engine takes it. A body that is not its entry's is no answer.
fn reply(delivery: Delivery) -> Result<Reply<Product>, Lost> {
    let leaves = delivery.leaves.into_iter().map(leaf);
    Ok(Reply {
        from: delivery.from,
        leaves: leaves.collect::<Result<_, _>>()?,
        note: delivery.note,
        more: delivery.more,
        attests: delivery.attests,
        asked: delivery.asked,
        refused: delivery.refused,
        unstored: delivery.unstored,
    })
}

fn leaf(leaf: SentLeaf) -> Result<Leaf<Product>, Lost> {
    Ok(match leaf {
        SentLeaf::Entry { entry, body: None } => Leaf::Entry(Entry::new(*entry)),
        SentLeaf::Entry {
            entry,
            body: Some(body),
        } => {
            let entry = Entry::with_body(*entry, body);
            let bad = |why| Lost::new(Trouble::Unfit, format!("a body that does not fit: {why}"));
            Leaf::Entry(entry.map_err(bad)?)
        }
        SentLeaf::Marks { marks, proofs } => Leaf::Marks(Marks::new(marks, proofs)),
    })
}
