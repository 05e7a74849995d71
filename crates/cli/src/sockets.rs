//! Where the mounts of one user are asked how they do: a socket for each, in a directory that nobody
//! else may enter. Whoever connects is sent one JSON record and nothing is read from him. A socket that
//! nobody listens on was left behind by a daemon that was killed.

use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
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

/// What an answer may take; and what a reader of one may.
const PATIENCE: Duration = Duration::from_secs(2);
/// No report is longer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const ENDING: &str = "sock";

/// The directory of sockets: the setting `runtime-dir`, and a part of the state directory for services
/// that have none.
pub fn directory(config: &Config) -> PathBuf {
    let below_state = || config.path("state-dir").unwrap_or_default().join("run");
    config.path("runtime-dir").unwrap_or_else(below_state)
}

/// Whether `directory` is ours alone: what lies in another's is not to be believed.
///
/// The error is what is wrong with it; `NotFound` when it is not there.
pub fn check(directory: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(directory)?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !is_ours || metadata.mode() & 0o077 != 0 {
        let why = "it is not a directory that belongs to this user alone (mode 0700)";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(())
}

/// A socket that is answered until this is dropped.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    answering: JoinHandle<()>,
}

impl Door {
    /// Begins to answer for the mount on `mounted`, within a tokio runtime.
    pub fn open(
        directory: &Path,
        mounted: &Path,
        answer: impl Fn() -> String + Send + 'static,
    ) -> Outcome<Door> {
        let failed = |e: io::Error| {
            let what = format!("no socket in {}", directory.display());
            Failure::of(Kind::System, what, &e)
        };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(directory).map_err(failed)?;
        check(directory).map_err(failed)?;
        // A path of its own for each process, since mount namespaces may share this directory; short,
        // since the addresses of sockets are.
        let name = Hasher::new(&[0; 32]).name(BlockKind::Data, mounted.as_os_str().as_bytes());
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
        // It gets its name when it is listened on: before, it would look like one left behind.
        let listener = UnixListener::bind(&new).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = tokio::net::UnixListener::from_std(listener).map_err(failed)?;
        let answering = tokio::spawn(async move {
            loop {
                // One at a time: they are all this user's, and nobody is waited for.
                match listener.accept().await {
                    Ok((mut stream, _)) => {
                        let words = answer();
                        let send = stream.write_all(words.as_bytes());
                        // Whoever asked and does not listen has had his chance.
                        let _ = tokio::time::timeout(PATIENCE, send).await;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "`bulla status` cannot be answered");
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
        // Whoever removed it before did our work.
        let _ = fs::remove_file(&self.path);
    }
}

/// What is heard at one socket.
#[derive(Debug)]
pub enum Heard {
    /// A mount's record.
    Record(Value),
    /// Nobody listens: its daemon was killed.
    Dead,
    /// Something else, or nothing in time.
    Silent(String),
}

/// Every socket in `directory`, and what is heard there. A directory that is not there has none.
pub fn ask_all(directory: &Path) -> Outcome<Vec<(PathBuf, Heard)>> {
    match check(directory) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => {
            let what = format!("{} is not to be trusted", directory.display());
            let hint = "mounts of this user tell nothing there; look who made it, and remove it";
            return Err(Failure::of(Kind::Denied, what, &e).with_hint(hint));
        }
    }
    let entries = fs::read_dir(directory)
        .map_err(|e| Failure::io(format!("cannot read {}", directory.display()), &e))?;
    let mut heard = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && path.extension().is_some_and(|ending| ending == ENDING) {
            let what = ask(&path);
            heard.extend(what.map(|what| (path, what)));
        }
    }
    heard.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(heard)
}

/// What is heard at a socket; `None` when it is gone in this moment.
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
            _ => Heard::Silent("it answers something else than a report".to_owned()),
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

/// Removes a socket that nobody listens on.
pub fn clear(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
