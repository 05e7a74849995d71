//! A protected device in a memory limit, with the programs that write to it: neither waits for the other for good.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::adversity::through;
use crate::lab::{Lab, attached_place, has_loops, sh};
use crate::support::{skipped, wait_until};

/// A control group with a memory limit.
struct Group {
    dir: PathBuf,
    limit: &'static str,
}

impl Group {
    /// None: this machine has no control groups for memory, or they cannot be made here.
    fn new(name: &str, bytes: u64) -> Option<Group> {
        let places = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        let group = places.into_iter().find_map(|(root, limit)| {
            let dir = Path::new(root).join(format!("bulla-test-{name}-{}", std::process::id()));
            std::fs::create_dir(&dir).ok()?;
            let group = Group { dir, limit };
            group.set(&bytes.to_string()).ok().map(|()| group)
        });
        if group.is_none() {
            skipped("memory limits", "no control groups for memory");
        }
        group
    }

    fn set(&self, limit: &str) -> std::io::Result<()> {
        std::fs::write(self.dir.join(self.limit), limit)
    }

    /// The words that make `sh` run a command in it, without the capability that spares a process from waiting.
    fn words(&self) -> [String; 3] {
        let procs = self.dir.join("cgroup.procs");
        let line = format!(
            "echo $$ > {} && exec setpriv --bounding-set=-sys_resource \"$@\"",
            procs.display()
        );
        ["-c".to_owned(), line, "sh".to_owned()]
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = self.set(if self.limit == "memory.max" {
            "max"
        } else {
            "-1"
        });
        let until = Instant::now() + Duration::from_secs(5);
        while std::fs::remove_dir(&self.dir).is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Whether all have ended in time. Nothing of `/proc` is read that waits for the memory of a process.
fn end_within(children: &mut [Child], patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let ended = |child: &mut Child| child.try_wait().unwrap().is_some();
        if children.iter_mut().all(ended) {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Ends the FUSE connection of a volume, so that what hangs on it goes on and can be removed.
fn abort(volume: &str, at: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(volume)).unwrap();
    let minor = line.split(' ').nth(2).unwrap().split_once(':').unwrap().1;
    let at = at.display();
    sh(&format!(
        "mount -t fusectl none {at} && echo 1 > {at}/{minor}/abort; umount {at}"
    ))
    .unwrap();
}

#[test]
fn programs_in_the_memory_limit_of_the_daemon_write_more_than_it_allows() {
    if !has_loops() {
        return;
    }
    let Some(group) = Group::new("write", 250 << 20) else {
        return;
    };
    let lab = Lab::new(2048);
    lab.enrol_of("d", "l", &["--ring", "256MiB"]).ends(0);
    let args = [
        "--json",
        "protect",
        "attach",
        "d",
        "--log",
        "l",
        "--key-file",
        "k",
    ];
    let words = group.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let attached = through("sh", &words, &lab.home.command(&args))
        .unwrap()
        .ends(0);
    let volume = attached.field("volume").as_str().unwrap().to_owned();
    let place = attached_place(attached);
    let mounted = lab.path("m");
    sh(&format!(
        "mkfs.ext4 -q -F {place} && mount {place} {}",
        mounted.display()
    ))
    .unwrap();
    let mut writers: Vec<Child> = (0..4)
        .map(|number| {
            let file = mounted.join(format!("f{number}")).display().to_string();
            let mut writer = Command::new("sh");
            writer
                .args(&words)
                .args(["dd", "if=/dev/zero", "bs=1M", "count=150", "status=none"]);
            writer.args([format!("of={file}"), "conv=fsync".to_owned()]);
            writer.spawn().unwrap()
        })
        .collect();
    let ended = end_within(&mut writers, Duration::from_secs(90));
    if !ended {
        abort(&volume, &lab.home.path(""));
    }
    for mut writer in writers {
        assert!(writer.wait().unwrap().success() || !ended);
    }
    sh(&format!("umount {}", mounted.display())).unwrap();
    assert!(
        ended,
        "the device and those that write to it wait for one another"
    );
    // Mount namespaces of other tests hold the mount a little longer.
    wait_until("the device can be detached", || lab.detach().code == 0);
}
