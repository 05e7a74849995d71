//! Mounts of shared volumes whose server lies, or is away.

use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::shared_gate::Gate;
use crate::shared_lab::{Orderer, Talk, found, founded, joined};
use crate::shared_mount_lab::{Mount, can_mount, signal, two_devices};
use crate::shared_repair::verify;
use crate::support::{Home, Tmpfs, damage_largest, noise, skipped, wait_until};

/// Compares what another device has seen with what this one has seen. A note of a longer log proves nothing: this one gets
/// longer.
fn convicted(home: &Home, mount: &Mount<'_>) {
    wait_until("the fork", || {
        let ran = home.run(&["share", "compare", "notes", "seen"]);
        assert!(matches!(ran.code, 22 | 30), "{} {}", ran.out, ran.err);
        if ran.code == 30 {
            for name in ["x", "y", "z"] {
                fs::write(mount.path(name), "more\n").unwrap();
            }
        }
        ran.code == 22
    });
}

#[test]
fn mounts_of_a_server_that_forks_turn_read_only_and_keep_what_was_written() {
    if !can_mount() {
        return;
    }
    let (mut orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("plan"), "both know this\n").unwrap();
    assert_eq!(
        fs::read_to_string(b.path("plan")).unwrap(),
        "both know this\n"
    );
    orderer.turn_into_liar(&["repo", "other"]);
    fs::write(a.path("plan"), "the ferry goes at nine\n").unwrap();
    fs::write(b.path("plan"), "the ferry goes at ten\n").unwrap();
    // Each sees its own log, and the commands beside the mounts compare.
    let seen = ada.run(&["share", "compare", "notes"]).ends(0).out;
    fs::write(ben.path("seen"), seen).unwrap();
    // A program that has not closed what it wrote.
    let mut program = Command::new("sh")
        .args(["-c", "exec 3>>plan; echo not yet closed >&3; read line"])
        .current_dir(b.path(""))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the write", || {
        let shown = fs::read_to_string(b.path("plan")).unwrap();
        shown.ends_with("closed\n")
    });
    convicted(&ben, &b);
    wait_until("the read-only mount", || {
        let refused = fs::write(b.path("other"), "no\n");
        refused.is_err_and(|error| error.raw_os_error() == Some(Errno::ROFS.raw_os_error()))
    });
    let status = b.status();
    let why = status["read_only"]["why"].as_str().unwrap();
    assert!(why.contains("has lied"), "{status}");
    assert!(b.log().contains("read-only"), "{}", b.log());
    // What was verified before stays, with what is dirty over it.
    let shown = fs::read_to_string(b.path("plan")).unwrap();
    assert!(shown.starts_with("the ferry goes at ten\n"), "{shown}");
    // The bytes that are not in the log become a file. On a slow machine the log has them already.
    program.kill().unwrap();
    program.wait().unwrap();
    b.end();
    let all = "the ferry goes at ten\nnot yet closed\n";
    match fs::read_to_string(unsent(&ben).join("plan")) {
        Ok(kept) => assert_eq!(kept, all),
        Err(_) => assert_eq!(ben.run(&["cat", "notes", "plan"]).ends(22).out, all),
    }
    // The other device, too, once it compares.
    let seen = ben.run(&["share", "compare", "notes"]).ends(22).out;
    fs::write(ada.path("seen"), seen).unwrap();
    convicted(&ada, &a);
    wait_until("the other read-only mount", || {
        fs::write(a.path("other"), "no\n").is_err()
    });
    assert_eq!(
        fs::read_to_string(a.path("plan")).unwrap(),
        "the ferry goes at nine\n"
    );
}

#[test]
fn bytes_that_the_server_does_not_take_are_kept_when_the_mount_ends() {
    if !can_mount() {
        return;
    }
    let (mut orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &["--deadline", "3s"]);
    fs::write(a.path("f"), "one\n").unwrap();
    let open = fs::File::options().append(true).open(a.path("f")).unwrap();
    orderer.kill();
    let two = format!("two {}\n", "x".repeat(1000));
    (&open).write_all(two.as_bytes()).unwrap();
    let error = open.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
    assert_eq!(a.status()["dirty"]["files"], 1);
    drop(open);
    a.end();
    let f = unsent(&ada).join("f");
    assert_eq!(fs::read_to_string(f).unwrap(), format!("one\n{two}"));
    orderer.start();
    // The entry is in the journal, and nobody wrote meanwhile: the device stores its blocks, and it goes on.
    let a = Mount::of(&ada, &[]);
    let shown = fs::read_to_string(a.path("f")).unwrap();
    assert_eq!(shown, format!("one\n{two}"));
}

#[test]
fn bytes_that_were_told_lost_go_beside_what_others_wrote_since() {
    if !can_mount() {
        return;
    }
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let gate = Gate::to(orderer.port);
    orderer.seen_at = Some(format!("127.0.0.1:{}", gate.port));
    let ada = found(&mut orderer, &key, &[], &[]);
    let ben = joined(&ada, "ada");
    let a = Mount::of(&ada, &["--deadline", "2s"]);
    fs::write(a.path("f"), "one\n").unwrap();
    let file = fs::File::options().append(true).open(a.path("f")).unwrap();
    // Others may use what a device has confirmed, which it does at once.
    ben.run(&["cat", "notes", "f"]).ends(0);
    gate.shut();
    let two = format!("two {}\n", "x".repeat(1000));
    (&file).write_all(two.as_bytes()).unwrap();
    let lost = file.sync_all().unwrap_err();
    assert_eq!(lost.raw_os_error(), Some(Errno::IO.raw_os_error()));
    // A new process inherits what is open and closes it, which waits for the mount.
    drop(file);
    // The server is back, and the other device comes first.
    let stopped = a.stopped();
    gate.open();
    fs::write(ben.path("f"), "others\n").unwrap();
    let put = ben.run(&["put", "f", "notes"]);
    drop(stopped);
    put.ends(0);
    let copy = || {
        let names = ben.run(&["ls", "notes"]).ends(0).out;
        let name = names.lines().find(|name| name.contains("(conflict device"));
        name.map(str::to_owned)
    };
    wait_until("the conflict copy", || copy().is_some());
    assert_eq!(ben.run(&["cat", "notes", "f"]).ends(0).out, "others\n");
    let copied = ben.run(&["cat", "notes", &copy().unwrap()]).ends(0).out;
    assert_eq!(copied, format!("one\n{two}"));
    wait_until("nothing dirty", || a.status()["dirty"]["files"] == 0);
    assert_eq!(fs::read_to_string(a.path("f")).unwrap(), "others\n");
    // Somebody chooses.
    let copy = copy().unwrap();
    let take = ["share", "conflicts", "notes", "--take", "copy", &copy];
    ben.run(&take).ends(0);
    assert_eq!(fs::read_to_string(a.path("f")).unwrap(), copied);
}

/// Two descriptors of a file `f` to which it appends. (In a process of its own: tests beside this one begin processes, which
/// inherit what is open here, close it, and are told.)
const TWO_DESCRIPTORS: &str = "
import os
def sync(fd):
    try:
        os.fsync(fd)
        return 0
    except OSError as error:
        return error.errno
first, second = [os.open('f', os.O_WRONLY | os.O_APPEND) for _ in range(2)]
print('open', flush=True)
input()
os.write(first, b'two\\n')
os.write(second, b'three\\n')
print(sync(first), flush=True)
input()
while sync(first):
    pass
print(sync(second), sync(second), flush=True)
";

#[test]
fn each_descriptor_is_told_once_that_bytes_are_lost() {
    if !can_mount() {
        return;
    }
    let (orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &["--deadline", "2s"]);
    fs::write(a.path("f"), "one\n").unwrap();
    let mut command = Command::new("python3");
    command
        .args(["-c", TWO_DESCRIPTORS])
        .current_dir(a.path(""));
    let mut program = Talk::begin(command.stdin(Stdio::piped()));
    let mut stdin = program.child.stdin.take().unwrap();
    assert_eq!(program.line(), "open");
    signal(orderer.process(), Signal::STOP);
    stdin.write_all(b"\n").unwrap();
    assert_eq!(program.line(), "5");
    signal(orderer.process(), Signal::CONT);
    // Nobody else wrote: the bytes are committed, and the other descriptor is told of the loss.
    stdin.write_all(b"\n").unwrap();
    assert_eq!(program.line(), "5 0");
    program.end().ends(0);
    assert_eq!(
        fs::read_to_string(a.path("f")).unwrap(),
        "one\ntwo\nthree\n"
    );
}

#[test]
fn mount_says_what_is_wrong() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada) = founded(&[]);
    let a = Mount::of(&ada, &[]);
    fs::create_dir(ada.path("second")).unwrap();
    let told = ada.run(&["--json", "mount", "notes", "second"]).ends(11);
    assert_eq!(told.field("error")["kind"], "locked");
    for flag in [["--refresh", "5s"], ["--owner", "1:2"]] {
        ada.run(&[&["mount", "notes", "second"], &flag[..]].concat())
            .ends(2);
    }
    a.end();
    // The home would be below the mount.
    let state = ada.path(".local");
    ada.run(&["mount", "notes", state.to_str().unwrap()])
        .ends(1);
}

/// Where a mount keeps what the server has not taken.
fn unsent(home: &Home) -> PathBuf {
    let shared = home.path(".local/state/bulla/shared");
    let volume = fs::read_dir(shared).unwrap().next().unwrap().unwrap();
    volume.path().join("unsent")
}

#[test]
fn conflict_copy_is_not_made_of_content_that_the_server_has_lost() {
    if !can_mount() {
        return;
    }
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let ada = found(&mut orderer, &key, &[], &["--ring", "4MiB"]);
    let ben = joined(&ada, "ada");
    let a = Mount::of(&ada, &["--deadline", "2s"]);
    // Its blocks are in segments.
    fs::write(a.path("f"), noise(9, 9 << 20)).unwrap();
    orderer.kill();
    let file = fs::File::options().write(true).open(a.path("f"));
    // An open asks the server, which is away.
    assert_eq!(
        file.unwrap_err().raw_os_error(),
        Some(Errno::IO.raw_os_error())
    );
    orderer.start();
    wait_until("the server", || fs::File::open(a.path("f")).is_ok());
    let file = fs::File::options().write(true).open(a.path("f")).unwrap();
    orderer.kill();
    file.write_at(b"changed", 0).unwrap();
    assert!(file.sync_all().is_err());
    drop(file);
    // The other device replaces it, and the old content is lost, as after a collection.
    let stopped = a.stopped();
    orderer.start();
    fs::write(ben.path("f"), "others\n").unwrap();
    ben.run(&["put", "f", "notes"]).ends(0);
    orderer.stop();
    // A segment with many blocks: the one that was changed may lie alone in another.
    damage_largest(&orderer.home.path("repo/blocks/segments"));
    verify(&orderer, &["--repair"]).ends(3);
    orderer.start();
    drop(stopped);
    wait_until("the reason", || {
        a.log().contains("does not have the content any more")
    });
    assert_eq!(a.status()["dirty"]["files"], 1);
    assert_eq!(ben.run(&["ls", "notes"]).ends(0).out, "f\n");
    ben.run(&["verify", "notes", "--deadline", "30s"]).ends(0);
    assert_eq!(fs::read_to_string(ben.path("f")).unwrap(), "others\n");
}

/// One program writes what the server has no room for; another one was killed while such a change was on its way.
#[test]
fn mount_of_a_full_server_says_so_removes_files_and_begins_again_after_a_kill() {
    if !can_mount() {
        return;
    }
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let Some(disk) = Tmpfs::of(&orderer.home, "repo", 64 << 20) else {
        return skipped("full disks of servers", "no tmpfs can be mounted");
    };
    let ada = found(&mut orderer, &key, &[], &["--ring", "8MiB"]);
    fs::write(ada.path("small"), "before").unwrap();
    for name in ["one", "other", "late"] {
        ada.run(&["put", "small", "notes", name]).ends(0);
    }
    disk.leave_free(12 << 20);
    let is_full = (0..60).any(|n| {
        fs::write(ada.path("long"), noise(n, 700_000)).unwrap();
        let ran = ada.run(&["put", "long", "notes", &n.to_string(), "--deadline", "15s"]);
        ran.code != 0
    });
    assert!(is_full, "the disk was never full");
    let mount = Mount::of(&ada, &[]);
    let mut new = fs::File::create(mount.path("new")).unwrap();
    new.write_all(&noise(100, 700_000)).unwrap();
    let full = new.sync_all().unwrap_err();
    assert_eq!(full.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    fs::remove_file(mount.path("one")).unwrap();
    mount.kill();
    drop(new);

    let mount = Mount::of(&ada, &[]);
    let mut late = fs::File::create(mount.path("late")).unwrap();
    signal(orderer.process(), Signal::STOP);
    let writer = thread::spawn(move || {
        let _ = late.write_all(&noise(101, 700_000));
        // It ends with the mount.
        late.sync_all().is_ok()
    });
    thread::sleep(Duration::from_secs(2));
    mount.kill();
    assert!(!writer.join().unwrap());
    signal(orderer.process(), Signal::CONT);
    let mount = Mount::of(&ada, &[]);
    fs::remove_file(mount.path("other")).unwrap();
    assert!(!mount.path("other").exists());
    mount.end();
    disk.free();
    orderer.kill();
}
