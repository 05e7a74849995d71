//! `bulla share status`: what this device knows of the log, how far all devices agree, and who is silent. Without the
//! server it shows what this device knew when it heard from the server last.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::share::client::{
    BeaconStatus, ClientError, Connection, DeviceStatus, Kept, Owed, Phase, Status, Stopped,
};
use ::share::files::Call;
use ::share::home::Times;
use serde_json::{Value, json};
use trust::device::DeviceKey;

use crate::args::ShareVolume;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::reading::Opening;
use crate::sharing::recovery::entries;
use crate::units;
use bulla::members::Member;
use bulla::shared::SharedVolume;

/// How long the server may take to name its checkpoints.
const CHECKPOINT: Duration = Duration::from_secs(5);

/// Shows the state of a volume.
pub fn run(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let opening = Opening::named(config, &args.volume, &args.waiting)?.alone();
    let asked = opening.read(output, async |shared, _| {
        let client = shared.client();
        if matches!(client.view().phase, Phase::Running) {
            // The answer comes after what other devices have confirmed. Without one, what is known counts.
            let _ = client.call(Call::Members, shared.until()).await;
        }
        let members = shared.known_members().await?;
        let status = client.status(shared.until()).await?;
        let epoch = *client.policies().newest_epoch();
        let owed = owed(shared).await?;
        let of = (shared.home().clone(), epoch, client.view().process, owed);
        Ok((of, members, status, checkpoint(shared).await))
    });
    let ((home, epoch, process, owed), members, status, checkpoint) = asked?;
    let seen = status
        .note
        .map(|note| units::time(note.note().time_ms / 1000));
    let clock = ServerClock::of(status.note.map(|note| note.note().time_ms), &home.times());
    let (state, why) = state(&status);
    if !output.json() {
        let why = why
            .as_ref()
            .map_or_else(String::new, |why| format!(": {why}"));
        let seen = match &seen {
            Some(seen) => format!("{seen}, by the server's clock"),
            None => "never heard from the server".to_owned(),
        };
        output.line(&format!("volume    {}", home.volume()))?;
        output.line(&format!("server    {}", home.server()))?;
        output.line(&format!("state     {}{why}", state.words()))?;
        output.line(&format!("as of     {seen}"))?;
        output.line(&format!("log       {}", units::leaves(status.log.size)))?;
        if let Some(process) = process {
            output.line(&format!("engine    process {process}"))?;
        }
        let agreed = status.agreed();
        output.line(&format!("agreed    the first {agreed} by all devices"))?;
        if epoch.number > 0 {
            let (number, size) = (epoch.number, epoch.start.size);
            output.line(&format!(
                "epoch     {number}: after a fork the first {size} stand"
            ))?;
        }
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
    let kept = Kept::of(&home)?;
    if !output.json() {
        let blocks = units::count(kept.blocks, "block", "blocks");
        let (bytes, limit) = (units::size(kept.bytes), units::size(kept.limit_bytes));
        output.line(&format!(
            "own       {blocks} of what this device wrote, {bytes} of at most {limit}"
        ))?;
        tell_owed(owed, process, output)?;
    }
    let forgotten = home.forgotten();
    if forgotten.entries > 0 && !output.json() {
        let (unknown, last) = (entries(forgotten.entries), forgotten.last_at);
        output.line(&format!(
            "unknown   {unknown} of this device that it does not remember, the last at {last}"
        ))?;
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
    clock.tell(output);
    if let Some(trouble) = trouble(&status) {
        alone(trouble, seen.as_deref(), output);
    }
    Ok(Done::ok(fields(json!({
        "volume": home.volume().to_string(),
        "name": home.name(),
        "server": home.server(),
        "online": matches!(status.connection, Connection::Online),
        "state": state.word(),
        "why": why,
        "as_of": seen,
        "server_ahead_s": clock.ahead.map(|ahead| ahead.as_secs()),
        "server_went_back_s": clock.went_back.map(|back| back.as_secs()),
        "process": process,
        "size": status.log.size,
        "epoch": epoch.number,
        "agreed": status.agreed(),
        "forgotten": forgotten.entries,
        "own_blocks": kept.blocks,
        "own_bytes": kept.bytes,
        "own_limit_bytes": kept.limit_bytes,
        "owed_files": owed.map(|owed| owed.files),
        "owed_bytes": owed.map(|owed| owed.bytes),
        "begins": status.begins,
        "checkpoint": checkpoint.map(|(size, ..)| size),
        "devices": devices.len(),
        "differing": status.differing.len(),
        "beacons": status.beacons.len(),
    }))))
}

/// Files that are not back after a fork, and their bytes. None: there are some, and only the process that runs the
/// engine can count them.
async fn owed(shared: &SharedVolume) -> Outcome<Option<Owed>> {
    if shared.client().view().process.is_some() && shared.home().owes()? {
        return Ok(None);
    }
    Ok(Some(shared.client().owed(shared.until()).await?))
}

fn tell_owed(owed: Option<Owed>, process: Option<u32>, output: &mut Output) -> Outcome<()> {
    let what = match owed {
        Some(Owed { files: 0, .. }) => return Ok(()),
        Some(owed) => {
            let files = units::count(owed.files, "file", "files");
            let bytes = units::size(owed.bytes);
            format!("{files} of this device, {bytes}, not back after a fork")
        }
        None => {
            let process = process.unwrap_or_default();
            format!("something of this device is not back after a fork; process {process} tries")
        }
    };
    output.line(&format!("owed      {what}"))
}

/// Clocks of two machines may differ so much before `share status` says so.
const CLOCKS_DIFFER: Duration = Duration::from_secs(60);

/// Contradictions in the times in the server's notes. They are for people, and nothing is decided by them.
struct ServerClock {
    /// How far the newest note lies ahead of this device's clock.
    ahead: Option<Duration>,
    /// How far the clock went back between two notes that this device has met.
    went_back: Option<Duration>,
}

impl ServerClock {
    fn of(newest_ms: Option<u64>, times: &Times) -> ServerClock {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let newest = Duration::from_millis(newest_ms.unwrap_or(0));
        let is_much = |by: &Duration| *by > CLOCKS_DIFFER;
        ServerClock {
            ahead: newest.checked_sub(now.unwrap_or_default()).filter(is_much),
            went_back: Some(Duration::from_millis(times.went_back_ms())).filter(is_much),
        }
    }

    fn tell(&self, output: &mut Output) {
        if let Some(ahead) = self.ahead {
            output.warn(&format!(
                "the server's newest time lies {} ahead of this device's clock: one of the two clocks is wrong, and \
                 times of entries are the server's word",
                units::span(ahead)
            ));
        }
        if let Some(back) = self.went_back {
            output.warn(&format!(
                "the server's clock went back by {}: times of entries before that are wrong",
                units::span(back)
            ));
        }
    }
}

/// The newest checkpoint that the server has: its size, how many checkpointers signed it, and how many must.
async fn checkpoint(shared: &SharedVolume) -> Option<(u64, usize, u8)> {
    let policies = shared.client().policies();
    let role = &policies.roles().checkpointers;
    let online = matches!(shared.client().view().connection, Connection::Online);
    if role.is_empty() || !online {
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

/// The result is what this device knew before. That is worth a warning while the server is only away; anything worse
/// is what the command ends with.
fn alone(trouble: Failure, seen: Option<&str>, output: &mut Output) {
    if trouble.exit() != Exit::Unavailable {
        return output.ends_with(trouble);
    }
    let known = match seen {
        Some(seen) => format!("this is what this device knew at {seen}, by the server's clock"),
        None => "this device has never heard from it".to_owned(),
    };
    output.warn(&format!("{}; {known}", trouble.error));
}

/// Why this device gets nothing from the server. None: it does, or the command already ends with the reason.
fn trouble(status: &Status) -> Option<Failure> {
    match (&status.phase, &status.connection) {
        (Phase::Stopped(Stopped::Convicted { .. }), _) => None,
        (Phase::Stopped(why), _) => Some(ClientError::from(why.clone()).into()),
        (_, Connection::Online) => None,
        (_, connection) => {
            let connection = connection.clone();
            Some(ClientError::Deadline { connection }.into())
        }
    }
}

/// What a device can do.
#[derive(Clone, Copy)]
enum State {
    Stopped,
    Offline,
    Outside,
    CatchingUp,
    Connected,
}

impl State {
    /// For scripts.
    fn word(self) -> &'static str {
        match self {
            State::Stopped => "stopped",
            State::Offline => "offline",
            State::Outside => "outside",
            State::CatchingUp => "catching-up",
            State::Connected => "connected",
        }
    }

    /// For people.
    fn words(self) -> &'static str {
        match self {
            State::Stopped => "stopped",
            State::Offline => "no connection",
            State::Outside => "this device is no member",
            State::CatchingUp => "catching up",
            State::Connected => "connected",
        }
    }
}

/// What this device can do, and why it cannot do more.
fn state(status: &Status) -> (State, Option<String>) {
    match (&status.phase, &status.connection) {
        (Phase::Stopped(why), _) => (State::Stopped, Some(why.to_string())),
        (_, Connection::Offline(lost)) => (State::Offline, Some(lost.to_string())),
        (_, connection @ Connection::Connecting) => (State::Offline, Some(connection.to_string())),
        (Phase::Outside, Connection::Online) => (State::Outside, None),
        (Phase::Resuming, Connection::Online) => (State::CatchingUp, None),
        (Phase::Running, Connection::Online) => (State::Connected, None),
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
    let is_online = matches!(status.connection, Connection::Online);
    let differs = status.differing.iter().any(|it| it.device == member.key);
    if output.json() {
        let last = last.map_or(Value::Null, Value::from);
        return output.record(
            "device",
            fields(json!({
                "device": member.device.0,
                "key": member.key.to_string(),
                "user": member.user,
                "device_name": member.label,
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
        Some(at) if is_open && !is_online && is_own => format!("wrote last at {at}"),
        Some(at) if is_open && !is_online => {
            format!("wrote last at {at}; only the server knows whether it has confirmed that")
        }
        Some(at) if is_open => format!("has not confirmed what it wrote at {at}"),
        Some(at) => format!("wrote last at {at}, confirmed"),
    };
    let this = if is_own { " (this device)" } else { "" };
    let number = member.device.0;
    output.raw(format!("device    {number} of ").as_bytes())?;
    output.name(member.user.as_bytes())?;
    if let Some(label) = &member.label {
        output.name(format!(" ({label})").as_bytes())?;
    }
    output.raw(format!("{this}: {what}\n").as_bytes())
}
