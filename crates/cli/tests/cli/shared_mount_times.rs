//! Times of files and directories in mounts of one shared volume.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use crate::shared_mount::run;
use crate::shared_mount_lab::{Mount, can_mount, two_devices};

/// Modification and change, in nanoseconds.
fn times(path: &Path) -> (i128, i128) {
    let stat = fs::symlink_metadata(path).unwrap();
    times_of(&stat)
}

fn times_of(stat: &fs::Metadata) -> (i128, i128) {
    let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
    (
        time(stat.mtime(), stat.mtime_nsec()),
        time(stat.ctime(), stat.ctime_nsec()),
    )
}

#[test]
fn times_are_those_of_a_local_disk() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (
        Mount::of(&ada, &["--attr", "0s"]),
        Mount::of(&ben, &["--attr", "0s"]),
    );
    let (here, there) = (a.path("d"), b.path("d"));
    fs::create_dir(&here).unwrap();
    // Each change of a name by the other device changes the directory's times.
    let changes: [&dyn Fn() -> std::io::Result<()>; 5] = [
        &|| fs::write(there.join("f"), "x"),
        &|| fs::rename(there.join("f"), there.join("g")),
        &|| fs::hard_link(there.join("g"), there.join("h")),
        &|| fs::remove_file(there.join("h")),
        &|| fs::create_dir(there.join("e")),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let before = times(&here);
        change().unwrap();
        let after = times(&here);
        assert!(after.0 > before.0 && after.1 > before.1, "change {number}");
        assert_eq!(after, times(&there));
    }
    // What a program sets stays, and says when it was set.
    let before = times(&here);
    run(&there, "touch -d 1999-12-31T23:59:59.5Z .");
    let after = times(&here);
    assert_eq!(after.0, 946_684_799_500_000_000);
    assert!(after.1 > before.1);
    fs::set_permissions(&there, fs::Permissions::from_mode(0o711)).unwrap();
    let changed = times(&here);
    assert_eq!(changed.0, after.0);
    assert!(changed.1 > after.1);
    // A file's change is seen in its ctime, also if the program sets its time back.
    let file = here.join("g");
    let mut before = times(&file);
    for line in [
        "echo y >> g",
        "touch -d @7 g",
        "chmod 600 g",
        "ln g i",
        "rm i",
    ] {
        run(&there, line);
        let after = times(&file);
        assert!(after.1 > before.1, "{line}");
        before = after;
    }
    assert_eq!(before.0, 7_000_000_000);
    // Programs keep the times that they see before close (git).
    for (name, content) in [("w", "content"), ("empty", "")] {
        let mut writes = fs::File::create(here.join(name)).unwrap();
        writes.write_all(content.as_bytes()).unwrap();
        let open = times_of(&writes.metadata().unwrap());
        drop(writes);
        assert_eq!(times(&here.join(name)), open, "{name}");
        assert_eq!(times(&there.join(name)), open, "{name}");
    }
}
