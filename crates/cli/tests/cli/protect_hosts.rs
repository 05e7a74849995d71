//! Two hosts that share the disks of a protected device. The second one is a process with another boot and another name,
//! which reaches the same disks by loop devices of its own: the locks of the first one are not there, and all that both
//! see is what is written.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::lab::{BLOCK, Lab, has_loops, kill, sh};
use crate::support::{Ran, noise, skipped, wait_until};

const OTHER_BOOT: &str = "01234567-89ab-4cde-8f01-23456789abcd\n";

/// A host of the two.
struct Machine<'a> {
    lab: &'a Lab,
    is_other: bool,
    /// Loop devices of the device and of its log.
    device: String,
    log: String,
}

impl Machine<'_> {
    fn new(lab: &Lab, is_other: bool) -> Machine<'_> {
        let disk = |name: &str| {
            let file = lab.path(name);
            let made = sh(&format!(
                "losetup --find --show --direct-io=on {}",
                file.display()
            ));
            made.unwrap().trim().to_owned()
        };
        std::fs::create_dir_all(lab.path("n")).unwrap();
        Machine {
            is_other,
            device: disk("d"),
            log: disk("l"),
            lab,
        }
    }

    fn run(&self, args: &[&str]) -> Ran {
        let plain = self.lab.home.command(args);
        if !self.is_other {
            return Ran::of({ plain }.output().unwrap());
        }
        std::fs::write(self.lab.path("boot"), OTHER_BOOT).unwrap();
        let script = "hostname the-other && mount --bind boot /proc/sys/kernel/random/boot_id && exec \"$@\"";
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--uts", "sh", "-c", script, "sh"])
            .arg(plain.get_program())
            .args(plain.get_args())
            .env_clear()
            .current_dir(self.lab.path(""));
        for (name, value) in plain.get_envs() {
            command.env(name, value.unwrap());
        }
        command.env("BULLA_RUNTIME_DIR", self.lab.path("run-n/bulla"));
        Ran::of(command.output().unwrap())
    }

    fn directory(&self) -> &'static str {
        if self.is_other { "n" } else { "m" }
    }

    fn attach(&self, more: &[&str]) -> Ran {
        let args = [
            "--json",
            "protect",
            "attach",
            &self.device,
            "--log",
            &self.log,
        ];
        let shown = ["--key-file", "k", "--file", self.directory()];
        self.run(&[&args[..], &shown, more].concat())
    }

    fn detach(&self) -> Ran {
        self.run(&["--json", "protect", "detach", &self.device])
    }

    fn report(&self) -> Value {
        let ran = self.run(&["--json", "protect", "status"]);
        ran.records("device").pop().expect("an attached device")
    }

    fn pid(&self) -> u64 {
        self.report()["pid"].as_u64().unwrap()
    }

    /// Writes a block and syncs it.
    fn write(&self, block: u64, byte: u8) -> Result<String, String> {
        let block = block.to_string();
        let to = self.lab.path(self.directory()).join("device");
        let content = self.lab.path(&format!("content-{byte}"));
        std::fs::write(&content, vec![byte; BLOCK as usize]).unwrap();
        let dd = format!(
            "dd if={} of={} bs=4096 seek={block} conv=notrunc,fsync status=none",
            content.display(),
            to.display()
        );
        self.inside(&dd)
    }

    /// The first byte of a block.
    fn read(&self, block: u64) -> String {
        let from = self.lab.path(self.directory()).join("device");
        let dd = format!(
            "dd if={} bs=1 count=1 skip={} status=none | od -An -tu1",
            from.display(),
            block * BLOCK
        );
        self.inside(&dd).unwrap().trim().to_owned()
    }

    /// Runs a command where the device is shown.
    fn inside(&self, line: &str) -> Result<String, String> {
        match self.is_other {
            false => sh(line),
            true => sh(&format!(
                "nsenter --mount=/proc/{}/ns/mnt sh -c '{line}'",
                self.pid()
            )),
        }
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        if let Some(device) = self
            .run(&["--json", "protect", "status"])
            .records("device")
            .pop()
        {
            let pid = device["pid"].as_u64();
            // The number may be that of another process by now.
            let program = pid.map(|pid| std::fs::read_link(format!("/proc/{pid}/exe")));
            if program.is_some_and(|it| it.is_ok_and(|it| it.ends_with("bulla"))) {
                let _ = sh(&format!("kill -9 {}", pid.unwrap_or_default()));
            }
            let _ = sh(&format!(
                "umount {}",
                self.lab.path(self.directory()).display()
            ));
        }
        for device in [&self.device, &self.log] {
            let until = Instant::now() + Duration::from_secs(5);
            while sh(&format!("losetup -d {device}")).is_err() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

fn enrolled() -> Option<Lab> {
    if !has_loops() {
        return None;
    }
    if sh("unshare --mount --uts sh -c 'mount --bind /etc/hostname /proc/sys/kernel/random/boot_id' && command -v nsenter").is_err() {
        skipped("two hosts", "no namespaces can be made here");
        return None;
    }
    let lab = Lab::new(16);
    lab.fill();
    lab.enrol(&[]).ends(0);
    Some(lab)
}

/// The first host writes with syncs; each time the second one attaches, and detaches if it can.
#[test]
fn second_host_is_refused_while_the_first_one_writes_and_nothing_is_lost() {
    let Some(lab) = enrolled() else { return };
    let (first, second) = (Machine::new(&lab, false), Machine::new(&lab, true));
    first.attach(&[]).ends(0);
    let (written, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = OpenOptions::new().write(true).open(lab.path("m/device"));
            let file = file.unwrap();
            for round in 1.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let block = round % 512;
                let content = noise(round, BLOCK as usize);
                if file.write_all_at(&content, block * BLOCK).is_err() || file.sync_data().is_err()
                {
                    return;
                }
                written.store(round, Ordering::Relaxed);
            }
        });
        for _ in 0..3 {
            let before = written.load(Ordering::Relaxed);
            let refused = second.attach(&[]);
            if refused.code == 0 {
                // So it was before there were claims. What that does is seen below.
                let _ = second.detach();
            } else {
                let refused = refused.ends_json(11);
                let told = refused.field("error").to_string();
                assert!(
                    told.contains("uses the log") && told.contains("--force"),
                    "{told}"
                );
            }
            wait_until("the first host writes on", || {
                written.load(Ordering::Relaxed) > before
            });
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(first.report()["read_only"].is_null());
    first.detach().ends(0);
    // Given back in order, it is there for the second host at once.
    let began = Instant::now();
    second.attach(&[]).ends(0);
    assert!(
        began.elapsed() < Duration::from_secs(3),
        "{:?}",
        began.elapsed()
    );
    let newest = written.load(Ordering::Relaxed);
    for round in newest.saturating_sub(200).max(1)..=newest {
        let byte = noise(round, BLOCK as usize)[0];
        assert_eq!(second.read(round % 512), byte.to_string(), "round {round}");
    }
    second.detach().ends(0);
}

/// The first host is suspended, the second one takes over, and the first one wakes up.
#[test]
fn host_that_wakes_up_after_another_one_took_over_writes_nothing() {
    let Some(lab) = enrolled() else { return };
    let (first, second) = (Machine::new(&lab, false), Machine::new(&lab, true));
    first.attach(&[]).ends(0);
    first.write(1, 11).unwrap();
    let pid = first.pid();
    sh(&format!("kill -STOP {pid}")).unwrap();
    let began = Instant::now();
    second.attach(&[]).ends(0);
    assert!(began.elapsed() > Duration::from_secs(4), "it did not wait");
    assert_eq!(second.read(1), "11");
    second.write(2, 22).unwrap();
    sh(&format!("kill -CONT {pid}")).unwrap();
    // Its first write fails, and nothing of it reaches the disks.
    first.write(2, 33).unwrap_err();
    first.write(3, 33).unwrap_err();
    let why = first.report()["read_only"].as_str().unwrap().to_owned();
    assert!(why.contains("host the-other (process "), "{why}");
    second.write(4, 44).unwrap();
    assert!(second.report()["read_only"].is_null());
    second.detach().ends(0);
    kill(pid);
    sh(&format!("umount {}", lab.path("m").display())).unwrap();
    first.attach(&[]).ends(0);
    for (block, byte) in [(1, "11"), (2, "22"), (4, "44")] {
        assert_eq!(first.read(block), byte, "block {block}");
    }
    first.detach().ends(0);
}

#[test]
fn force_takes_the_device_from_a_host_that_is_alive_and_keeps_what_it_flushed() {
    let Some(lab) = enrolled() else { return };
    let (first, second) = (Machine::new(&lab, false), Machine::new(&lab, true));
    first.attach(&[]).ends(0);
    first.write(1, 11).unwrap();
    second.attach(&[]).ends_json(11);
    second.attach(&["--force"]).ends(0);
    assert_eq!(second.read(1), "11");
    first.write(1, 33).unwrap_err();
    assert!(first.report()["read_only"].is_string());
    second.write(2, 22).unwrap();
    second.detach().ends(0);
    let pid = first.pid();
    kill(pid);
    sh(&format!("umount {}", lab.path("m").display())).unwrap();
    first.attach(&[]).ends(0);
    assert_eq!((first.read(1), first.read(2)), ("11".into(), "22".into()));
    first.detach().ends(0);
}

#[test]
fn log_that_another_host_uses_is_not_overwritten() {
    let Some(lab) = enrolled() else { return };
    let (first, second) = (Machine::new(&lab, false), Machine::new(&lab, true));
    first.attach(&[]).ends(0);
    first.write(1, 11).unwrap();
    let args = ["--json", "--yes", "protect", "enrol", &second.device];
    let more = ["--log", &second.log, "--key-file", "k", "--ring", "16MiB"];
    let enrol = [&args[..], &more].concat();
    let told = second.run(&enrol).ends_json(11).field("error").to_string();
    assert!(told.contains("another host uses the log"), "{told}");
    first.write(2, 22).unwrap();
    first.detach().ends(0);
    first.attach(&[]).ends(0);
    assert_eq!((first.read(1), first.read(2)), ("11".into(), "22".into()));
    first.detach().ends(0);
    second.run(&enrol).ends(0);
}

#[test]
fn attach_that_fails_after_the_recovery_leaves_the_log_to_others() {
    if !has_loops() {
        return;
    }
    let lab = Lab::new(16);
    lab.fill();
    lab.enrol(&[]).ends(0);
    lab.attach_of("d", &["--nbd", "no-address"]).ends(2);
    let log = std::fs::read(lab.path("l")).unwrap();
    let claims = &log[196 << 10..256 << 10];
    assert!(claims.iter().all(|byte| *byte == 0), "it keeps a claim");
}

/// Two ways to the same disks on one machine: its kernel knows whether the other process lives.
#[test]
fn other_process_of_the_same_machine_is_named_at_once_and_its_death_needs_no_wait() {
    let Some(lab) = enrolled() else { return };
    let (first, second) = (Machine::new(&lab, false), Machine::new(&lab, false));
    first.attach(&[]).ends(0);
    let pid = first.pid();
    let args = [
        "--json",
        "protect",
        "attach",
        &second.device,
        "--log",
        &second.log,
    ];
    let began = Instant::now();
    let refused = second.run(&[&args[..], &["--key-file", "k", "--file", "n"]].concat());
    let told = refused.ends_json(11).field("error").to_string();
    assert!(told.contains(&format!("(process {pid})")), "{told}");
    kill(pid);
    sh(&format!("umount {}", lab.path("m").display())).unwrap();
    let ran = second.run(&[&args[..], &["--key-file", "k", "--file", "m"]].concat());
    ran.ends(0);
    assert!(
        began.elapsed() < Duration::from_secs(4),
        "{:?}",
        began.elapsed()
    );
    second.detach().ends(0);
}
