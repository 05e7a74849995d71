//! A small volume: one user's files, whose versions are two blocks below a node, and real folds of them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use trust::array::{Builder, Extent};
use trust::inode::{Content, FileContent, Inode, Time};
use trust::key::SecretKey;
use trust::reach::{Found, Wanted};
use trust::volume_id::VolumeId;
use trust::{Handle, Hasher, Kind, Reject};
use trust_shared::calls;
use trust_shared::change::Change;
use trust_shared::effect::{Blocks, Volume};
use trust_shared::fold::{Changes, fold};
use trust_shared::genesis::Founder;
use trust_shared::itable::Fold;
use trust_shared::members::{FirstMembers, Members};
use trust_shared::ops::{Body, Op};
use trust_shared::outcome::Written;
use trust_shared::principal::{Device, FileId, INumber, Principal};

pub const USER: Principal = Principal::from_bytes([6; 32]);
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
        Members::new(first)
    })
}

pub fn written(position: u64) -> Written {
    Written {
        position,
        device: Device(0),
        seen: position,
        kept: position,
    }
}

pub fn file(number: u64) -> FileId {
    FileId {
        principal: USER,
        number: INumber {
            device: Device(0),
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
        let bytes = Bytes::from(data.to_le_bytes().repeat(50));
        let handle = hasher.name(Kind::Data, &bytes);
        made.insert(handle, (Kind::Data, bytes));
        blocks.push(handle);
        let handle = Handle::from_bytes(*handle.as_bytes());
        builder.push(Extent::Data { handle, len: 400 }).unwrap();
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
    let change = Change::Set {
        file: file(number),
        inode: Arc::clone(inode),
    };
    Body::new(vec![Op::new(Vec::new(), vec![change])]).unwrap()
}

/// The fold of these files, its own blocks, and its entry.
pub fn folded(
    hasher: &Hasher,
    before: Option<Fold>,
    files: &BTreeMap<u64, Arc<Inode>>,
    upto: u64,
    made: &mut Made,
) -> (Fold, Vec<Handle>, Body) {
    let changes = Changes {
        inodes: files
            .iter()
            .map(|(number, inode)| (file(*number).number, Some(Arc::clone(inode))))
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
    let body = Body::new(vec![calls::fold(USER, before, fold)]).unwrap();
    (fold, blocks, body)
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
