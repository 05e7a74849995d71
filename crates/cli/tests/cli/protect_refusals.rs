//! Protected devices: what is refused (wrong keys, other logs, what is in use), keys, and enrolment.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use serde_json::Value;

use crate::lab::{Lab, MIB, can_mount, sh};
use crate::support::{Ran, noise, wait_until};

#[test]
fn log_of_another_device_is_refused_before_anything_is_written() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.fill();
    lab.enrol(&[]).ends(0);
    // A device of the same length that holds something else, and one of another length.
    let other = noise(1234, 4 << 20);
    std::fs::write(lab.path("e"), &other).unwrap();
    File::create(lab.path("f"))
        .unwrap()
        .set_len(8 << 20)
        .unwrap();
    for device in ["e", "f"] {
        lab.attach_of(device, &["--file", "m"]).ends_json(2);
    }
    assert!(std::fs::read(lab.path("e")).unwrap() == other);
    lab.attach(&[]).ends(0);
    lab.detach().ends(0);
}

/// Two devices that began as one image, each with its log.
#[test]
fn log_of_a_clone_is_refused_before_anything_is_written() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.fill();
    std::fs::copy(lab.path("d"), lab.path("e")).unwrap();
    lab.enrol(&["--anchor", "a"]).ends(0);
    // What the clone's own life has changed: one block in ten, and some that the log of `d` has newer versions of.
    let clone = OpenOptions::new().write(true).open(lab.path("e")).unwrap();
    for block in (0..256).step_by(10).chain(250..256) {
        clone
            .write_all_at(&noise(block, 4096), block * 4096)
            .unwrap();
    }
    let before = std::fs::read(lab.path("e")).unwrap();
    let written = noise(77, 20 * 4096);
    lab.attach(&["--anchor", "a"]).ends(0);
    lab.write(240 * 4096, &written[..16 * 4096]);
    lab.kill();
    let clone = |more: &[&str]| {
        let args = ["--file", "m", "--anchor", "a"];
        lab.attach_of("e", &[&args, more].concat())
    };
    let refused = clone(&[]).ends_json(20);
    assert!(refused.err.contains("of this log"), "{}", refused.err);
    assert!(std::fs::read(lab.path("e")).unwrap() == before);
    // The log is as it was.
    lab.attach(&["--anchor", "a"]).ends(0);
    assert!(lab.read(240 * 4096, 16 * 4096).unwrap() == written[..16 * 4096]);
    lab.detach().ends(0);
    let forced = clone(&["--accept-changed-device"]).ends(0);
    assert!(
        forced.err.contains("not what was written"),
        "{}",
        forced.err
    );
    lab.run(&["--json", "protect", "detach", "e"]).ends(0);
}

#[test]
fn wrong_keys_end_with_12_and_the_recovery_key_opens() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.fill();
    std::fs::write(lab.path("pw"), "right\n").unwrap();
    std::fs::write(lab.path("pw2"), "wrong\n").unwrap();
    let enrolled = lab
        .run(&[
            "--json",
            "protect",
            "enrol",
            "d",
            "--log",
            "l",
            "--ring",
            "16MiB",
            "--passphrase-file",
            "pw",
        ])
        .ends(0);
    let recovery = enrolled.field("recovery_key").as_str().unwrap().to_owned();
    std::fs::write(lab.path("printed"), recovery.to_lowercase()).unwrap();
    std::fs::write(lab.path("typo"), recovery.replacen(&recovery[..1], "*", 1)).unwrap();
    let attach = |key: &[&str]| {
        let args = [
            "--json", "protect", "attach", "d", "--log", "l", "--file", "m",
        ];
        lab.run(&[&args, key].concat())
    };
    attach(&["--passphrase-file", "pw2"]).ends_json(12);
    attach(&["--recovery", "--passphrase-file", "typo"]).ends_json(12);
    std::fs::write(lab.path("k"), noise(5, 64)).unwrap();
    sh(&format!("chmod 600 {}", lab.path("k").display())).unwrap();
    let none = attach(&["--key-file", "k"]).ends_json(12);
    assert!(
        none.err.contains("0 passphrase, 1 recovery"),
        "{}",
        none.err
    );
    attach(&["--no-input"]).ends_json(2);
    attach(&["--recovery", "--passphrase-file", "printed"]).ends(0);
    lab.detach().ends(0);
    attach(&["--passphrase-file", "pw"]).ends(0);
    lab.detach().ends(0);
}

#[test]
fn keys_are_added_listed_and_removed_and_the_last_one_stays() {
    let lab = Lab::new(4);
    lab.enrol(&["--no-recovery-key"]).ends(0);
    let key = |args: &[&str]| lab.run(&[&["--json", "protect", "key"], args].concat());
    let open = ["--key-file", "k"];
    let last = key(&[&["remove", "l", "0"], &open[..]].concat());
    last.ends_json(2);
    std::fs::write(lab.path("pw"), "word\n").unwrap();
    let added = [&["add", "l"], &open[..], &["--new-passphrase-file", "pw"]].concat();
    assert_eq!(key(&added).ends(0).field("slot"), 1);
    let added = [
        &["add", "l", "--passphrase-file", "pw"][..],
        &["--new-recovery"],
    ]
    .concat();
    let recovery = key(&added).ends(0);
    assert_eq!(recovery.field("recovery_key").as_str().unwrap().len(), 41);
    let command = "head -c 64 /dev/zero | tr '\\0' x";
    let added = [&["add", "l"], &open[..], &["--new-key-command", command]].concat();
    assert_eq!(key(&added).ends(0).field("slot"), 3);
    let weak = [
        &["add", "l"],
        &open[..],
        &["--new-key-command", "echo short"],
    ]
    .concat();
    key(&weak).ends_json(2);
    let listed = key(&["list", "l"]).ends(0);
    let kinds: Vec<Value> = listed
        .records("slot")
        .into_iter()
        .map(|it| it["kind"].clone())
        .collect();
    assert_eq!(kinds, ["key-file", "passphrase", "recovery", "command"]);
    // The key that is to be removed does not prove that another one opens.
    key(&[&["remove", "l", "0"], &open[..]].concat()).ends_json(12);
    key(&["remove", "l", "0", "--key-command", command]).ends(0);
    key(&["remove", "l", "0", "--key-command", command]).ends_json(10);
    key(&[&["add", "l"], &open[..], &["--new-recovery"]].concat()).ends_json(12);
    assert_eq!(key(&["list", "l"]).ends(0).field("slots"), 3);
    key(&["list", "d"]).ends_json(10);
}

#[test]
fn device_and_log_are_attached_once() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.fill();
    lab.enrol(&["--anchor", "a"]).ends(0);
    lab.attach(&["--anchor", "a"]).ends(0);
    std::fs::create_dir(lab.path("n")).unwrap();
    let again = [
        "--json",
        "protect",
        "attach",
        "d",
        "--log",
        "l",
        "--key-file",
        "k",
        "--file",
        "n",
    ];
    lab.run(&again).ends_json(11);
    // Another user's runtime directory does not show the first one; the locks do.
    let mut command = lab.home.command(&again);
    command.env("BULLA_RUNTIME_DIR", lab.path("run2"));
    Ran::of(command.output().unwrap()).ends_json(11);
    lab.enrol(&["--yes"]).ends_json(11);
    lab.set_anchor(&[]).ends_json(11);
    lab.run(&["--json", "protect", "key", "list", "l"]).ends(0);
    // A program that uses the file keeps it attached.
    let mut user = File::open(lab.path("m/device")).unwrap();
    lab.detach().ends_json(11);
    user.read_exact(&mut [0; 10]).unwrap();
    drop(user);
    lab.detach().ends(0);
    lab.detach().ends_json(10);
    let status = lab.run(&["--json", "protect", "status", "d"]);
    status.ends_json(10);
}

#[test]
fn device_whose_server_hangs_keeps_no_other_command_waiting() {
    if !can_mount() {
        return;
    }
    let (hanging, other) = (Lab::new(4), Lab::new(4));
    hanging.enrol(&[]).ends(0);
    hanging.attach_loop(&[]).ends(0);
    let pid = hanging.report()["pid"].as_u64().unwrap();
    sh(&format!("kill -STOP {pid}")).unwrap();
    let (done, told) = std::sync::mpsc::channel();
    let commands = std::thread::spawn(move || {
        let codes = [
            other.enrol(&[]),
            other.attach(&[]),
            other.detach(),
            other.run(&["--json", "protect", "scrub", "d"]),
        ];
        done.send(codes.map(|ran| ran.code)).unwrap();
    });
    let codes = told.recv_timeout(Duration::from_secs(60));
    sh(&format!("kill -CONT {pid}")).unwrap();
    commands.join().unwrap();
    hanging.detach().ends(0);
    assert_eq!(codes, Ok([0, 0, 0, 10]));
}

/// The kernel closes the files of a process that was killed some time after `kill` has returned.
#[test]
fn locks_of_a_process_that_ends_soon_are_waited_for() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.enrol(&["--anchor", "a"]).ends(0);
    for name in ["l", "d", "a.lock"] {
        let held = File::open(lab.path(name)).unwrap();
        held.lock().unwrap();
        let ends = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            drop(held);
        });
        lab.attach(&["--anchor", "a"]).ends(0);
        ends.join().unwrap();
        lab.detach().ends(0);
    }
}

#[test]
fn enrol_overwrites_nothing_without_being_told() {
    let lab = Lab::new(4);
    lab.fill();
    let before = std::fs::read(lab.path("d")).unwrap();
    let dry = lab.enrol(&["--dry-run"]).ends(0);
    assert_eq!(dry.field("dry_run"), true);
    assert!(dry.field("log_bytes").as_u64().unwrap() > 16 * MIB);
    for name in ["l", "k", "a"] {
        assert!(!lab.path(name).exists(), "{name}");
    }
    std::fs::write(lab.path("l"), b"precious").unwrap();
    lab.enrol(&[]).ends_json(2);
    assert_eq!(std::fs::read(lab.path("l")).unwrap(), b"precious");
    assert!(!lab.path("k").exists(), "nothing is asked or made in vain");
    std::fs::write(lab.path("a"), b"taken").unwrap();
    lab.enrol(&["--anchor", "a"]).ends_json(1);
    lab.enrol_of("d", "./d", &[]).ends_json(2);
    let odd = File::create(lab.path("odd")).unwrap();
    odd.set_len(1000).unwrap();
    lab.enrol_of("odd", "x", &[]).ends_json(2);
    lab.enrol(&["--yes"]).ends(0);
    assert!(
        std::fs::read(lab.path("d")).unwrap() == before,
        "the device is not changed"
    );
}

#[test]
fn enrol_checks_all_paths_before_it_reads_or_makes_anything() {
    let lab = Lab::new(4);
    lab.fill();
    std::fs::write(lab.path("file"), "").unwrap();
    for dry in [&["--dry-run"][..], &[]] {
        for (anchor, code) in [("no/a", 10), ("file/a", 1)] {
            let ran = lab.enrol(&[&["--anchor", anchor], dry].concat());
            assert!(
                ran.err.contains(&format!("cannot create {anchor}")),
                "{}",
                ran.err
            );
            ran.ends_json(code);
        }
        for anchor in ["d", "./l", "k"] {
            lab.enrol(&[&["--anchor", anchor], dry].concat())
                .ends_json(2);
        }
        lab.enrol_of("d", "no/l", dry).ends_json(10);
        for name in ["l", "k", "a"] {
            assert!(!lab.path(name).exists(), "{name}");
        }
    }
}

#[test]
fn anchor_is_replaced_with_the_log_that_it_belongs_to() {
    let lab = Lab::new(4);
    lab.fill();
    lab.enrol(&["--anchor", "a"]).ends(0);
    let before = std::fs::read(lab.path("a")).unwrap();
    lab.enrol(&["--anchor", "a"]).ends_json(2);
    // It belongs to another log.
    let other = ["--anchor", "a", "--ring", "16MiB", "--yes"];
    lab.enrol_of("d", "l2", &other).ends_json(1);
    assert!(std::fs::read(lab.path("a")).unwrap() == before);
    lab.enrol(&["--anchor", "a", "--yes"]).ends(0);
    assert!(std::fs::read(lab.path("a")).unwrap() != before);
    if can_mount() {
        lab.attach(&["--anchor", "a"]).ends(0);
        lab.detach().ends(0);
    }
}

#[test]
fn anchor_that_missed_an_attachment_is_not_called_a_rollback() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.fill();
    lab.enrol(&["--anchor", "a"]).ends(0);
    lab.attach(&[]).ends(0);
    lab.write(0, &noise(3, 4096));
    lab.detach().ends(0);
    let stale = lab.attach(&["--anchor", "a"]).ends_json(1);
    assert!(stale.err.contains("protect anchor set"), "{}", stale.err);
    // It moves forward, so nothing has to be confirmed.
    lab.set_anchor(&[]).ends(0);
    lab.attach(&["--anchor", "a"]).ends(0);
    assert!(lab.read(0, 4096).unwrap() == noise(3, 4096));
    lab.detach().ends(0);
}

#[test]
fn status_of_a_device_that_takes_no_more_writes_is_not_zero() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.enrol(&["--anchor", "a"]).ends(0);
    lab.attach(&["--anchor", "a"]).ends(0);
    lab.run(&["--json", "protect", "status"]).ends(0);
    // The anchor is gone, and cannot be made again.
    std::fs::remove_file(lab.path("a")).unwrap();
    std::fs::create_dir(lab.path("a.tmp")).unwrap();
    let device = OpenOptions::new().write(true).open(lab.path("m/device"));
    let device = device.unwrap();
    device.write_all_at(&noise(3, 4096), 0).unwrap();
    assert!(device.sync_all().is_err());
    drop(device);
    let status = lab.run(&["--json", "protect", "status"]).ends(3);
    assert_eq!(status.field("read_only"), 1);
    assert!(status.records("device")[0]["read_only"].is_string());
    std::fs::remove_dir(lab.path("a.tmp")).unwrap();
}

#[test]
fn enrolment_that_was_interrupted_goes_on_with_its_key() {
    let lab = Lab::new(64);
    let content = noise(11, 60 << 20);
    let device = OpenOptions::new().write(true).open(lab.path("d")).unwrap();
    device.write_all_at(&content, 0).unwrap();
    drop(device);
    let enrol = [
        "--json", "protect", "enrol", "d", "--log", "l", "--ring", "16MiB",
    ];
    let args = [&enrol[..], &["--key-file", "k"]].concat();
    let mut command = lab.home.command(&args);
    let quiet = std::process::Stdio::null;
    let mut child = command.stdout(quiet()).stderr(quiet()).spawn().unwrap();
    // The log appears when the work begins.
    wait_until("the log appears", || lab.path("l").exists());
    sh(&format!("kill -INT {}", child.id())).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let dry = lab.run(&[&args[..], &["--dry-run"]].concat()).ends(0);
    assert!(dry.field("resumes_at").is_u64(), "{}", dry.out);
    lab.run(&["--json", "protect", "key", "list", "l"])
        .ends_json(10);
    std::fs::write(lab.path("k2"), noise(5, 64)).unwrap();
    sh(&format!("chmod 600 {}", lab.path("k2").display())).unwrap();
    lab.run(&[&enrol[..], &["--key-file", "k2"]].concat())
        .ends_json(12);
    // What was overwritten cannot be asked for again: it goes on without a question.
    let again = lab.run(&args).ends(0);
    assert!(again.field("resumes_at").is_u64());
    assert_eq!(again.field("recovery_key"), Value::Null);
    assert_eq!(
        lab.run(&["--json", "protect", "key", "list", "l"])
            .ends(0)
            .field("slots"),
        2
    );
    if !can_mount() {
        return;
    }
    lab.attach(&[]).ends(0);
    lab.scrub().ends(0);
    lab.detach().ends(0);
}
