//! Every name of a mount that the kernel takes: symbolic links, `..` and bind mounts, for `status`, `umount`, `doctor`
//! and `mount`, while the mount lives and when its daemon has died.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::support::{Home, Mounted, Ran, skipped, wait_until};

fn mount_table() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

fn is_mounted(home: &Home, name: &str) -> bool {
    mount_table().contains(&format!(" {} ", home.path(name).display()))
}

/// A bind mount of `from` on the new directory `to`. Whether this process may make one.
fn bind(home: &Home, from: &str, to: &str) -> bool {
    fs::create_dir_all(home.path(to)).unwrap();
    let mut mount = Command::new("mount");
    mount
        .arg("--bind")
        .args([home.path(from), home.path(to)])
        .stderr(Stdio::null());
    mount.status().is_ok_and(|status| status.success())
}

/// A mount on `mnt`, links to it, and bind mounts of it and of a directory in it.
struct Named<'a> {
    daemon: Child,
    home: &'a Home,
    source: String,
    _mounted: [Mounted<'a>; 3],
}

fn named(home: &Home) -> Option<Named<'_>> {
    if !std::path::Path::new("/dev/fuse").exists() {
        skipped("names of a mount", "no /dev/fuse");
        return None;
    }
    let source = home.source(&home.published(), "repo");
    fs::create_dir_all(home.path("dir/mnt")).unwrap();
    symlink("dir/mnt", home.path("link")).unwrap();
    symlink("link", home.path("link2")).unwrap();
    let args = ["mount", &source, "dir/mnt", "--foreground"];
    let mut command = home.command(&args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let daemon = command.spawn().unwrap();
    let mounted = |dir| Mounted { home, dir };
    let mounts = [mounted("dir/mnt"), mounted("bound"), mounted("part")];
    wait_until("the mount", || home.path("dir/mnt/sub").exists());
    wait_until("the report", || status(home, "dir/mnt").code == 0);
    Some(Named {
        daemon,
        home,
        source,
        _mounted: mounts,
    })
}

fn status(home: &Home, name: &str) -> Ran {
    home.run(&["--json", "status", name])
}

/// Names that lead to the mount while it lives, and when its daemon has died.
const NAMES: [&str; 6] = [
    "dir/mnt",
    "dir/mnt/",
    "link",
    "link2/",
    "dir/../link",
    "dir/./mnt",
];

/// What a command says about the mounts of this home.
fn about_home(home: &Home, ran: &Ran, kind: &str, key: &str) -> Vec<Value> {
    let root = home.path("").display().to_string();
    let mut records = ran.records(kind);
    records.retain(|record| {
        record[key]
            .as_str()
            .is_some_and(|text| text.contains(&root))
    });
    records
}

#[test]
fn living_mount_is_known_by_every_name_of_it() {
    let home = Home::new();
    let Some(mut named) = named(&home) else {
        return;
    };
    let place = home.path("dir/mnt").display().to_string();
    let is_bound = bind(&home, "dir/mnt", "bound") && bind(&home, "dir/mnt/sub", "part");
    let binds: &[&str] = if is_bound { &["bound", "part"] } else { &[] };
    for name in NAMES.iter().chain(&["dir/mnt/sub/.."]).chain(binds) {
        let told = status(&home, name).ends(0).records("mount");
        assert_eq!(told.len(), 1, "{name}");
        assert_eq!(told[0]["dir"], place, "{name}");
    }
    status(&home, "dir/mnt/sub").ends(10);
    status(&home, "dir").ends(10);
    home.run(&["umount", "dir/mnt/sub"]).ends(31);
    // A bind mount is not a mount whose daemon is missing.
    let all = home.run(&["--json", "status"]);
    assert_eq!(about_home(&home, &all, "mute", "place"), [] as [Value; 0]);
    let checked = home.run(&["--json", "doctor"]);
    for finding in about_home(&home, &checked, "finding", "what") {
        assert_ne!(finding["level"], "problem", "{finding}");
    }
    home.run(&["mount", &named.source, "link"]).ends(31);
    if !is_bound {
        skipped("bind mounts of a mount", "mount --bind is not permitted");
    }
    for name in binds {
        home.run(&["umount", name]).ends(0);
        assert!(!is_mounted(&home, name));
        assert!(home.path("dir/mnt/a").exists());
    }
    home.run(&["umount", "link2"]).ends(0);
    assert!(!is_mounted(&home, "dir/mnt"));
    assert!(named.daemon.wait().unwrap().success());
}

#[test]
fn dead_mount_is_known_by_every_name_of_it() {
    let home = Home::new();
    let Some(mut named) = named(&home) else {
        return;
    };
    named.daemon.kill().unwrap();
    named.daemon.wait().unwrap();
    for name in NAMES {
        let told = status(named.home, name);
        assert_eq!(told.code, 3, "{name}: {}", told.err);
        let mute = told.records("mute");
        assert!(mute[0]["why"].as_str().unwrap().contains("dead"), "{name}");
    }
    home.run(&["umount", "link2"]).ends(0);
    assert!(!is_mounted(&home, "dir/mnt"));
    home.run(&["umount", "link2"]).ends(31);
}

#[test]
fn mount_through_a_link_takes_the_place_of_a_dead_mount() {
    let home = Home::new();
    let Some(mut named) = named(&home) else {
        return;
    };
    named.daemon.kill().unwrap();
    named.daemon.wait().unwrap();
    let again = home.run(&["mount", &named.source, "link"]).ends(0);
    assert!(again.err.contains("removed a dead mount"), "{}", again.err);
    assert_eq!(fs::read(home.path("link/a")).unwrap(), b"hello\n");
    home.run(&["umount", "link"]).ends(0);
    assert!(!is_mounted(&home, "dir/mnt"), "the dead mount lay below");
    let other = home
        .run(&["--json", "mount", &named.source, "link"])
        .ends(0);
    assert_eq!(other.field("cleared_dead"), Value::Null);
}

#[test]
fn daemon_that_ends_leaves_no_bind_mount_behind() {
    let home = Home::new();
    let Some(mut named) = named(&home) else {
        return;
    };
    if !bind(&home, "dir/mnt", "bound") || !bind(&home, "dir/mnt/sub", "part") {
        return skipped("bind mounts of a mount", "mount --bind is not permitted");
    }
    let id = named.daemon.id().to_string();
    assert!(Command::new("kill").arg(id).status().unwrap().success());
    assert!(named.daemon.wait().unwrap().success());
    for name in ["dir/mnt", "bound", "part"] {
        assert!(!is_mounted(&home, name), "{name}");
    }
}
