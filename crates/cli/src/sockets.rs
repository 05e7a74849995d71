//! The status sockets of one user's mounts: one socket per mount, in a directory of mode 0700. A mount sends
//! one JSON record to each client and reads nothing. A socket without a listener belongs to a daemon that was
//! killed.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use std::{fs, io};

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use trust::{Hasher, Kind as BlockKind};

use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};

/// Time limit to send or to receive an answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// Limit of the length of a report.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const ENDING: &str = "sock";

/// The directory of the sockets: the setting `runtime-dir`, or `run` in the state directory if it is not
/// set.
pub fn directory(config: &Config) -> PathBuf {
    let below_state = || config.path("state-dir").unwrap_or_default().join("run");
    config.path("runtime-dir").unwrap_or_else(below_state)
}

/// Checks that only this user can write to `directory`: other users could put false sockets into it.
///
/// Returns `NotFound` if it does not exist.
pub fn check(directory: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !is_ours || metadata.mode() & 0o077 != 0 {
        let why = "it is not a directory that belongs to this user alone (mode 0700)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// Listens on a new socket that only this user can open, in a directory that only this user can open. `about` is what
/// the socket is for.
pub fn listen(directory: &Path, about: &[u8]) -> Outcome<(UnixListener, PathBuf)> {
    let failed = |e: io::Error| cannot_create(directory, &e);
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o700);
    builder.create(directory).map_err(failed)?;
    check(directory).map_err(failed)?;
    // Each process has its own path, because mount namespaces may share this directory. The name is
    // short, because socket addresses are limited to 108 bytes.
    let name = Hasher::new(&[0; 32]).name(BlockKind::Data, about);
    let name: String = name
        .as_bytes()
        .iter()
        .take(6)
        .map(|b| format!("{b:02x}"))
        .collect();
    let path = directory.join(format!("{name}.{}.{ENDING}", std::process::id()));
    let new = path.with_extension("new");
    for old in [&path, &new] {
        match fs::remove_file(old) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(failed(e)),
            _ => {}
        }
    }
    // Renamed only when it listens: until then it would look like the socket of a dead daemon.
    let listener = UnixListener::bind(&new).map_err(failed)?;
    fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).map_err(failed)?;
    fs::rename(&new, &path).map_err(failed)?;
    Ok((listener, path))
}

fn cannot_create(directory: &Path, error: &io::Error) -> Failure {
    let what = format!("cannot create a socket in {}", directory.display());
    Failure::of(Kind::System, what, error)
}

/// Answers at a socket until it is dropped.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    answering: JoinHandle<()>,
}

impl Door {
    /// Starts to answer for the mount on `mounted`. Must be called within a tokio runtime.
    pub fn open(
        directory: &Path,
        mounted: &Path,
        answer: impl Fn() -> String + Send + 'static,
    ) -> Outcome<Door> {
        let failed = |e: io::Error| cannot_create(directory, &e);
        let (listener, path) = listen(directory, mounted.as_os_str().as_bytes())?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        let answering = tokio::spawn(async move {
            loop {
                // One client at a time: all of them belong to this user, and each has a time limit.
                match listener.accept().await {
                    Ok((mut stream, _)) => {
                        let words = answer();
                        let send = stream.write_all(words.as_bytes());
                        // A client that does not read gets nothing.
                        let _ = tokio::time::timeout(PATIENCE, send).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot answer `bulla status`");
                        tokio::time::sleep(PATIENCE).await;
                    }
                }
            }
        });
        Ok(Door { path, answering })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.answering.abort();
        // The socket may be removed already.
        let _ = fs::remove_file(&self.path);
    }
}

/// The answer at one socket.
#[derive(Debug)]
pub enum Heard {
    /// A mount's record.
    Record(Value),
    /// No process listens: its daemon was killed.
    Dead,
    /// Another answer, or none in time.
    Silent(String),
}

/// Asks every socket in `directory`. If the directory does not exist, there are none.
pub fn ask_all(directory: &Path) -> Outcome<Vec<(PathBuf, Heard)>> {
    let mut heard = Vec::new();
    for path in all(directory)? {
        heard.extend(ask(&path).map(|what| (path, what)));
    }
    Ok(heard)
}

/// The sockets in `directory`. If the directory does not exist, there are none.
pub fn all(directory: &Path) -> Outcome<Vec<PathBuf>> {
    match check(directory) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let what = format!("{} is not safe to use", directory.display());
            let hint = "other users can write to this directory, so mounts do not use it; check who created it, and remove it";
            return Err(Failure::of(Kind::Denied, what, &e).with_hint(hint));
        }
    }
    let entries = fs::read_dir(directory)
        .map_err(|e| Failure::io(format!("cannot read {}", directory.display()), &e))?;
    let is_socket = |entry: &fs::DirEntry| {
        let path = entry.path();
        entry.file_type().is_ok_and(|kind| kind.is_socket())
            && path.extension().is_some_and(|ending| ending == ENDING)
    };
    let sockets = entries.flatten().filter(is_socket);
    let mut sockets: Vec<PathBuf> = sockets.map(|entry| entry.path()).collect();
    sockets.sort();
    Ok(sockets)
}

/// Asks one socket. `None` if it disappears meanwhile.
fn ask(path: &Path) -> Option<Heard> {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(e) => {
            return match e.kind() {
                io::ErrorKind::ConnectionRefused => Some(Heard::Dead),
                io::ErrorKind::NotFound => None,
                _ => Some(Heard::Silent(e.to_string())),
            };
        }
    };
    Some(match read_answer(stream) {
        Ok(bytes) => match serde_json::from_slice(&bytes) {
            Ok(record @ Value::Object(_)) => Heard::Record(record),
            _ => Heard::Silent("the answer is not a report".to_owned()),
        },
        Err(e) => Heard::Silent(e.to_string()),
    })
}

fn read_answer(mut stream: UnixStream) -> io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut bytes = Vec::new();
    let mut part = [0; 8192];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || bytes.len() > MAX_ANSWER_BYTES {
            return Err(io::Error::from(io::ErrorKind::TimedOut));
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut part)? {
            0 => return Ok(bytes),
            n => bytes.extend_from_slice(part.get(..n).unwrap_or_default()),
        }
    }
}

/// Removes a socket of a dead daemon.
pub fn clear(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
