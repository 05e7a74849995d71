//! Local changes of a file on their way into the log.
//!
//! One commit of a file at a time. It is guarded by the content that it was made of: if another device was first, the
//! changes move onto that content, as often as it takes. A commit whose outcome is unknown is waited for, or what it made is
//! looked for; it is never begun again, else appended bytes would be there twice. Once a program was told that its bytes are
//! lost, they go onto unchanged content only, and into a conflict copy otherwise: what others wrote since is newer.

use std::sync::Arc;
use std::time::Duration;

use bulla::edit::Edit;
use reader::Fetch;
use share::client::{ClientError, NewFile, conflict_name};
use share::files::{Call, FileRef, Refused, Replace, Stamped};
use store::StoreError;
use tokio::time::timeout_at;
use trust::inode::{Content, Inode};
use trust_shared::calls::ctime_after;

use super::core::{Core, found, is_absent, place, place_of};
use super::failure::Failure;
use super::local::{Ended, Taken};
use super::nodes::Node;
use crate::fuse::Error;

/// When the server could not be reached, it is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Local changes are committed at last when they are so old.
pub const DIRTY: Duration = Duration::from_secs(5);
/// What could not be committed is tried again after this time.
const RETRY: Duration = Duration::from_secs(30);
/// Most names that are tried for a conflict copy.
const MAX_COPIES: u32 = 100;

impl Core {
    /// Begins a commit of what is local of a file, unless there is nothing or one is under way.
    pub fn begin_commit(self: &Arc<Self>, node: &Arc<Node>) {
        let Some(taken) = node.content.take() else {
            return;
        };
        let (core, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move {
            // If this panics, the commit fails and the file can be used.
            let mut ending = Ending(Some((core.clone(), node.clone())));
            let ended = match core.commit(&node, taken).await {
                Ok(ended) => ended,
                Err(failure) => {
                    failure.log("commit", || node.shown());
                    Ended::Failed(failure.loss())
                }
            };
            ending.end(ended);
        });
    }

    /// Commits what was local of a file when this is called, and waits for it. `handle` is told of bytes that were lost
    /// before.
    ///
    /// # Errors
    /// [`Failure::Lost`], and why there was no commit.
    pub async fn committed(
        self: &Arc<Self>,
        node: &Arc<Node>,
        handle: Option<u64>,
    ) -> Result<(), Failure> {
        let told = || match handle.and_then(|handle| node.content.told(handle)) {
            Some(loss) => Err(Failure::Lost(loss)),
            None => Ok(()),
        };
        let generation = node.content.generation();
        let until = self.until();
        while !node.content.has_committed(generation) {
            if let Some((why, _)) = self.stopped() {
                return Err(Failure::Stopped(why));
            }
            self.begin_commit(node);
            let settled = timeout_at(until.into(), node.content.settled()).await;
            if settled.is_err() {
                let failure = Failure::Plain(Error::TimedOut);
                node.content.give_up(failure.loss());
            }
            told()?;
            settled.map_err(|_| Failure::Plain(Error::TimedOut))?;
            if let Some(loss) = node.content.failed() {
                return Err(Failure::Lost(loss));
            }
        }
        told()
    }

    async fn commit(&self, node: &Arc<Node>, mut taken: Taken) -> Result<Ended, Failure> {
        loop {
            let content = self.stored(&taken).await?;
            let set = Call::SetContent {
                file: FileRef::File(node.id()),
                content: content.clone(),
                mtime: taken.mtime,
                expect: Some(taken.base.content.clone()),
            };
            let set = Stamped {
                time: taken.mtime,
                call: set,
            };
            let why = match self.change_patiently(set).await {
                Ok((_, at)) => {
                    let mut inode = Inode::clone(&taken.base);
                    inode.size = content.size();
                    (inode.content, inode.mtime) = (content, taken.mtime);
                    inode.ctime = Some(ctime_after(inode.ctime, taken.mtime));
                    return Ok(Ended::Committed(Arc::new(inode), at));
                }
                Err(why) => why,
            };
            match why {
                // It has other content, or no name any more.
                Failure::Refused(Refused::Stale | Refused::NotFound) => {}
                why if is_unknown(&why) => {
                    node.content.sent(content);
                    self.go_on_later().await?;
                    continue;
                }
                why => return Err(why),
            }
            let newest = self.newest(node).await?;
            let sent = node.content.last_sent();
            if let Some((newest, at)) = &newest
                && sent.as_ref() == Some(&newest.content)
            {
                // The commit whose outcome was unknown.
                return Ok(Ended::Committed(newest.clone(), *at));
            }
            if sent.is_some() || node.content.is_lost() {
                self.copy(node, &taken, content).await?;
                return Ok(match newest {
                    Some((newest, at)) => Ended::Committed(newest, at),
                    None => Ended::Removed,
                });
            }
            let Some((newest, at)) = newest else {
                return Ok(Ended::Removed);
            };
            let moved = node.content.rebase(&self.spools, newest, at);
            match moved.map_err(Failure::Local)? {
                Some(moved) => taken = moved,
                None => return Ok(Ended::Removed),
            }
        }
    }

    /// Waits until something is tried again.
    async fn go_on_later(&self) -> Result<(), Failure> {
        tokio::time::sleep(AGAIN).await;
        self.may_commit()
    }

    /// The file as it is now. None: it has no name any more.
    async fn newest(&self, node: &Arc<Node>) -> Result<Option<(Arc<Inode>, u64)>, Failure> {
        loop {
            let place = place_of(node.id());
            let follow = false;
            match self
                .ask(Call::Lookup { place, follow })
                .await
                .and_then(found)
            {
                Ok((file, at)) => return Ok(Some((file.inode, at))),
                Err(why) if is_absent(&why) => return Ok(None),
                Err(why) if is_unknown(&why) => self.go_on_later().await?,
                Err(why) => return Err(why),
            }
        }
    }

    /// Stores the blocks of the new content. While the server is away it is tried again.
    async fn stored(&self, taken: &Taken) -> Result<Content, Failure> {
        loop {
            self.may_commit()?;
            let spool = taken.spool.clone();
            let local = move |offset: u64, into: &mut [u8]| spool.read(offset, into);
            let edit = Edit {
                tree: &self.contents,
                base: &taken.base,
                overlay: &taken.overlay,
                local: &local,
                how: Fetch::Until(self.until()),
            };
            let sink = self.volume.client().sink(self.deadline);
            let hasher = self.volume.client().hasher().clone();
            let failure = match edit.content(&hasher, &sink).await {
                Ok(content) => return Ok(Content::Regular(content)),
                Err(error) => Failure::from(error),
            };
            match &failure {
                Failure::Store(StoreError::Full { .. }) => return Err(failure),
                Failure::Store(_) => {}
                Failure::Read(why) if why.is_outage() => {}
                _ => return Err(failure),
            }
            tracing::debug!(%failure, "a commit is tried again");
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Puts what was written into a file of its own beside the file.
    async fn copy(&self, node: &Node, taken: &Taken, content: Content) -> Result<(), Failure> {
        let Some((parent, name)) = node.place() else {
            return Err(Error::Io("the file has no place for a conflict copy".to_owned()).into());
        };
        for which in 0..MAX_COPIES {
            let name = conflict_name(&name, self.device, taken.mtime.seconds, which);
            let Some(name) = name else { break };
            let (place, _) = place(parent.id(), name.as_bytes())?;
            let copy = NewFile {
                place,
                inode: Inode::new(taken.base.mode, taken.mtime, content.clone()),
                owner: None,
                replace: Replace::Nothing,
            };
            match self.create_patiently(copy).await {
                Ok(_) => {
                    tracing::warn!(
                        file = node.shown(),
                        copy = trust::text::printable(name.as_bytes()),
                        "other devices wrote this file meanwhile: what was written here is in a conflict copy"
                    );
                    return Ok(());
                }
                Err(Failure::Refused(Refused::Exists)) => {}
                Err(why) => return Err(why),
            }
        }
        Err(Error::Io("there is no name for a conflict copy".to_owned()).into())
    }
}

/// Whether a failure of a call does not say that the call had no effect.
fn is_unknown(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Silent(_)
            | Failure::Client(ClientError::Deadline { .. } | ClientError::Interrupted)
    )
}

/// The end of a commit, also of one that panics.
struct Ending(Option<(Arc<Core>, Arc<Node>)>);

impl Ending {
    fn end(&mut self, ended: Ended) {
        let Some((core, node)) = self.0.take() else {
            return;
        };
        let has_failed = matches!(ended, Ended::Failed(_));
        if node.content.end(ended) {
            core.nodes.let_go(node.number());
        } else if has_failed && node.content.plans_retry() {
            let again = core.clone();
            core.runtime.spawn(async move {
                tokio::time::sleep(RETRY).await;
                node.content.retries();
                again.begin_commit(&node);
            });
        }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let failure = Failure::Plain(Error::Io("a commit has panicked".to_owned()));
        self.end(Ended::Failed(failure.loss()));
    }
}
