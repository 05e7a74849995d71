//! What other commands ask of an attached device. Its daemon listens on a Unix socket that only its user can open. A client
//! sends one line of JSON, the question, and gets lines of JSON: records of the work, then one of the type `result`, in the
//! form that `--json` has. A client that goes away ends the work that it asked for.
//!
//! Blocking threads, because the device blocks too. Questions, lines and the number of clients are bounded, and every wait
//! has a deadline. A socket without a listener belongs to a daemon that was killed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::config::Config;
use crate::daemon;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::fields;
use crate::sockets;

/// How long a client may take for its question, and for reading each line of an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long `status` waits for an answer.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);
/// Longest question.
const MAX_QUESTION_BYTES: u64 = 4096;
/// Longest line of an answer.
const MAX_LINE_BYTES: u64 = 1 << 20;
/// Clients at once. All belong to this user.
const MAX_CLIENTS: usize = 16;

/// A question.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Ask {
    /// The state of the device.
    Status {},
    /// Write everything home and end.
    Detach {
        /// Also while programs use it.
        force: bool,
    },
    /// Check every block.
    Scrub {
        /// Bytes per second.
        bwlimit: Option<u64>,
        /// From the first block on.
        restart: bool,
    },
}

/// Answers questions.
pub trait Answerer: Send + Sync {
    /// Answers one. `record` sends a record of the work, and fails when the client has gone.
    ///
    /// # Errors
    /// What the client is told.
    fn answer(
        &self,
        ask: Ask,
        record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
    ) -> Outcome<Map<String, Value>>;
}

/// The directory of the sockets of attached devices.
pub fn directory(config: &Config) -> PathBuf {
    sockets::directory(config).join("protect")
}

/// Answers at a socket until it is dropped.
#[derive(Debug)]
pub struct Desk {
    path: PathBuf,
    stopping: Arc<AtomicBool>,
    clients: Arc<AtomicUsize>,
    accepting: Option<JoinHandle<()>>,
}

impl Desk {
    /// Starts to answer for the device `about`.
    pub fn open(directory: &Path, about: &[u8], answerer: Arc<dyn Answerer>) -> Outcome<Desk> {
        let (listener, path) = sockets::listen(directory, about)?;
        let stopping = Arc::new(AtomicBool::new(false));
        let clients = Arc::new(AtomicUsize::new(0));
        let (stops, counted) = (stopping.clone(), clients.clone());
        let accepting = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&listener, &stops, &counted, &answerer))
            .map_err(|e| Failure::io("cannot start a thread", &e))?;
        Ok(Desk {
            path,
            stopping,
            clients,
            accepting: Some(accepting),
        })
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(&self.path);
        let _ = sockets::clear(&self.path);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        // Clients that asked for the end get their answer before the process ends.
        let until = Instant::now() + PATIENCE;
        while self.clients.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Counts a client until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn accept(
    listener: &UnixListener,
    stopping: &AtomicBool,
    clients: &Arc<AtomicUsize>,
    answerer: &Arc<dyn Answerer>,
) {
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a question about the device");
                std::thread::sleep(Duration::from_millis(200));
                continue;
            }
        };
        if stopping.load(Ordering::SeqCst) {
            return;
        }
        let place = Place(clients.clone());
        if clients.fetch_add(1, Ordering::SeqCst) >= MAX_CLIENTS {
            continue;
        }
        let answerer = answerer.clone();
        let serving = std::thread::Builder::new().name("control".to_owned());
        let served = serving.spawn(move || {
            // Given back when the client has its answer.
            let _place = place;
            if let Err(error) = serve(&stream, &*answerer) {
                tracing::debug!(%error, "a question about the device was not answered");
            }
            let _ = stream.shutdown(Shutdown::Both);
        });
        if let Err(error) = served {
            tracing::warn!(%error, "cannot answer a question about the device");
        }
    }
}

fn serve(stream: &UnixStream, answerer: &dyn Answerer) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let question = read_line(stream, MAX_QUESTION_BYTES, Instant::now() + PATIENCE)?;
    let outcome = match serde_json::from_slice(&question) {
        Ok(ask) => answerer.answer(ask, &mut |record| send(stream, record)),
        Err(e) => Err(Failure::of(
            Kind::Newer,
            "the question is not understood",
            &e,
        )),
    };
    send(stream, result(outcome))
}

/// The result record.
fn result(outcome: Outcome<Map<String, Value>>) -> Map<String, Value> {
    let mut record = fields(json!({"type": "result"}));
    match outcome {
        Ok(more) => {
            record.insert("ok".to_owned(), true.into());
            record.extend(more);
        }
        Err(failure) => {
            let error = json!({
                "message": failure.error,
                "causes": failure.causes,
                "hint": failure.hint(),
            });
            record.insert("ok".to_owned(), false.into());
            record.insert("exit_code".to_owned(), failure.exit().code().into());
            record.insert("error".to_owned(), error);
            record.extend(failure.fields);
        }
    }
    record
}

fn send(mut stream: &UnixStream, record: Map<String, Value>) -> io::Result<()> {
    let mut line = Value::Object(record).to_string().into_bytes();
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads a line, byte by byte from the kernel's buffer only where the whole is short.
fn read_line(stream: &UnixStream, most: u64, until: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut part = [0; 512];
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        let mut from = stream;
        let n = from.read(&mut part)?;
        let bytes = part.get(..n).unwrap_or_default();
        if n == 0 || line.len() as u64 + n as u64 > most {
            return Err(io::ErrorKind::InvalidData.into());
        }
        match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                line.extend_from_slice(bytes.get(..end).unwrap_or_default());
                return Ok(line);
            }
            None => line.extend_from_slice(bytes),
        }
    }
}

/// What one socket answered.
#[derive(Debug)]
pub enum Told {
    /// The result's fields.
    Record(Map<String, Value>),
    /// No process listens: its daemon was killed.
    Dead,
    /// It disappeared.
    Gone,
    /// Another answer, or none in time.
    Silent(String),
}

/// Asks for the state at every socket in `directory`.
pub fn survey(directory: &Path) -> Outcome<Vec<(PathBuf, Told)>> {
    let mut heard = Vec::new();
    for path in sockets::all(directory)? {
        match status(&path) {
            Told::Gone => {}
            told => heard.push((path, told)),
        }
    }
    Ok(heard)
}

fn status(path: &Path) -> Told {
    let stream = match UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => return Told::Dead,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Told::Gone,
        Err(e) => return Told::Silent(e.to_string()),
    };
    match talk(&stream, &Ask::Status {}, Some(STATUS_PATIENCE), &mut |_| {
        Ok(())
    }) {
        Ok(record) => Told::Record(record),
        Err(failure) => {
            let cause = failure.causes.first().cloned();
            Told::Silent(cause.unwrap_or(failure.error))
        }
    }
}

/// Asks the daemon at `path`. Each record of its work goes to `seen`. `silence` is how long it may say nothing.
///
/// # Errors
/// What the daemon says, or [`Kind::DeviceSilent`] when it does not answer.
pub fn ask(
    path: &Path,
    ask: &Ask,
    silence: Option<Duration>,
    seen: &mut dyn FnMut(&Map<String, Value>) -> Outcome<()>,
) -> Outcome<Map<String, Value>> {
    let stream = UnixStream::connect(path).map_err(|e| silent(&e))?;
    talk(&stream, ask, silence, seen)
}

fn silent(error: &io::Error) -> Failure {
    Failure::of(
        Kind::DeviceSilent,
        "the process of the device does not answer",
        error,
    )
}

fn talk(
    mut stream: &UnixStream,
    ask: &Ask,
    silence: Option<Duration>,
    seen: &mut dyn FnMut(&Map<String, Value>) -> Outcome<()>,
) -> Outcome<Map<String, Value>> {
    let sent = serde_json::to_vec(ask).map_err(io::Error::from);
    let sent = sent.and_then(|mut line| {
        line.push(b'\n');
        stream.set_read_timeout(silence)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(&line)
    });
    sent.map_err(|e| silent(&e))?;
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        let mut limited = (&mut lines).take(MAX_LINE_BYTES);
        let n = limited.read_until(b'\n', &mut line);
        if n.map_err(|e| silent(&e))? == 0 {
            return Err(silent(&io::ErrorKind::UnexpectedEof.into()));
        }
        let record: Result<Map<String, Value>, _> = serde_json::from_slice(&line);
        let mut record = record.map_err(|e| silent(&e.into()))?;
        if record.get("type").and_then(Value::as_str) != Some("result") {
            seen(&record)?;
            continue;
        }
        if record.remove("ok") != Some(Value::Bool(true)) {
            let mut failure = daemon::retold(&record);
            if let Some(failure) = &mut failure {
                for known in ["type", "exit_code", "error"] {
                    record.remove(known);
                }
                failure.fields = record;
            }
            let odd = || silent(&io::ErrorKind::InvalidData.into());
            return Err(failure.unwrap_or_else(odd));
        }
        record.remove("type");
        return Ok(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// Counts to three when it is asked to scrub, and refuses to detach.
    struct Counter(AtomicUsize);

    impl Answerer for Counter {
        fn answer(
            &self,
            ask: Ask,
            record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
        ) -> Outcome<Map<String, Value>> {
            match ask {
                Ask::Status {} => Ok(fields(json!({"device": "/d"}))),
                Ask::Detach { .. } => {
                    let failure = Failure::new(Kind::DeviceInUse, "it is used");
                    Err(failure.with_hint("unmount it"))
                }
                Ask::Scrub { bwlimit, .. } => {
                    let most = bwlimit.unwrap_or(3);
                    for n in 0..most {
                        self.0.fetch_add(1, Ordering::SeqCst);
                        record(fields(json!({"type": "progress", "n": n})))
                            .map_err(|e| Failure::io("the client has gone", &e))?;
                        if most > 3 {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }
                    Ok(fields(json!({"blocks": 3})))
                }
            }
        }
    }

    fn desk(dir: &Path) -> (Desk, Arc<Counter>) {
        let counter = Arc::new(Counter(AtomicUsize::new(0)));
        let desk = Desk::open(&dir.join("run"), b"d", counter.clone()).unwrap();
        (desk, counter)
    }

    #[test]
    fn questions_are_answered_and_failures_keep_their_exit_code_and_hint() {
        let dir = tempfile::tempdir().unwrap();
        let (desk, _) = desk(dir.path());
        let mut seen = 0;
        let scrub = Ask::Scrub {
            bwlimit: None,
            restart: false,
        };
        let done = ask(&desk.path, &scrub, None, &mut |record| {
            assert_eq!(record["n"], seen);
            seen += 1;
            Ok(())
        });
        assert_eq!((done.unwrap()["blocks"].clone(), seen), (json!(3), 3));
        let refused = ask(&desk.path, &Ask::Detach { force: true }, None, &mut |_| {
            Ok(())
        });
        let refused = refused.unwrap_err();
        assert_eq!(refused.exit(), Exit::Locked);
        assert_eq!(
            (&*refused.error, refused.hint()),
            ("it is used", "unmount it")
        );
        let all = survey(&dir.path().join("run")).unwrap();
        assert!(matches!(&*all, [(_, Told::Record(record))] if record["device"] == "/d"));
    }

    #[test]
    fn daemon_that_was_killed_is_told_from_one_that_is_silent() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        assert!(survey(&run).unwrap().is_empty());
        let (listener, path) = sockets::listen(&run, b"d").unwrap();
        drop(listener);
        assert!(matches!(&*survey(&run).unwrap(), [(at, Told::Dead)] if *at == path));
        sockets::clear(&path).unwrap();
        let (desk, _) = desk(dir.path());
        let path = desk.path.clone();
        drop(desk);
        assert!(!path.exists());
        let mode = std::os::unix::fs::PermissionsExt::mode;
        assert_eq!(
            mode(&std::fs::metadata(&run).unwrap().permissions()) & 0o777,
            0o700
        );
    }

    #[test]
    fn desk_waits_until_its_last_answer_is_sent() {
        let dir = tempfile::tempdir().unwrap();
        let (desk, counter) = desk(dir.path());
        let path = desk.path.clone();
        let scrub = Ask::Scrub {
            bwlimit: Some(200),
            restart: false,
        };
        let client = std::thread::spawn(move || ask(&path, &scrub, None, &mut |_| Ok(())));
        while counter.0.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        drop(desk);
        assert_eq!(counter.0.load(Ordering::SeqCst), 200);
        assert_eq!(client.join().unwrap().unwrap()["blocks"], 3);
    }

    #[test]
    fn client_that_goes_away_ends_its_work() {
        let dir = tempfile::tempdir().unwrap();
        let (desk, counter) = desk(dir.path());
        let scrub = Ask::Scrub {
            bwlimit: Some(1_000_000),
            restart: false,
        };
        let stopped = ask(&desk.path, &scrub, None, &mut |_| {
            Err(Failure::new(Kind::Interrupted, "enough"))
        });
        assert_eq!(stopped.unwrap_err().kind, Kind::Interrupted);
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            let before = counter.0.load(Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(50));
            if before == counter.0.load(Ordering::SeqCst) {
                break;
            }
            assert!(
                Instant::now() < until,
                "the work goes on without its client"
            );
        }
    }

    #[test]
    fn garbage_and_silence_hold_no_place() {
        let dir = tempfile::tempdir().unwrap();
        let (desk, _) = desk(dir.path());
        for question in [
            &b"\n"[..],
            b"{}\n",
            b"{\"ask\":\"eat\"}\n",
            b"{\"ask\":\"status\",\"more\":1}\n",
            &[b'x'; 5000],
        ] {
            let mut stream = UnixStream::connect(&desk.path).unwrap();
            // It may be cut off before all is sent.
            let _ = stream.write_all(question);
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            assert!(!answer.contains("\"ok\":true"), "{answer}");
        }
        let idle: Vec<UnixStream> = (0..MAX_CLIENTS * 2)
            .map(|_| UnixStream::connect(&desk.path).unwrap())
            .collect();
        let until = Instant::now() + Duration::from_secs(30);
        while ask(&desk.path, &Ask::Status {}, None, &mut |_| Ok(())).is_err() {
            assert!(Instant::now() < until, "idle clients keep others out");
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(idle);
    }
}
