//! `bulla share status`: what this device knows of the log, how far all devices agree, and who is silent.

use std::time::{Duration, Instant};

use ::share::client::{Connection, DeviceStatus, Phase, Status};
use serde_json::{Value, json};
use trust::shared::device::DeviceKey;

use crate::args::ShareVolume;
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::sharing::members::Member;
use crate::sharing::session::Shared;

/// How long the server may take to name its checkpoints.
const CHECKPOINT: Duration = Duration::from_secs(5);

/// Shows the state of a volume.
pub fn run(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Shared::open(config, &args.volume, &args.waiting)?;
    let asked = shared.run(async {
        let members = shared.members().await?;
        let status = shared.client().status(shared.until()).await?;
        Ok((members, status, checkpoint(&shared).await))
    });
    let home = shared.home().clone();
    let (members, status, checkpoint) = shared.close(asked, output)?;
    if !output.json() {
        output.line(&format!("volume    {}", home.volume()))?;
        output.line(&format!("server    {}", home.server()))?;
        output.line(&format!("state     {}", state(&status)))?;
        output.line(&format!("log       {} entries and marks", status.log.size))?;
        let agreed = status.agreed();
        output.line(&format!("agreed    the first {agreed} by all devices"))?;
        if status.begins > 0 {
            let begins = status.begins;
            output.line(&format!(
                "begins    with a checkpoint of the first {begins}"
            ))?;
        }
        if let Some((size, by, needed)) = checkpoint {
            let line = format!("newest checkpoint: the first {size}, signed by {by} of {needed}");
            output.line(&line)?;
        }
    }
    let own = DeviceKey::from(home.device());
    let devices = members.devices();
    for member in &devices {
        let row = status.devices.iter().find(|row| row.device == member.key);
        show(member, row, &status, member.key == own, output)?;
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
        "size": status.log.size,
        "agreed": status.agreed(),
        "begins": status.begins,
        "checkpoint": checkpoint.map(|(size, ..)| size),
        "devices": devices.len(),
        "differing": status.differing.len(),
    }))))
}

/// The newest checkpoint that the server has: its size, how many checkpointers signed it, and how many must.
async fn checkpoint(shared: &Shared) -> Option<(u64, usize, u8)> {
    let policies = shared.client().policies();
    let role = &policies.roles().checkpointers;
    if role.is_empty() {
        return None;
    }
    // Without a connection the status says what else it knows.
    let until = Instant::now() + CHECKPOINT;
    let posted = shared.client().checkpoints(until).await.ok()?;
    let posted = posted.iter().filter_map(|posted| {
        let checkpoint = posted.read(policies).ok()?;
        let by = posted.signers(policies).len();
        (by > 0).then_some((checkpoint.log.size, by, role.needed()))
    });
    posted.max()
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
