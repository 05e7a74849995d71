//! What programs do with files. A kernel walks to the file again when an OPEN is answered ESTALE, once.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use share::files::{Answer, Call, File, Over, Place, Refused, Replace};
use share::writeback::{Changed, Opens};
use trust::inode::Inode;
use trust_shared::principal::FileId;

use super::layer::{Loss, in_blocks, read};
use super::truth::{EMPTY, Renamed, SLOTS, Slot, TOKEN};
use super::world::World;

/// An open file.
pub struct Open {
    pub world: World,
    pub at: usize,
    pub file: FileId,
    pub handle: u64,
    /// When the program began to open it.
    opened: u64,
    own: Vec<u16>,
    is_lost: bool,
}

/// What LOOKUP and OPEN come to.
enum Walked {
    Open(FileId),
    Stale,
    Absent,
}

/// A thread of a program.
type Thread = u32;

impl World {
    pub fn place(&self, name: &str) -> Place {
        self.state().net.at(name)
    }

    fn lookup(&self, place: Place) -> Call {
        let follow = false;
        Call::Lookup { place, follow }
    }

    /// Opens a file by its name. None: there is none, or the device cannot say.
    pub async fn open(&self, at: usize, name: &str) -> Option<Open> {
        let opened = self.state().truth.now;
        let thread = self.number() as Thread;
        let is_cached = self.chance(2);
        let mut walked = self.walk(at, name, (thread, is_cached)).await;
        if let Walked::Stale = walked {
            self.state().truth.tally.stale += 1;
            walked = self.walk(at, name, (thread, false)).await;
        }
        let file = match walked {
            Walked::Open(file) => file,
            Walked::Absent => return None,
            Walked::Stale => panic!("ESTALE reaches a program"),
        };
        self.state().truth.opened(name, file, opened);
        Some(self.opened(at, file, opened))
    }

    fn opened(&self, at: usize, file: FileId, opened: u64) -> Open {
        let handle = self.number();
        self.state().layers[at].file(file).opened();
        Open {
            world: self.clone(),
            at,
            file,
            handle,
            opened,
            own: Vec::new(),
            is_lost: false,
        }
    }

    /// LOOKUP and OPEN. The kernel may still have what the name led to some time ago, and sends no LOOKUP then.
    async fn walk(&self, at: usize, name: &str, (thread, is_cached): (Thread, bool)) -> Walked {
        let place = self.place(name);
        let root = place.start;
        let cached = self.state().layers[at].cached(name).filter(|_| is_cached);
        let id = match cached {
            Some(id) => id,
            None => match self.call(at, self.lookup(place)).await {
                (Answer::Found(found), end) => {
                    let id = found.id;
                    self.state().layers[at].found(found, end, name);
                    id
                }
                (Answer::Refused(Refused::NotFound), _) => return Walked::Absent,
                other => panic!("{other:?}"),
            },
        };
        if self.settled(at, id).await.is_err() {
            return Walked::Absent;
        }
        let node = self.state().layers[at].node(id);
        let opening = self.state().layers[at].nodes.opening(&node, thread, root);
        let (found, end) = match self.call(at, self.lookup(opening.place.clone())).await {
            (Answer::Found(found), end) => (Some(found), end),
            (Answer::Refused(Refused::NotFound | Refused::Stale), end) => (None, end),
            other => panic!("{other:?}"),
        };
        let by = (&*node, thread);
        let opens = self.state().layers[at]
            .nodes
            .opened(&opening, by, found.as_ref());
        match opens {
            Opens::Newest(inode) => {
                self.tell(at, id, |file| ((), file.show(&inode, end)));
                match self.settled(at, id).await {
                    Ok(()) => Walked::Open(id),
                    Err(_) => Walked::Absent,
                }
            }
            Opens::Known => Walked::Open(id),
            Opens::Stale => Walked::Stale,
        }
    }

    /// Makes a file, and opens it.
    pub async fn create(&self, at: usize, name: &str) -> Option<Open> {
        let opened = self.state().truth.now;
        let (content, blocks) = in_blocks(&self.state().net, &EMPTY);
        let inode = Inode::new(0o644, self.time().0, content);
        let number = self.random(1 << 48);
        let create = Call::Create {
            place: self.place(name),
            number,
            inode: Box::new(inode.clone()),
            owner: None,
            replace: Replace::Nothing,
        };
        let (answer, end) = self.call_with(at, create, blocks).await?;
        let id = crate::asks::file_of(&answer)?;
        let inode = Arc::new(inode);
        self.state().layers[at].found(File { id, inode }, end, name);
        Some(self.opened(at, id, opened))
    }

    /// Writes a file of its own, and moves it over a name, as editors do it.
    pub async fn replace(&self, at: usize, name: &str) {
        let draft = format!("draft {}", self.number());
        let Some(mut file) = self.create(at, &draft).await else {
            return;
        };
        if file.write(None).await.is_err() {
            return;
        }
        let id = file.file;
        if file.close().await.is_err() {
            return;
        }
        let which = {
            let truth = &mut self.state().truth;
            let begun = truth.now;
            truth.renamed.push(Renamed {
                name: name.to_owned(),
                file: id,
                begun,
                ended: None,
            });
            truth.renamed.len() - 1
        };
        let rename = Call::Rename {
            from: self.place(&draft),
            to: self.place(name),
            over: Over::Replace,
        };
        let (answer, _) = self.call(at, rename).await;
        assert!(matches!(answer, Answer::Replaced(..) | Answer::Done(_)));
        let mut state = self.state();
        let now = state.truth.now;
        state.truth.renamed[which].ended = Some(now);
        state.layers[at].moved(id, name);
    }

    /// Works with a file without a name, as programs do that want no other to see it.
    async fn temporary(&self, at: usize) {
        let name = format!("temporary {}", self.number());
        let Some(mut file) = self.create(at, &name).await else {
            return;
        };
        if file.write(None).await.is_err() {
            return;
        }
        let unlink = Call::Unlink {
            place: self.place(&name),
        };
        self.call(at, unlink).await;
        file.read();
        if file.sync().await.is_ok() && file.write(Some(0)).await.is_ok() {
            file.read();
        }
        let _ = file.close().await;
    }
}

impl Open {
    /// Writes a token into a slot, or appends it.
    pub async fn write(&mut self, slot: Slot) -> Result<(), Loss> {
        loop {
            let (world, id) = (self.world.clone(), self.file);
            let (time, now_ms) = world.time();
            // It counts only if it is made.
            let number = world.state().truth.tokens.len() as u16 + 1;
            let token = number.to_le_bytes();
            let place = || Ok(Rc::new(RefCell::new(Vec::new())));
            let by = (Some(self.handle), time, now_ms);
            let changed = world.tell(self.at, id, |file| {
                let changed = file.change(by, place, |local| {
                    let at = match slot {
                        Some(slot) => (slot * TOKEN) as u64,
                        None => local.overlay.len(),
                    };
                    let end = at as usize + TOKEN;
                    let mut bytes = local.bytes.borrow_mut();
                    let len = bytes.len().max(end);
                    bytes.resize(len, 0);
                    bytes[at as usize..end].copy_from_slice(&token);
                    match slot {
                        Some(_) => local.overlay.write(at..end as u64),
                        None => assert_eq!(local.overlay.append(TOKEN as u64), at),
                    }
                    Ok::<(), Loss>(())
                });
                changed.expect("memory takes all")
            });
            match changed {
                Changed::Busy => world.settled(self.at, id).await?,
                Changed::Made(()) => {
                    let by = (self.at, self.handle, self.opened);
                    let made = world.state().truth.token(id, by, slot);
                    assert_eq!(made, number);
                    self.own.push(number);
                    return Ok(());
                }
            }
        }
    }

    /// Reads everything.
    pub fn read(&self) {
        let mut state = self.world.state();
        let node = state.layers[self.at].node(self.file);
        let file = node.cached();
        // What others wrote since is not shown over bytes that were told lost. What is in a conflict copy is shown no more,
        // and the handle is told at its next call.
        if file.is_held() || self.is_lost || file.owes(self.handle) {
            return;
        }
        let bytes = read(&state.net, &file);
        state.truth.read(self.file, self.opened, &self.own, &bytes);
    }

    /// What is written so far is in the log then.
    pub async fn sync(&mut self) -> Result<(), Loss> {
        let synced = self.world.committed(self.at, self.file, self.handle).await;
        self.is_lost |= synced.is_err();
        self.world.state().truth.told(self.handle, synced.is_ok());
        synced
    }

    pub async fn close(mut self) -> Result<(), Loss> {
        let closed = self.sync().await;
        let mut state = self.world.state();
        let layer = &mut state.layers[self.at];
        let (id, handle) = (self.file, self.handle);
        let effects = layer.file(id).begin();
        layer.act(id, effects);
        let is_over = layer.file(id).closed(handle);
        layer.dirty -= i64::from(is_over);
        closed
    }
}

/// A program that works on one name for a while.
pub async fn program(world: World, at: usize, name: String, rounds: u64) {
    for _ in 0..rounds {
        world.pause().await;
        match world.random(10) {
            0 => {
                world.replace(at, &name).await;
                continue;
            }
            1 => {
                world.temporary(at).await;
                continue;
            }
            2..=3 => {
                if let Some(file) = world.open(at, &name).await {
                    file.read();
                    // A program that only reads waits for nothing.
                    world.pause().await;
                    let _ = file.close().await;
                }
                continue;
            }
            _ => {}
        }
        let Some(mut file) = world.open(at, &name).await else {
            continue;
        };
        for _ in 0..=world.random(2) {
            let slot = match world.random(2) {
                0 => None,
                _ => Some(world.random(SLOTS as u64) as usize),
            };
            if file.write(slot).await.is_err() {
                break;
            }
            file.read();
            world.pause().await;
            if world.chance(4) && file.sync().await.is_err() {
                break;
            }
        }
        let _ = file.close().await;
    }
}
