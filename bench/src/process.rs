//! Starts other programs: runs one to its end and measures it, or keeps one as a daemon.
//!
//! Each program gets a process group of its own, and only these groups are signalled, so the bench never
//! ends a process that it did not start. The number of a group is that of its first process, and the kernel gives it
//! to another process once that one is reaped and the group is empty: a daemon is reaped only after the last signal to
//! its group. One list holds the groups alive, for the thread that handles Ctrl-C.

use std::fs::{self, File, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getrlimit, kill_process_group, setrlimit,
    waitid,
};

use crate::{cpu, memory};

static STOPPED: AtomicBool = AtomicBool::new(false);
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// How long a daemon may take to end before it is killed.
const GRACE: Duration = Duration::from_secs(5);

/// Cost and output of a command that has ended.
#[derive(Debug)]
pub struct Cost {
    /// Seconds from its start until its data were on the disk.
    pub wall_s: f64,
    /// Seconds from its start to its end; its data may not be on the disk yet.
    pub ran_s: f64,
    /// Processor seconds of the command and everything that it started.
    pub cpu_s: f64,
    /// Its output.
    pub stdout: String,
}

/// Runs a command to its end, and waits until everything that it wrote below `disk` is on the disk.
///
/// # Errors
/// When it cannot be started or does not succeed: the message has the end of its output.
pub fn run(command: &mut Command, disk: &Path) -> Result<Cost> {
    run_and(command, disk, Child::wait_with_output)
}

/// The same, with its peak resident memory, bytes.
///
/// # Errors
/// As [`run`].
pub fn run_watched(command: &mut Command, disk: &Path) -> Result<(Cost, u64)> {
    let mut peak_bytes = 0;
    let cost = run_and(command, disk, |child| {
        let pid = child.id();
        let sample = || memory::peak_bytes(pid).unwrap_or(0);
        let (output, most) = memory::most(sample, || child.wait_with_output());
        peak_bytes = most;
        output
    })?;
    Ok((cost, peak_bytes))
}

fn run_and(
    command: &mut Command,
    disk: &Path,
    wait: impl FnOnce(Child) -> std::io::Result<Output>,
) -> Result<Cost> {
    check_stop()?;
    let shown = show(command);
    let disk = File::open(disk).with_context(|| format!("opening {}", disk.display()))?;
    // Data of other programs that is not written yet must not count for this command.
    rustix::fs::syncfs(&disk).context("syncfs")?;
    let cpu_before_s = cpu::children_s()?;
    let start = Instant::now();
    let (child, group) = spawn(command, &shown)?;
    let output = wait(child).context("waiting")?;
    let ran_s = start.elapsed().as_secs_f64();
    rustix::fs::syncfs(&disk).context("syncfs")?;
    let wall_s = start.elapsed().as_secs_f64();
    drop(group);
    check_stop()?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{shown}: {}: {}", output.status, tail(&said));
    }
    Ok(Cost {
        wall_s,
        ran_s,
        cpu_s: cpu::children_s()? - cpu_before_s,
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
    })
}

/// Starts a command in a group of its own, without input; its output is kept.
fn spawn(command: &mut Command, shown: &str) -> Result<(Child, Group)> {
    let child = command
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {shown}"))?;
    let group = Group::of(&child)?;
    Ok((child, group))
}

/// How long a short command may take.
const SHORT: Duration = Duration::from_secs(300);

/// Runs a command that only prepares or tidies up. Returns what it printed. It runs also after the user has
/// asked to stop, so that everything is taken down.
///
/// # Errors
/// If it fails or takes too long: the message has the end of its output.
pub fn short(command: &mut Command) -> Result<String> {
    let shown = show(command);
    let (child, group) = spawn(command, &shown)?;
    let (over, wait) = channel::<()>();
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            if wait.recv_timeout(SHORT) == Err(RecvTimeoutError::Timeout) {
                group.signal(Signal::KILL);
            }
        });
        let output = child.wait_with_output();
        drop(over);
        output
    });
    let output = output.context("waiting")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{shown}: {}: {} {}",
            output.status,
            tail(&printed),
            tail(&said)
        );
    }
    Ok(printed.into_owned())
}

/// A program that runs until this is dropped.
pub struct Daemon {
    child: Child,
    name: String,
    group: Option<Group>,
    log: std::path::PathBuf,
}

impl Daemon {
    /// Starts a program; its output is appended to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Result<Daemon> {
        check_stop()?;
        if let Some(parent) = log.parent() {
            fs::create_dir_all(parent)?;
        }
        let out = OpenOptions::new().create(true).append(true).open(log)?;
        let child = dying_with_us(command)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(out.try_clone()?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("starting {}", show(command)))?;
        let group = Some(Group::of(&child)?);
        Ok(Daemon {
            child,
            name: name.to_owned(),
            group,
            log: log.to_owned(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Stops it (SIGSTOP): its connections stay open without answers.
    pub fn stall(&self) {
        if let Some(group) = &self.group {
            group.signal(Signal::STOP);
        }
    }

    /// Kills it (SIGKILL), so that it can tidy up nothing.
    pub fn kill(self) {
        if let Some(group) = &self.group {
            group.signal(Signal::KILL);
        }
    }

    /// Processor seconds that it and its children have used so far.
    pub fn cpu_s(&self) -> Result<f64> {
        cpu::tree_s(self.pid())
    }

    /// Waits until `ready` returns true.
    ///
    /// # Errors
    /// When the program ends before that, or half a minute has passed.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while !ready() {
            check_stop()?;
            if self.has_ended()? {
                let status = self.reap()?;
                let said = fs::read_to_string(&self.log).unwrap_or_default();
                bail!("{} ended with {status}: {}", self.name, tail(&said));
            }
            if Instant::now() > deadline {
                bail!("{} has not {what} within 30 s", self.name);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until it accepts connections at a port of 127.0.0.1.
    pub fn wait_for_port(&mut self, port: u16) -> Result<()> {
        self.wait_until("answered", || {
            std::net::TcpStream::connect(("127.0.0.1", port)).is_ok()
        })
    }

    /// Whether it has ended by itself. It is not reaped.
    pub fn has_ended(&self) -> Result<bool> {
        match &self.group {
            Some(Group(pid)) => {
                let looks = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
                Ok(waitid(WaitId::Pid(*pid), looks)?.is_some())
            }
            None => Ok(true),
        }
    }

    /// Kills what is left of its group (children that outlived it, a server's sessions), and reaps it.
    fn reap(&mut self) -> std::io::Result<ExitStatus> {
        if let Some(group) = self.group.take() {
            group.signal(Signal::KILL);
        }
        self.child.wait()
    }

    /// Waits until it ends for another reason (an unmount); false if it has not ended after the grace period.
    pub fn ended(&self) -> bool {
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if !matches!(self.has_ended(), Ok(false)) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if matches!(self.has_ended(), Ok(false))
            && let Some(group) = &self.group
        {
            group.signal(Signal::TERM);
            // A stopped process gets the signal now.
            group.signal(Signal::CONT);
            self.ended();
        }
        if let Err(error) = self.reap() {
            eprintln!("warning: {} may still run: {error}", self.name);
        }
    }
}

/// A process group in the list of those alive.
struct Group(Pid);

impl Group {
    fn of(child: &Child) -> Result<Group> {
        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| anyhow!("{} is not a process id", child.id()))?;
        lock().push(pid);
        Ok(Group(pid))
    }

    fn signal(&self, signal: Signal) {
        // An error means that no process is left.
        let _ = kill_process_group(self.0, signal);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        lock().retain(|pid| *pid != self.0);
    }
}

fn lock() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(|poison| poison.into_inner())
}

/// From now on Ctrl-C and SIGTERM end all started processes; then the guards clean up.
pub fn stop_on_signals() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            use tokio::signal::unix::{SignalKind, signal};
            let Ok(mut term) = signal(SignalKind::terminate()) else {
                return;
            };
            loop {
                tokio::select! {
                    _ = tokio::signal::ctrl_c() => {}
                    _ = term.recv() => {}
                }
                STOPPED.store(true, Ordering::SeqCst);
                for pid in lock().iter() {
                    let _ = kill_process_group(*pid, Signal::TERM);
                }
            }
        });
    });
    Ok(())
}

/// Whether the user has asked to stop.
pub fn stopped() -> bool {
    STOPPED.load(Ordering::SeqCst)
}

/// Fails once the user has asked to stop.
pub fn check_stop() -> Result<()> {
    if stopped() {
        bail!("interrupted");
    }
    Ok(())
}

/// Lets this program and what it starts have as many files open as the system allows.
///
/// # Errors
/// When that is fewer than `files`.
pub fn raise_open_files(files: u64) -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|most| most < files) {
        bail!("{files} open files are needed: raise the hard limit (ulimit -Hn)");
    }
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    setrlimit(Resource::Nofile, raised).context("raising the limit on open files")
}

/// A port of 127.0.0.1 that is free now.
pub fn free_port() -> Result<u16> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
    Ok(listener.local_addr()?.port())
}

/// The same command, which the kernel ends if this program is killed before its guards have run.
fn dying_with_us(command: &Command) -> Command {
    let mut wrapped = Command::new("setpriv");
    wrapped.args(["--pdeathsig", "TERM", "--"]);
    wrapped.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}

fn show(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|a| a.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Lets everybody execute a file.
pub fn make_executable(path: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// The last lines of a text in one line.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim().lines().collect();
    lines[lines.len().saturating_sub(4)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_command_has_its_output() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo no space >&2; exit 3"]);
        let error = run(&mut command, Path::new("/tmp"))
            .unwrap_err()
            .to_string();
        assert!(error.contains("no space") && error.contains('3'), "{error}");
    }

    #[test]
    fn short_command_returns_its_output_or_both_of_them() {
        let sh = |script: &str| short(Command::new("sh").args(["-c", script]));
        assert_eq!(sh("echo done").unwrap(), "done\n");
        let error = sh("echo half; echo full >&2; exit 4")
            .unwrap_err()
            .to_string();
        assert!(error.contains("half") && error.contains("full"), "{error}");
    }

    #[test]
    fn memory_of_a_command_is_measured() {
        // The shell keeps its input in a variable, in memory.
        let bytes = 32 << 20;
        let script =
            format!("x=$(head -c {bytes} /dev/zero | tr '\\0' x); sleep 0.1; echo ${{#x}}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let (cost, peak_bytes) = run_watched(&mut command, Path::new("/tmp")).unwrap();
        assert_eq!(cost.stdout.trim(), bytes.to_string());
        assert!(peak_bytes > bytes, "{peak_bytes}");
    }

    #[test]
    fn dropping_a_daemon_ends_its_children_too() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! > {}; wait", pid_file.display());
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let mut daemon = Daemon::start("sh", &mut command, &dir.path().join("log")).unwrap();
        let written = || fs::read_to_string(&pid_file).is_ok_and(|t| t.ends_with('\n'));
        daemon.wait_until("written its child", written).unwrap();
        let sleeper = fs::read_to_string(&pid_file).unwrap().trim().to_owned();
        drop(daemon);
        // The kernel ends a killed process after the signal was sent. A zombie has no command line.
        let path = format!("/proc/{sleeper}/cmdline");
        let is_gone = || fs::read(&path).unwrap_or_default().is_empty();
        let deadline = Instant::now() + Duration::from_secs(10);
        while !is_gone() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(is_gone(), "the sleeper lives on");
    }

    #[test]
    fn daemon_that_ends_early_is_reported_with_its_output() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo port taken; exit 1"]);
        let mut daemon = Daemon::start("sh", &mut command, &dir.path().join("log")).unwrap();
        let error = daemon.wait_until("answered", || false).unwrap_err();
        assert!(error.to_string().contains("port taken"), "{error}");
    }
}
