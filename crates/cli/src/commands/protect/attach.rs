//! `bulla protect attach`. Asks for the key, starts this program again with `--foreground`, hands the volume key over
//! through a pipe, and returns when the device answers.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::mount::Signals;
use ::protect::anchor::{AnchorError, AnchorMode, Anchoring, FileAnchor};
use ::protect::nbd::Address;
use ::protect::{Attach, Block, BlockError, Pace, Protected, Recovered, ThisHost};
use keys::slots::VolumeKey;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tokio::sync::mpsc::UnboundedReceiver;
use wal::{ClaimOptions, Key, VolumeId};
use zeroize::Zeroizing;

use super::attached::{Attached, Event, NO_ANCHOR, Names};
use super::front::{self, Front, Wanted};
use super::memory::{self, Memory};
use super::watching::Watcher;
use super::{devices, metrics, unlock};
use crate::args::{AnchorWhen, Global, ProtectAttach};
use crate::config::Config;
use crate::control::{self, Desk};
use crate::daemon::{self, Daemon, absolute};
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::Listening;
use crate::output::{Done, Output, fields};
use crate::{notify, session, sockets, units};

/// Time limit of the start, besides the time to read the log.
const START: Duration = Duration::from_secs(60);
/// The slowest disk that a log is read from, bytes per second.
const SLOWEST: u64 = 10 << 20;
/// How often rates are computed.
const TICK: Duration = Duration::from_secs(5);
/// How long SIGTERM waits for whoever uses the device.
const USERS_PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing may go home at the end.
const STUCK: Duration = Duration::from_secs(60);

/// Attaches.
pub fn run(
    args: &ProtectAttach,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    if args.foreground {
        return in_foreground(args, global, config, output);
    }
    let device = absolute(&args.device)?;
    refuse_attached(config, &device, &args.log)?;
    let (_, slots) = devices::slots(&args.log)?;
    let (_, key) = unlock::open(&args.log, &slots, &args.unlock, global.no_input)?;
    let log = daemon::log_path(config, "devices", &device)?;
    let daemon = Daemon {
        of: "device",
        kind: Kind::Mount,
        ready: "attached",
        log: &log,
    };
    let mut child = daemon.start(global, &["--volume-key-on-stdin"], &*key)?;
    let log_bytes = std::fs::metadata(&args.log).map_or(0, |it| it.blocks() * 512);
    let patience = START + Duration::from_secs(log_bytes / SLOWEST);
    let mut record = daemon.wait_until_ready(&mut child, patience)?;
    record.remove("type");
    record.remove("schema");
    record.insert("daemon_log".to_owned(), log.display().to_string().into());
    show(&record, args, output)?;
    output.note(&format!(
        "detach it with `bulla protect detach {}`; the daemon's log is {}",
        args.device.display(),
        log.display()
    ));
    Ok(Done::ok(record))
}

/// Fails early where an attachment of this user has the device or the log: a second one would wait for nothing.
fn refuse_attached(config: &Config, device: &Path, log: &Path) -> Outcome<()> {
    for (socket, told) in control::survey(&control::directory(config))? {
        let record = match told {
            control::Told::Record(record) => record,
            control::Told::Dead => {
                // Of a process that was killed. `status` and `doctor` show what stays.
                let _ = sockets::clear(&socket);
                continue;
            }
            control::Told::Gone | control::Told::Silent(_) => continue,
        };
        if super::names(&record, device) || super::names(&record, log) {
            let place = record.get("place").and_then(Value::as_str);
            let what = format!("{} is attached already", device.display());
            let mut failure = Failure::new(Kind::Attached, what);
            failure.push_cause(format!("it is shown as {}", place.unwrap_or_default()));
            return Err(failure);
        }
    }
    Ok(())
}

/// Shows what was attached.
fn show(record: &Map<String, Value>, args: &ProtectAttach, output: &mut Output) -> Outcome<()> {
    let recovered = |name: &str| {
        let number = record.get("recovered").and_then(|it| it.get(name));
        number.and_then(Value::as_u64).unwrap_or_default()
    };
    if !output.json() {
        let place = record.get("place").and_then(Value::as_str);
        output.line(place.unwrap_or_default())?;
    }
    if recovered("bad") > 0 {
        let bad = recovered("bad");
        output.warn(&format!(
            "{} lost: neither the device nor the log has what was written; a read of it fails until it is written anew",
            units::count(bad, "block is", "blocks are")
        ));
    }
    let wrong_pages = recovered("wrong_pages");
    if wrong_pages > 0 {
        output.warn(&format!(
            "{} not what was written to it: its disk is failing, or somebody changes it",
            units::count(wrong_pages, "page of the log is", "pages of the log are")
        ));
    }
    let (sampled, changed) = (recovered("sampled"), recovered("changed"));
    if changed > 0 {
        let changed = units::count(changed, "block is", "blocks are");
        output.warn(&format!(
            "of {sampled} blocks that were looked at, {changed} not what was written; reads of such blocks fail. If the \
             device was used without bulla, `bulla protect scrub {}` counts them",
            args.device.display()
        ));
    }
    if args.anchor.anchor.is_none() {
        output.warn(NO_ANCHOR);
    }
    if let Some(warnings) = record.get("warnings").and_then(Value::as_array) {
        for warning in warnings.iter().filter_map(Value::as_str) {
            output.warn(warning);
        }
    }
    Ok(())
}

/// What an attachment has before its front end.
struct Opened {
    device: Arc<Protected>,
    watcher: Arc<Watcher>,
    recovered: Recovered,
    volume: VolumeId,
}

fn in_foreground(
    args: &ProtectAttach,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let is_loop = args.file.is_none() && args.nbd.is_none();
    if is_loop {
        memory::start_again_to_keep_memory();
    }
    let (memory, unprepared) = match is_loop {
        true => memory::prepare(),
        false => (Memory::default(), None),
    };
    let metrics = args.metrics.as_deref().map(Listening::on).transpose()?;
    let metrics_at = metrics.as_ref().map(|it| it.local.to_string());
    let names = paths(args)?;
    let key = volume_key(args, global)?;
    let runtime = session::runtime()?;
    // From here on a signal detaches. One that comes during the start is seen when the device answers.
    let cannot_listen = |e: std::io::Error| Failure::io("cannot listen for signals", &e);
    let signals = runtime.block_on(async { Signals::listen().map_err(cannot_listen) })?;
    let opened = open(args, &names, key, &memory)?;
    let wanted = wanted(args, config, opened.volume)?;
    let mut warnings = warnings(&names);
    if let Wanted::Loop(directory) = &wanted {
        warnings.extend(unprepared.clone());
        warnings.extend(front::clear_stale_loop(directory, opened.volume)?);
    }
    // The working directory must not keep a file system busy. All paths are absolute from here on.
    std::env::set_current_dir("/").map_err(|e| Failure::io("cannot change to /", &e))?;
    let block: Arc<dyn Block> = opened.device.clone();
    let front = Front::open(
        &wanted,
        block,
        opened.volume,
        memory.requests,
        runtime.handle(),
    )?;
    let (send, events) = tokio::sync::mpsc::unbounded_channel();
    let attached = Arc::new(Attached::new(
        Names {
            volume: opened.volume,
            shown: front.kind(),
            place: front.place(),
            state: config.path("state-dir").unwrap_or_default().join("devices"),
            device: names.device,
            log: names.log,
            anchor: names.anchor,
        },
        opened.device,
        opened.watcher,
        opened.recovered,
        unprepared,
        send,
    ));
    let about = opened.volume.to_string();
    let desk = Desk::open(
        &control::directory(config),
        about.as_bytes(),
        attached.clone(),
    )?;
    let measured = attached.clone();
    let answering = runtime.block_on(async {
        let fill = move |page: &mut _| metrics::device(page, &measured);
        metrics.map(|it| it.answer(fill)).transpose()
    })?;
    let mut record = attached.record();
    record.insert("warnings".to_owned(), warnings.clone().into());
    record.insert("metrics".to_owned(), metrics_at.into());
    let status = format!(
        "{} is attached as {}",
        attached.names.device.display(),
        attached.names.place
    );
    if output.json() {
        output.record("attached", record)?;
    } else {
        show(&record, args, output)?;
    }
    output.flush()?;
    notify::ready(&status);
    let ended = serve(&runtime, front, &attached, signals, events);
    notify::stopping();
    drop((desk, answering));
    ended.map(Done::ok)
}

/// The absolute names of the parts.
struct Paths {
    device: PathBuf,
    log: PathBuf,
    anchor: Option<PathBuf>,
}

fn paths(args: &ProtectAttach) -> Outcome<Paths> {
    Ok(Paths {
        device: absolute(&args.device)?,
        log: absolute(&args.log)?,
        anchor: args.anchor.anchor.as_deref().map(absolute).transpose()?,
    })
}

fn volume_key(args: &ProtectAttach, global: &Global) -> Outcome<VolumeKey> {
    if !args.volume_key_on_stdin {
        let (_, slots) = devices::slots(&args.log)?;
        let opened = unlock::open(&args.log, &slots, &args.unlock, global.no_input)?;
        return Ok(opened.1);
    }
    let mut key = Zeroizing::new([0; 32]);
    let read = std::io::stdin().lock().read_exact(&mut *key);
    read.map_err(|e| Failure::io("cannot read the volume key from stdin", &e))?;
    Ok(key)
}

/// Opens both devices and the anchor, and recovers.
fn open(args: &ProtectAttach, paths: &Paths, key: VolumeKey, memory: &Memory) -> Outcome<Opened> {
    let log = devices::exclusive(&paths.log, "log")?;
    let (volume, _) = devices::slots_on(&log, &paths.log)?;
    let data = devices::exclusive(&paths.device, "device")?;
    let anchor = match &paths.anchor {
        Some(path) => Some(anchoring(path, volume, args.anchor.anchor_mode)?),
        None => None,
    };
    let watcher = Arc::new(Watcher::default());
    let attach = Attach {
        data: Arc::new(data),
        log: Arc::new(log),
        key: Key::new(*key),
        anchor,
        cut_at_error: args.cut_at_error,
        accept_changed: args.accept_changed_device,
        claim: Some(ClaimOptions {
            host: Arc::new(ThisHost),
            force: args.force,
            keep: true,
        }),
        limits: memory.limits,
        map_cache_bytes: memory.map_cache_bytes,
        watch: watcher.clone(),
    };
    let (engine, recovered) = attach.attach()?;
    let device = Protected::start(engine, Pace::default());
    let device = device.map_err(|e| Failure::io("cannot start threads", &e))?;
    Ok(Opened {
        device: Arc::new(device),
        watcher,
        recovered,
        volume,
    })
}

fn anchoring(path: &Path, volume: VolumeId, mode: Option<AnchorWhen>) -> Outcome<Anchoring> {
    let mode = match mode.unwrap_or(AnchorWhen::Sync) {
        AnchorWhen::Sync => AnchorMode::Sync,
        AnchorWhen::Lag(lag) => AnchorMode::Lag(lag),
    };
    let is_locked = |error: &AnchorError| matches!(error, AnchorError::Locked { .. });
    let anchor = devices::patiently(is_locked, || FileAnchor::open(path, volume))?;
    Ok(Anchoring::start(Box::new(anchor), mode)?)
}

fn wanted(args: &ProtectAttach, config: &Config, volume: VolumeId) -> Outcome<Wanted> {
    if let Some(directory) = &args.file {
        return Ok(Wanted::File(absolute(directory)?));
    }
    if let Some(address) = &args.nbd {
        let address = address.parse();
        let wrong = |why| {
            let failure = Failure::new(Kind::Usage, why);
            failure.with_hint("write a path with a slash (./SOCKET) or IP:PORT")
        };
        return Ok(Wanted::Nbd(match address.map_err(wrong)? {
            Address::Unix(path) => Address::Unix(absolute(&path)?),
            tcp @ Address::Tcp(_) => tcp,
        }));
    }
    if !rustix::process::geteuid().is_root() {
        let what = "only root can make loop devices";
        let hint = "show the device with --file DIR or --nbd SOCKET, or run the command as root";
        return Err(Failure::new(Kind::Usage, what).with_hint(hint));
    }
    let name = volume.to_string();
    let name = name.get(..12).unwrap_or(&name);
    Ok(Wanted::Loop(absolute(
        &control::directory(config).join(name),
    )?))
}

/// What the user should know about these devices.
fn warnings(paths: &Paths) -> Vec<String> {
    let mut warnings = Vec::new();
    let data = std::fs::metadata(&paths.device).ok();
    if let Some(data) = data.filter(|it| it.is_file() && it.blocks() * 512 < it.len()) {
        let missing = crate::units::size(data.len() - data.blocks() * 512);
        warnings.push(format!(
            "{} is sparse: it lacks {missing} of space. If its disk fills up, the device becomes read-only",
            paths.device.display()
        ));
    }
    let places = paths.anchor.as_ref().and_then(|anchor| {
        let place = |path: &Path| std::fs::metadata(path).ok().map(|it| it.dev());
        Some((place(anchor)?, place(&paths.log)?))
    });
    if let Some((anchor, log)) = places
        && anchor == log
    {
        warnings.push(
            "the anchor is on the same file system as the log: whoever puts that back, puts both back".to_owned(),
        );
    }
    warnings
}

/// Serves until somebody asks for the end.
fn serve(
    runtime: &Runtime,
    mut front: Front,
    attached: &Attached,
    mut signals: Signals,
    mut events: UnboundedReceiver<Event>,
) -> Outcome<Map<String, Value>> {
    loop {
        let event = runtime.block_on(async {
            tokio::select! {
                () = front.ended() => Event::Gone,
                event = events.recv() => event.unwrap_or(Event::Signal),
                () = signals.arrived() => Event::Signal,
                () = tokio::time::sleep(TICK) => Event::Tick,
            }
        });
        match event {
            Event::Tick => attached.tick(),
            Event::Gone => return end(runtime, front, attached, true),
            Event::Signal => {
                let until = Instant::now() + USERS_PATIENCE;
                while let Some(user) = front.user().filter(|_| Instant::now() < until) {
                    tracing::warn!(%user, "the device is to be detached, but it is in use");
                    std::thread::sleep(Duration::from_millis(500));
                }
                return end(runtime, front, attached, true);
            }
            Event::Detach { force, reply } => {
                let user = front.user().filter(|_| !force);
                let free = match user {
                    Some(user) => Err(in_use(attached, user)),
                    None => front.release(force),
                };
                if let Err(failure) = free {
                    // The client may have gone.
                    let _ = reply.send(Err(failure));
                    continue;
                }
                let ended = end(runtime, front, attached, force);
                let _ = reply.send(ended.clone());
                return ended;
            }
        }
    }
}

fn in_use(attached: &Attached, user: String) -> Failure {
    let place = &attached.names.place;
    let mut failure = Failure::new(Kind::DeviceInUse, format!("{place} is in use"));
    failure.push_cause(user);
    failure.with_hint(format!(
        "unmount it or end what uses it, then detach again; --force cuts it off, and whoever uses {place} gets errors"
    ))
}

/// Ends the front end, writes everything home, and closes the session.
fn end(
    runtime: &Runtime,
    mut front: Front,
    attached: &Attached,
    force: bool,
) -> Outcome<Map<String, Value>> {
    // What was acknowledged is safe whatever happens below.
    if let Err(error) = attached.device.flush() {
        tracing::error!(%error, "cannot flush the device");
    }
    let closed = front
        .release(force)
        .and_then(|()| front.close(runtime.handle()));
    if let Err(failure) = closed {
        tracing::error!(%failure, "the front end of the device did not end in order");
    }
    let detached = attached.device.detach(STUCK);
    detached.map_err(|error| not_home(&error, attached))?;
    Ok(fields(json!({
        "device": attached.names.device.display().to_string(),
        "volume": attached.names.volume.to_string(),
        "bad_blocks": attached.watcher.bad_blocks(),
    })))
}

fn not_home(error: &BlockError, attached: &Attached) -> Failure {
    let shown = attached.names.device.display();
    let what = format!("not everything could be written to {shown}; it is in the log");
    let hint = format!(
        "do not use {shown} without its log: attach it again when its disk works, and detach it then"
    );
    Failure::of(Kind::DataDevice, what, error).with_hint(hint)
}
