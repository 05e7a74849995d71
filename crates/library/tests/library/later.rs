//! Volumes by a later bulla: fields that may be ignored do not stop a reader, other forms are *unsupported*, and
//! nobody is blamed for either.

use std::path::PathBuf;
use std::sync::Arc;

use bulla::extract::ExtractOptions;
use bytes::Bytes;
use reader::Tally;
use sim::model::{Model, inode};
use trust::InodeBlock;
use trust::change::{Change, Difference};
use trust::error::Class;
use trust::inode::{Content, Entry, Extension, FileContent, Inode};
use volume::{Snapshot, Volume};

use crate::support::{difference, extract, verify};
use crate::world::{World, noise, now, read, soon};

fn with_extension(mut inode: Inode, value: &'static [u8]) -> Inode {
    let value = Bytes::from_static(value);
    inode.extensions.push(Extension { tag: 0x80, value });
    inode
}

/// `plain`, `file` and `sub/inside` with an extension, `apart` with 4,000 bytes in the block of its inode.
fn tree(model: &mut Model, value: &'static [u8]) -> Inode {
    let plain = model.file(b"plain", 8192).unwrap();
    let file = with_extension(model.file(&noise(1, 20_000), 8192).unwrap(), value);
    let sub = model
        .directory(vec![(b"inside".to_vec(), file.clone())])
        .unwrap();
    let content = FileContent::Inline(noise(2, 4000).into());
    let apart = inode(0o644, Content::Regular(content));
    let entries = vec![
        (b"apart".to_vec(), apart),
        (b"file".to_vec(), file),
        (b"plain".to_vec(), plain),
        (b"sub".to_vec(), with_extension(sub, value)),
    ];
    with_extension(model.directory(entries).unwrap(), value)
}

async fn publish(world: &mut World, value: &'static [u8]) -> (Arc<Volume>, Arc<Snapshot>) {
    let root = tree(&mut world.model, value);
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
    let snapshot = volume.current().unwrap();
    (volume, snapshot)
}

#[tokio::test]
async fn directory_with_unknown_extensions_is_read_verified_and_extracted() {
    let mut world = World::new();
    let (volume, snapshot) = publish(&mut world, b"later").await;
    let listed = snapshot.list(snapshot.root(), None, 100, soon()).await;
    let names: Vec<Bytes> = listed.unwrap().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["apart", "file", "plain", "sub"]);
    let expected = [
        ("plain", b"plain".to_vec()),
        ("file", noise(1, 20_000)),
        ("sub/inside", noise(1, 20_000)),
        ("apart", noise(2, 4000)),
    ];
    for (name, content) in &expected {
        assert!(&read(&volume, name).await.unwrap() == content, "{name}");
    }
    let (path, tally) = (b"".as_slice(), Arc::default());
    let report = verify(&volume, &snapshot, path, &tally).await;
    assert_eq!(report.unwrap().damage_count, 0);
    let dir = tempfile::tempdir().unwrap();
    let (out, tally) = (dir.path().join("out"), Arc::new(Tally::default()));
    let options = ExtractOptions::default();
    let extracted = extract(&volume, &snapshot, b"", &out, &options, &tally).await;
    assert_eq!(extracted.unwrap().skipped_count, 0);
    for (name, content) in &expected {
        assert!(&std::fs::read(out.join(name)).unwrap() == content, "{name}");
    }
}

#[tokio::test]
async fn changed_extension_is_a_difference() {
    let mut world = World::new();
    let (_, old) = publish(&mut world, b"one").await;
    let (volume, new) = publish(&mut world, b"two").await;
    let mut told = Vec::new();
    let tell = |change: Change| {
        assert_eq!(change.difference, Difference::Changed);
        told.push(change.path);
        Ok(())
    };
    difference(&volume, &old, &new, tell).await.unwrap();
    let expected = [".", "file", "sub", "sub/inside"];
    assert_eq!(told, expected.map(PathBuf::from));
}

#[tokio::test]
async fn entry_of_a_later_form_is_unsupported_and_blames_nobody() {
    let mut world = World::new();
    let mut critical = world.model.file(b"x", 8192).unwrap().encode();
    critical.push(0x7f);
    let apart = world.model.block::<InodeBlock>(&critical).unwrap();
    let shared = [&[0xf0, 1][..], &[9; 32], &[0; 12]].concat();
    let forms = [
        shared,
        vec![0xfe],
        vec![1, 2, 3],
        critical,
        Entry::Block(apart).encode(),
    ];
    for form in forms {
        let good = world.model.file(b"good", 8192).unwrap().encode();
        let entries: [(&[u8], Vec<u8>); 2] = [(b"good", good), (b"later", form.clone())];
        let root = world.model.directory_of_values(&entries).unwrap();
        world.head = world.model.publish(&root, now(), 3600).unwrap();
        let volume = world.open(vec![Arc::new(world.replica())]).await.unwrap();
        assert_eq!(read(&volume, "good").await.unwrap(), b"good");
        let snapshot = volume.current().unwrap();
        let looked_up = snapshot.resolve(b"later", soon()).await.unwrap_err();
        let listed = snapshot.list(snapshot.root(), None, 9, soon()).await;
        for error in [looked_up, listed.unwrap_err()] {
            assert_eq!(error.class(), Some(Class::Unsupported), "{form:?}: {error}");
        }
        let counts = &volume.mirrors().status()[0].counts;
        assert_eq!((counts.wrong, counts.failures), (0, 0), "{form:?}");
    }
    let volumes = world.state.path().join("volumes");
    let kept = volumes.join(world.model.id().to_string());
    assert!(!kept.join("evidence").exists());
}
