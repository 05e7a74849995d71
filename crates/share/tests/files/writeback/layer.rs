//! The files of one device, as a mount has them: does what the state machines ask for, one task at a time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::{Arc, MutexGuard};

use share::conflict::conflict_name;
use share::files::{Answer, Call, FileRef, Place, Refused, Replace};
use share::writeback::{
    Cached, Effect, Found, From, Kinds, Moved, Node, Nodes, NotSent, NotStored, Overlay, ROOT,
    Taken, Timer,
};
use trust::array::ArrayRoot;
use trust::frame::Packer;
use trust::handle::Kind;
use trust::inode::{Content, FileContent, Inode};
use trust::{Handle, Record};
use trust_shared::principal::{Device, FileId};

use crate::asks::name;
use crate::net::Net;

/// Local bytes, at their offsets.
pub type Bytes = Rc<RefCell<Vec<u8>>>;

/// Why bytes are not in the log.
pub type Loss = &'static str;

pub struct Simulated;

impl Kinds for Simulated {
    type Bytes = Bytes;
    type Blocks = Vec<Record>;
    type Waiter = u64;
    type Loss = Loss;
}

pub type File = Cached<Simulated>;
pub type Effects = Vec<Effect<Simulated>>;

/// Work that a state machine has asked for.
pub enum Task {
    Cut(Taken<Bytes>, bool),
    Send(Call, Vec<Record>),
    Sent(u64),
    Look,
    Looked(u64),
    Move(Bytes, Overlay, Moved),
    Copy(Taken<Bytes>, u32),
    Copied(u64, Taken<Bytes>, u32),
    Timer(Timer),
}

/// The files of one device.
pub struct Layer {
    pub at: usize,
    pub nodes: Nodes<Simulated>,
    files: BTreeMap<FileId, Arc<Node<Simulated>>>,
    /// What the kernel keeps of the root directory.
    kernel: BTreeMap<String, FileId>,
    pub tasks: Vec<(FileId, Task)>,
    /// What waiting requests were told.
    pub told: BTreeMap<u64, Result<(), Loss>>,
    /// How often more files were dirty than clean: 0 at the end.
    pub dirty: i64,
    /// Commits that were taken back, because the server refused their blocks.
    pub refused: usize,
}

/// What may go wrong when a task runs.
#[derive(Clone, Copy, Default)]
pub struct Luck {
    /// The server cannot be reached, or the outcome stays unknown.
    pub outage: bool,
    /// A step fails for good.
    pub failure: bool,
}

impl Layer {
    pub fn new(at: usize, root: FileId) -> Layer {
        let inode = Arc::new(crate::asks::directory());
        Layer {
            at,
            nodes: Nodes::new([7; 32], share::files::File { id: root, inode }),
            files: BTreeMap::new(),
            kernel: BTreeMap::new(),
            tasks: Vec::new(),
            told: BTreeMap::new(),
            dirty: 0,
            refused: 0,
        }
    }

    /// LOOKUP in the root directory has found a file.
    pub fn found(&mut self, file: share::files::File, end: u64, of: &str) {
        let id = file.id;
        let root = self.nodes.get(ROOT).unwrap();
        let node = self.nodes.found(file, end, (&root, &name(of)));
        self.files.insert(id, node);
        self.kernel.insert(of.to_owned(), id);
    }

    /// What the kernel was told last that a name leads to.
    pub fn cached(&self, name: &str) -> Option<FileId> {
        self.kernel.get(name).copied()
    }

    /// This device has moved a file.
    pub fn moved(&mut self, id: FileId, to: &str) {
        self.kernel.insert(to.to_owned(), id);
        let root = self.nodes.get(ROOT).unwrap();
        self.nodes.moved(&id, (&root, &name(to)));
    }

    pub fn node(&self, id: FileId) -> Arc<Node<Simulated>> {
        self.files[&id].clone()
    }

    pub fn file(&self, id: FileId) -> MutexGuard<'_, File> {
        self.files[&id].cached()
    }

    /// Does at once what needs no time; the rest become tasks.
    pub fn act(&mut self, id: FileId, effects: Effects) {
        for effect in effects {
            let task = match effect {
                Effect::Dirty => {
                    self.dirty += 1;
                    continue;
                }
                Effect::Clean => {
                    self.dirty -= 1;
                    continue;
                }
                Effect::Answer(waiter, told) => {
                    self.told.insert(waiter, told);
                    continue;
                }
                Effect::Cut { taken, stored } => Task::Cut(taken, stored),
                Effect::Send {
                    content,
                    blocks,
                    mtime,
                    expect,
                } => {
                    let set = Call::SetContent {
                        file: FileRef::File(id),
                        content,
                        mtime,
                        expect: Some(expect),
                    };
                    Task::Send(set, blocks)
                }
                Effect::Look => Task::Look,
                Effect::Move {
                    from,
                    overlay,
                    moved,
                } => Task::Move(from, overlay, moved),
                Effect::Copy(taken) => Task::Copy(taken, 0),
                Effect::Wait(timer) => Task::Timer(timer),
            };
            self.tasks.push((id, task));
        }
    }

    /// Runs a task, if it can go on.
    pub fn run(&mut self, net: &mut Net, which: usize, luck: Luck) {
        let (id, task) = self.tasks.swap_remove(which);
        let at = self.at;
        let node = self.node(id);
        let mut file = node.cached();
        let effects = match task {
            Task::Cut(taken, stored) => match (luck.outage, luck.failure) {
                (true, _) => file.cut(Err(NotStored::Now("the server is away"))),
                (_, true) => file.cut(Err(NotStored::Ever("the disk is full"))),
                _ => {
                    let (content, blocks) = in_blocks(net, &whole(net, &taken));
                    match stored {
                        true => {
                            net.put(&blocks);
                            file.cut(Ok((content, Vec::new())))
                        }
                        false => file.cut(Ok((content, blocks))),
                    }
                }
            },
            Task::Send(call, blocks) => {
                let ticket = net.issue_with(at, call, blocks);
                return self.tasks.push((id, Task::Sent(ticket)));
            }
            // The process that had the engine is gone, and has said nothing of the call.
            Task::Sent(_) if luck.outage => file.sent(Err(NotSent::Unknown)),
            Task::Sent(ticket) if net.nodes[at].withdrawn.contains(&ticket) => {
                self.refused += 1;
                file.sent(Err(NotSent::Unstored(match luck.failure {
                    true => NotStored::Ever("the server is full"),
                    false => NotStored::Now("the server refuses blocks"),
                })))
            }
            Task::Sent(ticket) => match answer(net, at, ticket) {
                None => return self.tasks.push((id, Task::Sent(ticket))),
                Some((Answer::Done(_), end)) => file.sent(Ok(end)),
                Some((Answer::Refused(Refused::Stale | Refused::NotFound), _)) => {
                    file.sent(Err(NotSent::Stale))
                }
                Some(other) => panic!("{other:?}"),
            },
            Task::Look => {
                let place = Place {
                    start: id,
                    path: Vec::new(),
                };
                let follow = false;
                let ticket = net.issue(at, Call::Lookup { place, follow });
                return self.tasks.push((id, Task::Looked(ticket)));
            }
            Task::Looked(_) if luck.outage => file.found(Found::Unknown),
            Task::Looked(ticket) => match answer(net, at, ticket) {
                None => return self.tasks.push((id, Task::Looked(ticket))),
                Some((Answer::Found(found), end)) => file.found(Found::File(found.inode, end)),
                Some((Answer::Refused(Refused::NotFound | Refused::Stale), _)) => {
                    file.found(Found::Nothing)
                }
                Some(other) => panic!("{other:?}"),
            },
            Task::Move(..) if luck.failure => file.moved(Err("the disk is full")),
            Task::Move(from, overlay, moved) => {
                let copied = moved_bytes(&from.borrow(), &overlay, &moved);
                file.moved(Ok(Rc::new(RefCell::new(copied))))
            }
            Task::Copy(..) if luck.failure => file.copied(Err("no room for a copy")),
            Task::Copy(taken, number) => {
                let (content, blocks) = in_blocks(net, &whole(net, &taken));
                net.put(&blocks);
                let call = self.copy_call(net, id, (&taken, &content), number);
                let ticket = net.issue(at, call);
                let task = Task::Copied(ticket, taken, number);
                return self.tasks.push((id, task));
            }
            Task::Copied(ticket, taken, number) => match answer(net, at, ticket) {
                None => {
                    let task = Task::Copied(ticket, taken, number);
                    return self.tasks.push((id, task));
                }
                Some((Answer::Done(_) | Answer::Replaced(..), _)) => file.copied(Ok("copied")),
                Some((Answer::Refused(Refused::Exists), _)) => {
                    let task = Task::Copy(taken, number + 1);
                    return self.tasks.push((id, task));
                }
                Some(other) => panic!("{other:?}"),
            },
            Task::Timer(timer) => file.rang(timer),
        };
        drop(file);
        self.act(id, effects);
    }

    fn copy_call(
        &self,
        net: &mut Net,
        id: FileId,
        (taken, content): (&Taken<Bytes>, &Content),
        which: u32,
    ) -> Call {
        let (_, of) = self.node(id).place().unwrap();
        let copy = conflict_name(&of, Device(self.at as u32), taken.mtime.seconds, which);
        Call::Create {
            place: Place {
                start: net.root(),
                path: vec![copy.unwrap()],
            },
            number: net.random(1 << 48),
            inode: Box::new(Inode::new(0o644, taken.mtime, content.clone())),
            owner: None,
            replace: Replace::Nothing,
        }
    }
}

/// The answer to a call, and the end of the prefix at which it took place.
pub fn answer(net: &Net, at: usize, ticket: u64) -> Option<(Answer, u64)> {
    let node = &net.nodes[at];
    let (answer, _) = node.answers.get(&ticket)?;
    Some((answer.clone(), node.ends[&ticket]))
}

pub fn content_of(bytes: &[u8]) -> Content {
    Content::Regular(match bytes {
        [] => FileContent::Empty,
        bytes => FileContent::Inline(bytes.to_vec().into()),
    })
}

/// Content that lies in a block.
pub fn in_blocks(net: &Net, bytes: &[u8]) -> (Content, Vec<Record>) {
    let hasher = &net.files(0).terms().hasher;
    let handle = hasher.name(Kind::Data, bytes);
    let frame = Packer::new().pack(Kind::Data, bytes).unwrap();
    let root = ArrayRoot {
        len: bytes.len() as u64,
        height: 0,
        top: *handle.as_bytes(),
    };
    let content = Content::Regular(FileContent::Array(root));
    (content, vec![Record { handle, frame }])
}

pub fn bytes_of(net: &Net, content: &Content) -> Vec<u8> {
    match content {
        Content::Regular(FileContent::Empty) => Vec::new(),
        Content::Regular(FileContent::Inline(bytes)) => bytes.to_vec(),
        Content::Regular(FileContent::Array(root)) => {
            let block = net.blocks.get(&Handle::from_bytes(root.top));
            block.expect("the server has each version").to_vec()
        }
        other => panic!("{other:?}"),
    }
}

fn assembled(
    base: &[u8],
    local: &[u8],
    mut stretch: impl FnMut(u64) -> Option<(std::ops::Range<u64>, From)>,
) -> Vec<u8> {
    let mut out = Vec::new();
    while let Some((range, from)) = stretch(out.len() as u64) {
        let (start, end) = (range.start as usize, range.end as usize);
        match from {
            From::Local => out.extend_from_slice(&local[start..end]),
            From::Base => out.extend_from_slice(&base[start..end]),
            From::Nowhere => out.resize(end, 0),
        }
    }
    out
}

/// The new content.
fn whole(net: &Net, taken: &Taken<Bytes>) -> Vec<u8> {
    let base = bytes_of(net, &taken.base.content);
    assembled(&base, &taken.bytes.borrow(), |at| {
        taken.overlay.stretch(at, u64::MAX)
    })
}

/// What a program reads.
pub fn read(net: &Net, file: &File) -> Vec<u8> {
    let plan = file.plan(0, u64::MAX);
    let local = plan.bytes.map(|bytes| bytes.borrow().clone());
    let mut stretches = plan.stretches.into_iter();
    assembled(
        &bytes_of(net, &plan.base.content),
        &local.unwrap_or_default(),
        |_| stretches.next(),
    )
}

fn moved_bytes(from: &[u8], overlay: &Overlay, moved: &Moved) -> Vec<u8> {
    let mut out = vec![0; from.len() + moved.to as usize];
    for range in overlay.local() {
        for at in range {
            let to = match at >= moved.from.start {
                true => moved.to + (at - moved.from.start),
                false => at,
            };
            out[to as usize] = from[at as usize];
        }
    }
    out
}
