//! A volume in memory: principals, stored blocks, a log of entries, and sources that have only what was fetched.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bytes::Bytes;
use trust::inode::{Content, FileContent, FileKind, Inode, Time};
use trust::key::SecretKey;
use trust::reach::{Found, Wanted};
use trust::{Handle, Hasher, Kind, Reject};
use trust_shared::calls::{Calls, Directory, Held, PathLink, Spot, Turn};
use trust_shared::decision::{Decision, Label, Role};
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Missing, Replay, State, Stop, Volume};
use trust_shared::fold;
use trust_shared::itable::Fold;
use trust_shared::members::{FirstMembers, Members};
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::{Outcome, Written};
use trust_shared::principal::{Device, FileId, INumber, Name, Principal, Target};

/// Devices of all worlds: an administrator, two writers, a reader.
pub const DEVICES: u32 = 4;
/// The group of the root directory, a group of devices 0 and 1, and the users of the devices.
pub const EVERYBODY: Principal = Principal::from_bytes([1; 32]);
pub const TEAM: Principal = Principal::from_bytes([2; 32]);

pub fn user(device: u32) -> Principal {
    Principal::from_bytes([10 + device as u8; 32])
}

/// All principals.
pub fn owners() -> Vec<Principal> {
    let users = (0..DEVICES).map(user);
    [EVERYBODY, TEAM].into_iter().chain(users).collect()
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn file(owner: Principal, device: u32, counter: u64) -> FileId {
    FileId {
        principal: owner,
        number: INumber {
            device: Device(device),
            counter,
        },
    }
}

pub fn volume() -> Volume {
    Volume {
        hasher: Hasher::new(&std::array::from_fn(|i| i as u8)),
        root: file(EVERYBODY, 0, 0),
    }
}

/// When calls are made, unless a test says otherwise.
pub const TIME: Time = Time {
    seconds: 1_700_000_000,
    nanos: 5,
};

/// Positions from which on the members are as the tests want them.
pub const BEGIN: u64 = 10;

/// Devices 0 and 1 write everybody's and the team's files, device 2 everybody's, device 3 only reads.
pub fn members() -> Members {
    let label = |text: &str| Label::new(text).unwrap();
    let key = |device: u32| SecretKey::from_seed(&[device as u8; 32]).public();
    let mut members = Members::new(FirstMembers {
        volume: EVERYBODY,
        volume_label: label("everybody"),
        user: user(0),
        user_label: label("user 0"),
        device: key(0),
    });
    let mut decisions = vec![Decision::AddGroup {
        group: TEAM,
        label: label("team"),
    }];
    let grant = |group, device, role| Decision::Grant {
        group,
        user: user(device),
        role,
    };
    for device in 1..DEVICES {
        decisions.push(Decision::AddUser {
            user: user(device),
            label: label(&format!("user {device}")),
        });
        decisions.push(Decision::AdmitDevice {
            device: Device(device),
            key: key(device),
            user: user(device),
        });
        let role = if device == 3 {
            Role::Reader
        } else {
            Role::Writer
        };
        decisions.push(grant(EVERYBODY, device, role));
    }
    decisions.push(grant(TEAM, 0, Role::Writer));
    decisions.push(grant(TEAM, 1, Role::Writer));
    let ops = decisions.into_iter().map(trust_shared::calls::decide);
    let body = Body::new(ops.collect()).unwrap();
    members.propose(&written(0, 1, 1), &body.outline(), &body);
    let decided = members.take_effect(&written(0, BEGIN - 1, 2));
    assert!(decided.iter().all(|decided| decided.result.is_ok()));
    members
}

pub fn written(device: u32, position: u64, seen: u64) -> Written {
    Written {
        position,
        device: Device(device),
        seen,
        kept: seen,
    }
}

/// An entry of the log.
#[derive(Clone)]
pub struct Entry {
    pub written: Written,
    pub body: Arc<Body>,
}

/// Every block and body there is.
#[derive(Default)]
pub struct Store {
    pub blocks: RefCell<HashMap<Handle, Bytes>>,
    pub entries: RefCell<HashMap<u64, Arc<Body>>>,
}

impl Store {
    pub fn keep(&self, _: Kind, handle: Handle, bytes: &Bytes) {
        self.blocks.borrow_mut().insert(handle, bytes.clone());
    }
}

impl Blocks for Store {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        let bytes = self.blocks.borrow().get(&wanted.handle()).cloned();
        let prove = |bytes| wanted.prove(&volume().hasher, bytes);
        bytes.map(prove).transpose()
    }
}

impl Bodies for Store {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        Ok(self.entries.borrow().get(&position).cloned())
    }
}

/// A device's cache, which is empty at first.
pub struct Cache<'a> {
    store: &'a Store,
    blocks: RefCell<HashSet<Handle>>,
    bodies: RefCell<HashSet<u64>>,
    /// How often something was missing.
    pub rounds: RefCell<usize>,
}

impl<'a> Cache<'a> {
    pub fn new(store: &'a Store) -> Self {
        Cache {
            store,
            blocks: RefCell::default(),
            bodies: RefCell::default(),
            rounds: RefCell::default(),
        }
    }

    pub fn fetch(&self, missing: &Missing) {
        let before = self.blocks.borrow().len() + self.bodies.borrow().len();
        let handles = missing.blocks.iter().map(Wanted::handle);
        self.blocks.borrow_mut().extend(handles);
        self.bodies.borrow_mut().extend(&missing.bodies);
        let after = self.blocks.borrow().len() + self.bodies.borrow().len();
        assert!(after > before, "something is asked for twice");
        *self.rounds.borrow_mut() += 1;
    }

    /// Asks, fetches what is missing, and asks again.
    pub fn ask<T>(&self, mut question: impl FnMut() -> Result<T, Stop>) -> T {
        loop {
            match question() {
                Ok(answer) => return answer,
                Err(Stop::Missing(missing)) => self.fetch(&missing),
                Err(stop) => panic!("{stop}"),
            }
        }
    }
}

impl Blocks for Cache<'_> {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        match self.blocks.borrow().contains(&wanted.handle()) {
            true => self.store.block(wanted),
            false => Ok(None),
        }
    }
}

impl Bodies for Cache<'_> {
    fn body(&self, position: u64) -> Result<Option<Arc<Body>>, Reject> {
        match self.bodies.borrow().contains(&position) {
            true => self.store.body(position),
            false => Ok(None),
        }
    }
}

/// A volume with its log, evaluated in order.
pub struct World {
    pub volume: Volume,
    pub members: Members,
    pub store: Store,
    pub log: Vec<Entry>,
    pub state: State,
}

impl World {
    pub fn new() -> World {
        let mut state = State::new(volume());
        state.grow(BEGIN);
        World {
            volume: volume(),
            members: members(),
            store: Store::default(),
            log: Vec::new(),
            state,
        }
    }

    pub fn calls(&self) -> Calls<'_> {
        Calls {
            volume: &self.volume,
            time: TIME,
        }
    }

    pub fn end(&self) -> u64 {
        BEGIN + self.log.len() as u64
    }

    pub fn sources(&self) -> Sources<'_, Store> {
        Sources {
            members: &self.members,
            stored: &self.store,
        }
    }

    /// Puts an entry of one op at the end of the log.
    pub fn put(&mut self, device: u32, op: Op) -> Outcome {
        let seen = self.end();
        self.put_seen(device, seen, op)
    }

    /// As [`World::put`]; the author has seen a prefix of this size.
    pub fn put_seen(&mut self, device: u32, seen: u64, op: Op) -> Outcome {
        self.put_all(device, seen, vec![op])[0]
    }

    /// As [`World::put_seen`], with several ops.
    pub fn put_all(&mut self, device: u32, seen: u64, ops: Vec<Op>) -> Vec<Outcome> {
        let body = Arc::new(Body::new(ops).unwrap());
        let written = written(device, self.end(), seen);
        self.store
            .entries
            .borrow_mut()
            .insert(written.position, body.clone());
        let entry = Entry { written, body };
        let outcomes = apply(&mut self.state, &entry, &self.members, &self.store);
        self.log.push(entry);
        outcomes
    }

    pub fn held(&self, file: FileId) -> Held {
        let inode = self.state.inode(&file, &self.store).unwrap().unwrap();
        Held {
            file,
            inode,
            turn: Turn::Free,
        }
    }

    pub fn spot(&self, directory: &Directory, text: &str) -> Spot {
        spot(&self.state, &self.store, directory, text)
    }

    /// Makes a new file with a name in a directory.
    pub fn create(&self, at: &Directory, text: &str, new: FileId, inode: Inode) -> Op {
        let spot = self.spot(at, text);
        self.calls().create(&spot, new, inode).unwrap()
    }

    /// Makes a directory in everybody's name.
    pub fn mkdir(&mut self, device: u32, at: &Directory, text: &str, counter: u64) -> Directory {
        let id = file(EVERYBODY, device, counter);
        let op = self.create(at, text, id, directory());
        assert_eq!(self.put(device, op), Outcome::Effect);
        below(at, text, id)
    }

    /// The fold of a principal at the end of the log; its blocks are stored.
    pub fn folded(&self, principal: Principal) -> Fold {
        fold_of(&self.state, &self.store, principal, self.end())
    }
}

/// Computes a fold of a state at the position `upto`, and stores its blocks.
pub fn fold_of(state: &State, store: &Store, principal: Principal, upto: u64) -> Fold {
    let before = state.last_fold(principal).and_then(|fold| fold.root);
    let changes = state.changes(principal, store).unwrap();
    let mut made = Vec::new();
    let sink = |kind, handle, bytes: &Bytes| made.push((kind, handle, bytes.clone()));
    let hasher = &volume().hasher;
    let fold = fold::fold(hasher, before.as_ref(), &changes, upto, store, sink).unwrap();
    for (kind, handle, bytes) in made {
        store.keep(kind, handle, &bytes);
    }
    fold
}

pub fn apply(state: &mut State, entry: &Entry, members: &Members, store: &Store) -> Vec<Outcome> {
    let outline = entry.body.outline();
    state
        .apply(&entry.written, &outline, &entry.body, members, store)
        .unwrap()
}

/// The outlines of a world's log.
pub fn replay(world: &World) -> Replay {
    let mut replay = Replay::new(world.volume.clone());
    for entry in &world.log {
        let outline = entry.body.outline();
        replay
            .push(&entry.written, &outline, &world.members)
            .unwrap();
    }
    replay
}

pub fn root() -> Directory {
    Directory {
        id: volume().root,
        path: Vec::new(),
    }
}

/// The directory `id` under the name `text` of another.
pub fn below(at: &Directory, text: &str, id: FileId) -> Directory {
    let link = PathLink {
        directory: id,
        parent: at.id,
        name: name(text),
    };
    let path = [link].into_iter().chain(at.path.iter().cloned()).collect();
    Directory { id, path }
}

pub fn spot(state: &State, store: &Store, directory: &Directory, text: &str) -> Spot {
    let name = name(text);
    Spot {
        found: state.entry(&directory.id, &name, store).unwrap(),
        directory: directory.clone(),
        name,
    }
}

pub fn directory() -> Inode {
    let content = Content::Directory {
        map: None,
        opaque: false,
    };
    Inode::new(0o755, Time::default(), content)
}

pub fn content(text: &str) -> Content {
    match text {
        "" => Content::Regular(FileContent::Empty),
        text => Content::Regular(FileContent::Inline(text.to_owned().into())),
    }
}

pub fn regular(text: &str) -> Inode {
    Inode::new(0o644, Time::default(), content(text))
}

pub fn target(file: FileId, kind: FileKind) -> Target {
    Target { file, kind }
}
