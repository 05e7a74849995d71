//! `bulla share status`: what this device knows of the log, how far all devices agree, and who is silent.

use ::share::client::{BeaconStatus, Connection, DeviceStatus, Phase, Status};
use serde_json::{Value, json};
use trust::shared::device::DeviceKey;

use super::beacon::known_members;
use crate::args::ShareVolume;
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::sharing::members::Member;
use crate::sharing::session::Shared;
use crate::units;

/// Shows the state of a volume.
pub fn run(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Shared::open(config, &args.volume, &args.waiting)?;
    let asked = shared.run(async {
        let members = known_members(&shared).await?;
        Ok((members, shared.client().status(shared.until()).await?))
    });
    let home = shared.home().clone();
    let process = shared.client().view().process;
    let (members, status) = shared.close(asked, output)?;
    if !output.json() {
        output.line(&format!("volume    {}", home.volume()))?;
        output.line(&format!("server    {}", home.server()))?;
        output.line(&format!("state     {}", state(&status)))?;
        output.line(&format!("log       {} entries and marks", status.log.size))?;
        if let Some(process) = process {
            output.line(&format!("engine    process {process}"))?;
        }
        let agreed = status.agreed();
        output.line(&format!("agreed    the first {agreed} by all devices"))?;
    }
    let own = DeviceKey::from(home.device());
    let devices = members.devices();
    for member in &devices {
        let row = status.devices.iter().find(|row| row.device == member.key);
        show(member, row, &status, member.key == own, output)?;
    }
    for beacon in &status.beacons {
        show_beacon(beacon, &devices, output)?;
    }
    for differing in &status.differing {
        output.warn(&format!(
            "the device {} says that it has seen another log of {} entries: compare with it (`bulla share compare`)",
            differing.device, differing.size
        ));
    }
    Ok(Done::ok(fields(json!({
        "volume": home.volume().to_string(),
        "name": home.name(),
        "server": home.server(),
        "online": matches!(status.connection, Connection::Online),
        "process": process,
        "size": status.log.size,
        "agreed": status.agreed(),
        "devices": devices.len(),
        "differing": status.differing.len(),
        "beacons": status.beacons.len(),
    }))))
}

/// How a beacon is.
fn show_beacon(beacon: &BeaconStatus, devices: &[Member], output: &mut Output) -> Outcome<()> {
    let member = devices.iter().find(|member| member.key == beacon.device);
    let ms = |time: std::time::Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if output.json() {
        let record = json!({
            "device": member.map(|member| member.device.0),
            "key": beacon.device.to_string(),
            "age_ms": ms(beacon.age),
            "within_ms": ms(beacon.within),
            "overdue": beacon.is_overdue(),
        });
        return output.record("beacon", fields(record));
    }
    let device = match member {
        Some(member) => format!("device {}", member.device.0),
        None => format!("the device {}, which is no member any more", beacon.device),
    };
    let (age, within) = (units::span(beacon.age), units::span(beacon.within));
    let state = match beacon.is_overdue() {
        true => "OVERDUE: nothing is used until it writes again",
        false => "in time",
    };
    output.line(&format!(
        "beacon    {device}: silent for {age} of {within}, {state}"
    ))
}

fn state(status: &Status) -> String {
    match (&status.phase, &status.connection) {
        (Phase::Stopped(why), _) => format!("stopped: {why}"),
        (_, Connection::Offline(lost)) => format!("no connection: {lost}"),
        (_, Connection::Connecting) => "connecting".to_owned(),
        (Phase::Outside, Connection::Online) => "this device is no member".to_owned(),
        (Phase::Resuming, Connection::Online) => "catching up".to_owned(),
        (Phase::Running, Connection::Online) => "connected".to_owned(),
    }
}

/// What the log says of a device. `row`: none if it has never written.
fn show(
    member: &Member,
    row: Option<&DeviceStatus>,
    status: &Status,
    is_own: bool,
    output: &mut Output,
) -> Outcome<()> {
    let last = row.map(|row| row.last_at);
    let is_open = row.is_some_and(|row| row.attested <= row.last_at);
    let differs = status.differing.iter().any(|it| it.device == member.key);
    if output.json() {
        let last = last.map_or(Value::Null, Value::from);
        return output.record(
            "device",
            fields(json!({
                "device": member.device.0,
                "key": member.key.to_string(),
                "user": member.user,
                "this": is_own,
                "last": last,
                "attested": row.map_or(0, |row| row.attested),
                "unattested": is_open,
                "differs": differs,
            })),
        );
    }
    let what = match last {
        None => "has not written yet".to_owned(),
        Some(_) if differs => "SAYS THAT IT HAS SEEN ANOTHER LOG".to_owned(),
        Some(at) if is_open => format!("has not confirmed what it wrote at {at}"),
        Some(at) => format!("wrote last at {at}, confirmed"),
    };
    let this = if is_own { " (this device)" } else { "" };
    let number = member.device.0;
    output.raw(format!("device    {number} of ").as_bytes())?;
    output.name(member.user.as_bytes())?;
    output.raw(format!("{this}: {what}\n").as_bytes())
}
