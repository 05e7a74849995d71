//! Locks of programs on files of a shared volume: two devices with the real binary, a real server, two real mounts, and
//! programs that lock.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::shared_lab::{Talk, founded, joined};
use crate::shared_mount_lab::{Mount, can_mount, signal, two_devices};
use crate::support::wait_until;

/// Reads lines of Python, runs each, and prints what it comes to, or the errno. `lk` is fcntl(2) with F_SETLK or F_SETLKW,
/// `ofd` the same for the open file, `get` F_GETLK, `fl` flock(2).
const SHELL: &str = "
import fcntl, os, signal, struct, sys, threading, time
# A wait that does not end fails the test.
ends = threading.Timer(150, os._exit, [9])
ends.daemon = True
ends.start()
R, W, U = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK
SH, EX, UN, NB = fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN, fcntl.LOCK_NB
def op(name): return os.open(name, os.O_RDWR | os.O_CREAT)
def rec(kind, start, length): return struct.pack('hhqqi4x', kind, 0, start, length, 0)
def lk(fd, kind, start=0, length=0, wait=False):
    fcntl.fcntl(fd, fcntl.F_SETLKW if wait else fcntl.F_SETLK, rec(kind, start, length))
def ofd(fd, kind, start=0, length=0, wait=False):
    fcntl.fcntl(fd, 38 if wait else 37, rec(kind, start, length))
def get(fd, kind, start=0, length=0):
    return struct.unpack('hhqqi4x', fcntl.fcntl(fd, fcntl.F_GETLK, rec(kind, start, length)))
def fl(fd, how): fcntl.flock(fd, how)
def nap(alarm):
    def ring(*_): raise InterruptedError(4, 'EINTR')
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, alarm)
for line in sys.stdin:
    try:
        try: print(eval(line), flush=True)
        except SyntaxError: exec(line); print('ok', flush=True)
    except OSError as error: print(error.errno, flush=True)
";

/// A program in a directory that does what it is told.
pub struct Program {
    talk: Talk,
    stdin: ChildStdin,
}

impl Program {
    pub fn begin(directory: &Path) -> Program {
        let mut command = Command::new("python3");
        command.args(["-c", SHELL]).current_dir(directory);
        let mut talk = Talk::begin(command.stdin(Stdio::piped()));
        let stdin = talk.child.stdin.take().unwrap();
        Program { talk, stdin }
    }

    pub fn tell(&mut self, line: &str) {
        writeln!(self.stdin, "{line}").unwrap();
    }

    pub fn says(&mut self) -> String {
        self.talk.line()
    }

    /// Does something, and gives what it comes to.
    pub fn does(&mut self, line: &str) -> String {
        self.tell(line);
        self.says()
    }

    fn signal(&self, by: Signal) {
        signal(self.talk.child.id(), by);
    }

    fn kill(mut self) {
        self.talk.child.kill().unwrap();
        self.talk.child.wait().unwrap();
    }
}

pub const NONE: &str = "None";
const EAGAIN: &str = "11";

/// Adds one to a counter so many times, under a lock.
fn counts(directory: &Path, times: u32, lock: &str) -> Child {
    let program = format!(
        "
import fcntl, os
fd = os.open('counter', os.O_RDWR)
for _ in range({times}):
    {lock}(fd, fcntl.LOCK_EX)
    n = int(os.pread(fd, 20, 0) or b'0')
    os.pwrite(fd, b'%d' % (n + 1), 0)
    {lock}(fd, fcntl.LOCK_UN)
"
    );
    let mut command = Command::new("python3");
    command.args(["-c", &program]).current_dir(directory);
    command.spawn().unwrap()
}

#[test]
fn programs_of_two_devices_count_under_a_lock_and_lose_nothing() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    for lock in ["fcntl.flock", "fcntl.lockf"] {
        fs::write(a.path("counter"), "0").unwrap();
        // Two on one device, so that it gives its lock from one to the other.
        let counting = [&a, &a, &b].map(|mount| counts(&mount.path(""), 20, lock));
        for mut counting in counting {
            assert!(counting.wait().unwrap().success());
        }
        let counted = fs::read_to_string(b.path("counter")).unwrap();
        assert_eq!(counted, "60", "{lock}");
    }
}

#[test]
fn locks_of_two_devices_meet_as_those_of_one_machine() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("f"), "content").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    let mut r = Program::begin(&b.path(""));
    for program in [&mut p, &mut q, &mut r] {
        assert_eq!(program.does("fd = op('f')"), "ok");
    }
    // flock: readers together, a writer alone, a change from one to the other.
    assert_eq!(p.does("fl(fd, SH)"), NONE);
    assert_eq!(q.does("fl(fd, SH | NB)"), NONE);
    assert_eq!(r.does("fl(fd, EX | NB)"), EAGAIN);
    assert_eq!(q.does("fl(fd, EX | NB)"), EAGAIN);
    // That change gave up what it had, as on Linux.
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    assert_eq!(r.does("fl(fd, SH | NB)"), EAGAIN);
    // fcntl does not meet flock. Ranges do not meet that do not overlap.
    assert_eq!(q.does("lk(fd, W, 0, 10)"), NONE);
    assert_eq!(p.does("lk(fd, W, 10, 10)"), NONE);
    assert_eq!(p.does("lk(fd, R, 5, 10)"), EAGAIN);
    assert_eq!(r.does("lk(fd, R, 9, 1)"), EAGAIN);
    assert_eq!(r.does("get(fd, R, 3, 3)").split(", ").nth(2), Some("0"));
    // Of the lock of another device its process is not known here.
    let found = p.does("get(fd, R, 3, 3)");
    assert_eq!(found, "(1, 0, 0, 10, 0)");
    assert_eq!(p.does("get(fd, W, 20, 5)").split(", ").next(), Some("(2"));
    // A range that is given up in the middle is free for others.
    assert_eq!(q.does("lk(fd, U, 4, 2)"), NONE);
    assert_eq!(p.does("lk(fd, W, 4, 2, True)"), NONE);
    assert_eq!(r.does("lk(fd, W, 5, 1)"), EAGAIN);
    // A lock of the open file is another owner, and stays when the process closes another descriptor of the file.
    assert_eq!(p.does("other = op('f')"), "ok");
    assert_eq!(p.does("ofd(other, R, 100, 10)"), NONE);
    assert_eq!(p.does("lk(fd, W, 100, 1)"), EAGAIN);
    assert_eq!(p.does("os.close(op('f'))"), NONE);
    // With that the process's own are gone.
    assert_eq!(q.does("lk(fd, W, 10, 10, True)"), NONE);
    assert_eq!(q.does("lk(fd, W, 105, 1)"), EAGAIN);
    assert_eq!(q.does("lk(fd, R, 105, 1)"), NONE);
    assert_eq!(p.does("os.close(other)"), NONE);
    assert_eq!(q.does("lk(fd, W, 105, 1, True)"), NONE);
}

#[test]
fn who_waits_for_another_device_gets_the_lock_or_is_interrupted() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("f"), "content").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    let mut r = Program::begin(&b.path(""));
    for program in [&mut p, &mut q, &mut r] {
        assert_eq!(program.does("fd = op('f')"), "ok");
    }
    for (take, wait, give) in [
        ("fl(fd, EX)", "fl(fd, EX)", "fl(fd, UN)"),
        ("lk(fd, W, 3, 4)", "lk(fd, R, 0, 0, True)", "lk(fd, U)"),
    ] {
        assert_eq!(p.does(take), NONE);
        // A signal that the program handles ends the wait, and leaves nothing behind.
        assert_eq!(q.does("nap(0.5)"), NONE);
        let begin = Instant::now();
        assert_eq!(q.does(wait), "4");
        assert!(begin.elapsed() < Duration::from_secs(10));
        assert_eq!(p.does(give), NONE);
        assert_eq!(p.does(take), NONE);
        // A program that waits gets the lock when the holder gives it up.
        q.tell(wait);
        std::thread::sleep(Duration::from_millis(700));
        assert_eq!(p.does(give), NONE);
        assert_eq!(q.says(), NONE);
        assert_eq!(q.does(give), NONE);
    }
    // A program that is killed while it waits, and one that is killed while it has the lock.
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    r.tell("fl(fd, EX)");
    std::thread::sleep(Duration::from_millis(300));
    r.signal(Signal::KILL);
    r.kill();
    q.tell("fl(fd, EX)");
    p.kill();
    assert_eq!(q.says(), NONE);
    q.kill();
    // Nothing stays locked.
    let mut p = Program::begin(&a.path(""));
    assert_eq!(p.does("fd = op('f')"), "ok");
    assert_eq!(p.does("fl(fd, EX)"), NONE);
}

#[test]
fn lock_shows_what_was_written_before_the_unlock() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("f"), "00").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    for program in [&mut p, &mut q] {
        assert_eq!(program.does("fd = op('f')"), "ok");
        assert_eq!(program.does("import mmap"), "ok");
        // Pages that the kernel has are mapped, so only a notification drops them.
        assert_eq!(
            program.does("m = mmap.mmap(fd, 2, prot=mmap.PROT_READ)"),
            "ok"
        );
        assert_eq!(program.does("m[:].decode()"), "00");
    }
    for turn in 10..20 {
        let (one, other) = match turn % 2 {
            0 => (&mut p, &mut q),
            _ => (&mut q, &mut p),
        };
        assert_eq!(one.does("fl(fd, EX)"), NONE);
        assert_eq!(one.does(&format!("os.pwrite(fd, b'{turn}', 0)")), "2");
        // It is not closed, and less old than what is committed by itself.
        assert_eq!(one.does("fl(fd, UN)"), NONE);
        assert_eq!(other.does("fl(fd, SH)"), NONE);
        // The mapping first: a read asks for attributes, and the kernel drops its pages for another time.
        assert_eq!(other.does("m[:].decode()"), turn.to_string());
        assert_eq!(other.does("os.pread(fd, 9, 0).decode()"), turn.to_string());
        assert_eq!(other.does("fl(fd, UN)"), NONE);
    }
}

/// The errno of a program's call.
const EIO: &str = "5";
const ENOLCK: &str = "37";

#[test]
fn locks_of_devices_that_are_silent_are_taken_over_and_what_they_write_has_no_effect() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    for name in ["polled", "waited", "renewed", "written"] {
        fs::write(a.path(name), "first").unwrap();
    }
    let mut p = Program::begin(&a.path(""));
    for (name, fd) in [
        ("polled", "x"),
        ("waited", "y"),
        ("renewed", "z"),
        ("written", "w"),
    ] {
        assert_eq!(p.does(&format!("{fd} = op('{name}')")), "ok");
        assert_eq!(p.does(&format!("fl({fd}, EX)")), NONE);
    }
    // Longer than a lock lives that nobody renews: the holder renews it.
    let mut q = Program::begin(&b.path(""));
    for (name, fd) in [
        ("polled", "x"),
        ("waited", "y"),
        ("renewed", "z"),
        ("written", "w"),
    ] {
        assert_eq!(q.does(&format!("{fd} = op('{name}')")), "ok");
    }
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(33) {
        assert_eq!(q.does("fl(z, EX | NB)"), EAGAIN);
        std::thread::sleep(Duration::from_millis(500));
    }
    // What is not sent yet when the device falls silent is written under a lock that it has.
    assert_eq!(p.does("os.pwrite(w, b'lost!', 0)"), "5");
    let stopped = a.stopped();
    let mut r = Program::begin(&b.path(""));
    assert_eq!(r.does("y = op('waited')"), "ok");
    r.tell("fl(y, EX)");
    let begin = Instant::now();
    while q.does("fl(x, EX | NB)") == EAGAIN {
        assert!(
            begin.elapsed() < Duration::from_secs(60),
            "nothing is taken over"
        );
        std::thread::sleep(Duration::from_millis(500));
    }
    assert!(
        begin.elapsed() > Duration::from_secs(15),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(r.says(), NONE);
    for fd in ["x", "w"] {
        assert_eq!(q.does(&format!("fl({fd}, EX)")), NONE);
        assert_eq!(q.does(&format!("os.pwrite({fd}, b'later', 0)")), "5");
        assert_eq!(q.does(&format!("fl({fd}, UN)")), NONE);
    }
    drop(stopped);
    // The device is back, and its program does not know.
    assert_eq!(p.does("os.fsync(w)"), EIO);
    wait_until("the loss", || p.does("os.pwrite(x, b'stale', 0)") == EIO);
    assert_eq!(p.does("os.close(x)"), NONE);
    // It sees what is there now, and begins anew.
    assert_eq!(p.does("os.pread(w, 9, 0).decode()"), "later");
    assert_eq!(p.does("os.pwrite(w, b'stale', 0)"), EIO);
    assert_eq!(p.does("fl(w, UN)"), NONE);
    assert_eq!(p.does("fl(w, EX)"), NONE);
    assert_eq!(p.does("os.pwrite(w, b'again', 0)"), "5");
    assert_eq!(p.does("fl(w, UN)"), NONE);
    assert_eq!(fs::read_to_string(b.path("polled")).unwrap(), "later");
    assert_eq!(fs::read_to_string(b.path("written")).unwrap(), "again");
    // The bytes are not gone.
    let names = ben.run(&["ls", "notes"]).ends(0).out;
    let copy = names
        .lines()
        .find(|name| name.starts_with("written (conflict"));
    let copied = ben.run(&["cat", "notes", copy.unwrap()]).ends(0).out;
    assert_eq!(copied, "lost!");
}

#[test]
fn mount_that_was_killed_gives_its_locks_up_when_it_begins_again() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::write(a.path("f"), "x").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    for program in [&mut p, &mut q] {
        assert_eq!(program.does("fd = op('f')"), "ok");
    }
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    assert_eq!(p.does("lk(fd, R, 0, 10)"), NONE);
    assert_eq!(q.does("fl(fd, EX | NB)"), EAGAIN);
    p.kill();
    a.kill();
    ada.run(&["umount", "mnt"]);
    let a = Mount::of(&ada, &[]);
    let begin = Instant::now();
    assert_eq!(q.does("fl(fd, EX)"), NONE);
    assert_eq!(q.does("lk(fd, W, 5, 1, True)"), NONE);
    assert!(
        begin.elapsed() < Duration::from_secs(10),
        "{:?}",
        begin.elapsed()
    );
    // A mount that ends gives them up, too.
    assert_eq!(q.does("fl(fd, UN)"), NONE);
    let mut p = Program::begin(&a.path(""));
    assert_eq!(p.does("fd = op('f')"), "ok");
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    p.kill();
    a.end();
    assert_eq!(q.does("fl(fd, EX)"), NONE);
    assert!(
        begin.elapsed() < Duration::from_secs(20),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn locks_that_cannot_be_had_say_why() {
    if !can_mount() {
        return;
    }
    let (orderer, ada, ben) = two_devices();
    let (a, b) = (
        Mount::of(&ada, &["--deadline", "3s"]),
        Mount::of(&ben, &["--deadline", "3s"]),
    );
    fs::write(a.path("f"), "x").unwrap();
    fs::write(a.path("g"), "x").unwrap();
    let mut p = Program::begin(&a.path(""));
    let mut q = Program::begin(&b.path(""));
    let mut r = Program::begin(&b.path(""));
    for program in [&mut p, &mut q, &mut r] {
        assert_eq!(program.does("fd, g = op('f'), op('g')"), "ok");
    }
    // A device holds 32 ranges of a file.
    for at in 0..32 {
        assert_eq!(p.does(&format!("lk(fd, R, {}, 1)", 2 * at)), NONE);
    }
    assert_eq!(p.does("lk(fd, R, 64, 1)"), ENOLCK);
    // A range that joins others is none more.
    assert_eq!(p.does("lk(fd, R, 61, 2)"), NONE);
    assert_eq!(q.does("lk(fd, W, 60, 1)"), EAGAIN);
    assert_eq!(p.does("lk(fd, U)"), NONE);
    // Programs of one device that wait for each other.
    assert_eq!(q.does("lk(fd, W, 0, 1, True)"), NONE);
    assert_eq!(r.does("lk(fd, W, 1, 1, True)"), NONE);
    q.tell("lk(fd, W, 1, 1, True)");
    std::thread::sleep(Duration::from_millis(300));
    let status = b.status();
    assert_eq!(status["locks"][0]["path"], "f", "{status}");
    assert_eq!(status["locks"][0]["held_by"].as_array().unwrap().len(), 2);
    let waits = &status["locks"][0]["waiting"][0];
    assert_eq!(waits["for"], r.talk.child.id(), "{status}");
    let shown = ben.run(&["status", "mnt"]).ends(0).out;
    assert!(shown.contains("locked   f (fcntl) by process "), "{shown}");
    assert_eq!(r.does("lk(fd, W, 0, 1, True)"), "35");
    assert_eq!(r.does("lk(fd, U)"), NONE);
    assert_eq!(q.says(), NONE);
    // The server is away: what the device holds it can give, no more.
    assert_eq!(q.does("fl(g, EX)"), NONE);
    signal(orderer.process(), Signal::STOP);
    assert_eq!(q.does("fl(g, EX)"), NONE);
    let begin = Instant::now();
    assert_eq!(p.does("fl(fd, EX | NB)"), EIO);
    p.tell("fl(fd, EX)");
    assert_eq!(p.says(), EIO);
    assert!(
        begin.elapsed() < Duration::from_secs(25),
        "{:?}",
        begin.elapsed()
    );
    signal(orderer.process(), Signal::CONT);
    wait_until("the server", || p.does("fl(fd, EX | NB)") == NONE);
}

#[test]
fn locks_stay_here_if_that_is_asked_for_and_where_a_member_may_only_read() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada) = founded(&[]);
    let add = ["share", "user", "add", "notes", "bob", "--role", "reader"];
    ada.run(&add).ends(0);
    let (ben, bob) = (joined(&ada, "ada"), joined(&ada, "bob"));
    let local = Mount::of(&ben, &["--locks", "local"]);
    let (writes, reads) = (Mount::of(&ada, &[]), Mount::of(&bob, &[]));
    fs::write(writes.path("f"), "x").unwrap();
    let mut holder = Program::begin(&writes.path(""));
    assert_eq!(holder.does("fd = op('f')"), "ok");
    assert_eq!(holder.does("fl(fd, EX)"), NONE);
    for mount in [&local, &reads] {
        let mut p = Program::begin(&mount.path(""));
        let mut q = Program::begin(&mount.path(""));
        for program in [&mut p, &mut q] {
            assert_eq!(program.does("fd = os.open('f', os.O_RDONLY)"), "ok");
        }
        assert_eq!(p.does("fl(fd, EX | NB)"), NONE);
        assert_eq!(q.does("fl(fd, SH | NB)"), EAGAIN);
        q.tell("fl(fd, SH)");
        assert_eq!(p.does("os.close(fd)"), NONE);
        assert_eq!(q.says(), NONE);
    }
    ada.run(&["mount", "notes", "mnt", "--locks", "here"])
        .ends(2);
}

/// Transactions of a bank: each moves one from an account to another, and counts.
const BANK: &str = "
import random, sqlite3, sys
seed, times = int(sys.argv[1]), int(sys.argv[2])
r = random.Random(seed)
db = sqlite3.connect('bank.db', timeout=120, isolation_level=None)
done = 0
while done < times:
    try:
        db.execute('begin immediate')
        one, other = r.sample(range(20), 2)
        db.execute('update account set money = money - 1 where id = ?', (one,))
        db.execute('update account set money = money + 1 where id = ?', (other,))
        db.execute('update counter set n = n + 1')
        db.execute('insert into log(who, what) values (?, ?)', (seed, 'x' * r.randrange(500)))
        db.execute('commit')
        done += 1
    except sqlite3.OperationalError as error:
        if 'locked' not in str(error): raise
        if db.in_transaction: db.execute('rollback')
";

#[test]
fn two_devices_use_one_database_of_sqlite() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    let python = |mount: &Mount<'_>, args: &[&str]| {
        let mut command = Command::new("python3");
        command.arg("-c").args(args).current_dir(mount.path(""));
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let make = "
import sqlite3
db = sqlite3.connect('bank.db')
assert db.execute('pragma journal_mode=delete').fetchone() == ('delete',)
db.executescript('create table account(id integer primary key, money int); create table counter(n int); create table log(who int, what text);')
db.executemany('insert into account values (?, 100)', [(i,) for i in range(20)])
db.execute('insert into counter values (0)')
db.commit()
";
    assert!(python(&a, &[make]).wait().unwrap().success());
    let users = [(&a, "1"), (&a, "2"), (&b, "3")];
    let running = users.map(|(mount, seed)| python(mount, &[BANK, seed, "12"]));
    for mut running in running {
        assert!(running.wait().unwrap().success());
    }
    let check = "
import sqlite3
db = sqlite3.connect('bank.db')
one = lambda question: db.execute(question).fetchone()[0]
print(one('pragma integrity_check'), one('select sum(money) from account'), one('select n from counter'), one('select count(*) from log'))
";
    for mount in [&a, &b] {
        let checked = python(mount, &[check]).wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&checked.stdout), "ok 2000 36 36\n");
    }
}

#[test]
fn lock_of_a_program_does_not_keep_others_from_removing_the_file() {
    if !can_mount() {
        return;
    }
    let (_orderer, ada, ben) = two_devices();
    let (a, b) = (Mount::of(&ada, &[]), Mount::of(&ben, &[]));
    fs::create_dir_all(a.path("target/debug")).unwrap();
    fs::write(a.path("target/debug/.cargo-lock"), "").unwrap();
    let mut p = Program::begin(&a.path(""));
    assert_eq!(p.does("fd = op('target/debug/.cargo-lock')"), "ok");
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    fs::write(b.path("target/debug/.cargo-lock"), "written").unwrap();
    fs::remove_dir_all(b.path("target")).unwrap();
    assert!(!b.path("target").exists());
    // The holder goes on, and what it locks now stays on its machine.
    assert_eq!(p.does("fl(fd, UN)"), NONE);
    assert_eq!(p.does("fl(fd, EX)"), NONE);
    assert_eq!(p.does("os.close(fd)"), NONE);
}
