//! `bulla status` on real mounts: the records of mounts, dead mounts, and sockets that are not trusted.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::metrics;
use crate::support::{self, Home, Mounted, Ran, noise, skipped, wait_until};
use serde_json::Value;

const BIG: &str = "sub/deep/big";

fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        skipped("status of a mount", "no /dev/fuse");
    }
    can
}

/// `bulla mount --foreground`.
fn start(home: &Home, args: &[&str]) -> Child {
    fs::create_dir_all(home.path("mnt")).unwrap();
    let mut all = vec!["mount"];
    all.extend(args);
    all.extend(["mnt", "--foreground"]);
    let mut command = home.command(&all);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    wait_until("the mount", || home.path("mnt/sub").exists());
    wait_until("the socket", || !sockets(home).is_empty());
    child
}

fn sockets(home: &Home) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(home.path("run/bulla")).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths
        .filter(|path| path.extension().is_some_and(|e| e == "sock"))
        .collect()
}

fn status(home: &Home) -> Ran {
    // Mounts of other tests belong to this user too.
    home.run(&["--json", "status", "mnt"])
}

/// The record of the only mount.
#[track_caller]
fn record(home: &Home) -> Value {
    let mut records = status(home).ends(0).records("mount");
    assert_eq!(records.len(), 1);
    records.remove(0)
}

#[test]
fn mount_reports_its_state() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let volume = home.published();
    support::copy(&home.path("repo"), &home.path("old"));
    let (mut good, mut old) = (home.serve("repo"), home.serve("old"));
    let mirror = old.location().to_owned();
    let args = [
        &good.source,
        "--mirror",
        &mirror,
        "--refresh",
        "300ms",
        "--deadline",
        "2s",
        "--cache",
        "cache",
    ];
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = start(&home, &args);
    assert_eq!(
        fs::read(home.path("mnt").join(BIG)).unwrap(),
        noise(1, 700_000)
    );

    let told = record(&home);
    assert_eq!(told["dir"], home.path("mnt").display().to_string());
    assert_eq!(
        (&told["volume"], &told["version"]),
        (&volume.into(), &1.into())
    );
    assert_eq!(told["pid"], daemon.id());
    let left_s = told["left_s"].as_u64().unwrap();
    assert!((6 * 86400..=7 * 86400).contains(&left_s), "{left_s}");
    assert!(told["policy_left_s"].is_null() && told["policy_valid_until"].is_null());
    assert_eq!(told["mirrors"][0]["place"], good.location());
    assert_eq!(told["mirrors"][1]["place"], mirror);
    assert!(told["mirrors"][0]["latency_ms"].as_f64().unwrap() > 0.0);
    assert!(told["blocks"]["fetched"].as_u64().unwrap() > 0);
    assert!(told["memory"]["used_bytes"].as_u64().unwrap() > 700_000);
    assert_eq!(told["memory"]["limit_bytes"], 256 << 20);
    assert_eq!(told["cache"]["quota_bytes"], 10u64 << 30);
    wait_until("the cache", || {
        record(&home)["cache"]["used_bytes"].as_u64() > Some(700_000)
    });
    assert_eq!(told["errors"]["unavailable"], 0);

    // A new version on one of two mirrors: the other is shown as behind.
    fs::write(home.path("tree/news"), noise(8, 300_000)).unwrap();
    home.publish().ends(0);
    wait_until("version 2", || record(&home)["version"] == 2);
    wait_until("a look", || record(&home)["mirrors"][1]["behind"] == true);
    assert_eq!(record(&home)["refresh"]["error"], Value::Null);

    // Without mirrors the refresh fails, and so do reads of files that were not read before.
    good.kill();
    old.kill();
    wait_until("a failed look", || {
        record(&home)["refresh"]["error"]["kind"] == "unavailable"
    });
    assert!(fs::read(home.path("mnt/news")).is_err());
    let told = record(&home);
    assert!(
        told["errors"]["unavailable"].as_u64().unwrap() > 0,
        "{told}"
    );
    assert!(told["refresh"]["failed"].as_u64().unwrap() > 0);

    let text = home.run(&["status", "mnt"]).ends(0).out;
    for word in [
        "mnt",
        "version  2",
        "left)",
        "FAILED (unavailable)",
        &mirror,
        "unavailable ",
    ] {
        assert!(text.contains(word), "{word} in\n{text}");
    }
    home.run(&["status", "tree"]).ends(10);
    home.run(&["umount", "mnt"]).ends(0);
    assert!(daemon.wait().unwrap().success());
    assert!(
        sockets(&home).is_empty(),
        "a mount that ended leaves no socket"
    );
    home.run(&["status", "mnt"]).ends(10);
}

#[test]
fn mount_that_stays_at_a_version_has_no_end() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = start(&home, &[&source, "--at", "1"]);
    let told = record(&home);
    for none in [
        "valid_until",
        "left_s",
        "policy_valid_until",
        "policy_left_s",
    ] {
        assert_eq!(told.get(none), Some(&Value::Null), "{none}");
    }
    assert!(told["age_s"].as_u64().is_some());
    let shown = home.run(&["status", "mnt"]).ends(0).out;
    assert!(shown.contains("stays at this version"), "{shown}");
    assert!(
        !shown.contains("left)") && !shown.contains("never"),
        "{shown}"
    );
    home.run(&["umount", "mnt"]).ends(0);
    daemon.wait().unwrap();
    let args = [
        "--json",
        "mount",
        &source,
        "mnt",
        "--at",
        "1",
        "--foreground",
    ];
    let args = [&args[..], &metrics::ANY_PORT].concat();
    let (_daemon, told) = metrics::start(&home, &args, 1);
    let page = metrics::get(told[0]["metrics"].as_str().unwrap());
    assert!(page.contains("\nbulla_mount_version{"), "{page}");
    assert!(!page.contains("left_seconds{"), "{page}");
}

#[test]
fn dead_mounts_are_reported_and_their_sockets_removed() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    let mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = start(&home, &[&source]);
    record(&home);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(sockets(&home).len(), 1);
    let told = status(&home);
    assert_eq!(told.code, 3, "{}", told.err);
    assert_eq!(told.field("cleared"), 1);
    let mute = &told.records("mute")[0];
    assert_eq!(mute["place"], home.path("mnt").display().to_string());
    assert!(mute["why"].as_str().unwrap().contains("dead"), "{mute}");
    assert!(
        mute["hint"].as_str().unwrap().contains("bulla umount"),
        "{mute}"
    );
    assert!(sockets(&home).is_empty());
    drop(mounted);
    status(&home).ends(10);
}

#[test]
fn endless_or_silent_daemons_are_mute() {
    let home = Home::new();
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(home.path("run/bulla")).unwrap();
    let silent = UnixListener::bind(home.path("run/bulla/1.sock")).unwrap();
    let endless = UnixListener::bind(home.path("run/bulla/2.sock")).unwrap();
    let talk = std::thread::spawn(move || {
        use std::io::Write;
        let (mut stream, _) = endless.accept().unwrap();
        while stream.write_all(&[b'['; 4096]).is_ok() {}
    });
    let begin = Instant::now();
    let told = home.run(&["--json", "status"]);
    assert_eq!(told.code, 3);
    let mute = told.records("mute").into_iter();
    let sockets = home.path("run/bulla").display().to_string();
    let ours = mute.filter(|mute| mute["place"].as_str().unwrap().starts_with(&sockets));
    assert_eq!(ours.count(), 2);
    assert!(begin.elapsed() < Duration::from_secs(60));
    talk.join().unwrap();
    drop(silent);
}

#[test]
fn a_directory_that_others_may_enter_is_not_used() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    fs::create_dir_all(home.path("run/bulla")).unwrap();
    let open = || fs::set_permissions(home.path("run/bulla"), PermissionsExt::from_mode(0o755));
    open().unwrap();
    let refused = home.run(&["status"]).ends(1);
    assert!(refused.err.contains("0700"), "{}", refused.err);
    if !can_mount() {
        return;
    }
    // The mount works, but opens no socket there.
    fs::create_dir(home.path("mnt")).unwrap();
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    home.run(&["mount", &source, "mnt"]).ends(0);
    assert!(home.path("mnt/a").exists());
    assert!(sockets(&home).is_empty());
    fs::set_permissions(home.path("run/bulla"), PermissionsExt::from_mode(0o700)).unwrap();
    let told = status(&home);
    assert_eq!(told.code, 3);
    assert!(
        told.records("mute")[0]["why"]
            .as_str()
            .unwrap()
            .contains("has no socket")
    );
}

#[test]
fn mount_tells_that_the_policy_of_its_volume_ends_soon() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    home.published();
    let publish = ["--json", "publish", "tree", "soon", "--key", "key"];
    let ending = [&publish[..], &["--policy-valid", "80d"]].concat();
    let made = home.run(&ending).ends(0);
    let source = home.source(made.field("volume").as_str().unwrap(), "soon");
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = start(&home, &[&source]);
    let left_s = record(&home)["policy_left_s"].as_u64().unwrap();
    assert!((79 * 86400..=80 * 86400).contains(&left_s), "{left_s}");
    let shown = home.run(&["status", "mnt"]).ends(0);
    assert!(shown.out.contains("  policy   ends "), "{}", shown.out);
    home.run(&["umount", "mnt"]).ends(0);
    daemon.wait().unwrap();
}
