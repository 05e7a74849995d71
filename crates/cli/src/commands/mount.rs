//! `bulla mount` and `bulla umount`. `mount` starts this program again with `--foreground` as the daemon, reads the
//! daemon's records from a pipe, and returns when the mount is ready.

mod shared;

use std::path::Path;
use std::str::FromStr;
use std::time::{Duration, SystemTime};

use ::mount::{MountOptions, Signals, table};
use ::serve::metrics::Page;
use serde_json::{Map, Value, json};
use wire::location::Source;

use crate::args::{Global, Mount, Umount};
use crate::config::Config;
use crate::daemon::{self, Daemon, absolute};
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::{self, Listening};
use crate::notify;
use crate::output::{Done, Output, fields};
use crate::profiles::{self, Recording};
use crate::report;
use crate::session::Session;
use crate::sharing;
use crate::sockets::{self, Door};
use crate::units;

/// Time limit of the start, in addition to the deadline for opening the volume.
const START_GRACE: Duration = Duration::from_secs(20);

/// Mounts.
pub fn mount(args: &Mount, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    refuse_swapped(args, config)?;
    let home = sharing::named(config, &args.reading)?;
    if home.is_some() {
        shared::refuse_flags(args)?;
    } else if args.attr.is_some() || args.locks.is_some() {
        let (flag, hint) = match args.attr {
            Some(_) => (
                "--attr",
                "names of a published volume are proved, and new ones come with a new version (--refresh)",
            ),
            None => (
                "--locks",
                "what is read-only needs no locks of other machines",
            ),
        };
        let error = format!(
            "{flag} is for shared volumes, and `{}` is none",
            args.reading.source
        );
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    if args.foreground {
        return match home {
            Some(home) => shared::in_foreground(args, home, config, output),
            None => in_foreground(args, config, output),
        };
    }
    let dir = absolute(&args.dir)?;
    let log = daemon::log_path(config, "mounts", &dir)?;
    let daemon = Daemon {
        of: "mount",
        kind: Kind::Mount,
        ready: "mounted",
        log: &log,
    };
    let mut child = daemon.start(global, &[], &[])?;
    let deadline = match args.reading.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let mounted = daemon.wait_until_ready(&mut child, deadline + START_GRACE)?;
    if let Some(ended) = mounted.get("stale_since").and_then(Value::as_str) {
        output.stale(ended);
    }
    if mounted.get("offline").is_some() {
        let version = mounted.get("version").and_then(Value::as_u64);
        output.offline(version.unwrap_or_default());
    }
    if mounted.get("cleared_dead").is_some() {
        output.note(&format!("removed a dead mount from {}", dir.display()));
    }
    if let Some(home) = &home {
        shared::tell(&mounted, home, args, &log, output);
    } else if !output.json() {
        let version = mounted.get("version").cloned().unwrap_or_default();
        let newest = mounted.get("newest");
        let newest = newest.map(|newest| format!(" (the newest is version {newest})"));
        let named = config.source(&args.reading.source);
        let of = named.map_or(String::new(), |_| format!(" of {}", args.reading.source));
        output.note(&format!(
            "version {version}{of}{} is mounted on {}; unmount it with `bulla umount {}`; the log is {}",
            newest.unwrap_or_default(),
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

/// Refuses `mount DIR SOURCE`.
fn refuse_swapped(args: &Mount, config: &Config) -> Outcome<()> {
    let (source, dir) = (&args.reading.source, args.dir.to_string_lossy());
    let is_source = |text: &str| {
        Source::from_str(text).is_ok() || text.contains("://") || config.source(text).is_some()
    };
    if !args.dir.exists() && is_source(&dir) && !is_source(source) {
        let error = format!("`{dir}` is no directory to mount on, but a SOURCE");
        let hint = format!("SOURCE comes first: `bulla mount {dir} {source}`");
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    Ok(())
}

/// Mounts, reports that, and serves until the volume is unmounted or a signal comes.
fn in_foreground(args: &Mount, config: &Config, output: &mut Output) -> Outcome<Done> {
    let session = Session::start(config, &args.reading)?;
    let dir = absolute(&args.dir)?;
    let options = options(args, config)?;
    let recording = args.record.as_deref().map(Recording::begin).transpose()?;
    let metrics = args.metrics.as_deref().map(Listening::on).transpose()?;
    let at = (args.at.as_ref(), &[][..]);
    let volume = session.open_at(config, &args.reading, at, None, output)?;
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
    if let Some(newest) = output.newest() {
        record.insert("newest".to_owned(), newest.into());
    }
    // From here on a signal unmounts. If it comes while mounting, mounting finishes first, because a partial
    // mount could not be unmounted.
    let cannot_listen = |e: std::io::Error| Failure::io("cannot listen for signals", &e);
    let signals = session.serve(async { Signals::listen().map_err(cannot_listen) })?;
    let mounted = session.serve(async { Ok(::mount::mount(volume, &dir, options).await?) })?;
    let version = mounted.version();
    let (reporter, since) = (mounted.reporter(), SystemTime::now());
    let report = move || report::record(&reporter.report(), since);
    let answering =
        session.serve(async { Ok(answer_status(config, mounted.directory(), report)) })?;
    let metrics_at = metrics
        .as_ref()
        .map(|listening| listening.local.to_string());
    let reporter = mounted.reporter();
    let fill = move |page: &mut Page| metrics::mount(page, &reporter.report());
    let measuring = session.serve(async { metrics.map(|it| it.answer(fill)).transpose() })?;
    record.extend(fields(json!({"version": version, "metrics": metrics_at})));
    if mounted.cleared_dead() {
        record.insert("cleared_dead".to_owned(), true.into());
    }
    let status = format!("version {version} is mounted on {}", dir.display());
    if output.json() {
        output.record("mounted", record)?;
    } else {
        output.note(&status);
    }
    output.flush()?;
    notify::ready(&status);
    let recorder = mounted.recorder();
    let ended = session.serve(async {
        let ended = mounted.until_signal(signals);
        match (recording, recorder) {
            (Some(recording), Some(recorder)) => recording.until(&recorder, ended).await?,
            _ => ended.await,
        }
        .map_err(Failure::from)
    });
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
        fetch_first: profiles::fetch_first(args.profile.as_deref())?,
        record: args.record.is_some(),
        ..MountOptions::default()
    })
}

/// Answers `bulla status` with the record that `report` makes. If no socket can be made, the mount works without.
fn answer_status(
    config: &Config,
    directory: &Path,
    report: impl Fn() -> Map<String, Value> + Send + Sync + 'static,
) -> Option<Door> {
    let answer = move || Value::Object(report()).to_string();
    match Door::open(&sockets::directory(config), directory, answer) {
        Ok(door) => Some(door),
        Err(failure) => {
            let cause = failure.causes.join(": ");
            tracing::warn!(%failure, cause, "cannot answer `bulla status` for this mount");
            None
        }
    }
}

/// Unmounts. Waits until the mount of a shared volume has sent what programs wrote.
pub fn umount(args: &Umount, config: &Config, output: &mut Output) -> Outcome<Done> {
    let line = table::named(&args.dir).ok().flatten();
    let home = line.as_ref().and_then(|line| shared::home_of(config, line));
    let before = home.as_ref().map_or(0, shared::unsent);
    ::mount::unmount(&args.dir)?;
    // It is shown elsewhere too, or mounted again.
    let source = line.map(|line| line.source);
    let is_shown =
        |lines: Vec<table::Line>| lines.iter().any(|it| Some(&it.source) == source.as_ref());
    let is_mounted = table::ours().is_ok_and(is_shown);
    let kept = match &home {
        Some(home) if !is_mounted => shared::wait(home, before, config, output)?,
        _ => 0,
    };
    output.note(&format!("{} is unmounted", args.dir.display()));
    let mut record = fields(json!({"dir": args.dir.display().to_string()}));
    if home.is_some() {
        record.insert("kept".to_owned(), kept.into());
    }
    Ok(Done::ok(record))
}
