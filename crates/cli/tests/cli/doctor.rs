//! `bulla doctor`: no problem on a healthy machine; each possible problem is found and reported with a hint,
//! and fixed with `--fix`.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{Home, Mounted, Ran, skipped, wait_until};
use serde_json::Value;

/// The finding of one check: level, what, hint.
#[track_caller]
fn finding(ran: &Ran, check: &str) -> (String, String, String) {
    let findings = ran.records("finding");
    let mut of_check = findings.iter().filter(|finding| finding["check"] == check);
    let found = of_check
        .next()
        .unwrap_or_else(|| panic!("nothing of {check}: {}", ran.out));
    assert!(of_check.next().is_none(), "more than one: {}", ran.out);
    let text = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
    (text("level"), text("what"), text("hint"))
}

#[track_caller]
fn problem(ran: &Ran, check: &str, words: &[&str]) {
    let (level, what, hint) = finding(ran, check);
    assert_eq!(level, "problem", "{what}");
    assert!(hint.len() > 10, "{what}: no hint");
    for word in words {
        assert!(
            format!("{what} {hint}").contains(word),
            "{word} in: {what}; {hint}"
        );
    }
}

fn doctor(home: &Home, more: &[&str]) -> Ran {
    let mut args = vec!["--json", "doctor"];
    args.extend(more);
    home.run(&args)
}

/// Whether the doctor finds no problem of this machine itself.
fn machine_is_well(ran: &Ran) -> bool {
    finding(ran, "fuse").0 != "problem" && finding(ran, "mounts").0 != "problem"
}

/// Runs `doctor --fix` in a mount namespace of its own, because it removes every dead mount of this user,
/// also those of other tests. The mount table is written to `after`. `None` if there can be no mount
/// namespace.
fn fixing(home: &Home) -> Option<Ran> {
    let can = Command::new("unshare").args(["--mount", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        skipped("doctor --fix", "no mount namespace can be made here");
        return None;
    }
    let plain = home.command(&["--json", "doctor", "--fix"]);
    let script = "\"$@\"; code=$?; cat /proc/self/mountinfo > after; exit $code";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", script, "sh"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .current_dir(home.path(""));
    for (name, value) in plain.get_envs() {
        command.env(name, value.unwrap());
    }
    Some(Ran::of(command.output().unwrap()))
}

fn private(path: &Path) {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(path).unwrap();
}

#[test]
fn healthy_machine_has_no_problems() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    home.run(&["ls", &source]).ends(0);
    let ran = doctor(&home, &[]);
    for check in ["configuration", "sockets", "state", "clock", "cache"] {
        assert_eq!(finding(&ran, check).0, "ok", "{}", ran.out);
    }
    let state = finding(&ran, "state").1;
    assert!(state.contains("1 volume"), "{state}");
    assert!(finding(&ran, "clock").1.contains("not behind"));
    if machine_is_well(&ran) {
        let ran = ran.ends(0);
        assert_eq!(ran.field("problems"), 0);
        // Other tests leave dead mounts for a moment.
        let doctor = || home.run(&["doctor"]);
        wait_until("the machine is well again", || doctor().code == 0);
        let told = doctor();
        assert!(told.out.contains("ok       configuration"), "{}", told.out);
    }
}

#[test]
fn a_configuration_that_is_wrong_is_a_finding_among_others() {
    let home = Home::new();
    fs::write(home.path("config.toml"), "deadlin = \"2s\"\n").unwrap();
    let args = ["--json", "doctor", "--config", "config.toml"];
    let ran = home.run(&args).ends(1);
    problem(&ran, "configuration", &["deadlin", "config show"]);
    finding(&ran, "state");
    assert!(ran.field("problems").as_u64().unwrap() >= 1);
    home.run(&["status", "--config", "config.toml"]).ends(2);

    fs::write(
        home.path("config.toml"),
        "[sources.docs]\nsource = \"vol1x@bulla://h\"\n",
    )
    .unwrap();
    problem(
        &home.run(&args).ends(1),
        "configuration",
        &["docs", "volume id"],
    );
}

#[test]
fn a_state_directory_that_cannot_be_used_is_found() {
    let home = Home::new();
    let volume = home.published();
    home.run(&["ls", &home.source(&volume, "repo")]).ends(0);
    let floor = home
        .path(".local/state/bulla/volumes")
        .join(&volume)
        .join("floor");
    let whole = fs::read(&floor).unwrap();
    fs::write(&floor, b"no floor").unwrap();
    problem(&doctor(&home, &[]).ends(1), "state", &[&volume]);
    fs::write(&floor, whole).unwrap();
    // Evidence is a note, not a problem of this machine.
    let evidence = floor.with_file_name("evidence");
    fs::create_dir(&evidence).unwrap();
    fs::write(evidence.join("x"), b"a head").unwrap();
    let (level, what, _) = finding(&doctor(&home, &[]), "state");
    assert_eq!(level, "note");
    assert!(what.contains("evidence"), "{what}");

    fs::write(home.path("file"), b"").unwrap();
    let mut elsewhere = home.command(&["--json", "doctor"]);
    elsewhere.env("BULLA_STATE_DIR", home.path("file/state"));
    let ran = Ran::of(elsewhere.output().unwrap()).ends(1);
    problem(&ran, "state", &["file/state", "BULLA_STATE_DIR"]);
}

#[test]
fn a_clock_that_is_behind_is_found() {
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    home.run(&["ls", &source]).ends(0);
    let plain = home.command(&["--json", "doctor"]);
    let mut slow = Command::new("faketime");
    slow.args(["--exclude-monotonic", "-f", "-30d"])
        .arg(plain.get_program())
        .args(plain.get_args())
        .env_clear()
        .current_dir(home.path(""));
    for (name, value) in plain.get_envs() {
        slow.env(name, value.unwrap());
    }
    let Ok(output) = slow.output() else {
        return skipped("a clock that is behind", "faketime is not installed");
    };
    problem(&Ran::of(output).ends(1), "clock", &["timedatectl"]);
}

#[test]
fn a_cache_that_cannot_be_used_is_found() {
    let home = Home::new();
    fs::write(home.path("file"), b"").unwrap();
    let with = |dir: &str, keep_free: &str| {
        let mut command = home.command(&["--json", "doctor"]);
        command
            .env("BULLA_CACHE", home.path(dir))
            .env("BULLA_CACHE_KEEP_FREE", keep_free);
        Ran::of(command.output().unwrap())
    };
    problem(
        &with("file/cache", "1MiB"),
        "cache",
        &["file/cache", "--cache DIR"],
    );
    problem(&with("new", "1000000TiB"), "cache", &["cache-keep-free"]);
    assert_eq!(finding(&with("new", "1MiB"), "cache").0, "ok");
    assert!(!home.path("new").exists(), "the doctor makes nothing");
    fs::create_dir(home.path("open")).unwrap();
    fs::set_permissions(home.path("open"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(finding(&with("open", "1MiB"), "cache").0, "note");
    private(&home.path("shut"));
    assert_eq!(finding(&with("shut", "1MiB"), "cache").0, "ok");
    assert_eq!(fs::read_dir(home.path("shut")).unwrap().count(), 0);
}

#[test]
fn leftover_sockets_are_found_and_removed_with_fix() {
    let home = Home::new();
    private(&home.path("run/bulla"));
    let socket = home.path("run/bulla/1.sock");
    drop(UnixListener::bind(&socket).unwrap());
    problem(&doctor(&home, &[]).ends(1), "sockets", &["1.sock", "--fix"]);
    assert!(socket.exists(), "nothing is changed without --fix");
    if let Some(fixed) = fixing(&home) {
        assert_eq!(finding(&fixed, "sockets").0, "fixed");
        assert!(fixed.field("fixed").as_u64() >= Some(1));
        assert!(!socket.exists());
    }
    fs::set_permissions(home.path("run/bulla"), PermissionsExt::from_mode(0o755)).unwrap();
    problem(&doctor(&home, &[]).ends(1), "sockets", &["0700"]);
}

#[test]
fn dead_mount_is_found_and_cleared_with_fix() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("a dead mount", "no /dev/fuse");
    }
    let home = Home::new();
    let source = home.source(&home.published(), "repo");
    fs::create_dir(home.path("mnt")).unwrap();
    let _mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut command = home.command(&["mount", &source, "mnt", "--foreground"]);
    let mut daemon = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the mount", || home.path("mnt/a").exists());
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let mnt = home.path("mnt").display().to_string();
    // Other tests make mounts of this user too, so only this one is checked.
    let of_ours = |ran: &Ran| -> Vec<Value> {
        let findings = ran.records("finding").into_iter();
        let ours = findings.filter(|f| f["check"] == "mounts");
        ours.filter(|f| f["what"].as_str().unwrap().contains(&mnt))
            .collect()
    };
    let told = of_ours(&doctor(&home, &[]).ends(1));
    assert_eq!(told[0]["level"], "problem");
    assert!(told[0]["hint"].as_str().unwrap().contains("bulla umount"));
    let table = || fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(table().contains(&mnt), "nothing is changed without --fix");
    if let Some(fixed) = fixing(&home) {
        assert_eq!(of_ours(&fixed)[0]["level"], "fixed", "{}", fixed.out);
        let after = fs::read_to_string(home.path("after")).unwrap();
        assert!(!after.contains(&mnt), "{after}");
    }
    home.run(&["umount", "mnt"]).ends(0);
    assert!(!table().contains(&mnt));
    assert!(of_ours(&doctor(&home, &[])).is_empty());
}
