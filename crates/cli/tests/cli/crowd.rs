//! Many readers of a real server while a publisher makes version after version: each reader reads one whole
//! version, never goes back, and nothing fails. A thousand readers with BULLA_LONG, some tens without.

use std::fs;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::support::Home;
use volume::VolumeOptions;
use volume::{Fetch, Refreshed, Snapshot, Volume};
use wire::Source;
use wire::http::Tls;

/// Directories, each with a file of every version.
const PLACES: u64 = 6;
const CONTENT_BYTES: usize = 90_000;

struct Storm {
    stop: AtomicBool,
    reads: AtomicU64,
    adoptions: AtomicU64,
}

fn content(version: u64, place: u64) -> Vec<u8> {
    let line = format!("version {version} place {place}\n");
    line.bytes().cycle().take(CONTENT_BYTES).collect()
}

/// Writes version `version` of the tree into a directory of its own, because the previous one is still being
/// published.
fn put(home: &Home, version: u64) {
    for place in 0..PLACES {
        let dir = home.path("tree").join(format!("d{place}/inner"));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("always"), content(version, place)).unwrap();
        let _ = fs::remove_file(dir.join(format!("only-{}", version - 1)));
        fs::write(dir.join(format!("only-{version}")), content(version, place)).unwrap();
    }
}

async fn bytes(snapshot: &Snapshot, path: &str, deadline: Instant) -> Vec<u8> {
    let how = Fetch::Until(deadline);
    let inode = snapshot.resolve(path.as_bytes(), how).await;
    let version = snapshot.record().version;
    let inode = inode.unwrap_or_else(|e| panic!("version {version}: {path}: {e}"));
    let inode = inode.unwrap_or_else(|| panic!("version {version} has no {path}"));
    let read = snapshot.read(&inode, 0, inode.size as usize, how).await;
    let read = read.unwrap_or_else(|e| panic!("version {version}: {path}: {e}"));
    read.concat()
}

/// One reader: follows as a mount does, and compares everything that it reads.
async fn read_on(source: Source, state: std::path::PathBuf, first: u64, storm: Arc<Storm>) {
    let options = VolumeOptions {
        state_directory: state,
        cache_bytes: 1 << 20,
        deadline: Duration::from_secs(60),
        ..VolumeOptions::default()
    };
    let replicas = wire::location::open_all(&source, &[], &Tls::System).unwrap();
    let volume = Volume::open(source.volume, replicas, options)
        .await
        .unwrap();
    let mut place = first;
    let mut seen = volume.snapshot().record().version;
    while !storm.stop.load(Ordering::Relaxed) {
        if let Refreshed::Adopted(snapshot) = volume.refresh().await.unwrap() {
            assert!(snapshot.record().version > seen, "it went back");
            storm.adoptions.fetch_add(1, Ordering::Relaxed);
        }
        let snapshot = volume.current().unwrap();
        let version = snapshot.record().version;
        assert!(version >= seen);
        seen = version;
        for _ in 0..2 {
            place = (place + 1) % PLACES;
            for path in [
                format!("d{place}/inner/always"),
                format!("d{place}/inner/only-{version}"),
            ] {
                let read = bytes(&snapshot, &path, volume.deadline()).await;
                assert!(
                    read == content(version, place),
                    "{version}: {path}: a mixture"
                );
                storm.reads.fetch_add(1, Ordering::Relaxed);
            }
            let before = format!("d{place}/inner/only-{}", version.wrapping_sub(1));
            let how = Fetch::Until(volume.deadline());
            let before = snapshot.resolve(before.as_bytes(), how).await.unwrap();
            assert!(before.is_none(), "a name of the previous version");
        }
    }
}

/// Publishes for this time, and on a busy machine until there is `enough` to look at. Returns the newest version.
fn publish_on(home: &Home, lasting: Duration, enough: impl Fn(u64) -> bool) -> u64 {
    let (began, mut version) = (Instant::now(), 1);
    while began.elapsed() < lasting || !enough(version) {
        assert!(began.elapsed() < 20 * lasting, "only {version} versions");
        version += 1;
        put(home, version);
        let told = home.publish().ends(0);
        assert_eq!(told.field("version"), version);
        std::thread::sleep(Duration::from_millis(100));
    }
    version
}

#[test]
fn many_readers_follow_a_busy_publisher() {
    let long = std::env::var_os("BULLA_LONG").is_some();
    let (readers, seconds) = if long { (1000, 60) } else { (40, 6) };
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    put(&home, 1);
    home.publish().ends(0);
    let server = home.serve("repo");
    let source = Source::from_str(&server.source).unwrap();
    let storm = Arc::new(Storm {
        stop: AtomicBool::new(false),
        reads: AtomicU64::new(0),
        adoptions: AtomicU64::new(0),
    });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tasks: Vec<_> = (0..readers)
        .map(|n| {
            let state = home.path("readers").join(n.to_string());
            runtime.spawn(read_on(source.clone(), state, n, storm.clone()))
        })
        .collect();
    let enough = |newest| {
        let many = |count: &AtomicU64, each| count.load(Ordering::Relaxed) > each * readers;
        newest > 5 && many(&storm.reads, 4) && many(&storm.adoptions, 2)
    };
    let newest = publish_on(&home, Duration::from_secs(seconds), enough);
    storm.stop.store(true, Ordering::Relaxed);
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    let reads = storm.reads.load(Ordering::Relaxed);
    let adoptions = storm.adoptions.load(Ordering::Relaxed);
    println!("{newest} versions, {readers} readers: {reads} reads, {adoptions} adoptions");
    assert!(Path::new(&home.path("repo/head")).exists());
}
