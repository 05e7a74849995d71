//! What the kernel keeps of names and attributes, and how it hears of changes (design *Share*, Mount, Names and the kernel).
//!
//! It may keep what it is told for the time of `--attr`, counted from the newest question that the server has answered. So it
//! asks again no later than this mount would ask the server. What others change meanwhile, and what other programs of this
//! device change beside the mount, comes by the feed of the log: names become stale all at once (`INC_EPOCH`, which takes no
//! lock), attributes file by file. Neither waits for a request; `inval_entry`, which waits for look-ups and creates in the
//! directory, is not used. An OPEN does not wait for the feed: it compares what the kernel was told with what it shows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use share::client::ClientError;
use share::files::{Cursor, Feed, Thing, Touched};
use trust_shared::principal::FileId;

use super::core::Core;
use super::spool::Node;
use crate::fuse::{INodeNo, Notifier};

/// How long an entry for which nobody speaks holds the feed up. Look-ups wait for it meanwhile.
const HOLD: Duration = Duration::from_secs(30);
/// A question to the feed is asked again after this time.
const PATIENCE: Duration = Duration::from_secs(90);
/// Pause after a question that cannot be answered.
const AGAIN: Duration = Duration::from_secs(1);
/// Tells the kernel what changes.
pub struct Keeper {
    core: Arc<Core>,
    notifier: Arc<Notifier>,
}

impl Keeper {
    /// For a mount that begins now.
    pub fn new(core: Arc<Core>, notifier: Arc<Notifier>) -> Keeper {
        Keeper { core, notifier }
    }

    /// Runs until the engine writes no more, or the task is dropped.
    pub async fn run(self) {
        let mut cursor = None;
        loop {
            let until = Instant::now() + PATIENCE;
            let client = self.core.volume.client();
            match client.changes(cursor, HOLD, until).await {
                Ok(Ok(feed)) => cursor = Some(self.take(feed)),
                Err(ClientError::Deadline { .. }) => {}
                Err(ClientError::Stopped(_) | ClientError::Closed) => return,
                Ok(Err(_)) | Err(_) => tokio::time::sleep(AGAIN).await,
            }
        }
    }

    fn take(&self, feed: Feed) -> Cursor {
        match feed {
            Feed::LookAgain { now } => {
                self.forget_all();
                now
            }
            Feed::Changes { changes, until, .. } => {
                let mut names_change = false;
                for Touched { at, what } in changes {
                    match what {
                        Thing::Owned(_) => {
                            self.forget_all();
                            return until;
                        }
                        Thing::Name(directory, name) => {
                            names_change |= !self.core.own_names.has(directory, &name, at);
                        }
                        Thing::File(file) => self.file(&file, at),
                    }
                }
                if names_change {
                    self.forget_names();
                }
                until
            }
        }
    }

    /// An entry at a position may have changed a file.
    fn file(&self, file: &FileId, position: u64) {
        let Some(node) = self.core.nodes.of(file) else {
            return;
        };
        let is_known = node.cached().seen_at() > position;
        if !(is_known && node.is_told()) {
            self.forget(&node);
        }
    }

    fn forget(&self, node: &Node) {
        let number = INodeNo(node.number());
        if let Err(error) = self.notifier.invalidate_attributes(number) {
            tracing::trace!(%error, "the kernel has no attributes of a file");
        }
    }

    /// A kernel before 6.16 keeps names for their time.
    fn forget_names(&self) {
        if self.notifier.has_epochs()
            && let Err(error) = self.notifier.increment_epoch()
        {
            tracing::debug!(%error, "the kernel was not told that names are stale");
        }
    }

    fn forget_all(&self) {
        self.core
            .nodes
            .all()
            .iter()
            .for_each(|node| self.forget(node));
        self.forget_names();
    }
}

impl Core {
    /// How long the kernel may keep what it is told now.
    pub fn ttl(&self) -> Duration {
        match self.stopped() {
            // Nothing changes any more.
            Some(_) => self.attr,
            None => self.fresh_for(),
        }
    }

    /// OPEN shows a version: what the kernel was told before is of an older one, perhaps with another length.
    pub fn show_to_kernel(&self, node: &Node) {
        let Some(notifier) = self.notifier.get() else {
            return;
        };
        if !node.is_told()
            && let Err(error) = notifier.invalidate_attributes(INodeNo(node.number()))
        {
            tracing::trace!(%error, "the kernel has no attributes of a file");
        }
    }
}
