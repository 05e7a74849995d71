//! Devices that start with a snapshot of their floor: they know what those know that read every leaf, whatever becomes of
//! the snapshot.

use std::path::Path;

use super::*;
use crate::client::Folding;
use crate::client::core::Core;
use ordering::scheme::Log;

const FILES: [&str; 3] = ["journal", "leaves", SNAPSHOT];
const SNAPSHOT: &str = "snapshot";
/// Where the first leaf begins in the file of leaves, and some bytes of it.
const FIRST_LEAF: usize = 40;

pub(super) fn often(leaves: u64) -> Options {
    Options {
        snapshot_after: leaves,
        ..Options::default()
    }
}

/// What the files of a home hold.
type Files = Vec<Option<Vec<u8>>>;

fn files(home: &Home) -> Files {
    let read = |name| std::fs::read(home.directory().join(name)).ok();
    FILES.map(read).into()
}

fn put(home: &Home, files: &Files) {
    for (name, bytes) in FILES.iter().zip(files) {
        let path = home.directory().join(name);
        match bytes {
            Some(bytes) => std::fs::write(path, bytes).unwrap(),
            None => drop(std::fs::remove_file(path)),
        }
    }
}

fn damage(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x20;
    std::fs::write(path, bytes).unwrap();
}

/// Opens the files of a home, without a connection.
fn opened(home: &Home) -> Result<Core, ClientError> {
    Parts::of(home, &Options::default())
        .unwrap()
        .open(home, soon())
}

/// What the files of a home come to.
fn known(home: &Home) -> String {
    let core = opened(home).unwrap();
    let ledger = core.engine().ledger();
    let point = Log::<ordering::roster::Product>::point(ledger.log());
    let authors: Vec<_> = ledger.authors().collect();
    let members = ledger.volume().members().rows();
    let files = ledger.volume();
    let kept = (files.kept_ops(), files.folds(), files.deciding().to_vec());
    format!(
        "{point:?} {authors:?} {members:?} {kept:?} {:?}",
        core.disk().len()
    )
}

/// Whether the first leaf is read at a start. It is damaged meanwhile.
pub(super) fn reads_all(home: &Home) -> bool {
    let path = home.directory().join("leaves");
    damage(&path, FIRST_LEAF);
    let found = opened(home);
    damage(&path, FIRST_LEAF);
    found.is_err()
}

/// A device has written. The first time it admits a second one, and writes little.
async fn written(lab: &Lab, leaves: u64, many: u32) {
    let client = lab.client_with(1, &Arc::default(), &often(leaves));
    client.running(soon()).await.unwrap();
    if many < 40 {
        lab.admit(&client, 2).await;
    }
    for number in 0..many {
        let name = format!("f{}", number % 9);
        done(client.call(create(&client, &name, "x"), soon()).await);
    }
    client.close(soon()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_starts_with_a_snapshot_knows_the_same() {
    let lab = Lab::new();
    written(&lab, 8, 30).await;
    let home = lab.home(1);
    assert!(!reads_all(&home));
    let with = known(&home);
    let all = files(&home);
    std::fs::remove_file(home.directory().join(SNAPSHOT)).unwrap();
    assert!(reads_all(&home), "a floor without a snapshot is read whole");
    assert_eq!(known(&home), with);
    put(&home, &all);

    // It goes on: a member that was admitted before the snapshot writes, and what was written before is read.
    let one = lab.client_with(1, &Arc::default(), &often(8));
    let two = lab.client(2);
    two.running(soon()).await.unwrap();
    for number in 0..9 {
        assert_eq!(read(&one, &format!("f{number}")).await, "x");
    }
    done(two.call(create(&two, "theirs", "y"), soon()).await);
    assert_eq!(read(&one, "theirs").await, "y");
    lab.admit(&one, 3).await;
    // Old leaves are found.
    let size = one.status(soon()).await.unwrap().note.unwrap();
    let same = two.compare(size, soon()).await.unwrap();
    assert!(
        matches!(same, crate::client::Compared::Same { .. }),
        "{same:?}"
    );
    one.close(soon()).await.unwrap();
    assert!(!reads_all(&home));
    let with = known(&home);
    std::fs::remove_file(home.directory().join(SNAPSHOT)).unwrap();
    assert_eq!(known(&home), with);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_snapshot_costs_time_and_nothing_else() {
    let lab = Lab::new();
    written(&lab, 8, 20).await;
    let (home, path) = (lab.home(1), lab.home(1).directory().join(SNAPSHOT));
    let (all, right) = (files(&home), known(&home));
    let whole = std::fs::read(&path).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 60) {
        damage(&path, at);
        assert_eq!(known(&home), right, "changed at {at}");
        std::fs::write(&path, &whole[..at]).unwrap();
        assert_eq!(known(&home), right, "cut at {at}");
        put(&home, &all);
    }
    // A process that was killed while it wrote leaves a part beside it.
    std::fs::write(home.directory().join("snapshot.new"), &whole[..40]).unwrap();
    assert_eq!(known(&home), right);
    assert!(!reads_all(&home));
}

/// A snapshot is written to a file beside the one before, synced, and renamed. So a process that is killed leaves a
/// beginning of it beside the one before, all of it, or the new one in its place; a power cut leaves no more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_each_step_of_a_snapshot_a_device_knows_its_whole_floor() {
    let lab = Lab::new();
    written(&lab, 8, 20).await;
    let home = lab.home(1);
    let early = files(&home);
    written(&lab, 8, 40).await;
    let (late, right) = (files(&home), known(&home));
    let [path, beside] = [SNAPSHOT, "snapshot.new"].map(|name| home.directory().join(name));
    let new = late[2].clone().unwrap();
    assert_ne!(early[2].as_ref(), Some(&new));
    for before in [None, early[2].clone()] {
        let had_one = before.is_some();
        put(&home, &[late[0].clone(), late[1].clone(), before].into());
        assert_eq!(known(&home), right, "before it began");
        for at in (0..new.len()).step_by(new.len() / 50).chain([new.len()]) {
            std::fs::write(&beside, &new[..at]).unwrap();
            assert_eq!(known(&home), right, "{at} bytes");
            // The one before is used, or all leaves are read.
            assert_eq!(reads_all(&home), !had_one, "{at} bytes");
        }
        std::fs::rename(&beside, &path).unwrap();
        assert_eq!(known(&home), right, "after the rename");
        assert!(!reads_all(&home));
    }
    // The next snapshot takes the place of what a killed process left.
    std::fs::write(&beside, &new[..new.len() / 2]).unwrap();
    written(&lab, 8, 41).await;
    assert!(!beside.exists() && !reads_all(&home));
    assert_ne!(std::fs::read(&path).unwrap(), new);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_of_another_floor_is_not_used() {
    let lab = Lab::new();
    written(&lab, 8, 12).await;
    let home = lab.home(1);
    let (early, right) = (files(&home), known(&home));
    written(&lab, 8, 40).await;
    let (late, more) = (files(&home), known(&home));
    // An old snapshot beside newer leaves: those after it are read.
    put(
        &home,
        &[late[0].clone(), late[1].clone(), early[2].clone()].into(),
    );
    assert_eq!(known(&home), more);
    assert!(!reads_all(&home));
    // One that is ahead of the floor, as in an image that was put back in part.
    put(
        &home,
        &[early[0].clone(), early[1].clone(), late[2].clone()].into(),
    );
    assert_eq!(known(&home), right);
    assert!(reads_all(&home));
    // One of another log of the same length. How many marks a log has depends on the time, so several are made until
    // two are as long.
    let length = |files: &Files| files[1].as_ref().map(Vec::len);
    let mut logs = vec![(early.clone(), right.clone())];
    let [(early, right), (theirs, _)] = loop {
        assert!(logs.len() < 40, "no two logs of the same length");
        let other = Lab::new();
        written(&other, 8, 12).await;
        let log = (files(&other.home(1)), known(&other.home(1)));
        match logs.iter().find(|one| length(&one.0) == length(&log.0)) {
            Some(same) => break [same.clone(), log],
            None => logs.push(log),
        }
    };
    put(
        &home,
        &[early[0].clone(), early[1].clone(), theirs[2].clone()].into(),
    );
    assert_eq!(known(&home), right);
    assert!(reads_all(&home));
    // All of an earlier image.
    put(&home, &early);
    assert_eq!(known(&home), right);
    assert!(!reads_all(&home));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_that_has_forgotten_starts_with_what_is_left() {
    let lab = Lab::new();
    let eager = Options {
        folding: Folding {
            changes: 16,
            pause: Duration::ZERO,
        },
        ..often(40)
    };
    let client = lab.client_with(1, &Arc::default(), &eager);
    client.running(soon()).await.unwrap();
    for number in 0..120 {
        let name = format!("f{number}");
        done(client.call(create(&client, &name, &name), soon()).await);
    }
    tidy::forgets(&client, 60).await;
    // Each of these puts a mark into the log. A snapshot comes with one of them.
    for _ in 0..60 {
        read(&client, "f0").await;
    }
    client.close(soon()).await.unwrap();
    let home = lab.home(1);
    assert!(!reads_all(&home));
    let core = opened(&home).unwrap();
    let kept = core.engine().ledger().volume().kept_ops();
    assert!(kept <= 60, "{kept}");
    drop(core);
    let client = lab.client_with(1, &Arc::default(), &eager);
    for number in 0..120 {
        let name = format!("f{number}");
        assert_eq!(read(&client, &name).await, name);
    }
    done(client.call(create(&client, "last", "x"), soon()).await);
    assert_eq!(read(&client, "last").await, "x");
}

/// The floor has an entry that its author did not sign, and the process ends before it has looked at the signature.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_says_which_entries_nobody_has_verified() {
    let lab = Lab::new();
    let (one, before) = lies::forged_for(&lab, &often(1)).await;
    // It may have looked at the signature by now. When the snapshot was written it had not.
    let _ = one.wait(soon(), |view| view.size > before).await;
    one.close(soon()).await.unwrap();
    let home = lab.home(1);
    // Nothing but the floor says so.
    let _ = std::fs::remove_dir_all(home.directory().join("evidence"));
    assert!(!reads_all(&home));
    let core = opened(&home).unwrap();
    assert!(core.convicted().is_some(), "{:?}", core.engine());
}
