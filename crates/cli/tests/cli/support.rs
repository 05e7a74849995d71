//! What the tests of the real binary share: a home directory for each test, runs with exit code and output,
//! servers and mounts that are ended on drop.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use sim::guarded::GuardedDir;
pub use sim::random::noise;
pub use sim::time::wait_until;

/// Prints, past the capture of the test harness, that something is not tested on this machine.
pub fn skipped(what: &str, why: &str) {
    let line = format!("SKIPPED {what}: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// A directory with its own state, cache and configuration. When it is dropped, or the tests are killed, its guard
/// ends daemons that still use it, and removes what is mounted or attached there.
pub struct Home {
    dir: GuardedDir,
}

/// Output and exit code of a run.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn of(output: Output) -> Ran {
        Ran {
            code: output.status.code().unwrap_or(-1),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Requires an exit code, and for failures an error and a hint.
    #[track_caller]
    pub fn ends(self, code: i32) -> Ran {
        assert_eq!(
            self.code, code,
            "stdout:\n{}\nstderr:\n{}",
            self.out, self.err
        );
        if code != 0 && code != 3 {
            assert!(self.err.contains("error: "), "no error told:\n{}", self.err);
            assert!(self.err.contains("hint: "), "no hint told:\n{}", self.err);
        }
        self
    }

    /// The value of a field of the last JSON record.
    #[track_caller]
    pub fn field(&self, key: &str) -> serde_json::Value {
        let last = self.out.lines().last().expect("no record");
        let record: serde_json::Value = serde_json::from_str(last).expect("not JSON");
        assert_eq!(record["type"], "result", "{last}");
        record[key].clone()
    }

    /// The JSON records of one type.
    pub fn records(&self, kind: &str) -> Vec<serde_json::Value> {
        let lines = self.out.lines().map(serde_json::from_str);
        let records = lines.map(|record: Result<serde_json::Value, _>| record.expect("not JSON"));
        records.filter(|record| record["type"] == kind).collect()
    }
}

impl Home {
    pub fn new() -> Home {
        Home {
            dir: GuardedDir::new().expect("a temporary directory"),
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The binary, with this home and no other files of the user.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bulla"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        command
            .env_clear()
            .env("PATH", path)
            .env("HOME", self.dir.path())
            .env("BULLA_RUNTIME_DIR", self.dir.path().join("run/bulla"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .args(args);
        command
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().expect("the binary runs"))
    }

    /// Makes a key `key`, a small tree `tree`, and its first version in `repo`. Returns the volume id.
    pub fn published(&self) -> String {
        self.run(&["key", "new", "--out", "key", "--no-passphrase"])
            .ends(0);
        let tree = self.path("tree");
        std::fs::create_dir_all(tree.join("sub/deep")).unwrap();
        std::fs::write(tree.join("a"), b"hello\n").unwrap();
        std::fs::write(tree.join("sub/deep/big"), noise(1, 700_000)).unwrap();
        std::fs::write(tree.join("sub/empty"), b"").unwrap();
        std::os::unix::fs::symlink("sub/deep/big", tree.join("link")).unwrap();
        std::fs::hard_link(tree.join("a"), tree.join("sub/again")).unwrap();
        self.publish()
            .ends(0)
            .field("volume")
            .as_str()
            .unwrap()
            .to_owned()
    }

    pub fn publish(&self) -> Ran {
        self.run(&["--json", "publish", "tree", "repo", "--key", "key"])
    }

    /// SOURCE of a repository of this home.
    pub fn source(&self, volume: &str, repo: &str) -> String {
        format!("{volume}@{}", self.path(repo).display())
    }

    pub fn serve(&self, repo: &str) -> Server {
        self.serve_at(repo, &["--listen", "127.0.0.1:0"])
    }

    /// Starts a server of one repository.
    pub fn serve_at(&self, repo: &str, place: &[&str]) -> Server {
        let args = ["--json", "serve", repo];
        let mut child = self
            .command(&[&args, place].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary runs");
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let record: serde_json::Value = serde_json::from_str(&line).expect("a record");
        let source = record["source"].as_str().expect("a source").to_owned();
        Server { child, source }
    }
}

/// A running `bulla serve`.
pub struct Server {
    child: Child,
    pub source: String,
}

impl Server {
    /// The LOCATION, without the volume id.
    pub fn location(&self) -> &str {
        self.source.split_once('@').unwrap().1
    }

    /// Sends it SIGHUP.
    pub fn hang_up(&self) {
        let id = self.child.id().to_string();
        let mut kill = Command::new("sh");
        kill.args(["-c", &format!("kill -HUP {id}")]);
        assert!(kill.status().unwrap().success());
    }

    /// Stops it (SIGSTOP): its connections stay open without answers.
    pub fn stall(&self) {
        let id = self.child.id().to_string();
        let mut kill = Command::new("sh");
        kill.args(["-c", &format!("kill -STOP {id}")]);
        assert!(kill.status().unwrap().success());
    }

    /// Whether it runs.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A mount that is unmounted on drop.
pub struct Mounted<'a> {
    pub home: &'a Home,
    pub dir: &'a str,
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        self.home.run(&["umount", self.dir]);
    }
}

/// A small file system in a home, for tests with a full disk.
pub struct Tmpfs {
    path: PathBuf,
}

impl Tmpfs {
    /// Mounts it on the directory `name`. `None` if it cannot be mounted.
    pub fn of(home: &Home, name: &str, bytes: u64) -> Option<Tmpfs> {
        let path = home.path(name);
        std::fs::create_dir(&path).unwrap();
        let made = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "bulla-test"])
            .arg(&path)
            .stderr(Stdio::null())
            .status();
        let made = made.is_ok_and(|status| status.success());
        made.then(|| Tmpfs { path })
    }

    /// Fills it except for at most this many bytes.
    pub fn leave_free(&self, bytes: u64) {
        self.free();
        let fill = self.path.join("fill");
        let disk = rustix::fs::statvfs(&self.path).unwrap();
        let fill_bytes = (disk.f_bavail * disk.f_bsize).saturating_sub(bytes);
        std::fs::write(&fill, vec![0; fill_bytes as usize]).unwrap();
    }

    /// Frees the space.
    pub fn free(&self) {
        let _ = std::fs::remove_file(self.path.join("fill"));
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// Copies a directory as `cp -a` does.
pub fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .arg("-a")
        .arg(from)
        .arg(to)
        .status()
        .unwrap();
    assert!(status.success());
}

/// Runs a command at a terminal of script(1) where somebody types `answer`. Returns what the screen shows, with `code N`
/// at its end. `None` without script(1).
pub fn at_terminal(command: &Command, answer: &str) -> Option<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<&str> = words.map(|word| word.to_str().unwrap()).collect();
    let inside = format!("{}; echo code $?", words.join(" "));
    let mut script = Command::new("script");
    script.args(["-qec", &inside, "/dev/null"]);
    for (name, value) in command.get_envs() {
        script.env(name, value.unwrap_or_default());
    }
    let started = script
        .current_dir(command.get_current_dir().unwrap())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = started.ok()?;
    let mut keyboard = child.stdin.take().unwrap();
    keyboard.write_all(answer.as_bytes()).unwrap();
    let mut shown = String::new();
    let mut screen = child.stdout.take().unwrap();
    screen.read_to_string(&mut shown).unwrap();
    drop(keyboard);
    child.wait().unwrap();
    Some(shown)
}

/// The segments of a repository.
pub fn segments(repo: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(repo.join("segments")).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Flips one bit in each 2 KiB of the segments, so that their server gives wrong answers.
pub fn corrupt(repo: &Path) {
    for path in segments(repo) {
        let mut bytes = std::fs::read(&path).unwrap();
        for at in (1500..bytes.len()).step_by(2048) {
            bytes[at] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
    }
}

/// Flips a bit in the middle of the largest file below `dir`.
pub fn damage_largest(dir: &Path) {
    let mut files: Vec<(u64, PathBuf)> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.metadata().unwrap().len(), entry.path()))
        .collect();
    files.sort();
    let (_, path) = files.pop().expect("a file to damage");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
}

/// A `bulla serve` over both protocols.
pub struct Serving {
    child: Child,
    /// SOURCE over `bulla://`, then over `http://`.
    pub sources: Vec<String>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Home {
    /// Serves a repository over both protocols.
    pub fn serve_both(&self, repo: &str) -> Serving {
        let any = "127.0.0.1:0";
        let mut child = self
            .command(&["serve", repo, "--listen", any, "--http", any])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let sources = lines.take(2).map(|line| line.unwrap()).collect();
        Serving { child, sources }
    }
}
