//! A small volume: files of some users, whose versions are two blocks below a node, and real folds of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use trust::array::{Builder, Extent};
use trust::inode::{Content, FileContent, Inode, Time};
use trust::key::SecretKey;
use trust::map::{self, MapRoot, Salt};
use trust::reach::{Found, Wanted};
use trust::volume_id::VolumeId;
use trust::{Handle, Hasher, Kind, Reject};
use trust_shared::calls;
use trust_shared::change::Change;
use trust_shared::decision::{Decision, Label};
use trust_shared::effect::{Blocks, Volume};
use trust_shared::fold::{Changes, fold};
use trust_shared::genesis::Founder;
use trust_shared::itable::{Fold, MAX_TABLE_INLINE_BYTES};
use trust_shared::members::{FirstMembers, Members};
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::Written;
use trust_shared::principal::{Device, FileId, INumber, Principal};

pub const USER: Principal = Principal::from_bytes([6; 32]);
/// Users, each with the device of its number. The last one is hostile. It comes first where walks go by principals.
pub const USERS: [Principal; 3] = [
    USER,
    Principal::from_bytes([7; 32]),
    Principal::from_bytes([5; 32]),
];
/// Positions from which on all of them are members.
pub const BEGIN: u64 = 3;
/// Blocks that versions share.
pub const SHARED: u64 = 2;

/// All blocks that were ever made.
pub type Made = HashMap<Handle, (Kind, Bytes)>;

pub fn hasher() -> Hasher {
    Hasher::new(&[7; 32])
}

pub fn volume() -> Volume {
    Volume::new(VolumeId::from_bytes([9; 32]), hasher())
}

pub fn members() -> &'static Members {
    static MEMBERS: OnceLock<Members> = OnceLock::new();
    MEMBERS.get_or_init(|| {
        let founder = Founder {
            user: [6; 32],
            name: "ada".to_owned(),
            device: SecretKey::from_seed(&[1; 32]).public(),
        };
        let first = FirstMembers::founded(VolumeId::from_bytes([9; 32]), &founder).unwrap();
        let mut members = Members::new(first);
        let mut decisions = Vec::new();
        for (device, user) in (0..).zip(USERS).skip(1) {
            let label = Label::new(&format!("user {device}")).unwrap();
            decisions.push(Decision::AddUser { user, label });
            decisions.push(Decision::AdmitDevice {
                device: Device(device),
                key: SecretKey::from_seed(&[2 + device as u8; 32]).public(),
                user,
            });
        }
        let body = Body::new(decisions.into_iter().map(calls::decide).collect()).unwrap();
        members.propose(&written(0), &body.outline(), &body);
        let decided = members.take_effect(&written(BEGIN - 1));
        assert!(decided.iter().all(|decided| decided.result.is_ok()));
        members
    })
}

pub fn written(position: u64) -> Written {
    written_by(0, position)
}

pub fn written_by(user: usize, position: u64) -> Written {
    Written {
        position,
        device: Device(user as u32),
        seen: position,
        kept: position,
    }
}

pub fn file(number: u64) -> FileId {
    file_of(0, number)
}

pub fn file_of(user: usize, number: u64) -> FileId {
    FileId {
        principal: USERS[user],
        number: INumber {
            device: Device(user as u32),
            counter: number + 10,
        },
    }
}

/// The blocks of a version: a node, a block that other versions have too, and one of its own.
pub fn version(hasher: &Hasher, number: u64, made: &mut Made) -> (Arc<Inode>, Vec<Handle>) {
    let mut blocks = Vec::new();
    let mut nodes = Vec::new();
    let mut builder = Builder::new(hasher, |handle, bytes| {
        nodes.push((handle.any(), bytes.clone()));
    });
    for data in [number % SHARED, 100 + number] {
        let bytes = Bytes::from(data.to_le_bytes().repeat(100));
        let handle = hasher.name(Kind::Data, &bytes);
        made.insert(handle, (Kind::Data, bytes));
        blocks.push(handle);
        let handle = Handle::from_bytes(*handle.as_bytes());
        builder.push(Extent::Data { handle, len: 800 }).unwrap();
    }
    let root = builder.finish().unwrap().unwrap();
    for (handle, bytes) in nodes {
        made.insert(handle, (Kind::Array, bytes));
        blocks.push(handle);
    }
    let content = Content::Regular(FileContent::Array(root));
    let inode = Inode::new(0o644, Time::default(), content);
    (Arc::new(inode), blocks)
}

/// An entry that writes a version.
pub fn set(number: u64, inode: &Arc<Inode>) -> Body {
    set_of(file(number), inode)
}

pub fn set_of(file: FileId, inode: &Arc<Inode>) -> Body {
    let change = Change::Set {
        file,
        inode: Arc::clone(inode),
    };
    Body::new(vec![Op::new(Vec::new(), vec![change])]).unwrap()
}

/// The fold of these files of the first user, its own blocks, and its entry.
pub fn folded(
    hasher: &Hasher,
    before: Option<Fold>,
    files: &BTreeMap<u64, Arc<Inode>>,
    upto: u64,
    made: &mut Made,
) -> (Fold, Vec<Handle>, Body) {
    folded_of(0, (hasher, before), files, upto, made)
}

pub fn folded_of(
    user: usize,
    (hasher, before): (&Hasher, Option<Fold>),
    files: &BTreeMap<u64, Arc<Inode>>,
    upto: u64,
    made: &mut Made,
) -> (Fold, Vec<Handle>, Body) {
    let changes = Changes {
        inodes: files
            .iter()
            .map(|(number, inode)| (file_of(user, *number).number, Some(Arc::clone(inode))))
            .collect(),
        ..Changes::default()
    };
    let mut blocks = Vec::new();
    let mut new = Vec::new();
    let result = fold(
        hasher,
        before.and_then(|fold| fold.root).as_ref(),
        &changes,
        upto,
        &All(hasher, made),
        |kind, handle, bytes| new.push((handle, kind, bytes.clone())),
    );
    for (handle, kind, bytes) in new {
        made.insert(handle, (kind, bytes));
        blocks.push(handle);
    }
    let fold = result.unwrap();
    let body = Body::new(vec![calls::fold(USERS[user], before, fold)]).unwrap();
    (fold, blocks, body)
}

/// An i-table with these inodes as they are, which no fold need make, and its blocks.
pub fn table(
    user: usize,
    files: &BTreeMap<u64, Arc<Inode>>,
    made: &mut Made,
) -> (MapRoot, Vec<Handle>) {
    let hasher = hasher();
    let (mut blocks, mut nodes) = (Vec::new(), Vec::new());
    let mut builder = map::Builder::new(&hasher, Salt::default(), |handle, bytes| {
        nodes.push((handle.any(), bytes.clone()));
    });
    for (number, inode) in files {
        let key = file_of(user, *number).number.to_key();
        let most = MAX_TABLE_INLINE_BYTES;
        let (value, block) = trust::inode::Entry::place_within(&key, inode, &hasher, most);
        if let Some((handle, bytes)) = block {
            made.insert(handle.any(), (Kind::Inode, bytes));
            blocks.push(handle.any());
        }
        builder.push(&key, &value).unwrap();
    }
    let root = builder.finish().unwrap().unwrap();
    for (handle, bytes) in nodes {
        made.insert(handle, (Kind::Map, bytes));
        blocks.push(handle);
    }
    (root, blocks)
}

/// A directory with this map as its names.
pub fn directory_of(map: &MapRoot) -> Inode {
    let content = Content::Directory {
        map: Some(*map),
        opaque: false,
    };
    Inode::new(0o755, Time::default(), content)
}

/// Everything that was made, as a client has it.
pub struct All<'a>(pub &'a Hasher, pub &'a Made);

impl Blocks for All<'_> {
    fn block(&self, wanted: &Wanted) -> Result<Option<Found>, Reject> {
        let Some((_, bytes)) = self.1.get(&wanted.handle()) else {
            return Ok(None);
        };
        wanted.prove(self.0, bytes.clone()).map(Some)
    }
}
