//! `bulla share follow VOLUME`: a device goes over to the log that the owners let stand after a fork. Every other command
//! does so too when the server shows what the owners have signed; `follow` is for a file, for another server, and for content
//! of lost work that another place has.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ::share::client::{Lent, Location, OtherPlace};
use ::share::home::{Followed, Home};
use serde_json::json;
use trust::statement::Signed;

use super::recover::{patience, set_server};
use crate::args::ShareFollow;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::directories::open_server;
use crate::sharing::session::Opened;
use crate::sharing::{self, recovery};
use crate::{session, units};

/// Goes over to the log that stands.
pub fn run(args: &ShareFollow, config: &Config, output: &mut Output) -> Outcome<Done> {
    let home = sharing::home(config, &args.volume)?;
    let patience = patience(config, &args.waiting)?;
    // Looked at first, so that a wrong word changes nothing.
    let other = args.from.as_ref();
    let other = other.map(|from| other_place(from, &home, patience));
    let other = other.transpose()?;
    let followed = match &args.rules {
        Some(path) => {
            let rules = recovery::read(path)?;
            let until = Instant::now() + patience;
            go_over(home.clone(), &rules, args.server.as_ref(), until)?
        }
        None => {
            let mut home = home.clone();
            if let Some(server) = &args.server {
                home.set_server(&server.to_string())?;
            }
            Followed::Known
        }
    };
    let home = sharing::home(config, &args.volume)?;
    let shared = Opened::start_with(config, home, args.waiting.deadline, other.as_ref())?;
    let epoch = shared.client().policies().newest_epoch().number;
    let recovered = recovery::record(shared.recovered());
    let server_failed = shared.recovered().has_failed();
    let home = shared.home().clone();
    let engine = shared.client().view().process;
    let size = shared.run(async {
        if let Some(process) = engine.filter(|_| other.is_some())
            && home.owes()?
        {
            return Err(engine_elsewhere(process));
        }
        Ok(shared.client().status(shared.until()).await?.log.size)
    });
    let size = shared.close(size, output)?;
    let has_failed = other.as_ref().is_some_and(|it| it.lent().failed.is_some());
    match args.give_up {
        true if has_failed || server_failed => output.warn(
            "nothing was given up, because not everybody who may have content has answered; run the command again",
        ),
        true => home.give_up()?,
        false => {}
    }
    if !output.json() {
        output.line(&match followed {
            Followed::Epoch(_) => format!("this device is in epoch {epoch} of the log now"),
            Followed::Rules => "this device knows the new rules now".to_owned(),
            Followed::Known => format!("this device is in epoch {epoch} of the log"),
        })?;
    }
    let mut record = fields(json!({"epoch": epoch, "size": size}));
    record.extend(recovered);
    if let Some(other) = other {
        let lent = other.lent();
        tell_lent(&lent, output)?;
        record.extend(fields(json!({
            "from_blocks": lent.blocks,
            "from_bytes": lent.bytes,
            "from_wrong": lent.wrong,
        })));
    }
    Ok(Done::ok(record))
}

fn go_over(
    home: Home,
    rules: &[Signed],
    server: Option<&wire::shared::ServerAddress>,
    until: Instant,
) -> Outcome<Followed> {
    let followed = home.follow(rules, until)?;
    set_server(home, server)?;
    Ok(followed)
}

/// The place of `--from`.
fn other_place(from: &Location, home: &Home, patience: Duration) -> Outcome<Arc<OtherPlace>> {
    let runtime = session::runtime()?;
    session::run(&runtime, async {
        Ok(OtherPlace::open(from, home, patience, open_server).await?)
    })
}

/// Content comes back where the engine runs.
fn engine_elsewhere(process: u32) -> Failure {
    let error = format!(
        "process {process} runs the engine of this volume, and content comes back where the engine runs"
    );
    let hint = "stop that program (`bulla share run`, for example), and run the command again";
    Failure::new(Kind::StateLocked, error).with_hint(hint)
}

/// Says what a place has given. The command ends with its failure, after all that others gave.
fn tell_lent(lent: &Lent, output: &mut Output) -> Outcome<()> {
    let place = &lent.place;
    if !output.json() {
        let blocks = units::count(lent.blocks, "block", "blocks");
        let bytes = units::size(lent.bytes);
        output.line(&format!("{place} gave {blocks}, {bytes}"))?;
    }
    if lent.wrong > 0 {
        let blocks = units::count(lent.wrong, "block", "blocks");
        output.warn(&format!(
            "{place} has {blocks} that are wrong; nothing of them was taken"
        ));
    }
    if let Some(why) = &lent.failed {
        let error = match why.contains(place.as_str()) {
            true => why.clone(),
            false => format!("{place}: {why}"),
        };
        output.ends_with(Failure::new(Kind::NotLent, error));
    }
    Ok(())
}
