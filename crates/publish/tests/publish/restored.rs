//! A publisher whose repository is taken back to an older version (a backup, a lost rename, a lying
//! store): the next version must be one that every reader can follow, never a second record of a
//! version that some have seen.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use publish::pipeline::{PublishOptions, publish};
use publish::progress::Silent;
use store::repository::Repository;
use trust::key::SecretKey;
use trust::statement::VolumeId;
use volume::{Fetch, Volume, VolumeOptions};

fn version(tree: &Path, repo: &Path, state: &Path) -> (VolumeId, u64) {
    let options = PublishOptions {
        state_dir: Some(state.to_owned()),
        cache_dir: Some(state.join("cache")),
        ..PublishOptions::default()
    };
    let key = SecretKey::from_seed(&[3; 32]);
    let published = publish(tree, repo, &key, &options, &Silent).unwrap();
    (published.volume, published.version)
}

async fn read(repo: &Path, id: VolumeId, state: &Path, name: &[u8]) -> Vec<u8> {
    let options = VolumeOptions {
        state_directory: state.to_owned(),
        ..VolumeOptions::default()
    };
    let replica = Arc::new(Repository::open(repo).unwrap());
    let volume = Volume::open(id, vec![replica], options).await.unwrap();
    let how = Fetch::Until(volume.deadline());
    let snapshot = volume.current().unwrap();
    let inode = snapshot.resolve(name, how).await.unwrap().unwrap();
    let content = snapshot.read(&inode, 0, 1 << 20, how).await.unwrap();
    content.concat()
}

fn copy(from: &Path, to: &Path) {
    let done = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(done.unwrap().success());
}

#[tokio::test]
async fn a_repository_restored_from_a_backup_continues_from_the_version_of_its_readers() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let (tree, repo, backup) = (path("tree"), path("repo"), path("backup"));
    let (publisher, reader) = (path("publisher"), path("reader"));
    std::fs::create_dir_all(publisher.join("cache")).unwrap();
    std::fs::create_dir(&tree).unwrap();

    std::fs::write(tree.join("a"), vec![b'1'; 5000]).unwrap();
    let (id, first) = version(&tree, &repo, &publisher);
    copy(&repo, &backup);
    std::fs::write(tree.join("a"), vec![b'2'; 5000]).unwrap();
    let (_, second) = version(&tree, &repo, &publisher);
    assert_eq!((first, second), (1, 2));
    assert_eq!(read(&repo, id, &reader, b"a").await, vec![b'2'; 5000]);

    std::fs::remove_dir_all(&repo).unwrap();
    copy(&backup, &repo);
    let (same, third) = version(&tree, &repo, &publisher);
    assert_eq!((same, third), (id, 3));
    // The reader of version 2 follows, and the blocks that the backup lacked are there again.
    assert_eq!(read(&repo, id, &reader, b"a").await, vec![b'2'; 5000]);
    let log = Repository::open(&repo).unwrap();
    for index in 0..4 {
        assert!(log.log_leaf(0, index).unwrap().is_some(), "leaf {index}");
    }
}

#[tokio::test]
async fn a_repository_that_was_set_back_far_gets_its_whole_log_back() {
    let root = tempfile::tempdir().unwrap();
    let path = |name: &str| root.path().join(name);
    let (tree, repo, backup) = (path("tree"), path("repo"), path("backup"));
    let (publisher, reader) = (path("publisher"), path("reader"));
    std::fs::create_dir_all(publisher.join("cache")).unwrap();
    std::fs::create_dir(&tree).unwrap();

    std::fs::write(tree.join("a"), vec![b'1'; 5000]).unwrap();
    let (id, _) = version(&tree, &repo, &publisher);
    copy(&repo, &backup);
    assert_eq!(read(&repo, id, &reader, b"a").await, vec![b'1'; 5000]);
    for content in b'2'..=b'6' {
        std::fs::write(tree.join("a"), vec![content; 5000]).unwrap();
        version(&tree, &repo, &publisher);
    }
    std::fs::remove_dir_all(&repo).unwrap();
    copy(&backup, &repo);
    let (_, seventh) = version(&tree, &repo, &publisher);
    assert_eq!(seventh, 7);
    let log = Repository::open(&repo).unwrap();
    for index in 0..=7 {
        assert!(log.log_leaf(0, index).unwrap().is_some(), "leaf {index}");
    }
    // A reader of the first version skips to the sixth and gets the proof that the log only grew.
    assert_eq!(read(&repo, id, &reader, b"a").await, vec![b'6'; 5000]);
}
