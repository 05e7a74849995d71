//! Does what [`share::writeback`] asks for: stores blocks, sets content, makes conflict copies, waits.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bulla::edit::{Edit, EditError};
use bulla::touch::{TouchError, touch};
use reader::Fetch;
use share::client::{ClientError, NewFile};
use share::conflict::conflict_name;
use share::files::{Call, FileRef, Refused, Replace, Stamped};
use share::outbox::Flight;
use share::writeback::{Cached, Effect, Found, Moved, NotSent, NotStored, Overlay, Taken, Timer};
use store::{BlockSink, StoreError};
use tokio::sync::oneshot;
use tokio::time::timeout_at;
use trust::inode::{Content, FileContent, Inode};

use super::core::{Core, found, is_absent, place, place_of};
use super::failure::Failure;
use super::loss::Loss;
use super::spool::Node;
use super::spool::{Effects, Spool, Spooled};
use crate::fuse::Error;

/// When the server could not be reached, it is tried again after this time.
const AGAIN: Duration = Duration::from_secs(1);
/// Local changes are committed at last when they are so old.
const DIRTY: Duration = Duration::from_secs(5);
/// What could not be committed is tried again after this time.
const RETRY: Duration = Duration::from_secs(30);
/// Most names that are tried for a conflict copy.
const MAX_COPIES: u32 = 100;

/// What a waiting request is told.
type Answers = oneshot::Receiver<Result<(), Loss>>;

/// A request that waits. Its program may be killed meanwhile: then others that have the file open by the same handle are
/// told of lost bytes in its place.
struct Waiting {
    node: Arc<Node>,
    ticket: u64,
    handle: Option<u64>,
    answer: Answers,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut cached = self.node.cached();
        cached.cancel(self.ticket);
        self.answer.close();
        if let Ok(Err(_)) = self.answer.try_recv() {
            cached.not_told(self.handle);
        }
    }
}

impl Core {
    /// Tells the state machine of a file something, and does what it asks for.
    pub fn drive<T>(
        self: &Arc<Self>,
        node: &Arc<Node>,
        event: impl FnOnce(&mut Cached<Spooled>) -> (T, Effects),
    ) -> T {
        let mut cached = node.cached();
        let (outcome, effects) = event(&mut cached);
        let mut rest = Vec::new();
        for effect in effects {
            match effect {
                // In the order of the states.
                Effect::Dirty => self.nodes.hold(node.number()),
                Effect::Clean => {
                    self.locks.clean(node.id());
                    self.nodes.let_go(node.number());
                }
                effect => rest.push(effect),
            }
        }
        drop(cached);
        rest.into_iter().for_each(|effect| self.act(node, effect));
        outcome
    }

    fn act(self: &Arc<Self>, node: &Arc<Node>, effect: Effect<Spooled>) {
        let (core, of) = (self.clone(), node.clone());
        match effect {
            Effect::Dirty | Effect::Clean => {}
            Effect::Answer(waiter, answer) => {
                // A program that was killed waits no more.
                let _ = waiter.send(answer);
            }
            Effect::Cut { taken, stored } => {
                let cut = async move { core.cut(&of, &taken, stored).await };
                let panicked = |loss| Err(NotStored::Ever(loss));
                self.step(node, cut, panicked, Cached::cut);
            }
            Effect::Send {
                content,
                blocks,
                mtime,
                expect,
            } => {
                let set = Call::SetContent {
                    file: FileRef::File(node.id()),
                    content,
                    mtime,
                    expect: Some(expect),
                };
                let locks = self.locks.under(node.id());
                let set = match locks.is_empty() {
                    true => set,
                    false => Call::Under {
                        locks,
                        call: Box::new(set),
                    },
                };
                let set = Stamped {
                    time: mtime,
                    call: set,
                };
                let sent = async move { core.sent(&of, set, blocks).await };
                let panicked = |_| Err(NotSent::Unknown);
                self.step(node, sent, panicked, Cached::sent);
            }
            Effect::Look => {
                let found = async move { core.newest(&of).await };
                self.step(node, found, Found::Failed, Cached::found);
            }
            Effect::Move {
                from,
                overlay,
                moved,
            } => {
                let moved = async move { core.moved(&of, (&from, &overlay, &moved)) };
                self.step(node, moved, Err, Cached::moved);
            }
            Effect::Copy(taken) => {
                let copied = async move { core.copied(&of, &taken).await };
                self.step(node, copied, Err, Cached::copied);
            }
            Effect::Wait(timer) => {
                let time = match timer {
                    Timer::Dirty => DIRTY,
                    Timer::Again => AGAIN,
                    Timer::Retry => RETRY,
                };
                self.runtime.spawn(async move {
                    tokio::time::sleep(time).await;
                    core.drive(&of, |cached| ((), cached.rang(timer)));
                });
            }
        }
    }

    /// Works, and tells the state machine of a file what came of it. If the work panics, the file can be used on.
    fn step<T: Send + 'static>(
        self: &Arc<Self>,
        node: &Arc<Node>,
        work: impl Future<Output = T> + Send + 'static,
        panicked: impl FnOnce(Loss) -> T + Send + 'static,
        then: impl FnOnce(&mut Cached<Spooled>, T) -> Effects + Send + 'static,
    ) {
        let (core, node) = (self.clone(), node.clone());
        self.runtime.spawn(async move {
            let done = tokio::spawn(work).await;
            let failure = || Failure::Plain(Error::Io("a commit has panicked".to_owned()));
            let done = done.unwrap_or_else(|_| panicked(failure().loss()));
            core.drive(&node, |cached| ((), then(cached, done)));
        });
    }

    /// Begins a commit of what is local of a file, unless there is nothing or one is under way.
    pub fn begin_commit(self: &Arc<Self>, node: &Arc<Node>) {
        self.drive(node, |cached| ((), cached.begin()));
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
        if node.cached().is_clean_for(handle) {
            return Ok(());
        }
        if let Some((why, _)) = self.stopped() {
            return Err(Failure::Stopped(why));
        }
        let (waiter, answer) = oneshot::channel();
        let ticket = self.drive(node, |cached| cached.commit(handle, waiter));
        self.answered((node, ticket, handle), answer).await
    }

    /// Waits until no work on what is local of a file is under way.
    ///
    /// # Errors
    /// [`Failure::Lost`] at the deadline.
    pub async fn settled(self: &Arc<Self>, node: &Arc<Node>) -> Result<(), Failure> {
        let (waiter, answer) = oneshot::channel();
        let ticket = node.cached().settle(waiter);
        match ticket {
            Ok(ticket) => self.answered((node, ticket, None), answer).await,
            Err(_) => Ok(()),
        }
    }

    async fn answered(
        self: &Arc<Self>,
        (node, ticket, handle): (&Arc<Node>, u64, Option<u64>),
        answer: Answers,
    ) -> Result<(), Failure> {
        let node = node.clone();
        let mut waiting = Waiting {
            node,
            ticket,
            handle,
            answer,
        };
        let told = match timeout_at(self.until().into(), &mut waiting.answer).await {
            Ok(told) => told,
            Err(_) => {
                let loss = Failure::Plain(Error::TimedOut).loss();
                self.drive(&waiting.node, |cached| ((), cached.expired(ticket, loss)));
                (&mut waiting.answer).await
            }
        };
        let gone = |_| Failure::Plain(Error::Io("a file was forgotten".to_owned()));
        told.map_err(gone)?.map_err(Failure::Lost)
    }

    /// Sets the content, behind its blocks.
    async fn sent(
        self: &Arc<Self>,
        node: &Node,
        set: Stamped,
        blocks: Flight,
    ) -> Result<u64, NotSent<Loss>> {
        let is_locked = matches!(set.call, Call::Under { .. });
        match self.change_patiently(set, blocks).await {
            Ok((_, at)) => Ok(at),
            Err(Failure::Refused(Refused::NotLocked)) if is_locked => {
                self.lock_is_lost(node.id());
                Err(NotSent::Unlocked(told_of(&Failure::LockLost, node)))
            }
            Err(why @ Failure::Client(ClientError::Unstored { is_full, .. })) => {
                let loss = told_of(&why, node);
                Err(NotSent::Unstored(match is_full {
                    true => NotStored::Ever(loss),
                    false => NotStored::Now(loss),
                }))
            }
            Err(Failure::Refused(Refused::Stale | Refused::NotFound)) => Err(NotSent::Stale),
            Err(why) if is_unknown(&why) => Err(NotSent::Unknown),
            Err(why) => Err(NotSent::Refused(told_of(&why, node))),
        }
    }

    /// The file as it is now.
    async fn newest(&self, node: &Node) -> Found<Loss> {
        if let Err(why) = self.may_commit() {
            return Found::Failed(told_of(&why, node));
        }
        let place = place_of(node.id());
        let follow = false;
        let asked = self.ask(Call::Lookup { place, follow }).await;
        match asked.and_then(found) {
            Ok((file, at)) => Found::File(file.inode, at),
            Err(why) if is_absent(&why) => Found::Nothing,
            Err(why) if is_unknown(&why) => Found::Unknown,
            Err(why) => Found::Failed(told_of(&why, node)),
        }
    }

    /// Cuts the new content. Gives it, and those of its blocks that are to travel with it: with `stored` there are none.
    async fn cut(
        &self,
        node: &Node,
        taken: &Taken<Arc<Spool>>,
        stored: bool,
    ) -> Result<(Content, Flight), NotStored<Loss>> {
        let ever = |failure| NotStored::Ever(told_of(&failure, node));
        self.may_commit().map_err(ever)?;
        let spool = taken.bytes.clone();
        let local = move |offset: u64, into: &mut [u8]| spool.read(offset, into);
        let edit = Edit {
            tree: &self.contents,
            base: &taken.base,
            overlay: &taken.overlay,
            local: &local,
            how: Fetch::Until(self.until()),
        };
        let sink = self.volume.client().boarding(self.deadline);
        let hasher = self.volume.client().hasher().clone();
        let cut = async {
            let content = edit.content(&hasher, &sink).await?;
            if stored {
                sink.flush().await?;
            }
            Ok::<_, EditError>(content)
        };
        let failure = match cut.await {
            Ok(content) => return Ok((Content::Regular(content), sink.flight())),
            Err(error) => Failure::from(error),
        };
        if !passes(&failure) {
            return Err(ever(failure));
        }
        tracing::debug!(%failure, "a commit is tried again");
        Err(NotStored::Now(failure.loss()))
    }

    /// Another place for the local bytes, at the offsets at which they are after a rebase.
    fn moved(
        &self,
        node: &Node,
        (from, overlay, moved): (&Spool, &Overlay, &Moved),
    ) -> Result<Arc<Spool>, Loss> {
        let spool = self.spools.make().and_then(|spool| {
            spool.copy(from, overlay, moved)?;
            Ok(spool)
        });
        match spool {
            Ok(spool) => Ok(Arc::new(spool)),
            Err(error) => Err(told_of(&Failure::Local(error), node)),
        }
    }

    /// Makes a conflict copy. What travelled with the commit may not be at the server, so its blocks are stored first. The
    /// rest are those of a version that others have replaced: the server may have collected them since.
    async fn copied(&self, node: &Node, taken: &Taken<Arc<Spool>>) -> Result<Loss, Loss> {
        let content = loop {
            match self.cut(node, taken, true).await {
                Ok((content, _)) => match self.kept_by_server(&content).await {
                    Ok(()) => break content,
                    Err(why) if passes(&why) => tokio::time::sleep(AGAIN).await,
                    Err(why) => return Err(told_of(&why, node)),
                },
                Err(NotStored::Now(_)) => tokio::time::sleep(AGAIN).await,
                Err(NotStored::Ever(loss)) => return Err(loss),
            }
        };
        let copied = self.copy(node, taken, content).await;
        copied.map_err(|failure| told_of(&failure, node))
    }

    /// Asks the server to keep content.
    async fn kept_by_server(&self, content: &Content) -> Result<(), Failure> {
        let Content::Regular(FileContent::Array(root)) = content else {
            return Ok(());
        };
        let sink = self.volume.sink();
        match touch(&self.contents, &sink, root, || self.how()).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::Collected),
            Err(TouchError::Read(why)) => Err(why.into()),
            Err(TouchError::Sink(why)) => Err(Failure::Store(why)),
        }
    }

    /// Puts what was written into a file of its own beside the file. Gives what its writers are told.
    async fn copy(
        &self,
        node: &Node,
        taken: &Taken<Arc<Spool>>,
        content: Content,
    ) -> Result<Loss, Failure> {
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
                    let copy = trust::text::printable(name.as_bytes());
                    tracing::warn!(
                        file = node.shown(),
                        copy,
                        "other devices wrote this file meanwhile: what was written here is in a conflict copy"
                    );
                    let why = format!("other devices wrote it meanwhile: it is in `{copy}`");
                    return Ok(Failure::Plain(Error::Io(why)).loss());
                }
                Err(Failure::Refused(Refused::Exists)) => {}
                Err(why) => return Err(why),
            }
        }
        Err(Error::Io("there is no name for a conflict copy".to_owned()).into())
    }
}

/// What programs are told of a failure, which the log of the process tells in full.
fn told_of(failure: &Failure, node: &Node) -> Loss {
    failure.log("commit", || node.shown());
    failure.loss()
}

/// Whether a failure of a call does not say that the call had no effect.
fn is_unknown(failure: &Failure) -> bool {
    matches!(
        failure,
        Failure::Silent(_)
            | Failure::Client(ClientError::Deadline { .. } | ClientError::Interrupted)
    )
}

/// Whether what could not be done may succeed later.
fn passes(failure: &Failure) -> bool {
    match failure {
        Failure::Store(StoreError::Full { .. }) => false,
        Failure::Store(_) => true,
        Failure::Read(why) => why.is_outage(),
        _ => false,
    }
}
