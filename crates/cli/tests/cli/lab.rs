//! What the tests of protected devices share: a device, its log and its key in a home, and what is attached of them.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{Home, Ran, noise, skipped, wait_until};

pub const BLOCK: u64 = 4096;
pub const MIB: u64 = 1 << 20;

/// A home with a device `d`, its log `l` and the key file `k`. The home's guard removes what is attached at the end.
pub struct Lab {
    pub home: Home,
}

impl Lab {
    /// Makes the device; not enrolled yet.
    pub fn new(mib: u64) -> Lab {
        let home = Home::new();
        let device = File::create(home.path("d")).unwrap();
        device.set_len(mib * MIB).unwrap();
        std::fs::create_dir(home.path("m")).unwrap();
        Lab { home }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    /// Content of the first MiB: no block is zero.
    pub fn fill(&self) -> Vec<u8> {
        let content = noise(7, MIB as usize);
        let device = OpenOptions::new().write(true).open(self.path("d")).unwrap();
        device.write_all_at(&content, 0).unwrap();
        content
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        self.home.run(args)
    }

    pub fn enrol(&self, more: &[&str]) -> Ran {
        self.enrol_of("d", "l", &[&["--ring", "16MiB"], more].concat())
    }

    pub fn enrol_of(&self, device: &str, log: &str, more: &[&str]) -> Ran {
        let args = [
            "--json",
            "protect",
            "enrol",
            device,
            "--log",
            log,
            "--key-file",
            "k",
        ];
        self.run(&[&args, more].concat())
    }

    /// Attaches as a FUSE file `m/device`.
    pub fn attach(&self, more: &[&str]) -> Ran {
        self.attach_of("d", &[&["--file", "m"], more].concat())
    }

    pub fn attach_loop(&self, more: &[&str]) -> Ran {
        self.attach_of("d", more)
    }

    pub fn attach_of(&self, device: &str, more: &[&str]) -> Ran {
        let args = ["--json", "protect", "attach", device, "--log", "l"];
        self.run(&[&args, &["--key-file", "k"][..], more].concat())
    }

    /// Writes the log's state into the anchor `a`.
    pub fn set_anchor(&self, more: &[&str]) -> Ran {
        let args = ["--json", "protect", "anchor", "set", "a", "--log", "l"];
        self.run(&[&args, &["--key-file", "k"][..], more].concat())
    }

    pub fn scrub(&self) -> Ran {
        self.run(&["--json", "protect", "scrub", "d"])
    }

    pub fn detach(&self) -> Ran {
        self.run(&["--json", "protect", "detach", "d"])
    }

    /// The report of the attached device.
    pub fn report(&self) -> Value {
        let ran = self.run(&["--json", "protect", "status"]).ends(0);
        ran.records("device").pop().expect("an attached device")
    }

    /// Kills the daemon, as a crash would.
    pub fn kill(&self) {
        kill(self.report()["pid"].as_u64().unwrap());
    }

    /// A read of the shown file, past the page cache.
    pub fn read(&self, offset: u64, bytes: usize) -> std::io::Result<Vec<u8>> {
        let file = File::open(self.path("m/device"))?;
        let mut content = vec![0; bytes];
        file.read_exact_at(&mut content, offset)?;
        Ok(content)
    }

    pub fn write(&self, offset: u64, content: &[u8]) {
        let file = OpenOptions::new().write(true).open(self.path("m/device"));
        let file = file.unwrap();
        file.write_all_at(content, offset).unwrap();
        file.sync_all().unwrap();
    }

    /// Copies device and log away, past the page cache: buffered reads beside direct writes make a sync fail.
    pub fn back_up(&self, suffix: &str) {
        for name in ["d", "l"] {
            let (from, to) = (self.path(name), self.path(&format!("{name}.{suffix}")));
            let (from, to) = (from.display(), to.display());
            sh(&format!(
                "dd if={from} of={to} bs=1M iflag=direct status=none"
            ))
            .unwrap();
        }
    }

    /// Puts the contents of device and log back.
    pub fn put_back(&self, suffix: &str) {
        for name in ["d", "l"] {
            std::fs::copy(self.path(&format!("{name}.{suffix}")), self.path(name)).unwrap();
        }
    }

    pub fn flip(&self, offset: u64) {
        let mut options = OpenOptions::new();
        let device = options.read(true).write(true).open(self.path("d")).unwrap();
        let mut byte = [0];
        device.read_exact_at(&mut byte, offset).unwrap();
        device.write_all_at(&[byte[0] ^ 4], offset).unwrap();
        device.sync_all().unwrap();
    }
}

/// The output of a shell command, or what it complains about.
pub fn sh(line: &str) -> Result<String, String> {
    let out = Command::new("sh").args(["-c", line]).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match out.status.success() {
        true => Ok(text(&out.stdout)),
        false => Err(text(&out.stderr)),
    }
}

pub fn can_mount() -> bool {
    let can = Path::new("/dev/fuse").exists();
    if !can {
        skipped("protected devices", "no /dev/fuse");
    }
    can
}

/// Whether loop devices can be made, and mkfs.ext4 is there.
pub fn has_loops() -> bool {
    let can = can_mount()
        && sh("test $(id -u) = 0 && losetup --find && command -v mkfs.ext4 fsck.ext4").is_ok();
    if !can {
        skipped("loop devices", "they need root, losetup and e2fsprogs");
    }
    can
}

pub fn attached_place(ran: Ran) -> String {
    ran.field("place").as_str().unwrap().to_owned()
}

impl Ran {
    /// As `ends`, for a command with `--json`: the record has the code too.
    #[track_caller]
    pub fn ends_json(self, code: i32) -> Ran {
        let ran = self.ends(code);
        assert_eq!(ran.field("exit_code"), code);
        assert!(!ran.field("error")["hint"].as_str().unwrap().is_empty());
        ran
    }
}

/// Kills a daemon, as a crash would, and waits until it is gone. The number is one that bulla has told, so it may be that
/// of another process by now.
pub fn kill(pid: u64) {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap();
    assert_eq!(program, Path::new(env!("CARGO_BIN_EXE_bulla")), "{pid}");
    sh(&format!("kill -9 {pid}")).unwrap();
    wait_until("the daemon is gone", || {
        !Path::new(&format!("/proc/{pid}")).exists()
            || std::fs::read_to_string(format!("/proc/{pid}/stat"))
                .is_ok_and(|stat| stat.contains(") Z "))
    });
}
