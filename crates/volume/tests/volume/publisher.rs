//! A publisher that signs trees that break the rules: readers refuse the malformed part, and the rest of
//! the volume stays readable.

use std::sync::Arc;

use bytes::Bytes;
use reader::ReadError;
use sim::model::{Model, inode};
use trust::array::{ArrayRoot, Extent};
use trust::error::Class;
use trust::inode::{Content, FileContent, Inode};
use trust::map::MapRoot;
use trust::{ArrayNode, Data, InodeBlock, Kind, MapNode};
use volume::VolumeError;

use crate::world::{World, noise, now, read};

/// Publishes what `make` makes as the root's only file `bad` (and an honest `good`), reads `bad`.
async fn read_bad(make: impl FnOnce(&mut Model) -> Inode) -> VolumeError {
    let mut world = World::new();
    let good = world.model.file(b"good", 8192).unwrap();
    let bad = make(&mut world.model);
    let root = world
        .model
        .directory(vec![(b"bad".to_vec(), bad), (b"good".to_vec(), good)]);
    world.head = world.model.publish(&root.unwrap(), now(), 3600).unwrap();
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    assert_eq!(read(&volume, "good").await.unwrap(), b"good");
    read_whole(&volume)
        .await
        .expect_err("a malformed tree was believed")
}

async fn read_whole(volume: &volume::Volume) -> Result<(), VolumeError> {
    let how = crate::world::soon();
    let snapshot = volume.current()?;
    let Some(bad) = snapshot.resolve(b"bad", how).await? else {
        panic!("there is no file `bad`")
    };
    match &bad.content {
        Content::Directory { .. } => drop(snapshot.list(&bad, None, 10_000, how).await?),
        _ => drop(snapshot.read(&bad, 0, 4 << 20, how).await?),
    }
    Ok(())
}

fn array_file(root: ArrayRoot) -> Inode {
    inode(0o644, Content::Regular(FileContent::Array(root)))
}

/// A file whose top node is spoiled after it was built.
fn spoiled_array(model: &mut Model, spoil: impl FnOnce(&mut Vec<u8>)) -> Inode {
    let root = model.array(&noise(3, 100_000), 8192).unwrap().unwrap();
    let node = model
        .records
        .iter()
        .rev()
        .find(|r| r.frame.kind() == Kind::Array)
        .unwrap();
    let mut bytes = node.frame.unpack().unwrap().to_vec();
    spoil(&mut bytes);
    let top = model.block::<ArrayNode>(&bytes).unwrap();
    array_file(ArrayRoot {
        top: *top.as_bytes(),
        ..root
    })
}

/// A directory of 3,000 names whose top node is spoiled after it was built.
fn spoiled_map(model: &mut Model, spoil: impl FnOnce(&mut Vec<u8>)) -> Inode {
    let mut names = Vec::new();
    for i in 0..3000 {
        names.push((
            format!("name-{i:05}").into_bytes(),
            model.file(b"x", 8192).unwrap(),
        ));
    }
    let root = model.map(names).unwrap().unwrap();
    assert!(root.height >= 2);
    let top = root.handle.any();
    let node = model.records.iter().find(|r| r.handle == top).unwrap();
    let mut bytes = node.frame.unpack().unwrap().to_vec();
    spoil(&mut bytes);
    let handle = model.block::<MapNode>(&bytes).unwrap();
    let map = Some(MapRoot { handle, ..root });
    inode(0o755, Content::Directory { map, opaque: false })
}

fn is_malformed(error: &VolumeError) {
    assert!(
        matches!(error, VolumeError::Read(ReadError::Malformed(_))),
        "{error}"
    );
    assert_eq!(error.class(), Some(Class::Integrity));
}

#[tokio::test]
async fn a_file_longer_or_shorter_than_its_tree_is_refused() {
    for wrong in [-1i64, 1] {
        let error = read_bad(|model| {
            let root = model.array(&noise(4, 100_000), 8192).unwrap().unwrap();
            array_file(ArrayRoot {
                len: root.len.wrapping_add_signed(wrong),
                ..root
            })
        });
        is_malformed(&error.await);
    }
}

#[tokio::test]
async fn an_extent_longer_than_its_block_is_refused() {
    is_malformed(
        &read_bad(|model| {
            let handle = model.block(&noise(5, 1000)).unwrap();
            let extents = [
                Extent::Data { handle, len: 2000 },
                Extent::Data { handle, len: 1000 },
            ];
            array_file(model.extents(&extents).unwrap().unwrap())
        })
        .await,
    );
}

#[tokio::test]
async fn a_single_block_of_another_length_is_refused() {
    is_malformed(
        &read_bad(|model| {
            let handle = model.block(&noise(5, 1000)).unwrap();
            array_file(
                model
                    .extents(&[Extent::Data { handle, len: 999 }])
                    .unwrap()
                    .unwrap(),
            )
        })
        .await,
    );
}

#[tokio::test]
async fn a_data_block_instead_of_a_node_is_blamed_on_the_publisher() {
    is_malformed(
        &read_bad(|model| {
            let root = model.array(&noise(3, 100_000), 8192).unwrap().unwrap();
            let data = model.block::<Data>(&noise(5, 1000)).unwrap();
            array_file(ArrayRoot {
                top: *data.as_bytes(),
                ..root
            })
        })
        .await,
    );
}

#[tokio::test]
async fn an_array_node_of_another_level_is_refused() {
    is_malformed(&read_bad(|model| spoiled_array(model, |bytes| bytes[1] ^= 3)).await);
}

#[tokio::test]
async fn every_flipped_byte_of_a_signed_array_node_is_refused_or_reads_wrong_blocks() {
    for at in (0..400).step_by(13) {
        let error = read_bad(|model| {
            spoiled_array(model, |bytes| {
                let at = at % bytes.len();
                bytes[at] ^= 0x55;
            })
        })
        .await;
        assert!(error.class().is_some(), "{error}");
    }
}

#[tokio::test]
async fn a_map_node_of_another_level_is_refused() {
    is_malformed(&read_bad(|model| spoiled_map(model, |bytes| bytes[1] ^= 3)).await);
}

#[tokio::test]
async fn unsorted_or_shifted_separators_are_refused() {
    for wanted in [b"name-", b"ame-0"] {
        let error = read_bad(|model| {
            spoiled_map(model, |bytes| {
                let spots: Vec<usize> = (0..bytes.len() - 5)
                    .filter(|i| &bytes[*i..i + 5] == wanted)
                    .collect();
                bytes[spots[1]] = if spots.len() > 1 { 0xff } else { 0 };
            })
        })
        .await;
        is_malformed(&error);
    }
}

#[tokio::test]
async fn a_map_with_a_wrong_height_is_refused() {
    is_malformed(
        &read_bad(|model| {
            let good = spoiled_map(model, |_| {});
            let Content::Directory {
                map: Some(root), ..
            } = good.content
            else {
                panic!()
            };
            let map = Some(MapRoot {
                height: root.height + 1,
                ..root
            });
            inode(0o755, Content::Directory { map, opaque: false })
        })
        .await,
    );
}

#[tokio::test]
async fn names_that_no_file_can_have_are_refused() {
    for name in [&b".."[..], b".", b"a/b", b"a\0b"] {
        let error = read_bad(|model| {
            let file = model.file(b"x", 8192).unwrap();
            model.directory(vec![(name.to_vec(), file)]).unwrap()
        })
        .await;
        is_malformed(&error);
    }
}

#[tokio::test]
async fn an_inode_block_without_an_inode_is_refused() {
    let mut world = World::new();
    let root = world.model.block::<InodeBlock>(b"\0\x01").unwrap();
    let head = world
        .model
        .publish_handle(root, now(), 3600, |_| {})
        .unwrap();
    let error = world
        .open(vec![Arc::new(world.replica_with(head))])
        .await
        .unwrap_err();
    is_malformed(&error);
}

#[tokio::test]
async fn a_root_that_is_no_directory_is_refused() {
    let mut world = World::new();
    let file = world.model.file(b"x", 8192).unwrap();
    let head = world.model.publish(&file, now(), 3600).unwrap();
    let error = world
        .open(vec![Arc::new(world.replica_with(head))])
        .await
        .unwrap_err();
    is_malformed(&error);
}

#[tokio::test]
async fn a_file_tree_that_contains_itself_ends() {
    // A node cannot contain its own handle. The closest possible tree uses one node at every level.
    let error = read_bad(|model| {
        let leaf = model.array(&noise(6, 3 * 8192), 8192).unwrap().unwrap();
        array_file(ArrayRoot {
            height: 15,
            len: u64::MAX / 2,
            ..leaf
        })
    })
    .await;
    is_malformed(&error);
}

#[tokio::test]
async fn a_file_of_very_many_very_short_blocks_is_read_in_short_requests() {
    let mut world = World::new();
    let extents: Vec<Extent> = (0..20_000u16)
        .map(|n| {
            let handle = world.model.block(&n.to_le_bytes()).unwrap();
            Extent::Data { handle, len: 2 }
        })
        .collect();
    let shreds = array_file(world.model.extents(&extents).unwrap().unwrap());
    let root = world.model.directory(vec![(b"shreds".to_vec(), shreds)]);
    world.head = world.model.publish(&root.unwrap(), now(), 3600).unwrap();
    let liar = world.liar(sim::liar::Lie::None);
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    let before = liar.asked();
    let content: Vec<u8> = (0..20_000u16).flat_map(u16::to_le_bytes).collect();
    let snapshot = volume.snapshot();
    let how = volume::Fetch::Until(std::time::Instant::now() + std::time::Duration::from_secs(30));
    let file = snapshot.resolve(b"shreds", how).await.unwrap().unwrap();
    let read = snapshot.read(&file, 0, 1 << 20, how).await.unwrap();
    assert_eq!(read.concat(), content);
    let nodes = 20_000usize.div_ceil(256) + 1;
    assert!(liar.asked() - before >= nodes + 20, "one request for all");
}

#[tokio::test]
async fn a_volume_named_by_another_key_is_refused() {
    let world = World::new();
    let mut other = Model::new(8).unwrap();
    let root = other.directory(Vec::new()).unwrap();
    let head: Bytes = other.publish(&root, now(), 3600).unwrap();
    let error = world
        .open(vec![Arc::new(world.replica_with(head))])
        .await
        .unwrap_err();
    // As at a server that does not have the volume. Nobody has lied.
    assert!(matches!(error, VolumeError::Place(_)), "{error}");
    let words = error.to_string();
    assert!(words.ends_with("does not have this volume"), "{words}");
}

#[tokio::test]
async fn head_without_the_pinned_policy_is_not_adopted() {
    let world = World::new();
    let open = async |pin| {
        let replica = Arc::new(world.replica_with(world.head.clone()));
        let options = volume::VolumeOptions {
            policy_pin: Some(pin),
            ..world.options()
        };
        volume::Volume::open(world.model.id(), vec![replica], options).await
    };
    // The id of a volume is the hash of its first policy.
    open(*world.model.id().as_bytes()).await.unwrap();
    let error = open([9; 32]).await.unwrap_err();
    let VolumeError::Statement { why, .. } = &error else {
        panic!("{error}");
    };
    assert!(matches!(why, trust::Reject::NotPinned(_)), "{error}");
}
