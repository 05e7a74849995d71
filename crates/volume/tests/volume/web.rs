//! A published volume behind nginx: how many waves of requests a cold reader waits for, and that damaged
//! files on the web server are detected.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use publish::pipeline::{PublishOptions, publish};
use publish::progress::Silent;
use sim::nginx::{Nginx, Setup};
use tempfile::TempDir;
use trust::error::Class;
use trust::key::SecretKey;
use trust::statement::VolumeId;
use volume::{Fetch, Volume, VolumeError, VolumeOptions};
use wire::http::{HttpOptions, HttpStore};

/// Publishes a tree of `files` small files beside `a/b/c/file`, which lies four levels deep.
fn published(files: usize, place: &Path) -> VolumeId {
    let tree = place.join("tree");
    std::fs::create_dir_all(tree.join("a/b/c")).unwrap();
    std::fs::write(tree.join("a/b/c/file"), content(0)).unwrap();
    for n in 1..=files {
        let dir = tree.join(format!("d{}", n % 40));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join(format!("f{n}")), content(n)).unwrap();
    }
    let options = PublishOptions {
        state_dir: Some(place.join("publisher")),
        cache_dir: Some(place.join("publisher/cache")),
        ..PublishOptions::default()
    };
    let key = SecretKey::from_seed(&[3; 32]);
    publish(&tree, &place.join("repo"), &key, &options, &Silent)
        .unwrap()
        .volume
}

/// Too long for a directory entry, so that each is a block of its own.
fn content(n: usize) -> Vec<u8> {
    format!("{n:0>600}").into_bytes()
}

struct Cold {
    waves: u64,
    requests: u64,
    content: Result<Vec<u8>, VolumeError>,
}

/// What a reader without state and cache waits for when it reads one file.
async fn cold_cat(place: &Path, nginx: &Nginx, id: VolumeId, path: &str) -> Cold {
    let url = format!("{}/repo", nginx.url()).parse().unwrap();
    let store = HttpStore::new(&url, id, &HttpOptions::default()).unwrap();
    let store = Arc::new(store);
    let state = TempDir::new_in(place).unwrap();
    let options = VolumeOptions {
        state_directory: state.path().to_owned(),
        ..VolumeOptions::default()
    };
    let read = async {
        let volume = Volume::open(id, vec![store.clone()], options).await?;
        let how = Fetch::Until(volume.deadline());
        let snapshot = volume.current()?;
        let inode = snapshot.resolve(path.as_bytes(), how).await?.unwrap();
        Ok(snapshot.read(&inode, 0, 1 << 20, how).await?.concat())
    };
    let content = read.await;
    Cold {
        waves: store.counters().waves.load(Ordering::Relaxed),
        requests: store.counters().requests.load(Ordering::Relaxed),
        content,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_reader_waits_for_few_waves() {
    // With the index in one piece: head, index, then the blocks on the way down. With an index of
    // many pages each look-up may cost a wave more.
    for (files, at_most) in [(100, 7), (6000, 12)] {
        let place = TempDir::new().unwrap();
        let id = published(files, place.path());
        let Some(nginx) = Nginx::start(place.path(), Setup::default()) else {
            return;
        };
        let cold = cold_cat(place.path(), &nginx, id, "a/b/c/file").await;
        assert_eq!(cold.content.unwrap(), content(0));
        assert!(cold.waves <= at_most, "{files} files: {} waves", cold.waves);
        assert!(cold.requests <= at_most, "{} requests", cold.requests);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_behind_a_web_server_are_integrity_errors() {
    let place = TempDir::new().unwrap();
    let id = published(20, place.path());
    let Some(nginx) = Nginx::start(place.path(), Setup::default()) else {
        return;
    };
    for dir in ["segments", "index"] {
        let mut files = std::fs::read_dir(place.path().join("repo").join(dir)).unwrap();
        let path = files.next().unwrap().unwrap().path();
        let good = std::fs::read(&path).unwrap();
        for at in (0..good.len().min(12_000)).step_by(97) {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            std::fs::write(&path, &bad).unwrap();
            let cold = cold_cat(place.path(), &nginx, id, "a/b/c/file").await;
            match cold.content {
                Ok(bytes) => assert_eq!(bytes, content(0), "{dir}: byte {at}"),
                Err(e) => {
                    // The byte of a kind, codec or format makes it look like one of a later bulla.
                    let known = [Class::Integrity, Class::Unsupported, Class::Unavailable];
                    let class = e.class();
                    assert!(
                        class.is_some_and(|c| known.contains(&c)),
                        "{dir}: byte {at}: {e}"
                    );
                }
            }
        }
        std::fs::write(&path, &good).unwrap();
    }
}
