//! `bulla protect enrol`: every block of a device is read once, and a new log says what it is. The device is not changed.

use std::fs::{self, File, OpenOptions as FileOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ::protect::anchor::{AnchorError, FileAnchor};
use ::protect::enrol::{self, Enrol, Found, Unfinished};
use ::protect::{BLOCK_BYTES, Shape, ThisHost};
use keys::slots::{Credential, KeySlots, RecoveryKey};
use rustix::fs::Access;
use serde_json::{Map, Value, json};
use wal::{Device, FileDevice, Key, Layout, Mark, OpenOptions, VolumeId};

use super::unlock::{self, NewKey};
use super::{devices, key};
use crate::args::{Global, ProtectEnrol, Unlock};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress as bar;
use crate::{questions, session, units};

/// The ring, where nobody says otherwise.
const MAX_RING_BYTES: u64 = 1 << 30;
const MIN_RING_BYTES: u64 = 128 << 20;
/// Bytes that are searched for something that would be overwritten.
const LOOK_BYTES: u64 = 1 << 20;
/// Threads that read the device.
const MAX_THREADS: usize = 8;
/// So much of the device is read again after an interruption, at most.
const CHECKPOINT_BYTES: u64 = 256 << 20;

/// Enrols, or goes on with an enrolment that was interrupted.
pub fn run(args: &ProtectEnrol, global: &Global, output: &mut Output) -> Outcome<Done> {
    // Before anything is asked or read.
    refuse_same(args)?;
    let files = [
        Some(&args.log),
        args.anchor.as_ref(),
        args.key_file.as_ref(),
    ];
    for file in files.into_iter().flatten() {
        refuse_unmakeable(file)?;
    }
    let old_anchor = args
        .anchor
        .as_deref()
        .map(old_anchor)
        .transpose()?
        .flatten();
    let data = devices::exclusive(&args.device, "device")?;
    let shape = shape(&args.device, &data)?;
    let there = what_is_there(&args.log, shape)?;
    if let (Some(volume), Some(path)) = (old_anchor, &args.anchor)
        && !matches!(there, There::Log(of) if of == volume)
    {
        return Err(AnchorError::Exists { path: path.clone() }.into());
    }
    let unfinished = match &there {
        There::Unfinished(unfinished) if !args.restart => Some(unfinished.clone()),
        _ => None,
    };
    let ring_bytes = ring_bytes(args, shape, unfinished.as_ref());
    let (_, layout) = enrol::plan(shape, ring_bytes)?;
    refuse_small(&args.log, &layout)?;
    let mut record = fields(json!({
        "device": args.device.display().to_string(),
        "log": args.log.display().to_string(),
        "bytes": shape.bytes,
        "sector_bytes": shape.sector_bytes,
        "ring_bytes": ring_bytes,
        "log_bytes": layout.device_bytes(),
        "resumes_at": unfinished.as_ref().map(|it| it.done),
        "dry_run": args.dry_run,
    }));
    if args.dry_run {
        if let Some(what) = there.words() {
            output.note(&format!("{} {what}", args.log.display()));
        }
        told(&record, output)?;
        return Ok(Done::ok(record));
    }
    if let (Some(mut what), None) = (there.words(), &unfinished) {
        let shown = args.log.display();
        if let (Some(_), Some(anchor)) = (old_anchor, &args.anchor) {
            what.push_str(&format!(", and {} is its anchor", anchor.display()));
        }
        let question = format!("{shown} {what}. Overwrite all of it? Type yes: ");
        let refused = format!("{shown} {what}, and it would be overwritten");
        questions::confirm(global, &question, &refused)?;
    }
    if let There::Log(_) = &there {
        refuse_used(&args.log)?;
    }
    let keys = match &unfinished {
        Some(unfinished) => old_keys(args, global, unfinished, output)?,
        None => new_keys(args, global, output)?,
    };
    let work = Work {
        args,
        data,
        shape,
        ring_bytes,
        log_bytes: layout.device_bytes(),
        overwrite: unfinished.is_none(),
    };
    // It belongs to the log that is overwritten now. An enrolment that is interrupted goes on without it.
    if let (Some(_), Some(anchor)) = (old_anchor, &args.anchor) {
        let removed = fs::remove_file(anchor);
        removed.map_err(|e| Failure::io(format!("cannot remove {}", anchor.display()), &e))?;
    }
    work.run(&keys, output)?;
    record.insert("volume".to_owned(), keys.volume.to_string().into());
    let anchor = args.anchor.as_ref().map(|path| path.display().to_string());
    record.insert("anchor".to_owned(), anchor.into());
    if let Some(text) = keys.recovery.as_ref().map(RecoveryKey::text) {
        record.insert("recovery_key".to_owned(), text.as_str().into());
    }
    told(&record, output)?;
    if args.anchor.is_none() {
        output.warn(super::attached::NO_ANCHOR);
    }
    output.note(
        "Free space that still holds old data is protected too, and costs time when it is written. Once the device is \
         attached and mounted, `fstrim` on the mount makes it empty.",
    );
    Ok(Done::ok(record))
}

/// The volume's key, and what opens it.
struct Keys {
    volume: VolumeId,
    key: Key,
    slots: Vec<u8>,
    /// Made now.
    recovery: Option<RecoveryKey>,
}

fn new_keys(args: &ProtectEnrol, global: &Global, output: &mut Output) -> Outcome<Keys> {
    let new = NewKey {
        file: args.key_file.as_deref(),
        command: args.key_command.as_deref(),
        passphrase: &args.passphrase,
        prompt: format!("New passphrase for {}", args.log.display()),
    };
    let given = new.get(global.no_input, output)?;
    let random = |e: getrandom::Error| Failure::of(Kind::System, "there is no randomness", &e);
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(random)?;
    let volume = VolumeId(id);
    let key = Key::random().map_err(random)?;
    let mut slots = KeySlots::create(volume.0, key.expose(), &given.credential())?;
    let recovery = match args.no_recovery_key {
        true => None,
        false => Some(RecoveryKey::random()?),
    };
    if let Some(recovery) = &recovery {
        slots.add(key.expose(), &Credential::Recovery(recovery))?;
        // Before the work, which may be interrupted and go on later.
        key::show_recovery(&recovery.text(), output)?;
        output.flush()?;
    }
    Ok(Keys {
        volume,
        key,
        slots: slots.encode(),
        recovery,
    })
}

/// The keys of an enrolment that was interrupted.
fn old_keys(
    args: &ProtectEnrol,
    global: &Global,
    unfinished: &Unfinished,
    output: &Output,
) -> Outcome<Keys> {
    output.note(&format!(
        "{} of {} are done already; --restart begins anew",
        units::size(unfinished.done),
        args.device.display()
    ));
    let slots = KeySlots::decode(&unfinished.slots, unfinished.volume.0)?;
    let flags = Unlock {
        key_file: args.key_file.clone(),
        key_command: args.key_command.clone(),
        recovery: false,
        slot: None,
        passphrase: args.passphrase.clone(),
    };
    let (_, key) = unlock::open(&args.log, &slots, &flags, global.no_input)?;
    Ok(Keys {
        volume: unfinished.volume,
        key: Key::new(*key),
        slots: unfinished.slots.clone(),
        recovery: None,
    })
}

/// The work itself.
struct Work<'a> {
    args: &'a ProtectEnrol,
    data: FileDevice,
    shape: Shape,
    ring_bytes: u64,
    log_bytes: u64,
    overwrite: bool,
}

impl Work<'_> {
    fn run(&self, keys: &Keys, output: &Output) -> Outcome<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let stops = stop.clone();
        session::on_interrupt(move || stops.store(true, Ordering::SeqCst))?;
        let log: Arc<dyn Device> = Arc::new(create_log(&self.args.log, self.log_bytes)?);
        let enrol = Enrol {
            data: &self.data,
            log: log.clone(),
            shape: self.shape,
            ring_bytes: self.ring_bytes,
            volume: keys.volume,
            key: &keys.key,
            slots: &keys.slots,
            overwrite: self.overwrite,
            threads: std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS)),
            checkpoint_bytes: CHECKPOINT_BYTES,
            stop: &stop,
        };
        let progress = bar::Progress::start(output, "enrolling");
        let done = enrol.run(&mut |at| {
            progress.of(self.log_bytes + self.shape.bytes);
            progress.bytes(match at {
                enrol::Progress::Preparing { done, .. } => done,
                enrol::Progress::Reading { done, .. } => self.log_bytes + done,
            });
        });
        progress.end();
        done?;
        if let Some(anchor) = &self.args.anchor {
            let mark = newest(log, keys, &self.args.log)?;
            drop(FileAnchor::create(anchor, keys.volume, mark)?);
        }
        Ok(())
    }
}

/// The end of the new log.
fn newest(log: Arc<dyn Device>, keys: &Keys, path: &Path) -> Outcome<Mark> {
    let options = OpenOptions {
        volume: Some(keys.volume),
        ..OpenOptions::default()
    };
    let opened = wal::open(log, &keys.key, None, options);
    Ok(opened.map_err(|error| devices::of_log(error, path))?.end())
}

/// The parts are files of their own.
fn refuse_same(args: &ProtectEnrol) -> Outcome<()> {
    let anchor = args.anchor.as_deref().map(|path| ("anchor", path));
    let key = args.key_file.as_deref().map(|path| ("key file", path));
    let parts = [("device", &*args.device), ("log", &*args.log)];
    let parts: Vec<_> = parts.into_iter().chain(anchor).chain(key).collect();
    for (at, (one, path)) in parts.iter().enumerate() {
        let before = parts.iter().take(at);
        if let Some((other, _)) = before.into_iter().find(|(_, other)| same(path, other)) {
            let what = format!("the {other} and the {one} are the same");
            let hint = format!("the {one} needs a file of its own");
            return Err(Failure::new(Kind::Usage, what).with_hint(hint));
        }
    }
    Ok(())
}

/// A file that is to be made needs a directory that can be written.
fn refuse_unmakeable(path: &Path) -> Outcome<()> {
    if path.symlink_metadata().is_ok() {
        return Ok(());
    }
    let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
    let parent = parent.unwrap_or(Path::new("."));
    // The slash at the end: a directory.
    let able = rustix::fs::access(parent.join(""), Access::WRITE_OK | Access::EXEC_OK);
    able.map_err(|e| Failure::io(format!("cannot create {}", path.display()), &e.into()))
}

/// The volume of an anchor that is there already.
fn old_anchor(path: &Path) -> Outcome<Option<VolumeId>> {
    match FileAnchor::show(path) {
        Ok((volume, _)) => Ok(Some(volume)),
        Err(AnchorError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        // It is no anchor, so it is not replaced.
        Err(AnchorError::Malformed { path, .. }) => Err(AnchorError::Exists { path }.into()),
        Err(error) => Err(error.into()),
    }
}

/// Whether two paths name one file, also if it does not exist yet.
fn same(one: &Path, other: &Path) -> bool {
    let whole = |path: &Path| {
        fs::canonicalize(path).or_else(|e| {
            let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
            let parent = fs::canonicalize(parent.unwrap_or(Path::new(".")))?;
            path.file_name().map(|name| parent.join(name)).ok_or(e)
        })
    };
    matches!((whole(one), whole(other)), (Ok(one), Ok(other)) if one == other)
}

fn shape(path: &Path, data: &FileDevice) -> Outcome<Shape> {
    let shown = path.display();
    let sector_bytes = devices::sector_bytes(path)?;
    let bytes = data.bytes();
    if bytes == 0 || !bytes.is_multiple_of(u64::from(sector_bytes)) {
        let what =
            format!("{shown} has {bytes} bytes, which are not whole sectors of {sector_bytes}");
        let hint =
            format!("lengthen the file to whole sectors (`truncate -s %{sector_bytes} {shown}`)");
        return Err(Failure::new(Kind::Usage, what).with_hint(hint));
    }
    Ok(Shape {
        bytes,
        sector_bytes,
    })
}

fn ring_bytes(args: &ProtectEnrol, shape: Shape, unfinished: Option<&Unfinished>) -> u64 {
    let default = (shape.bytes / 8).clamp(MIN_RING_BYTES, MAX_RING_BYTES);
    let begun = unfinished.map(|unfinished| unfinished.ring_bytes);
    let bytes = args.ring.or(begun).unwrap_or(default);
    bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64
}

fn refuse_small(path: &Path, layout: &Layout) -> Outcome<()> {
    let is_device = fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device());
    if !is_device {
        return Ok(());
    }
    let (has, needs) = (
        devices::exclusive(path, "log")?.bytes(),
        layout.device_bytes(),
    );
    match has < needs {
        false => Ok(()),
        true => {
            let (has, needs) = (units::size(has), units::size(needs));
            let what = format!("{} has {has}, and the log needs {needs}", path.display());
            Err(Failure::new(Kind::LogTooSmall, what))
        }
    }
}

/// What lies where the log is to be.
enum There {
    Nothing,
    Log(VolumeId),
    Data,
    Unfinished(Unfinished),
}

impl There {
    /// What would be overwritten.
    fn words(&self) -> Option<String> {
        match self {
            There::Nothing => None,
            There::Log(volume) => Some(format!("is the log of volume {volume}")),
            There::Data => Some("holds data".to_owned()),
            There::Unfinished(it) => {
                let done = units::size(it.done);
                Some(format!(
                    "holds an enrolment that was interrupted after {done}"
                ))
            }
        }
    }
}

fn what_is_there(path: &Path, shape: Shape) -> Outcome<There> {
    let failed = |e: io::Error| Failure::io(format!("cannot read {}", path.display()), &e);
    let mut file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(There::Nothing),
        opened => opened.map_err(failed)?,
    };
    let (_, least) = enrol::plan(shape, wal::MIN_RING_BYTES)?;
    let device = devices::exclusive(path, "log")?;
    if device.bytes() >= least.device_bytes()
        && let Found::Unfinished(unfinished) = enrol::look(&device, shape)?
    {
        return Ok(There::Unfinished(unfinished));
    }
    drop(device);
    if let Ok((volume, _)) = devices::slots(path) {
        return Ok(There::Log(volume));
    }
    let mut start = Vec::new();
    let read = Read::by_ref(&mut file)
        .take(LOOK_BYTES)
        .read_to_end(&mut start);
    read.map_err(failed)?;
    Ok(match start.iter().any(|byte| *byte != 0) {
        true => There::Data,
        false => There::Nothing,
    })
}

/// The lock of a log does not reach other hosts. One that uses it answers.
fn refuse_used(path: &Path) -> Outcome<()> {
    let log = devices::exclusive(path, "log")?;
    let failed = |e: io::Error| Failure::io(format!("cannot look at {}", path.display()), &e);
    match wal::claim::is_answered(&log, &ThisHost).map_err(failed)? {
        false => Ok(()),
        true => {
            let error = format!("another host uses the log {}", path.display());
            Err(Failure::new(Kind::AttachedElsewhere, error))
        }
    }
}

fn create_log(path: &Path, bytes: u64) -> Outcome<FileDevice> {
    let failed = |e: io::Error| Failure::io(format!("cannot create {}", path.display()), &e);
    let is_device = fs::metadata(path).is_ok_and(|it| it.file_type().is_block_device());
    if !is_device {
        // Locked first: the log of an attached device is not touched.
        if path.exists() {
            drop(devices::exclusive(path, "log")?);
        }
        let mut options = FileOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(failed)?;
        if file.metadata().map_err(failed)?.len() < bytes {
            file.set_len(bytes).map_err(failed)?;
        }
    }
    devices::exclusive(path, "log")
}

fn told(record: &Map<String, Value>, output: &mut Output) -> Outcome<()> {
    if output.json() {
        return Ok(());
    }
    let number = |key: &str| record.get(key).and_then(Value::as_u64).unwrap_or_default();
    let word = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
    if record.contains_key("volume") {
        output.line(&format!("volume       {}", word("volume")))?;
    }
    output.line(&format!(
        "device       {}, {}",
        word("device"),
        units::size(number("bytes"))
    ))?;
    output.line(&format!(
        "log          {}, {} (ring {})",
        word("log"),
        units::size(number("log_bytes")),
        units::size(number("ring_bytes"))
    ))
}
