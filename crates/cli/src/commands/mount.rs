//! `bulla mount` and `bulla umount`. `mount` starts this program again with `--foreground` as the daemon, reads the
//! daemon's records from a pipe, and returns when the mount is ready.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Seek};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use ::mount::{MountOptions, Signals};
use ::serve::metrics::Page;
use serde_json::{Map, Value, json};

use crate::args::{Global, Mount, Umount};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::{self, Listening};
use crate::notify;
use crate::output::{Done, Output, fields};
use crate::report;
use crate::session::Session;
use crate::sockets::{self, Door};
use crate::units;

/// Time limit of the start, in addition to the deadline for opening the volume.
const START_GRACE: Duration = Duration::from_secs(20);
/// A larger log is emptied at the next mount.
const MAX_LOG_BYTES: u64 = 4 << 20;

/// Mounts.
pub fn mount(args: &Mount, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    if args.foreground {
        return in_foreground(args, config, output);
    }
    let dir = absolute(&args.dir)?;
    let log = log_path(config, &dir)?;
    let mut child = start(global, &log)?;
    let deadline = match args.reading.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let mounted = wait_until_ready(&mut child, deadline + START_GRACE, &log)?;
    if let Some(ended) = mounted.get("stale_since").and_then(Value::as_str) {
        output.stale(ended);
    }
    if mounted.get("offline").is_some() {
        let version = mounted.get("version").and_then(Value::as_u64);
        output.offline(version.unwrap_or_default());
    }
    if !output.json() {
        let version = mounted.get("version").cloned().unwrap_or_default();
        output.note(&format!(
            "version {version} is mounted on {}; unmount it with `bulla umount {}`; the log is {}",
            dir.display(),
            args.dir.display(),
            log.display()
        ));
    }
    let mut record = mounted;
    record.remove("type");
    record.remove("schema");
    record.insert("log".to_owned(), log.display().to_string().into());
    Ok(Done::ok(record))
}

/// Mounts, reports that, and serves until the volume is unmounted or a signal comes.
fn in_foreground(args: &Mount, config: &Config, output: &mut Output) -> Outcome<Done> {
    let session = Session::start(config, &args.reading)?;
    let dir = absolute(&args.dir)?;
    let options = options(args, config)?;
    let metrics = args.metrics.as_deref().map(Listening::on).transpose()?;
    let volume = session.open(config, &args.reading, output)?;
    // All paths are absolute from here on. The working directory must not keep a file system busy.
    std::env::set_current_dir("/").map_err(|e| Failure::io("cannot change to /", &e))?;
    let mut record = fields(json!({"volume": volume.id().to_string(),
        "dir": dir.display().to_string()}));
    if volume.is_stale() {
        let ended = units::time(volume.snapshot().fresh_until());
        record.insert("stale_since".to_owned(), ended.into());
    }
    if volume.is_offline() {
        record.insert("offline".to_owned(), true.into());
    }
    // From here on a signal unmounts. If it comes while mounting, mounting finishes first, because a partial
    // mount could not be unmounted.
    let cannot_listen = |e: std::io::Error| Failure::io("cannot listen for signals", &e);
    let signals = session.serve(async { Signals::listen().map_err(cannot_listen) })?;
    let mounted = session.serve(async { Ok(::mount::mount(volume, &dir, options).await?) })?;
    let version = mounted.version();
    let answering = session.serve(async { Ok(answer_status(config, mounted.reporter())) })?;
    let metrics_at = metrics
        .as_ref()
        .map(|listening| listening.local.to_string());
    let reporter = mounted.reporter();
    let fill = move |page: &mut Page| metrics::mount(page, &reporter.report());
    let measuring = session.serve(async { metrics.map(|it| it.answer(fill)).transpose() })?;
    record.extend(fields(json!({"version": version, "metrics": metrics_at})));
    let status = format!("version {version} is mounted on {}", dir.display());
    if output.json() {
        output.record("mounted", record)?;
    } else {
        output.note(&status);
    }
    output.flush()?;
    notify::ready(&status);
    let ended = session.serve(async { Ok(mounted.until_signal(signals).await?) });
    notify::stopping();
    ended?;
    drop((answering, measuring));
    Ok(Done::ok(fields(json!({}))))
}

fn options(args: &Mount, config: &Config) -> Outcome<MountOptions> {
    Ok(MountOptions {
        refresh: match args.refresh {
            Some(refresh) => refresh,
            None => config.duration("refresh")?,
        },
        allow_other: args.allow_other,
        ownership: args.owner,
        no_exec: args.no_exec,
        ..MountOptions::default()
    })
}

/// Answers `bulla status`. If no socket can be made, the mount works without.
fn answer_status(config: &Config, reporter: ::mount::Reporter) -> Option<Door> {
    let since = SystemTime::now();
    let directory = reporter.directory().to_owned();
    let answer = move || Value::Object(report::record(&reporter.report(), since)).to_string();
    match Door::open(&sockets::directory(config), &directory, answer) {
        Ok(door) => Some(door),
        Err(failure) => {
            let cause = failure.causes.join(": ");
            tracing::warn!(%failure, cause, "cannot answer `bulla status` for this mount");
            None
        }
    }
}

/// Starts this program again as the daemon of the mount.
fn start(global: &Global, log: &Path) -> Outcome<Child> {
    let what = "cannot start the daemon of the mount";
    let program = std::env::current_exe().map_err(|e| Failure::io(what, &e))?;
    let log_file = open_log(log)?;
    let words = crate::words().into_iter().skip(1);
    let mut command = Command::new(program);
    command.args(words).arg("--foreground");
    if !global.json {
        command.arg("--json");
    }
    command
        // The service manager waits for this process, not for the daemon.
        .env_remove(notify::VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        // A process group of its own, so that Ctrl-C at the terminal does not reach the daemon.
        .process_group(0)
        .spawn()
        .map_err(|e| Failure::io(what, &e))
}

/// Reads the daemon's first record: it has mounted, or it has failed.
fn wait_until_ready(
    child: &mut Child,
    patience: Duration,
    log: &Path,
) -> Outcome<Map<String, Value>> {
    let died = || {
        let mut failure = Failure::new(
            Kind::Mount,
            "the daemon of the mount ended or did not answer in time",
        );
        failure.push_cause(format!("its log is {}", log.display()));
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
        // It neither answered nor failed. It must not mount after this command has reported a failure.
        let _ = child.kill();
        let _ = child.wait();
        return Err(died());
    };
    let record: Map<String, Value> = serde_json::from_str(&line).map_err(|_| died())?;
    if record.get("type").and_then(Value::as_str) == Some("mounted") {
        return Ok(record);
    }
    let _ = child.wait();
    Err(retold(&record).unwrap_or_else(died))
}

/// The failure in the daemon's result record.
fn retold(record: &Map<String, Value>) -> Option<Failure> {
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

fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|e| Failure::io(format!("{}", path.display()), &e))
}

/// The log of a mount, named after its directory.
fn log_path(config: &Config, dir: &Path) -> Outcome<PathBuf> {
    let logs = config.path("state-dir").unwrap_or_default().join("mounts");
    std::fs::create_dir_all(&logs)
        .map_err(|e| Failure::of(Kind::State, format!("cannot create {}", logs.display()), &e))?;
    let mut name = String::new();
    for byte in dir.as_os_str().as_bytes().iter().skip(1) {
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

/// Unmounts.
pub fn umount(args: &Umount, output: &mut Output) -> Outcome<Done> {
    ::mount::unmount(&args.dir)?;
    output.note(&format!("{} is unmounted", args.dir.display()));
    Ok(Done::ok(fields(
        json!({"dir": args.dir.display().to_string()}),
    )))
}
