//! `bulla doctor`: checks what bulla needs on this machine, and gives a hint for each problem. docs/cli.md
//! lists the checks.

mod devices;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::mount::table::Life;
use rustix::fs::{Access, access, statvfs};
use serde_json::json;
use state::{StateError, VolumeState};
use trust::floor::Floor;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

use crate::args::Doctor;
use crate::commands::status;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sockets::{self, Heard};
use crate::text::printable_message;
use crate::units;

/// Tolerated difference between this clock and the publisher's.
const SKEW: Duration = Duration::from_secs(300);

/// How long another process may keep the state of a volume locked.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Ok,
    Note,
    Fixed,
    Problem,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Note => "note",
            Level::Fixed => "fixed",
            Level::Problem => "problem",
        }
    }
}

struct Finding {
    check: &'static str,
    level: Level,
    what: String,
    hint: Option<String>,
}

/// The findings of one check. None means that all is well.
struct Check {
    name: &'static str,
    findings: Vec<Finding>,
}

impl Check {
    fn new(name: &'static str) -> Check {
        Check {
            name,
            findings: Vec::new(),
        }
    }

    fn found(&mut self, level: Level, what: impl Into<String>, hint: impl Into<String>) {
        self.findings.push(Finding {
            check: self.name,
            level,
            what: what.into(),
            hint: Some(hint.into()),
        });
    }

    fn problem(&mut self, what: impl Into<String>, hint: impl Into<String>) {
        self.found(Level::Problem, what, hint);
    }

    fn note(&mut self, what: impl Into<String>, hint: impl Into<String>) {
        self.found(Level::Note, what, hint);
    }

    fn fixed(&mut self, what: impl Into<String>) {
        let what = what.into();
        self.findings.push(Finding {
            check: self.name,
            level: Level::Fixed,
            what,
            hint: None,
        });
    }

    /// The findings, or one of level `ok` with this text if there are none.
    fn or_well(mut self, what: impl Into<String>) -> Vec<Finding> {
        if self.findings.is_empty() {
            let (check, what) = (self.name, what.into());
            self.findings.push(Finding {
                check,
                level: Level::Ok,
                what,
                hint: None,
            });
        }
        self.findings
    }
}

/// Runs all checks.
pub fn run(args: &Doctor, config: &Config, output: &mut Output) -> Outcome<Done> {
    let state_dir = config.path("state-dir").unwrap_or_default();
    let checks = [
        configuration(config),
        fuse(),
        mounts(args.fix)?,
        leftover_sockets(args.fix, &sockets::directory(config)),
        devices::devices(args.fix, config)?,
        state(&state_dir),
        clock(&state_dir),
        cache(config)?,
    ];
    let findings: Vec<Finding> = checks.into_iter().flatten().collect();
    for finding in &findings {
        show(finding, output)?;
    }
    let count = |level| {
        findings
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    };
    let problems = count(Level::Problem);
    let totals = fields(json!({
        "problems": problems, "notes": count(Level::Note), "fixed": count(Level::Fixed)}));
    if problems == 0 {
        return Ok(Done::ok(totals));
    }
    let what = match problems {
        1 => "one problem was found".to_owned(),
        n => format!("{n} problems were found"),
    };
    let mut failure = Failure::new(Kind::Unwell, what);
    failure.fields = totals;
    Err(failure)
}

fn show(finding: &Finding, output: &mut Output) -> Outcome<()> {
    let Finding {
        check,
        level,
        what,
        hint,
    } = finding;
    if output.json() {
        let record = json!({"check": check, "level": level.word(), "what": what, "hint": hint});
        return output.record("finding", fields(record));
    }
    let level = match level {
        Level::Problem => "PROBLEM",
        other => other.word(),
    };
    let what = printable_message(what).replace('\n', " ");
    output.line(&format!("{level:<8} {check:<14} {what}"))?;
    match hint {
        Some(hint) => output.line(&format!("{:<24}hint: {}", "", printable_message(hint))),
        None => Ok(()),
    }
}

fn configuration(config: &Config) -> Vec<Finding> {
    let mut check = Check::new("configuration");
    if let Some(fault) = config.fault() {
        let mut words = vec![fault.error.clone()];
        words.extend(fault.causes.iter().cloned());
        check.problem(words.join(": "), fault.hint());
    }
    for (name, named, origin) in config.sources() {
        if let Err(failure) = named.parsed() {
            let error = format!("{origin}: invalid source `{name}`: {failure}");
            check.problem(error, failure.hint());
        }
    }
    check.or_well("all settings are valid")
}

fn fuse() -> Vec<Finding> {
    let mut check = Check::new("fuse");
    match OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => {}
        Err(e) if e.kind() == io::ErrorKind::NotFound => check.problem(
            "/dev/fuse does not exist, so volumes cannot be mounted",
            "load the module (`modprobe fuse`), or give the container the device; `ls`, `cat`, `extract` and `verify` work without it",
        ),
        Err(e) => check.problem(
            format!("/dev/fuse cannot be opened: {e}"),
            "its usual mode is 0666 (`chmod 666 /dev/fuse`); in a container the device must be allowed",
        ),
    }
    if !rustix::process::geteuid().is_root() {
        if !["fusermount3", "fusermount"]
            .iter()
            .any(|name| is_in_path(name))
        {
            check.problem(
                "fusermount3 is not installed; users other than root need it to mount",
                "install the package fuse3, or mount as root",
            );
        }
        let allows = |text: String| text.lines().any(|line| line.trim() == "user_allow_other");
        if !fs::read_to_string("/etc/fuse.conf").is_ok_and(allows) {
            check.note(
                "`mount --allow-other` works for root only",
                "add the line user_allow_other to /etc/fuse.conf to allow it for other users",
            );
        }
    }
    check.or_well("volumes can be mounted")
}

fn is_in_path(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn mounts(fix: bool) -> Outcome<Vec<Finding>> {
    let mut check = Check::new("mounts");
    let own = status::own_mounts()?;
    // A bind mount is no further volume.
    let devices: BTreeSet<&str> = own.iter().map(|line| line.device.as_str()).collect();
    let mounted = devices.len();
    for line in own {
        let shown = line.directory.display();
        let hint = format!("unmount it with `bulla umount {shown}`");
        match status::life(&line) {
            Life::Answers => {}
            Life::Dead if fix => match ::mount::unmount(&line.directory) {
                Ok(()) => check.fixed(format!("{shown}: dead mount removed")),
                Err(error) => check.problem(
                    format!("{shown}: cannot remove the dead mount: {error}"),
                    hint,
                ),
            },
            Life::Dead => check.problem(format!("{shown}: dead mount; its daemon has died"), hint),
            Life::Silent => check.problem(format!("{shown}: the mount does not answer"), hint),
        }
    }
    Ok(check.or_well(match mounted {
        0 => "nothing is mounted".to_owned(),
        n => format!(
            "{} and all answer",
            units::count(n as u64, "volume is mounted", "volumes are mounted")
        ),
    }))
}

fn leftover_sockets(fix: bool, directory: &Path) -> Vec<Finding> {
    let mut check = Check::new("sockets");
    match sockets::ask_all(directory) {
        Err(failure) => {
            let cause = failure.causes.join(": ");
            check.problem(format!("{failure}: {cause}"), failure.hint());
        }
        Ok(heard) => {
            for (path, heard) in heard {
                let shown = path.display();
                match heard {
                    Heard::Record(_) => {}
                    Heard::Dead if fix => match sockets::clear(&path) {
                        Ok(()) => check.fixed(format!("{shown}: removed; its daemon has died")),
                        Err(e) => check.problem(format!("{shown}: {e}"), format!("rm {shown}")),
                    },
                    Heard::Dead => check.problem(
                        format!("{shown}: socket of a daemon that was killed"),
                        "`bulla status` or `bulla doctor --fix` removes it",
                    ),
                    Heard::Silent(why) => check.problem(
                        format!("{shown}: the daemon does not answer: {why}"),
                        "read its log in the state directory, then unmount and mount again",
                    ),
                }
            }
        }
    }
    check.or_well("there are no sockets of dead daemons")
}

/// Checks that files can be created in a directory, or the directory itself if it does not exist.
fn can_write(directory: &Path) -> io::Result<()> {
    if !directory.try_exists()? {
        let mut above = directory.ancestors().skip(1);
        let above = above.find(|path| path.exists()).unwrap_or(Path::new("/"));
        if !above.is_dir() {
            return Err(io::Error::from(io::ErrorKind::NotADirectory));
        }
        return access(above, Access::WRITE_OK | Access::EXEC_OK).map_err(io::Error::from);
    }
    let probe = directory.join(format!(".doctor.{}", std::process::id()));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(&probe)?;
    fs::remove_file(&probe)
}

/// The volumes with a state directory.
fn known_volumes(state_dir: &Path) -> Vec<(VolumeId, PathBuf)> {
    let entries = fs::read_dir(state_dir.join("volumes"))
        .into_iter()
        .flatten();
    let volume = |entry: fs::DirEntry| {
        let name = entry.file_name();
        Some((VolumeId::from_str(name.to_str()?).ok()?, entry.path()))
    };
    entries.flatten().filter_map(volume).collect()
}

fn state(state_dir: &Path) -> Vec<Finding> {
    let mut check = Check::new("state");
    if let Err(e) = can_write(state_dir) {
        let what = format!("{} cannot be written: {e}", state_dir.display());
        check.problem(what, Kind::State.hint());
        return check.or_well("");
    }
    let volumes = known_volumes(state_dir);
    for (id, _) in &volumes {
        match floor(state_dir, id) {
            Err(error) => unreadable_floor(id, &error, &mut check),
            Ok(floor) if floor.forks().stand() => check.problem(
                format!("a fork of {id} is not settled, so no new version is adopted"),
                format!("`bulla fork show {id}` shows both sides and where the evidence is"),
            ),
            Ok(floor) => end_of_policy(id, &floor, &mut check),
        }
        let evidence = VolumeState::at(state_dir, id).evidence_directory();
        let kept = fs::read_dir(&evidence).map_or(0, Iterator::count);
        if kept > 0 {
            check.note(
                format!("{} of evidence about {id} in {}", units::count(kept as u64, "file", "files"), evidence.display()),
                "a location served an old version, or versions that contradict each other; show the files to the \
                 publisher, then you can remove them",
            );
        }
    }
    check.or_well(format!(
        "{}: {} known",
        state_dir.display(),
        units::count(volumes.len() as u64, "volume", "volumes")
    ))
}

/// Whether the newest policy that this machine knows of a volume ends soon, or has ended.
fn end_of_policy(id: &VolumeId, floor: &Floor, check: &mut Check) {
    let Ok(Some(chain)) = floor.chain(&mut Signatures::default()) else {
        return;
    };
    let (end, now) = (chain.newest().not_after(), wall_clock().as_secs());
    let at = units::time(end);
    if end <= now {
        check.problem(
            format!("the policy of {id} has ended at {at}, so nothing of it is believed"),
            "if its owners have signed another one, a location has it: read the volume again; otherwise ask them for it",
        );
    } else if end.saturating_sub(now) < units::POLICY_WARNING.as_secs() {
        check.note(
            format!("the policy of {id} ends at {at}; nothing of it is believed after that"),
            "its owners renew it: `bulla policy new REPO --out FILE`",
        );
    }
}

fn wall_clock() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

fn unreadable_floor(id: &VolumeId, error: &StateError, check: &mut Check) {
    let hint = match error.is_locked() {
        true => Kind::StateLocked.hint(),
        false => {
            "restore it from a backup. If you know that no attacker damaged it, you can remove the \
             file; bulla then forgets which versions it has seen"
        }
    };
    check.problem(format!("the floor of {id} cannot be read: {error}"), hint);
}

/// The floor of a volume. A process that keeps it locked is itself a finding.
fn floor(state_dir: &Path, id: &VolumeId) -> Result<Floor, StateError> {
    let deadline = Instant::now() + LOCK_PATIENCE;
    VolumeState::at(state_dir, id).lock(deadline)?.load()
}

fn clock(state_dir: &Path) -> Vec<Finding> {
    let mut check = Check::new("clock");
    let start = |(id, _): (VolumeId, PathBuf)| {
        let floor = floor(state_dir, &id);
        Some(floor.ok()?.newest_start())
    };
    let newest = known_volumes(state_dir).into_iter().filter_map(start).max();
    let now = wall_clock();
    match newest {
        Some(newest) if (now + SKEW).as_secs() < newest => check.problem(
            format!(
                "the clock says {}, but a verified statement was signed at {}",
                units::time(now.as_secs()),
                units::time(newest)
            ),
            "set this machine's clock (`timedatectl` shows it); until then bulla refuses these volumes",
        ),
        Some(_) => return check.or_well("the clock is not behind any verified statement"),
        None => {}
    }
    check.or_well("no verified statement to compare the clock with")
}

fn cache(config: &Config) -> Outcome<Vec<Finding>> {
    let mut check = Check::new("cache");
    let Some(directory) = config.path("cache") else {
        return Ok(check.or_well("no disk cache is configured"));
    };
    let shown = directory.display();
    if let Err(e) = can_write(&directory) {
        check.problem(
            format!("{shown} cannot be written: {e}"),
            Kind::Cache.hint(),
        );
        return Ok(check.or_well(""));
    }
    let own = rustix::process::geteuid().as_raw();
    if let Ok(metadata) = fs::metadata(&directory)
        && (metadata.uid() != own || metadata.mode() & 0o077 != 0)
    {
        check.note(
            format!("{shown}: other users can see which blocks were read"),
            format!("chmod 700 {shown}"),
        );
    }
    let there = directory
        .ancestors()
        .find(|path| path.as_os_str() != OsStr::new("") && path.exists());
    let keep_free = config.size("cache-keep-free")?;
    if let Some(Ok(vfs)) = there.map(statvfs) {
        let free = vfs.f_bavail.saturating_mul(vfs.f_frsize);
        if free < keep_free {
            check.problem(
                format!(
                    "{shown}: nothing more is cached: only {} of disk space are free, and `cache-keep-free` is {}",
                    units::size(free),
                    units::size(keep_free)
                ),
                "free some disk space, or lower the setting `cache-keep-free`",
            );
        }
    }
    Ok(check.or_well(format!("{shown} can be used")))
}
