//! Mounts with the real binary: very large directories in bounded memory, a statement that expires and is
//! renewed, and the check at the end of the test script that no mount is left.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Home, Mounted, skipped, wait_until};

fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        skipped("mount", "no /dev/fuse");
    }
    can
}

/// `bulla mount --foreground`, which is ended and unmounted on drop.
struct Daemon<'a> {
    child: Child,
    _mounted: Mounted<'a>,
}

impl Daemon<'_> {
    fn start<'a>(home: &'a Home, source: &str, more: &[&str]) -> Daemon<'a> {
        fs::create_dir(home.path("mnt")).unwrap();
        let mut args = vec!["mount", source, "mnt", "--foreground"];
        args.extend(more);
        let child = home.command(&args).stderr(Stdio::null()).spawn().unwrap();
        let mounted = Mounted { home, dir: "mnt" };
        wait_until("the mount", || {
            mount_table().contains(&home.path("mnt").display().to_string())
        });
        Daemon {
            child,
            _mounted: mounted,
        }
    }

    /// Peak of its resident memory, bytes.
    fn peak_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: u64 = peak
            .unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap();
        kib * 1024
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        // A process that was waited for has given its number back.
        if matches!(self.child.try_wait(), Ok(Some(_))) {
            return;
        }
        let _ = Command::new("kill")
            .arg(self.child.id().to_string())
            .status();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(5) {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mount_table() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// A million names with BULLA_LONG, for which the memory limit matters; some thousands without, to test the
/// test.
#[test]
fn a_directory_of_a_million_names_is_read_in_bounded_memory() {
    if !can_mount() {
        return;
    }
    let names: u64 = match std::env::var_os("BULLA_LONG") {
        Some(_) => 1_000_000,
        None => 20_000,
    };
    const CACHE_BYTES: u64 = 64 << 20;
    // The program, the stacks and buffers of its threads, and its record of each file that the kernel
    // remembers (the kernel forgets files when memory is short).
    let most_bytes = CACHE_BYTES + (96 << 20) + 600 * names;
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    fs::create_dir_all(home.path("tree/many")).unwrap();
    let name = |i: u64| format!("name-{i:07}");
    for i in 0..names {
        fs::File::create(home.path("tree/many").join(name(i))).unwrap();
    }
    let volume = home.publish().ends(0).field("volume");
    let source = home.source(volume.as_str().unwrap(), "repo");
    let daemon = Daemon::start(&home, &source, &["--memory", "64MiB"]);
    let many = home.path("mnt/many");

    let mut after_first = 0;
    for round in 0..3 {
        let mut listed = 0;
        for entry in fs::read_dir(&many).unwrap() {
            // In order and without gaps, so each name occurs once.
            assert_eq!(entry.unwrap().file_name().to_str(), Some(&*name(listed)));
            listed += 1;
        }
        assert_eq!(listed, names);
        for step in 0..names / 20 {
            let i = step * 7919 % names;
            assert!(fs::metadata(many.join(name(i))).unwrap().is_file());
            let absent = format!("{}-", name(i));
            let error = fs::metadata(many.join(absent)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::NotFound);
        }
        let peak = daemon.peak_bytes();
        assert!(peak < most_bytes, "{} MiB in round {round}", peak >> 20);
        if round == 0 {
            after_first = peak;
        }
    }
    let grown = daemon.peak_bytes().saturating_sub(after_first);
    assert!(grown < 32 << 20, "grows: {} MiB more", grown >> 20);
    eprintln!("{names} names: at most {} MiB", daemon.peak_bytes() >> 20);
}

#[test]
fn mount_fails_when_the_statement_expires_and_recovers_with_a_new_one() {
    if !can_mount() {
        return;
    }
    let home = Home::new();
    home.published();
    let brief = ["publish", "tree", "repo", "--key", "key", "--valid", "3s"];
    let volume = home.publish().ends(0).field("volume");
    home.run(&brief).ends(0);
    let source = home.source(volume.as_str().unwrap(), "repo");
    let _daemon = Daemon::start(&home, &source, &["--refresh", "1s"]);
    let a = home.path("mnt/a");
    assert_eq!(fs::read(&a).unwrap(), b"hello\n");
    wait_until("the end", || fs::read(&a).is_err());
    let ended = fs::read(&a).unwrap_err();
    assert_eq!(
        ended.raw_os_error(),
        Some(rustix::io::Errno::IO.raw_os_error())
    );
    home.run(&["ls", &source]).ends(24);
    home.publish().ends(0);
    wait_until("the renewal", || {
        fs::read(&a).is_ok_and(|bytes| bytes == b"hello\n")
    });
    home.run(&["ls", &source]).ends(0);
}

#[test]
fn a_mount_that_is_left_behind_is_found() {
    if !can_mount() {
        return;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/mounts-left.sh");
    let home = Home::new();
    let volume = home.published();
    let list = Command::new(&script).arg("list").output().unwrap();
    assert!(list.status.success());
    fs::write(home.path("before"), list.stdout).unwrap();
    let told = || {
        let check = Command::new(&script)
            .arg("check")
            .arg(home.path("before"))
            .output()
            .unwrap();
        let told = String::from_utf8(check.stderr).unwrap();
        (check.status.success(), told)
    };
    let mnt = home.path("mnt").display().to_string();
    assert!(!told().1.contains(&mnt));
    fs::create_dir(&mnt).unwrap();
    home.run(&["mount", &home.source(&volume, "repo"), "mnt"])
        .ends(0);
    let mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let (clean, left) = told();
    assert!(!clean && left.contains(&mnt), "{left}");
    drop(mounted);
    assert!(!told().1.contains(&mnt));
}

#[test]
fn profiles_that_cannot_be_used_are_refused_before_anything_is_mounted() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    fs::create_dir(home.path("mnt")).unwrap();
    let mount = |more: [&str; 2]| home.run(&[&["mount", &source, "mnt"], &more[..]].concat());
    mount(["--profile", "missing"]).ends(10);
    for (text, why) in [("a\n../b\n", "line 2"), ("a\t1-0\n", "line 1")] {
        fs::write(home.path("wrong"), text).unwrap();
        let told = mount(["--profile", "wrong"]).ends(2).err;
        assert!(
            told.contains("wrong is no profile") && told.contains(why),
            "{told}"
        );
    }
    mount(["--profile", "mnt"]).ends(2);
    mount(["--record", "wrong"]).ends(1);
    mount(["--record", "missing/file"]).ends(10);
    assert!(!mount_table().contains(&home.path("mnt").display().to_string()));
    // A mount that fails leaves no file, so that the next try does not find one.
    let nowhere = home.source(&volume, "nowhere");
    let failing = [
        "mount",
        &nowhere,
        "mnt",
        "--record",
        "new",
        "--deadline",
        "1s",
    ];
    assert_ne!(home.run(&failing).code, 0);
    assert!(!home.path("new").exists());
}
