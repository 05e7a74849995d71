//! Readers during a storm of updates: no wrong byte, no error, and no mixture of versions beyond the
//! window that docs/semantics.md states. Longer with BULLA_LONG.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mount::MountOptions;

use crate::fixture::{TestMount, World};

/// Directories, two levels deep, each with a file of every version.
const PLACES: u64 = 12;
/// A content of several blocks: a read that mixed two versions would show it.
const CONTENT_BYTES: usize = 150_000;

fn content(version: u64, place: u64) -> Vec<u8> {
    let line = format!("version {version} place {place}\n");
    line.bytes().cycle().take(CONTENT_BYTES).collect()
}

fn put(world: &mut World, version: u64) {
    let mut top = Vec::new();
    for place in 0..PLACES {
        let file = world.file(&content(version, place));
        // A name of this version only, beside the one that all versions have.
        let own = format!("only-{version:06}");
        let inner = world.directory(vec![("always", file.clone()), (&own, file)]);
        let outer = world.directory(vec![("inner", inner)]);
        top.push((format!("d{place:02}").into_bytes(), outer));
    }
    let root = world.model.directory(top).unwrap();
    world.publish_root(&root, 3600);
}

/// The version of a content of `place`, which must be complete and of one version.
fn version_of(bytes: &[u8], place: u64) -> u64 {
    let line = bytes
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let version = line.split(' ').nth(1).and_then(|word| word.parse().ok());
    let version = version.unwrap_or_else(|| panic!("wrong bytes: {line}"));
    assert!(
        bytes == content(version, place),
        "bytes that nobody published"
    );
    version
}

/// State that the readers and the publisher share.
#[derive(Default)]
struct Storm {
    stop: AtomicBool,
    /// The newest version that may be seen.
    newest: AtomicU64,
    /// The only version that may be seen now; 0 while an update is under way.
    settled: AtomicU64,
    /// Passes over all places during which no update was under way.
    quiet_passes: AtomicU64,
}

fn read_through(storm: &Storm, top: &Path, by_listing: bool) -> u64 {
    let mut reads = 0;
    while !storm.stop.load(Ordering::SeqCst) {
        let settled = storm.settled.load(Ordering::SeqCst);
        let mut seen = Vec::new();
        for place in 0..PLACES {
            let inner = top.join(format!("d{place:02}/inner"));
            let always = inner.join("always");
            if by_listing {
                // A listing is of one version, so it has exactly one name that only one version has.
                let names: Vec<_> = fs::read_dir(&inner)
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                let own: Vec<_> = names.iter().filter(|n| n.starts_with("only-")).collect();
                assert_eq!((names.len(), own.len()), (2, 1), "{names:?}");
                seen.push(own[0]["only-".len()..].parse().unwrap());
            } else {
                seen.push(version_of(&fs::read(&always).unwrap(), place));
            }
            reads += 1;
        }
        let newest = storm.newest.load(Ordering::SeqCst);
        assert!(seen.iter().all(|version| *version <= newest));
        if settled != 0 && storm.settled.load(Ordering::SeqCst) == settled {
            let mixed = seen.iter().any(|version| *version != settled);
            assert!(!mixed, "settled on {settled}, seen {seen:?}");
            storm.quiet_passes.fetch_add(1, Ordering::SeqCst);
        }
    }
    reads
}

/// How long after its adoption a version may be seen beside the previous one: microseconds if the kernel can
/// be notified. The rest is for the scheduler of a busy machine.
fn window() -> Duration {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse().ok());
    let release: (u32, u32) = (numbers.next().unwrap(), numbers.next().unwrap());
    if release >= (6, 16) {
        Duration::from_millis(500)
    } else {
        Duration::from_millis(1200)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_updates_shows_no_mixture_and_no_error() {
    let length = match std::env::var_os("BULLA_LONG") {
        Some(_) => Duration::from_secs(90),
        None => Duration::from_secs(5),
    };
    let mut world = World::new();
    put(&mut world, 1);
    let options = MountOptions {
        refresh: Duration::from_millis(50),
        ..MountOptions::default()
    };
    let m = TestMount::new(world.open().await, options).await;
    let storm = Arc::new(Storm::default());
    storm.newest.store(1, Ordering::SeqCst);
    let readers: Vec<_> = [false, false, true]
        .map(|by_listing| {
            let (storm, top) = (storm.clone(), m.path(""));
            std::thread::spawn(move || read_through(&storm, &top, by_listing))
        })
        .into();
    let begin = Instant::now();
    let mut version = 1;
    let quiet_passes = || storm.quiet_passes.load(Ordering::SeqCst);
    let is_enough = |version| version > 5 && quiet_passes() > 5 || begin.elapsed() > 20 * length;
    while (begin.elapsed() < length || !is_enough(version))
        && !readers.iter().any(|r| r.is_finished())
    {
        version += 1;
        storm.settled.store(0, Ordering::SeqCst);
        storm.newest.store(version, Ordering::SeqCst);
        put(&mut world, version);
        m.wait_for(version);
        // Every other update follows at once; before the others there is a pause.
        if version % 2 == 0 {
            tokio::time::sleep(window()).await;
            storm.settled.store(version, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
    }
    storm.stop.store(true, Ordering::SeqCst);
    for reader in readers {
        assert!(reader.join().unwrap() > 100, "hardly anything was read");
    }
    let quiet = quiet_passes();
    assert!(
        version > 5 && quiet > 5,
        "{version} versions, {quiet} quiet passes"
    );
    // The mount drops what past versions left behind.
    for place in 0..PLACES {
        m.read(&format!("d{place:02}/inner/always"));
    }
    assert!(
        m.mounted().reporter().report().known_files < 400,
        "{}",
        m.mounted().reporter().report().known_files
    );
}
