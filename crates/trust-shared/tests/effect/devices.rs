//! Devices that make calls on what each of them has seen, and put them into one log.

use trust::inode::{Content, FileKind, Time};
use trust_shared::calls::{self, Calls, Directory, Held, Replaced, Spot, Turn};
use trust_shared::effect::{Lock, State};
use trust_shared::hold::{Family, Range, Ranges};
use trust_shared::ops::Op;
use trust_shared::outcome::NoEffect;
use trust_shared::principal::{Device, FileId, Principal};

use crate::posix::{Call, writes};
use crate::world::*;

pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// A random step: the device, what it does, and three choices.
pub type Step = (u8, u8, u8, u8, u8);

/// The time by the clock of the device that makes the call of a step. The clocks of these devices go back and forth.
pub fn time_of((device, _, _, y, z): Step) -> Time {
    Time {
        seconds: 1_700_000_000 + i64::from(y % 8),
        nanos: 4 * u32::from(z) + u32::from(device % 4),
    }
}

/// A device and the state that it has seen.
pub struct Client {
    pub device: u32,
    pub state: State,
    pub counter: u64,
}

/// What a call came to: an op, or an error at once, or nothing to do.
pub type Built = (Call, Result<Option<Op>, NoEffect>);

impl Client {
    pub fn new(device: u32) -> Client {
        let mut state = State::new(volume());
        state.grow(BEGIN);
        let counter = 0;
        Client {
            device,
            state,
            counter,
        }
    }

    /// The size of the prefix that the device has seen.
    pub fn seen(&self) -> u64 {
        self.state.size()
    }

    /// Reads the log up to its end.
    pub fn catch_up(&mut self, world: &World) {
        let known = (self.seen() - BEGIN) as usize;
        for entry in &world.log[known..] {
            apply(&mut self.state, entry, &world.members, &world.store);
        }
    }

    /// All directories that the device can reach, the root first.
    fn directories(&self, store: &Store) -> Vec<Directory> {
        let (mut found, mut next) = (Vec::new(), vec![root()]);
        while let Some(directory) = next.pop() {
            assert!(found.len() < 200, "a circle of directories");
            for text in NAMES {
                let spot = spot(&self.state, store, &directory, text);
                if let Some(to) = spot.found.filter(|to| to.kind == FileKind::Directory) {
                    next.push(below(&directory, text, to.file));
                }
            }
            found.push(directory);
        }
        found
    }

    fn held(&self, store: &Store, file: FileId) -> Option<Held> {
        let inode = self.state.inode(&file, store).unwrap()?;
        let mine = |lock: Lock| lock.holder == Device(self.device);
        let turn = match self.state.lock(&file).is_some_and(mine) {
            true => Turn::Mine,
            false => Turn::Free,
        };
        Some(Held { file, inode, turn })
    }

    /// Makes the call of a step on what the device has seen. None: there is nothing to do it with.
    pub fn call(&mut self, store: &Store, step: Step) -> Option<Built> {
        let (_, what, x, y, z) = step;
        let directories = self.directories(store);
        let pick = |choice: u8| &directories[usize::from(choice) % directories.len()];
        let one = spot(&self.state, store, pick(x), NAMES[usize::from(z) % 3]);
        let other = spot(&self.state, store, pick(y), NAMES[usize::from(z / 3) % 3]);
        let volume = volume();
        let calls = Calls {
            volume: &volume,
            time: time_of(step),
        };
        match what {
            0..=4 => Some(self.create(calls, &one, what < 2, y)),
            5 => Some(self.unlink(store, calls, &one)),
            6 => Some(self.rmdir(calls, &one)),
            7..=9 => Some(self.rename(store, calls, &one, &other, what != 9)),
            10 => {
                let op = calls.exchange(&one, &other);
                Some((exchange(&one, &other), op))
            }
            11 => {
                let held = self.held(store, other.found?.file)?;
                let (at, name) = (one.directory.id, text(&one));
                let file = held.file;
                let op = calls.link(&one, &held).map(Some);
                Some((Call::Link { at, name, file }, op))
            }
            12..=14 => self.write(store, calls, &one, what == 14, y),
            15..=17 => self.lock(&one, y),
            19..=20 => self.hold(&one, what == 20, y),
            _ => self.fold(store, y),
        }
    }

    fn create(&mut self, calls: Calls<'_>, at: &Spot, is_directory: bool, choice: u8) -> Built {
        let owners = [EVERYBODY, EVERYBODY, TEAM, user(self.device)];
        let owner = owners[usize::from(choice) % 4];
        self.counter += 1;
        let new = file(owner, self.device, self.counter);
        let inode = if is_directory {
            directory()
        } else {
            regular("")
        };
        let call = Call::Create {
            at: at.directory.id,
            name: text(at),
            new,
            is_directory,
        };
        (call, calls.create(at, new, inode).map(Some))
    }

    fn unlink(&self, store: &Store, calls: Calls<'_>, at: &Spot) -> Built {
        let found = at.found.filter(|to| writes(self.device, to.file.principal));
        let held = found.and_then(|to| self.held(store, to.file));
        let call = Call::Unlink {
            at: at.directory.id,
            name: text(at),
        };
        (call, calls.unlink(at, held.as_ref()).map(Some))
    }

    fn rmdir(&self, calls: Calls<'_>, at: &Spot) -> Built {
        let removes = at
            .found
            .is_some_and(|to| writes(self.device, to.file.principal));
        let call = Call::Rmdir {
            at: at.directory.id,
            name: text(at),
        };
        (call, calls.rmdir(at, removes).map(Some))
    }

    fn rename(
        &self,
        store: &Store,
        calls: Calls<'_>,
        from: &Spot,
        to: &Spot,
        replaces: bool,
    ) -> Built {
        let found = to.found.filter(|to| writes(self.device, to.file.principal));
        let held = found.and_then(|to| self.held(store, to.file));
        let replaced = match (replaces, &held) {
            (false, _) => Replaced::Refused,
            (true, Some(held)) => Replaced::Dropped(held),
            (true, None) => Replaced::Left,
        };
        let call = Call::Rename {
            from: from.directory.id,
            old: text(from),
            to: to.directory.id,
            new: text(to),
            replaces,
        };
        (call, calls.rename(from, to, replaced))
    }

    fn write(
        &self,
        store: &Store,
        calls: Calls<'_>,
        at: &Spot,
        only_mode: bool,
        choice: u8,
    ) -> Option<Built> {
        let held = self.held(store, at.found?.file)?;
        let file = held.file;
        if only_mode && choice.is_multiple_of(4) {
            let mtime = Time {
                seconds: -i64::from(choice),
                nanos: 7,
            };
            let inode = held.inode.as_ref().clone();
            let op = calls.set_attributes(&held, inode, Some(mtime));
            return Some((Call::Utimes { file, mtime }, Ok(Some(op))));
        }
        if only_mode || held.inode.kind() == FileKind::Directory {
            let mode = 0o600 + u16::from(choice % 64);
            let mut inode = held.inode.as_ref().clone();
            inode.mode = mode;
            let op = calls.set_attributes(&held, inode, None);
            return Some((Call::Chmod { file, mode }, Ok(Some(op))));
        }
        // Now and then too long for an i-table.
        let text = format!("{} {choice}", self.device).repeat(1 + usize::from(choice));
        let long = text.len() > 512;
        let text = if long { text[..512].to_owned() } else { text };
        let op = calls.write(&held, content(&text), calls.time);
        Some((Call::Write { file, text }, Ok(Some(op))))
    }

    fn lock(&self, at: &Spot, choice: u8) -> Option<Built> {
        let file = at.found?.file;
        let mine = |lock: Lock| lock.holder == Device(self.device);
        let what = match self.state.lock(&file).is_some_and(mine) {
            true => [3, 3, 1, 2][usize::from(choice) % 4],
            false => [0, 0, 1, 1, 1, 2, 3, 3][usize::from(choice) % 8],
        };
        match what {
            0 => return Some((Call::Claim { file }, Ok(Some(calls::claim(file, None))))),
            2 => return Some((Call::Unlock { file }, Ok(Some(calls::unlock(file))))),
            3 => {
                let to = u32::from(choice / 8) % DEVICES;
                let change = calls::give_up(file, Some(Device(to)));
                let op = Op::new(Vec::new(), vec![change]);
                return Some((Call::Pass { file, to }, Ok(Some(op))));
            }
            _ => {}
        }
        // It never takes over.
        let mine = |lock: &Lock| lock.holder == Device(self.device);
        let seen = self.state.lock(&file).filter(mine);
        let op = calls::lock(file, seen, Device(self.device));
        Some((Call::Lock { file }, Ok(Some(op))))
    }

    fn hold(&self, at: &Spot, releases: bool, choice: u8) -> Option<Built> {
        let (file, me) = (at.found?.file, Device(self.device));
        if releases {
            let op = calls::release(file, Family::Fcntl, me);
            return Some((Call::Release { file }, Ok(Some(op))));
        }
        let start = u64::from(choice % 4);
        let ranges = Ranges::new(vec![Range {
            start,
            end: start + 1 + u64::from(choice / 4 % 3),
            exclusive: !choice.is_multiple_of(3),
        }]);
        let ranges = ranges.unwrap();
        let own = self.state.hold(&file, Family::Fcntl, me);
        let of = (file, Family::Fcntl, me);
        let op = calls::hold(of, ranges.clone(), own.as_ref(), &[]);
        Some((Call::Hold { file, ranges }, Ok(Some(op))))
    }

    fn fold(&self, store: &Store, choice: u8) -> Option<Built> {
        let owners = owners();
        let principal: Principal = owners[usize::from(choice) % owners.len()];
        if !writes(self.device, principal) {
            return None;
        }
        let fold = fold_of(&self.state, store, principal, self.seen());
        let op = calls::fold(principal, self.state.last_fold(principal), fold);
        Some((Call::Fold, Ok(Some(op))))
    }
}

fn exchange(one: &Spot, other: &Spot) -> Call {
    Call::Exchange {
        from: one.directory.id,
        old: text(one),
        to: other.directory.id,
        new: text(other),
    }
}

fn text(spot: &Spot) -> String {
    String::from_utf8(spot.name.as_bytes().to_vec()).unwrap()
}

/// The content of a file as text.
pub fn text_of(content: &Content) -> String {
    match content {
        Content::Regular(trust::inode::FileContent::Inline(bytes)) => {
            String::from_utf8(bytes.to_vec()).unwrap()
        }
        _ => String::new(),
    }
}
