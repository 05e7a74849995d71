//! What the kernel keeps of names and attributes, and how it hears of changes (design *Share*, Mount, Names and the kernel).
//!
//! It may keep what it is told for the time of `--attr`, counted from the question to the server on which the answer rests. So
//! it asks again no later than this mount would ask the server. What others change meanwhile, and what other programs of this
//! device change beside the mount, comes by the feed of the log: names become stale all at once (`INC_EPOCH`, which takes no
//! lock), attributes file by file. Neither waits for a request; `inval_entry`, which waits for look-ups and creates in the
//! directory, is not used. An OPEN does not wait for the feed: it drops the kernel's attributes,
//! unless the last OPEN showed the same version.

use std::sync::Arc;
use std::time::{Duration, Instant};

use share::client::ClientError;
use share::files::{Cursor, Feed, Thing, Touched};

use super::core::Core;
use super::spool::Node;
use crate::fuse::INodeNo;

/// How long an entry for which nobody speaks holds the feed up. Look-ups wait for it meanwhile.
const HOLD: Duration = Duration::from_secs(30);
/// A question to the feed is asked again after this time.
const PATIENCE: Duration = Duration::from_secs(90);
/// Pause after a question that cannot be answered.
const AGAIN: Duration = Duration::from_secs(1);

/// Tells the kernel what changes.
pub struct Keeper {
    core: Arc<Core>,
}

impl Keeper {
    /// For a mount that begins now.
    pub fn new(core: Arc<Core>) -> Keeper {
        Keeper { core }
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
                        // Also if this device changed it last: another one may have changed it just before.
                        Thing::File(file) => {
                            if let Some(node) = self.core.nodes.of(&file) {
                                self.core.forget_attributes(&node);
                            }
                        }
                    }
                }
                if names_change {
                    self.core.forget_names();
                }
                until
            }
        }
    }

    fn forget_all(&self) {
        let nodes = self.core.nodes.all();
        nodes
            .iter()
            .for_each(|node| self.core.forget_attributes(node));
        self.core.forget_names();
    }
}

impl Core {
    /// The kernel asks for the attributes of a file again.
    fn forget_attributes(&self, node: &Node) {
        if let Some(notifier) = self.notifier.get()
            && let Err(error) = notifier.invalidate_attributes(INodeNo(node.number()))
        {
            tracing::trace!(%error, "the kernel has no attributes of a file");
        }
    }

    /// The kernel looks all names up again. One before 6.16 keeps them for their time.
    pub fn forget_names(&self) {
        if let Some(notifier) = self.notifier.get()
            && notifier.has_epochs()
            && let Err(error) = notifier.increment_epoch()
        {
            tracing::debug!(%error, "the kernel was not told that names are stale");
        }
    }

    /// OPEN shows a version: the kernel may have attributes of an older one, perhaps with another length.
    pub fn show_to_kernel(&self, node: &Node) {
        if !node.shows_same_as_last_open() {
            self.forget_attributes(node);
        }
    }
}
