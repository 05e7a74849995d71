//! Commands that go to the background: this program starts again with `--foreground`, and its first record says that it
//! serves or why it failed. The daemon's log is in the state directory.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::args::Global;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::notify;

/// A larger log is emptied at the next start.
const MAX_LOG_BYTES: u64 = 4 << 20;

/// A daemon to start.
#[derive(Debug)]
pub struct Daemon<'a> {
    /// The daemon's task, for messages: `mount`.
    pub of: &'static str,
    /// The kind of failure when it dies without a word.
    pub kind: Kind,
    /// The type of the record that says that it serves.
    pub ready: &'static str,
    /// Its log.
    pub log: &'a Path,
}

impl Daemon<'_> {
    /// Starts this program again with the same arguments, `--foreground` and `more`. The daemon reads `secret` from its
    /// stdin.
    pub fn start(&self, global: &Global, more: &[&str], secret: &[u8]) -> Outcome<Child> {
        let what = format!("cannot start the daemon of the {}", self.of);
        let failed = |e: std::io::Error| Failure::io(what.clone(), &e);
        let program = std::env::current_exe().map_err(failed)?;
        let log_file = open_log(self.log)?;
        let words = crate::words().into_iter().skip(1);
        let mut command = Command::new(program);
        command.args(words).arg("--foreground").args(more);
        if !global.json {
            command.arg("--json");
        }
        let stdin = match secret.is_empty() {
            true => Stdio::null(),
            false => Stdio::piped(),
        };
        let mut child = command
            // The service manager waits for this process, not for the daemon.
            .env_remove(notify::VARIABLE)
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(log_file)
            // A process group of its own, so that Ctrl-C at the terminal does not reach the daemon.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        if let Some(mut stdin) = child.stdin.take() {
            // Some bytes fit into the pipe. A daemon that is dead already is reported below.
            let _ = stdin.write_all(secret);
        }
        Ok(child)
    }

    /// Reads the daemon's first record: it serves, or it has failed.
    pub fn wait_until_ready(
        &self,
        child: &mut Child,
        patience: Duration,
    ) -> Outcome<Map<String, Value>> {
        let died = || {
            let what = format!(
                "the daemon of the {} ended or did not answer in time",
                self.of
            );
            let mut failure = Failure::new(self.kind, what);
            failure.push_cause(format!("its log is {}", self.log.display()));
            failure
        };
        let stdout = child.stdout.take().ok_or_else(died)?;
        let (send, receive) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if send.send(line).is_err() {
                    break;
                }
            }
        });
        let Ok(line) = receive.recv_timeout(patience) else {
            // It neither answered nor failed. It must not serve after this command has reported a failure.
            let _ = child.kill();
            let _ = child.wait();
            return Err(died());
        };
        let record: Map<String, Value> = serde_json::from_str(&line).map_err(|_| died())?;
        if record.get("type").and_then(Value::as_str) == Some(self.ready) {
            return Ok(record);
        }
        let _ = child.wait();
        Err(retold(&record).unwrap_or_else(died))
    }
}

/// The failure in a result record of another process.
pub fn retold(record: &Map<String, Value>) -> Option<Failure> {
    let code = record.get("exit_code")?.as_u64()?;
    let error = record.get("error")?;
    let text = |key: &str| Some(error.get(key)?.as_str()?.to_owned());
    let mut failure = Failure::new(Kind::Defect, text("message")?);
    failure.exit_code = u8::try_from(code)
        .ok()
        .and_then(crate::exit::Exit::from_code);
    for cause in error.get("causes")?.as_array()? {
        failure.push_cause(cause.as_str()?.to_owned());
    }
    Some(failure.with_hint(text("hint")?))
}

/// The absolute form of a path, without looking at the file system.
pub fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("{}", path.display()), &e))
}

/// The log of the daemon for `place`, named after it, in the directory `kind` of the state directory.
pub fn log_path(config: &Config, kind: &str, place: &Path) -> Outcome<PathBuf> {
    let logs = config.path("state-dir").unwrap_or_default().join(kind);
    std::fs::create_dir_all(&logs)
        .map_err(|e| Failure::of(Kind::State, format!("cannot create {}", logs.display()), &e))?;
    let mut name = String::new();
    for byte in place.as_os_str().as_bytes().iter().skip(1) {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' => name.push(char::from(*byte)),
            b'/' => name.push('-'),
            other => name.push_str(&format!("%{other:02x}")),
        }
    }
    // File names are limited to 255 bytes. The end of a long path tells more than its beginning.
    let keep = name.len().saturating_sub(200);
    Ok(logs.join(format!("{}.log", name.get(keep..).unwrap_or(&name))))
}

fn open_log(path: &Path) -> Outcome<File> {
    let what = |e: std::io::Error| {
        Failure::of(Kind::State, format!("cannot write {}", path.display()), &e)
    };
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .map_err(what)?;
    if file.metadata().map_err(what)?.len() > MAX_LOG_BYTES {
        file.set_len(0).map_err(what)?;
        file.rewind().map_err(what)?;
    }
    Ok(file)
}
