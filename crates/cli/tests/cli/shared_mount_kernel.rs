//! What the kernel keeps of a mounted shared volume, and how it hears of changes. Names may be an hour old here: whatever
//! comes sooner comes by the feed of the log.

use std::fs;
use std::time::Duration;

use crate::shared_mount_lab::{Mount, can_mount, two_devices};
use crate::support::wait_until;

/// Whether the kernel makes all names stale at once. Without that it keeps them for their time.
fn has_epochs() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|it| it.parse().ok());
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    version >= (6, 16)
}

#[test]
fn kernel_hears_of_what_other_devices_change() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &["--attr", "1h"]));
    fs::create_dir(a.path("d")).unwrap();
    fs::write(a.path("d/f"), "one").unwrap();
    let len = || fs::metadata(b.path("d/f")).map(|it| it.len()).ok();
    wait_until("the other mount shows the file", || len() == Some(3));
    // The feed has told of the new names by then, and the kernel keeps the attributes again.
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(len(), Some(3));
    fs::write(a.path("d/f"), "longer").unwrap();
    wait_until("it shows its length", || len() == Some(6));
    if !has_epochs() {
        return;
    }
    let is_there = |name: &str| fs::symlink_metadata(b.path(name)).is_ok();
    assert!(!is_there("d/new"));
    fs::write(a.path("d/new"), "new").unwrap();
    wait_until("it shows the new name", || is_there("d/new"));
    fs::remove_file(a.path("d/f")).unwrap();
    wait_until("it shows no removed name", || !is_there("d/f"));
    fs::rename(a.path("d"), a.path("e")).unwrap();
    wait_until("it shows the moved directory", || {
        is_there("e/new") && !is_there("d")
    });
}

#[test]
fn kernel_hears_of_what_commands_of_this_device_change_beside_the_mount() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, _ben) = two_devices();
    let a = Mount::of(&ada, &["--attr", "1h"]);
    fs::write(a.path("f"), "one").unwrap();
    assert_eq!(fs::metadata(a.path("f")).unwrap().len(), 3);
    let file = ada.path("content");
    fs::write(&file, "from a command").unwrap();
    ada.run(&["put", file.to_str().unwrap(), "notes", "f"])
        .ends(0);
    wait_until("the mount shows what the command wrote", || {
        fs::metadata(a.path("f")).unwrap().len() == 14
    });
    assert_eq!(fs::read_to_string(a.path("f")).unwrap(), "from a command");
    if has_epochs() {
        ada.run(&["rm", "notes", "f"]).ends(0);
        wait_until("the mount shows no removed name", || {
            fs::symlink_metadata(a.path("f")).is_err()
        });
    }
}

#[test]
fn file_that_grew_elsewhere_is_read_to_its_end() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &["--attr", "1h"]));
    fs::write(a.path("f"), "").unwrap();
    let mut text = String::new();
    for round in 0..30 {
        text += &format!("round {round}\n");
        fs::write(a.path("f"), &text).unwrap();
        // No wait: OPEN is as new as the last close. Mostly it comes before the feed.
        assert_eq!(fs::read_to_string(b.path("f")).unwrap(), text);
        assert_eq!(fs::metadata(b.path("f")).unwrap().len(), text.len() as u64);
    }
}
