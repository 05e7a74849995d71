//! `bulla share status`: what this device knows of the log, how far all devices agree, and who is silent. Without the
//! server it shows what this device knew when it heard from the server last.

use ::share::client::{ClientError, Connection, DeviceStatus, Phase, Status, Stopped};
use ::share::files::Call;
use serde_json::{Value, json};
use trust::shared::device::DeviceKey;

use crate::args::ShareVolume;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::members::Member;
use crate::sharing::session::Shared;
use crate::units;

/// Shows the state of a volume.
pub fn run(args: &ShareVolume, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Shared::open_alone(config, &args.volume, &args.waiting)?;
    let asked = shared.run(async {
        let client = shared.client();
        if matches!(client.view().phase, Phase::Running) {
            // The answer comes after what other devices have confirmed. Without one, what is known counts.
            let _ = client.call(Call::Members, shared.until()).await;
        }
        let members = shared.known_members().await?;
        Ok((members, client.status(shared.until()).await?))
    });
    let home = shared.home().clone();
    let (members, status) = shared.close(asked, output)?;
    let seen = status
        .note
        .map(|note| units::time(note.note().time_ms / 1000));
    let (state, why) = state(&status);
    if !output.json() {
        let why = why
            .as_ref()
            .map_or_else(String::new, |why| format!(": {why}"));
        let seen = seen.as_deref().unwrap_or("never heard from the server");
        output.line(&format!("volume    {}", home.volume()))?;
        output.line(&format!("server    {}", home.server()))?;
        output.line(&format!("state     {}{why}", state.words()))?;
        output.line(&format!("as of     {seen}"))?;
        output.line(&format!("log       {} entries and marks", status.log.size))?;
        let agreed = status.agreed();
        output.line(&format!("agreed    the first {agreed} by all devices"))?;
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
        "size": status.log.size,
        "agreed": status.agreed(),
        "devices": devices.len(),
        "differing": status.differing.len(),
    }))))
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
    output.raw(format!("{this}: {what}\n").as_bytes())
}
