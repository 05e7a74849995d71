//! Machines of a shared volume that fail, as processes: disks that are put back, copied, stolen, damaged or full, and
//! clocks that are wrong.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sim::clock::ShiftedClock;

use crate::shared_lab::{Orderer, found, founded, join, joined};
use crate::support::{Home, Ran, Tmpfs, copy, noise, skipped, wait_until};

const STATE: &str = ".local/state/bulla";
const YEAR_S: i64 = 365 * 24 * 3600;

fn put(home: &Home, name: &str, content: &str) -> Ran {
    std::fs::write(home.path(name), content).unwrap();
    home.run(&["--json", "put", name, "notes"])
}

fn read(home: &Home, name: &str) -> String {
    home.run(&["cat", "notes", name]).ends(0).out
}

fn names(home: &Home) -> String {
    home.run(&["ls", "notes"]).ends(0).out
}

/// The kind of the error of a command that fails.
fn kind(ran: &Ran) -> String {
    ran.field("error")["kind"].as_str().unwrap().to_owned()
}

/// Another machine with a copy of this one's state directory.
fn twin(home: &Home) -> Home {
    let twin = Home::new();
    std::fs::create_dir_all(twin.path(".local/state")).unwrap();
    copy(&home.path(STATE), &twin.path(STATE));
    twin
}

/// The directory of the volume in a home.
fn volume(home: &Home) -> PathBuf {
    let mut volumes = std::fs::read_dir(home.path(STATE).join("shared")).unwrap();
    volumes.next().unwrap().unwrap().path()
}

#[test]
fn device_that_was_restored_from_an_image_goes_on_and_loses_nothing() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&ada, "a", "one\n").ends(0);
    copy(&ada.path(STATE), &ada.path("image"));
    put(&ada, "a", "two\n").ends(0);
    put(&ada, "b", "after the image\n").ends(0);
    std::fs::remove_dir_all(ada.path(STATE)).unwrap();
    copy(&ada.path("image"), &ada.path(STATE));
    assert_eq!(read(&ada, "a"), "two\n");
    put(&ada, "c", "after the restore\n").ends(0);
    for home in [&ada, &laptop] {
        assert_eq!(names(home), "a\nb\nc\n");
        assert_eq!(read(home, "b"), "after the image\n");
    }
    let status = laptop.run(&["--json", "share", "status", "notes"]).ends(0);
    assert_eq!(status.field("differing"), 0);
}

#[test]
fn copied_device_stops_its_twin_and_both_stay_in_one_log() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&ada, "a", "one\n").ends(0);
    let twin = twin(&ada);
    // Work for much longer than the copy takes.
    std::fs::create_dir(ada.path("tree")).unwrap();
    for n in 0..6000 {
        std::fs::write(ada.path("tree").join(n.to_string()), "x").unwrap();
    }
    let mut putting = ada.command(&["--json", "put", "-r", "tree", "notes"]);
    putting.stdout(Stdio::piped()).stderr(Stdio::piped());
    let putting = putting.spawn().unwrap();
    wait_until("it puts files", || names(&laptop).contains("tree"));
    put(&twin, "b", "by the copy\n").ends(0);
    let stopped = Ran::of(putting.wait_with_output().unwrap()).ends(12);
    assert!(
        stopped.err.contains("copy of this machine's state"),
        "{}",
        stopped.err
    );
    // One after the other, they are one device.
    put(&ada, "c", "by the first\n").ends(0);
    put(&twin, "d", "by the copy\n").ends(0);
    for home in [&ada, &twin, &laptop] {
        assert_eq!(names(home), "a\nb\nc\nd\ntree\n");
    }
}

#[test]
fn stolen_key_of_a_removed_device_opens_nothing() {
    let (_orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    put(&laptop, "a", "a secret\n").ends(0);
    let thief = twin(&laptop);
    ada.run(&["share", "device", "remove", "notes", "1"])
        .ends(0);
    for refused in [
        &["put", "x", "notes"][..],
        &["cat", "notes", "a"],
        &["share", "status", "notes"],
        &["share", "invite", "notes"],
        &["share", "accept", "notes", "1"],
    ] {
        std::fs::write(thief.path("x"), "stolen\n").unwrap();
        let told = thief.run(&[&["--json"], refused].concat());
        assert!(!told.out.contains("secret"), "{}", told.out);
        assert_eq!(kind(&told.ends(23)), "refused", "{refused:?}");
    }
    assert_eq!(names(&ada), "a\n");
    assert_eq!(read(&ada, "a"), "a secret\n");
}

/// Runs a command that must end by itself, with an error and a hint if it fails.
fn ends_well(home: &Home, args: &[&str], what: &str) -> Ran {
    let ran = home.run(args);
    let told = ran.code == 0 || ran.err.contains("hint: ");
    assert!(
        told && ran.code > -1 && ran.code < 100,
        "{what}: {}\n{}",
        ran.code,
        ran.err
    );
    ran
}

#[test]
fn damaged_memory_of_a_device_is_an_error_and_never_wrong_content() {
    let (_orderer, ada) = founded(&[]);
    put(&ada, "a", "right\n").ends(0);
    let home = volume(&ada);
    let image = ada.path("image");
    copy(&home, &image);
    for name in ["about", "policies", "device.key", "journal", "leaves"] {
        let whole = std::fs::read(image.join(name)).unwrap();
        for at in (0..whole.len()).step_by(whole.len().div_ceil(6)) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(home.join(name), bytes).unwrap();
            let what = format!("{name} with another bit at {at} of {}", whole.len());
            let ran = ends_well(&ada, &["cat", "notes", "a", "--deadline", "10s"], &what);
            assert!(ran.code != 0 || ran.out == "right\n", "{what}: {}", ran.out);
        }
        for len in [0, whole.len() / 2] {
            std::fs::write(home.join(name), &whole[..len]).unwrap();
            let what = format!("{name} of {len} bytes");
            let ran = ends_well(&ada, &["cat", "notes", "a", "--deadline", "10s"], &what);
            assert_ne!(ran.code, 0, "{what}");
        }
        std::fs::remove_file(home.join(name)).unwrap();
        let what = format!("without {name}");
        assert_ne!(
            ends_well(&ada, &["cat", "notes", "a"], &what).code,
            0,
            "{what}"
        );
        std::fs::remove_dir_all(&home).unwrap();
        copy(&image, &home);
    }
    assert_eq!(read(&ada, "a"), "right\n");
}

/// Flips a bit in each page of the files below a directory.
fn corrupt(dir: &Path) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            corrupt(&path);
            continue;
        }
        let mut bytes = std::fs::read(&path).unwrap();
        for at in (1000..bytes.len()).step_by(4096) {
            bytes[at] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
    }
}

#[test]
fn block_that_the_server_changes_is_an_error_and_never_wrong_content() {
    let (mut orderer, ada) = founded(&[]);
    let laptop = joined(&ada, "ada");
    let big = noise(3, 2_000_000);
    std::fs::write(ada.path("big"), &big).unwrap();
    ada.run(&["put", "big", "notes"]).ends(0);
    orderer.stop();
    corrupt(&orderer.home.path("repo/blocks/segments"));
    orderer.start();
    let told = laptop.run(&["cat", "notes", "big", "--deadline", "10s"]);
    assert!(matches!(told.code, 20 | 30), "{}\n{}", told.code, told.err);
    let told = laptop.run(&["verify", "notes", "--deadline", "10s"]);
    assert!(matches!(told.code, 20 | 30), "{}\n{}", told.code, told.err);
}

#[test]
fn full_disk_of_a_device_is_an_error_and_loses_nothing_that_was_acknowledged() {
    let (_orderer, ada) = founded(&[]);
    let laptop = Home::new();
    let Some(disk) = Tmpfs::of(&laptop, ".local", 16 << 20) else {
        return skipped("full disks of devices", "no tmpfs can be mounted");
    };
    join(&ada, "ada", &laptop);
    let long = std::env::var_os("BULLA_LONG").is_some();
    let places = if long { 20 } else { 4 };
    let mut acknowledged = Vec::new();
    for page in 0..places {
        disk.leave_free(page * 4096);
        // Each write takes some of what is left.
        let failed = (0..60).find(|n| {
            let name = format!("file{page:02}-{n:02}");
            let ran = put(&laptop, &name, &name);
            assert!(
                matches!(ran.code, 0 | 1),
                "{name}: {}\n{}",
                ran.code,
                ran.err
            );
            acknowledged.extend((ran.code == 0).then_some(name));
            ran.code != 0
        });
        assert!(failed.is_some(), "the disk was never full");
        disk.free();
        assert!(names(&laptop).lines().count() >= acknowledged.len());
    }
    disk.free();
    put(&laptop, "last", "last").ends(0);
    let listed = names(&ada);
    for name in &acknowledged {
        assert!(listed.contains(name), "{name} of {listed}");
        assert_eq!(read(&ada, name), *name);
    }
    assert_eq!(names(&laptop), listed);
}

#[test]
fn full_disk_of_the_server_is_an_error_and_loses_nothing_that_was_acknowledged() {
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let Some(disk) = Tmpfs::of(&orderer.home, "repo", 64 << 20) else {
        return skipped("full disks of servers", "no tmpfs can be mounted");
    };
    let ada = found(&mut orderer, &key, &[], &["--ring", "8MiB"]);
    let laptop = joined(&ada, "ada");
    disk.leave_free(12 << 20);
    let content = |n: u64| noise(n, 700_000);
    let puts = |n: u64| {
        let name = format!("file{n}");
        std::fs::write(ada.path(&name), content(n)).unwrap();
        ada.run(&["put", &name, "notes", "--deadline", "15s"])
    };
    let full = (0..60).find(|n| {
        let ran = puts(*n);
        let told = ran.code == 0 || ran.err.contains("hint: ");
        assert!(
            told && matches!(ran.code, 0 | 1 | 30),
            "{n}: {}\n{}",
            ran.code,
            ran.err
        );
        ran.code != 0
    });
    let full = full.expect("the disk was never full");
    // Files can be read meanwhile. When there is space again, the server takes writes, also after a kill.
    let same = |home: &Home, n: u64| {
        let read = home
            .command(&["cat", "notes", &format!("file{n}")])
            .output();
        let read = read.unwrap();
        let told = String::from_utf8_lossy(&read.stderr);
        assert!(
            read.status.success() && read.stdout == content(n),
            "{n}: {told}"
        );
    };
    same(&ada, full / 2);
    disk.free();
    orderer.kill();
    orderer.start();
    puts(full).ends(0);
    (0..=full).for_each(|n| same(&laptop, n));
    orderer.kill();
}

#[test]
fn wrong_clocks_of_devices_and_server_change_nothing() {
    let (mut orderer, ada) = founded(&[]);
    let clock = match ShiftedClock::build(&ada.path("")) {
        Ok(clock) => clock,
        Err(error) => return skipped("wrong clocks", &error.to_string()),
    };
    let laptop = joined(&ada, "ada");
    let with = |home: &Home, years: i64, args: &[&str]| {
        let mut command: Command = home.command(args);
        clock.shift(&mut command, years * YEAR_S);
        Ran::of(command.output().unwrap())
    };
    for (round, server) in [200, -40, 10].into_iter().enumerate() {
        orderer.stop();
        orderer.start_as(&[], |command| clock.shift(command, server * YEAR_S));
        let dir = format!("by ada in round {round}");
        with(&ada, -50, &["mkdir", "notes", &dir]).ends(0);
        // The clocks are wrong indeed: the time of a directory is that of its last author's clock.
        let shown = ada.run(&["--json", "stat", "notes", &dir]).ends(0);
        let mtime = shown.field("mtime").to_string();
        assert!(mtime.contains("197"), "{mtime}");
        std::fs::write(laptop.path("f"), &dir).unwrap();
        let to = format!("{dir}/f");
        with(&laptop, 300, &["put", "f", "notes", &to]).ends(0);
        assert_eq!(with(&ada, -50, &["cat", "notes", &to]).ends(0).out, dir);
        let shown = ada.run(&["--json", "stat", "notes", &dir]).ends(0);
        let mtime = shown.field("mtime").to_string();
        assert!(mtime.contains("232"), "{mtime}");
        let text = with(&laptop, 300, &["share", "compare", "notes"]).ends(0);
        std::fs::write(ada.path("seen"), text.out).unwrap();
        with(&ada, -50, &["share", "compare", "notes", "seen"]).ends(0);
    }
    assert_eq!(names(&ada).lines().count(), 3);
}
