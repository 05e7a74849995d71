//! Protected devices with the real kernel: what they promise to whoever uses them.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde_json::Value;

use crate::adversity::through;
use crate::lab::{BLOCK, Lab, MIB, attached_place, can_mount, has_loops, sh};
use crate::support::{noise, wait_until};

#[test]
fn ext4_image_survives_a_crash_and_mounts_raw_again() {
    if !has_loops() {
        return;
    }
    let lab = Lab::new(64);
    sh(&format!("mkfs.ext4 -q -F {}", lab.path("d").display())).unwrap();
    lab.enrol(&["--anchor", "a"]).ends(0);
    let attached = lab.attach_loop(&["--anchor", "a"]).ends(0);
    let is_prepared = !attached.err.contains("CAP_");
    let place = attached_place(attached);
    let pid = lab.report()["pid"].as_u64().unwrap();
    let spared = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
    assert!(!is_prepared || spared.unwrap().trim() == "-1000");
    let mount = |place: &str| {
        sh(&format!("mount {place} {}", lab.path("m").display())).unwrap();
    };
    mount(&place);
    let content = noise(3, 3 << 20);
    std::fs::write(lab.path("m/first"), &content).unwrap();
    File::open(lab.path("m/first")).unwrap().sync_all().unwrap();
    lab.back_up("old");
    std::fs::write(lab.path("m/second"), &content).unwrap();
    let second = File::open(lab.path("m/second")).unwrap();
    second.sync_all().unwrap();
    drop(second);
    // Mounted: nobody detaches it by mistake.
    let refused = lab.detach().ends_json(11);
    assert!(refused.err.contains("is mounted on"), "{}", refused.err);
    // A program that does not end keeps the loop device.
    let held = File::open(lab.path("m/first")).unwrap();
    lab.kill();
    // Its threads end some time after `kill` has returned.
    wait_until("the loop device is stale", || {
        lab.run(&["--json", "protect", "status"]).field("stale") == 1
    });
    // 3: something is there, and does not work.
    let told = lab.run(&["--json", "protect", "status"]).ends(3);
    let stale = told.records("stale");
    assert_eq!(stale[0]["place"], place.as_str(), "{stale:?}");
    assert!(
        stale[0]["hint"].as_str().unwrap().contains("umount"),
        "{stale:?}"
    );
    lab.run(&["protect", "status", &place]).ends(3);
    let ill = lab.run(&["--json", "doctor"]);
    let found = ill.records("finding");
    let text = |it: &Value, key: &str| it[key].as_str().unwrap_or_default().to_owned();
    let stale = found.iter().find(|it| text(it, "what").contains(&place));
    let hint = text(stale.unwrap(), "hint");
    let unmount = format!("umount {}", lab.path("m").display());
    assert!(hint.contains(&format!("`{unmount}`")), "{found:?}");
    sh(&unmount.replace("umount", "umount -l")).unwrap();

    let again = lab.attach_loop(&["--anchor", "a"]).ends(0);
    assert_eq!(again.field("recovered")["was_detached"], false);
    assert!(
        again.err.contains("goes when the last program"),
        "{}",
        again.err
    );
    drop(held);
    let place = attached_place(again);
    // The journal is replayed first, as after every crash.
    let checked = sh(&format!("fsck.ext4 -fy {place}; test $? -le 1"));
    checked.unwrap();
    sh(&format!("fsck.ext4 -fn {place}")).unwrap();
    // Other tests leave dead mounts for a moment.
    wait_until("doctor finds that all is well", || {
        let found = lab.run(&["--json", "doctor"]).records("finding");
        let mut about = found
            .iter()
            .filter(|it| it["check"] == "devices")
            .peekable();
        // This machine's root may lack a capability.
        let is_well =
            |it: &Value| it["level"] == "ok" || text(it, "what").contains("CAP_SYS_RESOURCE");
        about.peek().is_some() && about.all(is_well)
    });
    mount(&place);
    assert!(std::fs::read(lab.path("m/first")).unwrap() == content);
    assert!(std::fs::read(lab.path("m/second")).unwrap() == content);
    sh(&format!("umount {}", lab.path("m").display())).unwrap();
    lab.detach().ends(0);

    // Raw, without bulla: the same file system.
    sh(&format!("fsck.ext4 -fn {}", lab.path("d").display())).unwrap();
    let raw = format!(
        "mount -o loop,ro {} {}",
        lab.path("d").display(),
        lab.path("m").display()
    );
    sh(&raw).unwrap();
    assert!(std::fs::read(lab.path("m/second")).unwrap() == content);
    // Mounted without bulla: attaching it would be two writers.
    let mounted = lab.attach_loop(&["--anchor", "a"]).ends_json(11);
    assert!(mounted.err.contains("is attached to it"), "{}", mounted.err);
    sh(&format!("umount {}", lab.path("m").display())).unwrap();

    // Both devices from before: the anchor knows better.
    lab.put_back("old");
    let rollback = lab.attach_loop(&["--anchor", "a"]).ends_json(21);
    assert!(rollback.err.contains("put back"), "{}", rollback.err);
}

#[test]
fn attachment_says_that_it_is_not_prepared_for_a_lack_of_memory() {
    if !has_loops() {
        return;
    }
    let lab = Lab::new(4);
    lab.enrol(&[]).ends(0);
    let args = ["--json", "protect", "attach", "d", "--log", "l"];
    let args = [&args[..], &["--key-file", "k"]].concat();
    let words = ["--bounding-set=-sys_resource"];
    let Some(attached) = through("setpriv", &words, &lab.home.command(&args)) else {
        return;
    };
    let attached = attached.ends(0);
    assert!(
        attached.err.contains("CAP_SYS_RESOURCE"),
        "{}",
        attached.err
    );
    let status = lab.run(&["--json", "protect", "status"]).records("device");
    let says_it = |text: &Value| text.as_str().unwrap().contains("CAP_SYS_RESOURCE");
    assert!(says_it(&status[0]["unprepared"]), "{status:?}");
    let found = lab.run(&["--json", "doctor"]).records("finding");
    assert!(found.iter().any(|it| says_it(&it["what"])), "{found:?}");
    lab.detach().ends(0);
    // Without it, nothing is told where this machine's root has it.
    let whole = lab.attach_loop(&[]).ends(0);
    let root = sh("setpriv --dump").unwrap();
    let has_it = root
        .lines()
        .any(|line| line.starts_with("Capability bounding") && line.contains("sys_resource"));
    assert_eq!(!whole.err.contains("CAP_"), has_it, "{root}\n{}", whole.err);
    lab.detach().ends(0);
}

#[test]
fn flipped_bit_is_an_error_that_names_block_and_offset() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    let content = lab.fill();
    lab.enrol(&[]).ends(0);
    let bad = 77;
    lab.flip(bad * BLOCK + 1234);
    lab.attach(&[]).ends(0);
    assert!(lab.read(0, 65536).unwrap() == content[..65536]);
    let error = lab.read(bad * BLOCK, 10).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(5), "{error}");
    let report = lab.report();
    assert_eq!(report["bad_blocks"], 1, "{report}");
    assert_eq!(report["last_bad"]["block"], bad);
    assert_eq!(report["last_bad"]["offset"], bad * BLOCK);
    let told = lab.run(&["protect", "status"]).ends(0);
    assert!(told.out.contains("block 77 (offset 315392"), "{}", told.out);

    let scrub = lab.run(&["--json", "protect", "scrub", "l"]).ends_json(20);
    assert_eq!(scrub.field("bad_blocks"), 1);
    let told = scrub.records("bad");
    assert_eq!(
        (&told[0]["block"], &told[0]["offset"]),
        (&bad.into(), &(bad * BLOCK).into())
    );

    // Written anew as a whole, it can be read again.
    let page = noise(9, BLOCK as usize);
    lab.write(bad * BLOCK, &page);
    assert!(lab.read(bad * BLOCK, BLOCK as usize).unwrap() == page);
    lab.scrub().ends(0);
    lab.detach().ends(0);
}

#[test]
fn devices_that_were_put_back_together_are_only_noticed_with_an_anchor() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    let content = lab.fill();
    lab.enrol(&["--anchor", "a"]).ends(0);
    lab.back_up("old");
    lab.attach(&["--anchor", "a"]).ends(0);
    lab.write(8192, &noise(2, 512));
    lab.detach().ends(0);
    lab.put_back("old");
    let refused = lab.attach(&["--anchor", "a"]).ends_json(21);
    assert!(refused.err.contains("put back"), "{}", refused.err);
    // Without one, it is attached, and says so.
    let blind = lab.attach(&[]).ends(0);
    assert!(blind.err.contains("without an anchor"), "{}", blind.err);
    assert!(lab.read(8192, 512).unwrap() == content[8192..8704]);
    let told = lab.run(&["protect", "status"]).ends(0);
    assert!(told.out.contains("anchor   NONE"), "{}", told.out);
    lab.detach().ends(0);
    // The way back, for those who know why.
    lab.set_anchor(&[]).ends_json(21);
    lab.set_anchor(&["--yes"]).ends(0);
    lab.attach(&["--anchor", "a", "--anchor-mode", "lag=5s"])
        .ends(0);
    assert_eq!(lab.report()["anchor"]["mode"], "lag=5s");
    lab.detach().ends(0);
    // An anchor that is missing, of another volume, or no anchor at all.
    lab.attach(&["--anchor", "nothing"]).ends_json(10);
    lab.attach(&["--anchor", "d"]).ends_json(1);
    assert!(!lab.path("nothing.lock").exists());
}

#[test]
fn sigterm_detaches_in_order_and_metrics_are_served() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    let mut content = lab.fill();
    lab.enrol(&[]).ends(0);
    let attached = lab.attach(&["--metrics", "127.0.0.1:0"]).ends(0);
    let address = attached.field("metrics").as_str().unwrap().to_owned();
    let changed = noise(2, 1024);
    lab.write(40960, &changed);
    content[40960..41984].copy_from_slice(&changed);
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(
        page.contains("\nbulla_device_flushes_total{volume="),
        "{page}"
    );
    assert!(page.contains("\nbulla_device_anchored{volume="), "{page}");
    let pid = attached.field("pid").as_u64().unwrap();
    sh(&format!("kill {pid}")).unwrap();
    wait_until("the daemon ends", || {
        std::fs::read_dir(lab.path("run/bulla/protect"))
            .unwrap()
            .count()
            == 0
    });
    wait_until("the device is free", || lab.attach(&[]).code == 0);
    assert_eq!(lab.report()["recovered"]["was_detached"], true);
    lab.detach().ends(0);
    assert!(std::fs::read(lab.path("d")).unwrap()[..MIB as usize] == content);
}

#[test]
fn device_that_was_written_without_bulla_is_told() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(4);
    lab.fill();
    lab.enrol(&[]).ends(0);
    let raw = OpenOptions::new().write(true).open(lab.path("d")).unwrap();
    raw.write_all_at(&noise(8, 64 << 10), 128 << 10).unwrap();
    drop(raw);
    // It could be another device.
    lab.attach(&[]).ends_json(20);
    lab.attach(&["--accept-changed-device"]).ends(0);
    let scrub = lab.scrub().ends_json(20);
    assert_eq!(scrub.field("bad_blocks"), 16);
    assert_eq!(scrub.records("bad").len(), 16);
    lab.run(&["--json", "protect", "detach", "d", "--force"])
        .ends(0);
    // A new enrolment accepts what is there.
    lab.enrol(&["--yes"]).ends(0);
    lab.attach(&[]).ends(0);
    lab.scrub().ends(0);
    lab.detach().ends(0);
}

#[test]
fn scrub_that_is_interrupted_goes_on_where_it_was() {
    if !can_mount() {
        return;
    }
    let lab = Lab::new(8);
    lab.fill();
    lab.enrol(&[]).ends(0);
    lab.attach(&[]).ends(0);
    let slow = ["protect", "scrub", "d", "--bwlimit", "1MiB"];
    let mut child = lab.home.command(&slow).spawn().unwrap();
    let position = || {
        let state = lab.path(".local/state/bulla/devices");
        let files = std::fs::read_dir(state).unwrap().flatten();
        files
            .map(|it| it.path())
            .find(|it| it.extension().is_some_and(|it| it == "scrub"))
    };
    wait_until("a position is kept", || position().is_some());
    lab.scrub().ends_json(11);
    child.kill().unwrap();
    child.wait().unwrap();
    let mut again = lab.scrub();
    wait_until("the first scrub ends with its client", || {
        if again.code == 11 {
            again = lab.scrub();
        }
        again.code != 11
    });
    let again = again.ends(0);
    assert!(again.field("first_block").as_u64().unwrap() > 0);
    assert!(position().is_none());
    lab.detach().ends(0);
}

#[test]
fn nbd_shows_the_device_on_a_socket() {
    let lab = Lab::new(4);
    lab.fill();
    lab.enrol(&[]).ends(0);
    let attached = lab.attach_of("d", &["--nbd", "./socket"]).ends(0);
    let socket = lab.path("socket").canonicalize().unwrap();
    assert_eq!(Path::new(attached.field("place").as_str().unwrap()), socket);
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    let mut greeting = [0; 16];
    client.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"NBDMAGICIHAVEOPT");
    lab.detach().ends_json(11);
    drop(client);
    wait_until("the client is gone", || lab.detach().code == 0);
    lab.attach_of("d", &["--nbd", "nowhere"]).ends_json(2);
}
