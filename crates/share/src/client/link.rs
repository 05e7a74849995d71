//! The connection of crate `wire` as the driver's [`Line`].

use std::sync::Arc;

use bytes::Bytes;
use store::{BlockSink, BlockStore, BoxFuture};
use trust::key::{PublicKey, SecretKey};
use trust::volume_id::VolumeId;
use wire::shared;
use wire::shared::{Delivery, Link, LinkError, LinkOptions, SentLeaf, ServerAddress};

use super::connection::{Connected, Deliveries, Dial, Line, Lost, Trouble};
use crate::engine::{Reply, Request};
use crate::roster::Product;
use crate::scheme::Leaf;
use crate::signed::{Entry, Marks};

/// Connects to the server of a volume as one of its devices.
pub(super) struct Server {
    pub(super) to: ServerAddress,
    pub(super) volume: VolumeId,
    pub(super) orderer: PublicKey,
    pub(super) device: SecretKey,
    pub(super) options: LinkOptions,
}

impl Dial for Server {
    fn dial(&self) -> BoxFuture<'_, Result<Connected, Lost>> {
        Box::pin(async move {
            let device = Some(&self.device);
            let connected =
                Link::connect(&self.to, self.volume, &self.orderer, device, &self.options);
            let (link, deliveries) = connected.await.map_err(lost)?;
            let deliveries: Box<dyn Deliveries> = Box::new(Pushed(deliveries));
            Ok((Arc::new(link) as Arc<dyn Line>, deliveries))
        })
    }
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
            _ => Trouble::Refused,
        },
    };
    Lost::new(trouble, error.to_string())
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

    fn bodies(&self, positions: Vec<u64>) -> BoxFuture<'_, Result<Vec<(u64, Bytes)>, Lost>> {
        Box::pin(async move { Link::bodies(self, &positions).await.map_err(lost) })
    }

    fn checkpoints(&self) -> BoxFuture<'_, Result<Vec<Bytes>, Lost>> {
        Box::pin(async move { Link::checkpoints(self).await.map_err(lost) })
    }

    fn post_checkpoint(&self, posted: Bytes) -> BoxFuture<'_, Result<(), Lost>> {
        Box::pin(async move { Link::post_checkpoint(self, posted).await.map_err(lost) })
    }

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
