//! What Linux does with answers and signals: the facts on which `mount::fuse` relies (decision 0108).

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use mount::fuse::{Error, Timestamp};
use rustix::process::{Pid, Signal, kill_process};

use crate::fixture::{errno, wait_until};
use crate::probe::Probe;
use crate::scripted::{Call, FILE, Reads, ScriptedMount, whole};
use crate::writable::WritableMount;

/// A signal as a bit of the masks in `/proc/PID/status`.
fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

/// A process that waits for a byte of the file.
struct Reader {
    child: Child,
    from: BufReader<ChildStdout>,
}

impl Reader {
    fn start(m: &ScriptedMount, probe: &Probe) -> Reader {
        let mut child = probe
            .command()
            .arg("read")
            .arg(m.file())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let mut pid = String::new();
        from.read_line(&mut pid).unwrap();
        wait_until("a read that waits", || m.fs.count(Call::Read) > 0);
        Reader { child, from }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Signals that are pending.
    fn pending(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mask = |field: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(field));
            u64::from_str_radix(line.unwrap().trim(), 16).unwrap()
        };
        mask("SigPnd:") | mask("ShdPnd:")
    }

    /// What the read gave.
    fn result(&mut self) -> String {
        let mut result = String::new();
        self.from.read_to_string(&mut result).unwrap();
        result.trim_end().to_owned()
    }

    /// By which signal it ended, which must be soon.
    fn death(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.signal();
            }
            assert!(begin.elapsed() < SOON, "it waits for its answer");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may wait for an answer that comes when the mount ends, so it is not waited for.
        let _ = self.child.kill();
    }
}

/// The time in which a caller that is killed must be gone.
const SOON: Duration = Duration::from_secs(15);

#[tokio::test(flavor = "multi_thread")]
async fn killed_caller_of_a_read_that_waits_is_gone_soon() {
    let m = ScriptedMount::new().await;
    let probe = Probe::build();
    m.fs.set_reads(Reads::Held);
    for (first, last) in [
        (None, Signal::KILL),
        (None, Signal::TERM),
        (None, Signal::QUIT),
        // The kernel reports only the first signal.
        (Some(Signal::USR1), Signal::KILL),
    ] {
        m.fs.take();
        let mut reader = Reader::start(&m, &probe);
        if let Some(first) = first {
            reader.signal(first);
            std::thread::sleep(Duration::from_millis(200));
        }
        reader.signal(last);
        assert_eq!(reader.death(), Some(last.as_raw()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signal_that_a_program_handles_does_not_end_its_read() {
    let m = ScriptedMount::new().await;
    m.fs.set_reads(Reads::Held);
    let mut reader = Reader::start(&m, &Probe::build());
    reader.signal(Signal::USR1);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(reader.child.try_wait().unwrap(), None);
    m.fs.set_reads(Reads::Now);
    assert_eq!(reader.result(), "ok");
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_is_pending_for_deadly_signals_only() {
    let m = ScriptedMount::new().await;
    let probe = Probe::build();
    m.fs.set_reads(Reads::Deaf);
    let kill = bit(Signal::KILL);
    for (signal, is_pending, is_deadly) in [
        (Signal::USR1, true, false),
        (Signal::WINCH, false, false),
        (Signal::CHILD, false, false),
        (Signal::TERM, true, true),
        (Signal::PIPE, true, true),
        (Signal::KILL, true, true),
        // It would dump the program's memory, and is pending as itself.
        (Signal::QUIT, true, false),
    ] {
        m.fs.take();
        let mut reader = Reader::start(&m, &probe);
        reader.signal(signal);
        // It was sent before `kill` returned.
        let pending = reader.pending();
        assert_eq!(pending != 0, is_pending, "{signal:?}: {pending:x}");
        assert_eq!(pending & kill != 0, is_deadly, "{signal:?}: {pending:x}");
        // Nothing ends it but the answer.
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(reader.child.try_wait().unwrap(), None, "{signal:?}");
        m.fs.let_go();
        let ends = is_deadly || signal == Signal::QUIT;
        assert_eq!(reader.death(), ends.then_some(signal.as_raw()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stale_file_is_looked_up_again_once() {
    let m = ScriptedMount::new().await;
    File::open(m.file()).unwrap();
    m.fs.take();
    m.fs.fail_opens(&[Error::StaleInode]);
    File::open(m.file()).unwrap();
    assert_eq!(m.fs.take(), [Call::Open, Call::Lookup, Call::Open]);
    m.fs.fail_opens(&[Error::StaleInode, Error::StaleInode]);
    assert_eq!(errno(File::open(m.file())), libc::ESTALE);
    assert_eq!(m.fs.take(), [Call::Open, Call::Lookup, Call::Open]);
}

#[tokio::test(flavor = "multi_thread")]
async fn new_epoch_makes_names_stale_and_keeps_pages_of_open_files() {
    let m = ScriptedMount::new().await;
    if !m.notifier.has_epochs() {
        eprintln!("SKIPPED epochs: this kernel has none");
        return;
    }
    let open = File::open(m.file()).unwrap();
    fs::read(m.file()).unwrap();
    m.fs.take();
    fs::read(m.file()).unwrap();
    assert_eq!(m.fs.take(), [Call::Open], "name and pages are cached");
    m.notifier.increment_epoch().unwrap();
    fs::read(m.file()).unwrap();
    assert_eq!(m.fs.take(), [Call::Lookup, Call::Open]);
    // Of a file that nobody has open, the name is all that holds the inode and its pages.
    drop(open);
    m.notifier.increment_epoch().unwrap();
    fs::read(m.file()).unwrap();
    eprintln!("observed: read after a new epoch: {:?}", m.fs.take());
}

#[tokio::test(flavor = "multi_thread")]
async fn pruned_file_is_forgotten_unless_it_is_open() {
    let m = ScriptedMount::new().await;
    if !m.notifier.has_prune() {
        eprintln!("SKIPPED pruning: this kernel cannot");
        return;
    }
    let open = File::open(m.file()).unwrap();
    m.notifier.prune(&[FILE]).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(m.fs.count(Call::Forget), 0);
    drop(open);
    m.notifier.prune(&[FILE]).unwrap();
    wait_until("FORGET", || m.fs.count(Call::Forget) > 0);
    m.fs.take();
    fs::metadata(m.file()).unwrap();
    assert_eq!(m.fs.take(), [Call::Lookup]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_time_is_shown() {
    for (seconds, nanoseconds) in [
        (i64::MIN, 0),
        (i64::MIN, 999_999_999),
        (-1, 999_999_999),
        (0, 0),
        (i64::MAX, 999_999_999),
    ] {
        let m = ScriptedMount::new().await;
        m.fs.set_mtime(Timestamp {
            seconds,
            nanoseconds,
        });
        let shown = fs::metadata(m.file()).unwrap();
        let shown = (shown.mtime(), shown.mtime_nsec());
        assert_eq!(shown, (seconds, i64::from(nanoseconds)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reply_of_many_pieces_is_whole() {
    let m = ScriptedMount::new().await;
    assert!(fs::read(m.file()).unwrap() == whole());
}

#[tokio::test(flavor = "multi_thread")]
async fn request_that_panics_is_eio_and_its_thread_goes_on() {
    let m = ScriptedMount::new().await;
    m.fs.set_reads(Reads::Panic);
    // More often than there are threads.
    for _ in 0..20 {
        assert_eq!(errno(fs::read(m.file())), libc::EIO);
    }
    m.fs.set_reads(Reads::Now);
    assert!(fs::read(m.file()).unwrap() == whole());
}

/// Mounts by `fusermount3`, when /dev/fuse lets users in.
#[tokio::test(flavor = "multi_thread")]
async fn user_who_is_not_root_mounts() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED a mount by another user: only root can become one");
        return;
    }
    // In a mount namespace of its own, where the device and this program are for all.
    let script = "cd $1 && chmod 711 . && mkdir -m 777 tmp && mknod -m 666 fuse c 10 229 && touch program && \
        mount --bind fuse /dev/fuse && mount --bind $2 program && \
        TMPDIR=$1/tmp exec setpriv --reuid 65534 --regid 65534 --clear-groups \
        ./program --exact kernel_facts::write_and_read_as_this_user --ignored";
    let place = tempfile::tempdir().unwrap();
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-ec", script, "sh"])
        .arg(place.path())
        .arg(std::env::current_exe().unwrap())
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}{complaint}");
    assert!(told.contains("1 passed"), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by another test, as a user who is not root"]
async fn write_and_read_as_this_user() {
    let m = WritableMount::plain().await;
    let owner = mount::table::named(m.root()).unwrap().unwrap().user;
    assert_eq!(owner, Some(rustix::process::getuid().as_raw()));
    fs::write(m.path("f"), b"content").unwrap();
    assert_eq!(fs::read(m.path("f")).unwrap(), b"content");
}
