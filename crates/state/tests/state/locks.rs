//! The lock of a volume's state: holders that are stopped, callers that leave, directories that other users
//! could read.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sim::holder::StoppedHolder;
use state::{LockedState, StateError, VolumeState};
use tempfile::TempDir;
use trust::evidence::Evidence;
use trust::statement::VolumeId;

fn id(n: u8) -> VolumeId {
    VolumeId::from_bytes([n; 32])
}

fn after(ms: u64) -> Instant {
    Instant::now() + Duration::from_millis(ms)
}

fn soon() -> Instant {
    after(60_000)
}

/// A state directory with one volume, whose lock a stopped process holds.
fn held() -> (TempDir, VolumeState, StoppedHolder) {
    let directory = tempfile::tempdir().unwrap();
    let state = VolumeState::at(directory.path(), &id(1));
    state.lock(soon()).unwrap().load().unwrap();
    let lock = directory.path().join(format!("volumes/{}/lock", id(1)));
    let holder = StoppedHolder::of(&lock).unwrap();
    (directory, state, holder)
}

fn names_the_holder(error: &StateError, holder: &StoppedHolder) {
    let text = error.to_string();
    assert!(error.is_locked(), "{text}");
    assert!(
        text.contains(&format!("process {}", holder.pid())),
        "{text}"
    );
    assert!(text.contains("stopped"), "{text}");
}

#[test]
fn synchronous_caller_returns_at_the_deadline_when_the_holder_is_stopped() {
    let (_directory, state, holder) = held();
    let began = Instant::now();
    let error = state.lock(after(300)).unwrap_err();
    let took = began.elapsed();
    names_the_holder(&error, &holder);
    assert!(took >= Duration::from_millis(300), "{took:?}");
    assert!(took < Duration::from_secs(60), "{took:?}");
    drop(holder);
    state.lock(soon()).unwrap().load().unwrap();
}

/// One thread runs everything here. If a wait blocked it, the counter would not advance.
#[tokio::test]
async fn asynchronous_caller_returns_at_the_deadline_and_does_not_block_others() {
    let (directory, state, holder) = held();
    let ticks = Arc::new(AtomicU64::new(0));
    let counts = ticks.clone();
    let counter = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(5)).await;
            counts.fetch_add(1, Ordering::Relaxed);
        }
    });
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    let work = move |_: &LockedState| {
        runs.store(true, Ordering::Relaxed);
        Ok::<_, StateError>(())
    };
    let began = Instant::now();
    let update = state.update(after(5000), work);
    let other = VolumeState::at(directory.path(), &id(2));
    let beside = async {
        let started = Instant::now();
        let loaded = other.update(soon(), |locked| locked.load()).await;
        loaded.unwrap();
        started.elapsed()
    };
    let (updated, beside) = tokio::join!(update, beside);
    names_the_holder(&updated.unwrap_err(), &holder);
    assert!(began.elapsed() >= Duration::from_millis(5000));
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(beside < Duration::from_millis(4500), "{beside:?}");
    assert!(ticks.load(Ordering::Relaxed) > 20);
    counter.abort();
    // The work was abandoned: it does not run when the lock is free.
    drop(holder);
    state.update(soon(), |locked| locked.load()).await.unwrap();
    assert!(!ran.load(Ordering::Relaxed));
}

#[tokio::test]
async fn work_of_a_dropped_future_never_runs() {
    let (_directory, state, holder) = held();
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    let update = state.update(soon(), move |_| {
        runs.store(true, Ordering::Relaxed);
        Ok::<_, StateError>(())
    });
    let update = tokio::time::timeout(Duration::from_millis(100), update);
    assert!(update.await.is_err());
    drop(holder);
    // Longer than the longest pause between two attempts.
    for _ in 0..10 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        state.update(soon(), |locked| locked.load()).await.unwrap();
    }
    assert!(!ran.load(Ordering::Relaxed));
}

/// Here the attempt itself waits for a thread. It must notice that its caller has left.
#[test]
fn work_that_waits_for_a_thread_until_the_deadline_never_runs() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(1)
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let state = VolumeState::at(directory.path(), &id(1));
    let (release, released) = std::sync::mpsc::channel::<()>();
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    runtime.block_on(async {
        let busy = tokio::task::spawn_blocking(move || released.recv().is_ok());
        let work = move |_: &LockedState| {
            runs.store(true, Ordering::Relaxed);
            Ok::<_, StateError>(())
        };
        let error = state.update(after(100), work).await.unwrap_err();
        assert!(matches!(error, StateError::Stalled { begun: false, .. }));
        release.send(()).unwrap();
        busy.await.unwrap();
        state.update(soon(), |locked| locked.load()).await.unwrap();
    });
    assert!(!ran.load(Ordering::Relaxed));
}

#[tokio::test]
async fn work_that_has_begun_runs_to_its_end_and_the_error_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let state = VolumeState::at(directory.path(), &id(1));
    let (release, released) = std::sync::mpsc::channel::<()>();
    let work = move |locked: &LockedState| {
        let _ = released.recv();
        locked.keep_adopted_head(b"late")
    };
    // Long enough that the work begins on a busy machine too.
    let error = state.update(after(3000), work).await.unwrap_err();
    assert!(matches!(error, StateError::Stalled { begun: true, .. }));
    release.send(()).unwrap();
    let head = state.update(soon(), |locked| locked.adopted_head()).await;
    assert_eq!(head.unwrap().unwrap(), b"late");
}

#[tokio::test]
async fn concurrent_updates_are_serialised() {
    let directory = tempfile::tempdir().unwrap();
    let count = |locked: &LockedState| -> Result<u64, StateError> {
        let head = locked.adopted_head()?.unwrap_or_default();
        Ok(String::from_utf8(head).unwrap().parse().unwrap_or(0))
    };
    let tasks: Vec<_> = (0..12)
        .map(|_| {
            // Like different processes: they share only the file.
            let state = VolumeState::at(directory.path(), &id(1));
            tokio::spawn(async move {
                let add = move |locked: &LockedState| {
                    let next = count(locked)? + 1;
                    locked.keep_adopted_head(next.to_string().as_bytes())
                };
                state.update(soon(), add).await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let state = VolumeState::at(directory.path(), &id(1));
    assert_eq!(state.update(soon(), count).await.unwrap(), 12);
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

#[test]
fn state_that_was_open_is_closed_to_other_users() {
    let top = tempfile::tempdir().unwrap();
    let state_directory = top.path().join("a/b");
    let volumes = state_directory.join("volumes");
    let directory = volumes.join(id(1).to_string());
    let write = || {
        let state = VolumeState::at(&state_directory, &id(1));
        let locked = state.lock(soon()).unwrap();
        locked.store(&locked.load().unwrap()).unwrap();
        locked.keep_adopted_head(b"head").unwrap();
        let signing = state.lock_signing(soon()).unwrap();
        signing.keep_signed(b"head").unwrap();
        signing.keep_leaf(0, 3, b"leaf").unwrap();
        let evidence = Evidence::part(&[3; 32], "floor", b"evidence".to_vec());
        locked.keep_evidence(&evidence).unwrap();
    };
    let directories = || {
        let below = [directory.join("leaves"), directory.join("evidence")];
        [vec![volumes.clone(), directory.clone()], below.to_vec()].concat()
    };
    let names = ["lock", "signing.lock", "floor", "adopted", "signed"];
    let files = || names.map(|name| directory.join(name));
    write();
    assert_eq!(mode(&top.path().join("a")), 0o700);
    assert_eq!(mode(&state_directory), 0o700);
    let check = || {
        for path in directories() {
            assert_eq!(mode(&path), 0o700, "{}", path.display());
        }
        for path in files() {
            assert_eq!(mode(&path), 0o600, "{}", path.display());
        }
    };
    check();
    assert_eq!(mode(&directory.join("leaves/0.3")), 0o600);
    let evidence = fs::read_dir(directory.join("evidence")).unwrap();
    for entry in evidence {
        assert_eq!(mode(&entry.unwrap().path()), 0o600);
    }
    for path in directories() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for path in files() {
        fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    }
    drop(
        VolumeState::at(&state_directory, &id(1))
            .lock(soon())
            .unwrap(),
    );
    check();
    // A file that an interrupted process left incomplete and open to all users.
    let left = directory.join("adopted.new");
    fs::write(&left, b"half").unwrap();
    fs::set_permissions(&left, fs::Permissions::from_mode(0o666)).unwrap();
    let locked = VolumeState::at(&state_directory, &id(1))
        .lock(soon())
        .unwrap();
    locked.keep_adopted_head(b"other").unwrap();
    check();
    assert_eq!(locked.adopted_head().unwrap().unwrap(), b"other");
}

#[test]
fn state_directory_that_is_removed_while_in_use_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let state = VolumeState::at(directory.path(), &id(1));
    drop(state.lock(soon()).unwrap());
    fs::remove_dir_all(directory.path().join("volumes")).unwrap();
    let error = state.lock(soon()).unwrap_err();
    assert!(matches!(error, StateError::Failed { .. }), "{error}");
}

/// A key may lie in a token that waits for a finger.
#[test]
fn readers_do_not_wait_for_a_process_that_signs() {
    let top = tempfile::tempdir().unwrap();
    let state = VolumeState::at(top.path(), &id(1));
    let _signing = state.lock_signing(soon()).unwrap();
    let _reading = state.lock(soon()).unwrap();
    let now = Instant::now() + Duration::from_millis(50);
    let refused = state.lock_signing(now).unwrap_err();
    assert!(matches!(refused, StateError::Locked { .. }), "{refused}");
}
