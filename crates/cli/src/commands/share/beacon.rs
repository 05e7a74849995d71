//! `bulla share beacon`: this machine requires that a device writes again and again (decision 0053).

use ::share::client::ClientError;
use ::share::files::{Answer, Call};
use ::share::home::Home;
use serde_json::json;
use trust::device::DeviceKey;

use crate::args::{DeviceName, ShareBeacon};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use crate::units;
use bulla::members::{Member, Membership};
use bulla::shared::SharedVolume;

/// Keeps in the home that a device is a beacon, or that it is none any more.
pub fn run(args: &ShareBeacon, config: &Config, output: &mut Output) -> Outcome<Done> {
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let home = shared.home().clone();
    let set = shared.run(async {
        let members = known_members(&shared).await?;
        let (member, key) = named(args, &home, &members)?;
        if key == DeviceKey::from(home.device()) && !args.none {
            let error = "a device cannot be its own beacon";
            let hint = "name another device; it runs `bulla share run VOLUME --beacon INTERVAL --write FILE`";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let within = args.within.filter(|_| !args.none);
        home.set_beacon(key, within)?;
        shared.client().beacons_changed(shared.until()).await?;
        Ok((member, key, within))
    });
    let (member, key, within) = shared.close(set, output)?;
    if !output.json() {
        match &member {
            Some(member) => {
                output.raw(format!("device {} of ", member.device.0).as_bytes())?;
                output.name(member.user.as_bytes())?;
            }
            None => output.raw(format!("the device {key}").as_bytes())?,
        }
        let what = match within {
            Some(within) => format!(" must write every {}\n", units::span(within)),
            None => " may be silent\n".to_owned(),
        };
        output.raw(what.as_bytes())?;
    }
    Ok(Done::ok(fields(json!({
        "volume": home.volume().to_string(),
        "name": home.name(),
        "device": member.map(|member| member.device.0),
        "key": key.to_string(),
        "within_ms": within.map(|within| u64::try_from(within.as_millis()).unwrap_or(u64::MAX)),
    }))))
}

/// The device that the user names, if it is a member, and its key. One that was removed can still be a beacon of this home,
/// which nothing else ends.
fn named(
    args: &ShareBeacon,
    home: &Home,
    members: &Membership,
) -> Outcome<(Option<Member>, DeviceKey)> {
    if let (DeviceName::Key(key), true) = (&args.device, args.none) {
        let key = DeviceKey::from(key);
        if home.beacons()?.iter().any(|beacon| beacon.device == key) {
            return Ok((members.with_key(&key), key));
        }
    }
    let found = members.device(&args.device);
    let member = found.map_err(Failure::from);
    let member = member.map_err(|failure| match args.none {
        true => failure.with_hint(
            "a device that was removed is named by its key, which `bulla share status VOLUME` shows",
        ),
        false => failure,
    })?;
    let key = member.key;
    Ok((Some(member), key))
}

/// The members, as far as this device knows them while a beacon is silent.
pub async fn known_members(shared: &SharedVolume) -> Outcome<Membership> {
    let client = shared.client();
    let asked = match client.call(Call::Members, shared.until()).await {
        Err(ClientError::Overdue { .. } | ClientError::Stopped(_)) => {
            client.look(Call::Members, shared.until()).await
        }
        asked => asked,
    };
    match asked?.answer {
        Answer::Members(roll) => Ok(Membership::of(roll)),
        _ => Err(Failure::from(bulla::Error::Defect)),
    }
}
