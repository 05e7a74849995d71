//! `bulla mount` of a shared volume: read and write.

use std::path::Path;
use std::time::{Duration, SystemTime};

use ::mount::shared::Shows;
use ::mount::shared::mounted::wait_for_end;
use ::mount::table::Line;
use ::mount::{SharedMountOptions, Signals, mount_shared};
use ::share::home::Home;
use bulla::shared::{SharedOptions, SharedVolume};
use serde_json::{Map, Value, json};

use crate::args::{Locks, Mount};
use crate::config::Config;
use crate::daemon::absolute;
use crate::failure::{Failure, Kind, Outcome};
use crate::notify;
use crate::output::{Done, Output, fields};
use crate::report;
use crate::session;
use crate::sharing::recovery;
use crate::units;

/// How old names and attributes may be, by default.
const ATTR: Duration = Duration::from_secs(1);
/// How long the end of a mount may take beside its deadlines.
const GRACE: Duration = Duration::from_secs(5);
/// What the kernel reads ahead for sequential readers, bytes.
const READ_AHEAD_BYTES: u32 = 1 << 20;

/// Refuses flags that mean nothing for a shared volume.
pub fn refuse_flags(args: &Mount) -> Outcome<()> {
    let flags = [
        (args.refresh.is_some(), "--refresh"),
        (args.metrics.is_some(), "--metrics"),
        (args.profile.is_some(), "--profile"),
        (args.record.is_some(), "--record"),
        (args.owner != ::mount::Ownership::Mounter, "--owner"),
    ];
    match flags.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, flag)) => {
            let source = &args.reading.source;
            let error = format!("{flag} is for published volumes, and `{source}` is a shared one");
            let hint = "leave the flag out";
            Err(Failure::new(Kind::Usage, error).with_hint(hint))
        }
    }
}

/// Says where it is mounted, and what an earlier mount could not send.
pub fn tell(
    mounted: &Map<String, Value>,
    home: &Home,
    args: &Mount,
    log: &Path,
    output: &mut Output,
) {
    if !output.json() {
        let dir = mounted.get("dir").and_then(Value::as_str);
        let at = mounted.get("at").and_then(Value::as_u64);
        let state = at.map(|entry| format!(", as it was after entry {entry}, read-only,"));
        output.note(&format!(
            "{}{} is mounted on {}; unmount it with `bulla umount {}`; the log is {}",
            home.name(),
            state.unwrap_or_default(),
            dir.unwrap_or_default(),
            args.dir.display(),
            log.display()
        ));
    }
    if let Some(unsent) = mounted.get("unsent").and_then(Value::as_str) {
        output.warn(&format!(
            "an earlier mount could not send everything that programs wrote: {unsent} has the files"
        ));
    }
}

/// Mounts, reports that, and serves until the volume is unmounted or a signal comes.
pub fn in_foreground(
    args: &Mount,
    home: Home,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let dir = absolute(&args.dir)?;
    let deadline = match args.reading.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let unsent = home.directory().join(::mount::shared::UNSENT);
    let options = SharedOptions {
        deadline,
        alone: false,
        other: None,
    };
    let runtime = session::runtime()?;
    let opening = async { Ok(SharedVolume::open(home, &options).await?) };
    let volume = session::run(&runtime, opening)?;
    recovery::tell(volume.recovered(), output);
    let at = match &args.at {
        Some(state) => Some(session::run(&runtime, async {
            Ok(volume.entry(state).await?)
        })?),
        None => None,
    };
    // All paths are absolute from here on. The working directory must not keep a file system busy.
    std::env::set_current_dir("/").map_err(|e| Failure::io("cannot change to /", &e))?;
    let mut record = fields(json!({
        "volume": volume.client().volume().to_string(),
        "name": volume.home().name(),
        "shared": true,
        "dir": dir.display().to_string(),
    }));
    if let Some(entry) = at {
        record.insert("at".to_owned(), entry.into());
    }
    if std::fs::read_dir(&unsent).is_ok_and(|mut files| files.next().is_some()) {
        record.insert("unsent".to_owned(), unsent.display().to_string().into());
    }
    // From here on a signal unmounts.
    let cannot_listen = |e: std::io::Error| Failure::io("cannot listen for signals", &e);
    let signals = runtime.block_on(async { Signals::listen().map_err(cannot_listen) })?;
    let options = SharedMountOptions {
        shows: at.map_or(Shows::Newest, Shows::After),
        deadline,
        attr: args.attr.unwrap_or(ATTR),
        local_locks: args.locks == Some(Locks::Local),
        read_only: args.read_only,
        allow_other: args.allow_other,
        no_exec: args.no_exec,
        read_ahead_bytes: READ_AHEAD_BYTES,
    };
    let mounting = async { Ok::<_, Failure>(mount_shared(volume, &dir, options).await?) };
    let mut mounted = runtime.block_on(mounting)?;
    let (reporter, since) = (mounted.reporter(), SystemTime::now());
    let report = move || report::shared::record(&reporter.report(), since);
    let answering =
        runtime.block_on(async { super::answer_status(config, mounted.directory(), report) });
    if mounted.cleared_dead() {
        record.insert("cleared_dead".to_owned(), true.into());
    }
    let status = match at {
        Some(entry) => format!(
            "the state after entry {entry} is mounted on {}",
            dir.display()
        ),
        None => format!("mounted on {}", dir.display()),
    };
    if output.json() {
        output.record("mounted", record)?;
    } else {
        output.note(&status);
    }
    output.flush()?;
    notify::ready(&status);
    let ended = runtime.block_on(mounted.until_signal(signals));
    notify::stopping();
    let (kept, closed) = runtime.block_on(mounted.finish());
    drop(answering);
    for kept in &kept {
        output.warn(&format!(
            "{}: what programs wrote is not in the volume. It is in {}",
            kept.path,
            kept.at.display()
        ));
    }
    ended?;
    closed?;
    Ok(Done::ok(fields(json!({"kept": kept.len()}))))
}

/// The home of the shared volume that a line of the mount table is about, if this user has it.
pub fn home_of(config: &Config, line: &Line) -> Option<Home> {
    let (_, volume) = line.source.split_once('#')?;
    let state = config.path("state-dir")?;
    Home::find(&state, volume).ok().flatten()
}

/// How many files mounts of this home could not send.
pub fn unsent(home: &Home) -> usize {
    let files = std::fs::read_dir(home.directory().join(::mount::shared::UNSENT));
    files.map_or(0, Iterator::count)
}

/// Waits until an unmounted mount has sent what programs wrote, and says what it could not send: of how many files.
pub fn wait(home: &Home, before: usize, config: &Config, output: &mut Output) -> Outcome<usize> {
    // Commits may take a deadline, and what is kept another one.
    let patience = 2 * config.duration("deadline")? + GRACE;
    let ended = wait_for_end(home.directory(), patience);
    let ended = ended.map_err(|e| Failure::io("cannot wait for the mount", &e))?;
    let kept = unsent(home).saturating_sub(before);
    let directory = home.directory().join(::mount::shared::UNSENT);
    if kept > 0 {
        output.warn(&format!(
            "the server has not taken all that programs wrote: {} has {}",
            directory.display(),
            units::count(kept as u64, "file", "files")
        ));
    }
    if !ended {
        output.warn(
            "the mount goes on: programs have files of it open, or it is still sending what they wrote. Do not stop this \
             machine yet",
        );
    }
    Ok(kept)
}
