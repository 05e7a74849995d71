//! Locks by `fcntl` and `flock` between processes, on a file system that keeps them itself. A wait for one ends with the
//! lock, a signal, SIGKILL, the deadline, or unmounting.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use sim::memfs::MemFsOptions;

use crate::fixture::{Watchdog, wait_until};
use crate::probe::Probe;
use crate::writable::WritableMount;

/// A process with an open file, which locks it on command.
struct Locker {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Locker {
    fn start(probe: &Probe, file: &Path) -> Locker {
        let mut child = probe
            .command()
            .arg("locks")
            .arg(file)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut locker = Locker {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        assert_eq!(locker.answer(), locker.child.id().to_string());
        locker
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.to, "{command}").unwrap();
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn run(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).unwrap();
    }
}

impl Drop for Locker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn two(options: MemFsOptions) -> (WritableMount, Locker, Locker) {
    let m = WritableMount::new(options).await;
    fs::write(m.path("f"), b"content").unwrap();
    let probe = Probe::build();
    let lockers = [(); 2].map(|()| Locker::start(&probe, &m.path("f")));
    let [a, b] = lockers;
    (m, a, b)
}

#[tokio::test(flavor = "multi_thread")]
async fn ranges_conflict_between_processes_and_the_holder_is_named() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    assert_eq!(a.run("set w 10 10"), "ok");
    assert_eq!(b.run("set w 20 10"), "ok", "neighbours do not conflict");
    assert_eq!(b.run("set r 19 1"), "EAGAIN");
    let holder = a.child.id();
    assert_eq!(b.run("get r 0 0"), format!("w 10 10 by {holder}"));
    assert_eq!(a.run("set r 10 10"), "ok", "exchanged for a shared one");
    assert_eq!(b.run("set r 19 1"), "ok");
    assert_eq!(b.run("set w 15 1"), "EAGAIN");
    assert_eq!(a.run("set u 12 4"), "ok", "a piece in the middle");
    assert_eq!(b.run("set w 12 4"), "ok");
    assert_eq!(a.run("get w 0 0").split(" by ").count(), 2);
    // Closing any descriptor of the file ends the process's locks, and so does its death.
    a.signal(Signal::KILL);
    a.child.wait().unwrap();
    assert_eq!(b.run("set w 0 0"), "ok");
    drop(b);
    wait_until("no lock is left", || m.fs.locks() == (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_lock_is_given_when_the_holder_unlocks_or_dies() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    assert_eq!(a.run("set w 0 0"), "ok");
    b.tell("wait w 5 5");
    wait_until("b waits", || m.fs.locks().1 == 1);
    assert_eq!(a.run("set u 0 0"), "ok");
    assert_eq!(b.answer(), "ok");
    assert_eq!(b.run("set u 5 5"), "ok");

    assert_eq!(a.run("set r 0 0"), "ok");
    b.tell("wait w 0 0");
    wait_until("b waits", || m.fs.locks().1 == 1);
    a.signal(Signal::KILL);
    assert_eq!(b.answer(), "ok");
    assert_eq!(m.fs.locks(), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_interrupts_a_blocking_lock_and_kill_ends_it() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    assert_eq!(a.run("set w 0 0"), "ok");
    // More than once: a reader that refuses the first report of the kernel gets no other.
    for _ in 0..2 {
        b.tell("wait w 0 0");
        wait_until("b waits", || m.fs.locks().1 == 1);
        b.signal(Signal::USR1);
        assert_eq!(b.answer(), "EINTR");
        assert_eq!(m.fs.locks(), (1, 0), "nothing is left of the wait");
    }
    b.tell("wait r 0 0");
    wait_until("b waits", || m.fs.locks().1 == 1);
    let begin = Instant::now();
    b.signal(Signal::KILL);
    b.child.wait().unwrap();
    let took = begin.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(m.fs.locks(), (1, 0));
    assert_eq!(a.run("set w 3 3"), "ok", "the holder notices nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocking_lock_ends_with_enolck_at_its_deadline() {
    let options = MemFsOptions {
        lock_deadline: Duration::from_millis(300),
        ..MemFsOptions::default()
    };
    let (m, mut a, mut b) = two(options).await;
    assert_eq!(a.run("set w 0 0"), "ok");
    assert_eq!(b.run("wait w 0 0"), "ENOLCK");
    assert_eq!(m.fs.locks(), (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn unmounting_ends_a_blocking_lock() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    assert_eq!(a.run("set w 0 0"), "ok");
    b.tell("wait w 0 0");
    wait_until("b waits", || m.fs.locks().1 == 1);
    m.session.as_ref().unwrap().unmount().unwrap();
    assert_eq!(b.answer(), "ENOLCK");
}

/// The control of the watchdog that every mount of these tests has.
#[tokio::test(flavor = "multi_thread")]
async fn the_watchdog_ends_a_call_that_hangs() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    assert_eq!(a.run("set w 0 0"), "ok");
    let _watchdog = Watchdog::start(m.root(), Duration::from_millis(200));
    assert_eq!(b.run("wait w 0 0"), "ECONNABORTED");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_refused() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    assert_eq!(a.run("set w 0 1"), "ok");
    assert_eq!(b.run("set w 1 1"), "ok");
    a.tell("wait w 1 1");
    wait_until("a waits", || m.fs.locks().1 == 1);
    assert_eq!(b.run("wait w 0 1"), "EDEADLK");
    assert_eq!(b.run("set u 1 1"), "ok");
    assert_eq!(a.answer(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn flock_excludes_other_open_files_and_ends_with_them() {
    let m = WritableMount::plain().await;
    fs::write(m.path("f"), b"").unwrap();
    let held = File::open(m.path("f")).unwrap();
    held.lock().unwrap();
    let other = || {
        let file = m.path("f");
        let status = Command::new("flock")
            .arg("-n")
            .arg(file)
            .arg("true")
            .status();
        status.unwrap().success()
    };
    assert!(!other());
    // A descriptor of the same open file shares it.
    let shared = held.try_clone().unwrap();
    drop(held);
    assert!(!other());
    drop(shared);
    wait_until("unlocked", other);
}

#[tokio::test(flavor = "multi_thread")]
async fn flock_and_fcntl_do_not_meet() {
    let (m, mut a, mut b) = two(MemFsOptions::default()).await;
    let file = File::open(m.path("f")).unwrap();
    file.lock().unwrap();
    assert_eq!(a.run("get w 0 0"), "ok", "fcntl sees no flock");
    assert_eq!(a.run("set w 0 0"), "ok");
    assert_eq!(b.run("set w 0 0"), "EAGAIN");
    // As with fcntl alone: one lock of each kind is held.
    assert_eq!(m.fs.locks(), (2, 0));
    file.unlock().unwrap();
    file.try_lock_shared().unwrap();
    assert_eq!(b.run("set w 0 0"), "EAGAIN", "unlocked is the flock only");
    drop(file);
    wait_until("the flock ends with its file", || m.fs.locks() == (1, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_interrupts_a_wait_for_flock() {
    let m = WritableMount::plain().await;
    fs::write(m.path("f"), b"").unwrap();
    let held = File::open(m.path("f")).unwrap();
    held.lock().unwrap();
    let mut waiting = Command::new("flock")
        .arg(m.path("f"))
        .arg("true")
        .spawn()
        .unwrap();
    wait_until("it waits", || m.fs.locks().1 == 1);
    let begin = Instant::now();
    kill_process(Pid::from_child(&waiting), Signal::TERM).unwrap();
    assert!(!waiting.wait().unwrap().success());
    assert!(begin.elapsed() < Duration::from_secs(10));
    assert_eq!(m.fs.locks(), (1, 0));
}
