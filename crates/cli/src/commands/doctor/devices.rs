//! The doctor's look at protected devices: attached ones, and what killed processes have left behind.

use std::collections::BTreeSet;
use std::path::Path;

use ::mount::loop_device;
use ::mount::table::{self, Life};
use serde_json::{Map, Value};

use super::{Check, Finding};
use crate::commands::protect::front;
use crate::commands::status;
use crate::config::Config;
use crate::control::{self, Told};
use crate::failure::{Failure, Outcome};
use crate::sockets;
use crate::units;

/// What an attached device must be like.
pub(super) fn devices(fix: bool, config: &Config) -> Outcome<Vec<Finding>> {
    let mut check = Check::new("devices");
    let directory = control::directory(config);
    let mut live = BTreeSet::new();
    let told = match control::survey(&directory) {
        Ok(told) => told,
        Err(failure) => {
            check.problem(failure.to_string(), failure.hint());
            return Ok(check.or_well(""));
        }
    };
    for (socket, told) in told {
        match told {
            Told::Record(record) => {
                let volume = record.get("volume").and_then(Value::as_str);
                live.insert(volume.unwrap_or_default().to_owned());
                attached(&record, &mut check);
            }
            Told::Dead => dead_socket(fix, &socket, &mut check),
            Told::Silent(why) => check.problem(
                format!("{}: the attached device does not answer: {why}", socket.display()),
                "read its log in the state directory, in `devices`; attach it again after `kill -9` of its process",
            ),
            Told::Gone => {}
        }
    }
    stale_loops(fix, &directory, &live, &mut check)?;
    stale_mounts(fix, &mut check)?;
    Ok(check.or_well(match live.len() {
        0 => "no protected device is attached".to_owned(),
        n => units::count(
            n as u64,
            "protected device is attached and answers",
            "protected devices are attached and answer",
        ),
    }))
}

/// Checks what an attached device reports, and its loop device.
fn attached(record: &Map<String, Value>, check: &mut Check) {
    let text = |key: &str| record.get(key).and_then(Value::as_str).unwrap_or_default();
    let number = |key: &str| record.get(key).and_then(Value::as_u64).unwrap_or_default();
    let device = text("device");
    if let Some(why) = record.get("read_only").and_then(Value::as_str) {
        check.problem(
            format!("{device} is read-only: {why}"),
            "nothing that was flushed is lost; end what uses it, detach it, and attach it again when its disks work",
        );
    }
    match number("bad_blocks") {
        0 => {}
        n => check.problem(
            format!(
                "{device}: {}",
                units::count(n, "block cannot be read", "blocks cannot be read")
            ),
            format!(
                "`bulla protect scrub {device}` lists them all; restore their files from a backup"
            ),
        ),
    }
    match number("lost_blocks") {
        0 => {}
        n => check.problem(
            format!(
                "{device}: the log lost what it knew of {}",
                units::count(n, "block", "blocks")
            ),
            format!(
                "the log's disk is failing, or somebody changes it. `bulla protect scrub {device}` lists the blocks that cannot be read"
            ),
        ),
    }
    if let Some(why) = record.get("unprepared").and_then(Value::as_str) {
        check.note(
            format!("{device}: {why}"),
            "start it with the unit of contrib/systemd, which gives it both capabilities, and with no memory limit or a larger one",
        );
    }
    if record.get("anchor").is_none_or(Value::is_null) {
        check.note(
            format!("{device} has no anchor: nobody notices when it is put back together with its log"),
            "detach it, make one with `bulla protect anchor set FILE --log LOG`, and attach it with --anchor FILE",
        );
    }
    if text("shown") == "loop" {
        loop_settings(text("place"), number("sector_bytes"), check);
    }
}

fn loop_settings(place: &str, sector_bytes: u64, check: &mut Check) {
    let hint = format!(
        "end what uses {place}, detach the device and attach it again; only `bulla protect attach` makes its loop device"
    );
    match loop_device::on(Path::new(place)) {
        Ok(Some(attached)) => {
            for fault in attached.faults(u32::try_from(sector_bytes).unwrap_or_default()) {
                check.problem(format!("{place}: {fault}"), &*hint);
            }
        }
        Ok(None) => check.problem(format!("{place} was detached by another program"), hint),
        Err(error) => check.problem(error.to_string(), error.hint()),
    }
}

fn dead_socket(fix: bool, socket: &Path, check: &mut Check) {
    let shown = socket.display();
    if !fix {
        check.problem(
            format!("{shown}: the process of an attached device was killed"),
            "attach the device again, it recovers by itself; `bulla doctor --fix` removes the socket",
        );
        return;
    }
    match sockets::clear(socket) {
        Ok(()) => check.fixed(format!("{shown}: removed; its process has died")),
        Err(e) => check.problem(format!("{shown}: {e}"), format!("rm {shown}")),
    }
}

fn stale_loops(
    fix: bool,
    directory: &Path,
    live: &BTreeSet<String>,
    check: &mut Check,
) -> Outcome<()> {
    for attached in front::stale_loops(directory, live)? {
        let place = attached.device.display();
        match fix.then(|| attached.detach()) {
            Some(Ok(())) => check.fixed(format!("{place}: removed; its process has died")),
            Some(Err(error)) => check.problem(
                format!("{place} is left of a process that was killed: {error}"),
                error.hint(),
            ),
            None => check.problem(
                front::stale_loop(&attached),
                front::stale_loop_hint(&attached),
            ),
        }
    }
    Ok(())
}

fn stale_mounts(fix: bool, check: &mut Check) -> Outcome<()> {
    let lines = table::ours().map_err(|e| Failure::io("cannot read the mount table", &e))?;
    let user = rustix::process::geteuid().as_raw();
    for line in lines {
        let is_own = line.user == Some(user) && line.is_ours() && !line.is_volume();
        if !is_own || status::life(&line) != Life::Dead {
            continue;
        }
        let shown = line.directory.display();
        let hint = format!("`bulla umount {shown}`, or attach the device again");
        match fix.then(|| ::mount::unmount(&line.directory)) {
            Some(Ok(())) => check.fixed(format!("{shown}: dead mount of a device removed")),
            Some(Err(error)) => check.problem(format!("{shown}: {error}"), hint),
            None => check.problem(format!("{shown}: dead mount of a device"), hint),
        }
    }
    Ok(())
}
