//! `bulla share join LINE`: this machine asks to become a device of a shared volume, shows six words, and waits until an
//! administrator admits it. The invitation proves the policies, the
//! server's key and the log that the server sends.

use std::io::Read;
use std::time::Duration;

use ::share::admission::Joining;
use ::share::client::{self, Begun as Began, ClientError, Options};
use ::share::home::{Begun, Home, HomeError, NewHome};
use serde_json::json;
use tokio::time::Instant;
use trust_shared::invitation::Invitation;
use wire::shared::LinkOptions;

use super::admit::WAIT;
use crate::args::ShareJoin;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use crate::sharing::{self, random};
use crate::{session, units};

/// Longest line that is read.
const MAX_LINE_BYTES: u64 = 4096;

/// Joins. A command that was killed goes on where it was: its device asks with the same key.
pub fn run(args: &ShareJoin, config: &Config, output: &mut Output) -> Outcome<Done> {
    let state = config.path("state-dir").unwrap_or_default();
    let line = read(&args.line)?;
    let invitation = parse(&line)?;
    let volume = invitation.volume;
    if let Some(home) = Home::find(&state, &volume.to_string())? {
        Begun::end(&state, volume)?;
        let name = home.name().to_owned();
        return Err(HomeError::Exists { name }.into());
    }
    if let Some(name) = &args.name {
        sharing::name_is_free(&state, name)?;
    }
    let mut begun = match Begun::find(&state, volume, &line)? {
        Some(begun) => begun,
        None => Begun::begin(&state, volume, &line, sharing::new_device()?, random()?)?,
    };
    let until = Instant::now() + args.wait.unwrap_or(WAIT);
    let runtime = session::runtime()?;
    let deadline = match args.waiting.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let begins = invitation.prefix.in_epoch(invitation.epoch);
    let joining = session::run(&runtime, async {
        let options = LinkOptions::default();
        let (invitation, key) = (invitation.clone(), begun.key().public());
        Ok(Joining::begin(
            invitation,
            &key,
            begun.random(),
            options,
            Instant::now() + deadline,
        )
        .await?)
    })?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => joining.name().to_owned(),
    };
    sharing::name_is_free(&state, &name)?;
    session::run(&runtime, admission(&joining, &mut begun, until, output))?;
    let home = NewHome {
        volume,
        name: &name,
        server: &invitation.server,
        key: begun.key(),
        policies: joining.policies(),
        begins: Some(begins),
    };
    let home = Home::create(&state, &home)?;
    Begun::end(&state, volume)?;
    drop(runtime);
    let size = begin(&home, args, config, output)?;
    enter(home, size, config, args.waiting.deadline, output)
}

/// Begins with a checkpoint, if there is one that this device may believe. Gives the size of its log.
fn begin(
    home: &Home,
    args: &ShareJoin,
    config: &Config,
    output: &mut Output,
) -> Outcome<Option<u64>> {
    if args.replay {
        return Ok(None);
    }
    let deadline = match args.waiting.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let runtime = session::runtime()?;
    let until = std::time::Instant::now() + deadline;
    let own = args.checkpoint_by.as_ref();
    let options = Options::default();
    let begun = session::run(&runtime, async {
        match client::begin(home, &options, own, until).await {
            // The device is a member, and replays what the server has.
            Err(ClientError::Deadline { connection }) => Ok(Began::Replay {
                why: Some(format!("the checkpoint did not come: {connection}")),
            }),
            begun => Ok(begun?),
        }
    })?;
    match begun {
        Began::Checkpoint { size } => Ok(Some(size)),
        Began::Replay { why } => {
            if let (Some(why), true) = (why, own.is_some()) {
                output.note(&format!("The whole log is replayed: {why}."));
            }
            Ok(None)
        }
    }
}

/// Shows the words, and waits until an administrator has admitted the device.
async fn admission(
    joining: &Joining,
    begun: &mut Begun,
    until: Instant,
    output: &mut Output,
) -> Outcome<()> {
    let words = match begun.words() {
        Some(words) => words.to_owned(),
        None => {
            output.note("Waiting for the inviter's `bulla share invite`.");
            let words = joining.ask(until).await?.to_string();
            begun.show(&words)?;
            words
        }
    };
    match output.json() {
        true => output.record("words", fields(json!({"words": words})))?,
        false => output.line(&words)?,
    }
    output.flush()?;
    output.note(
        "Read these words to the one who has invited you, over a channel where you know each other. Waiting for the \
         admission. If this command ends before, run it again with the same line.",
    );
    Ok(joining.admitted(begun.key(), until).await?)
}

/// Reads the log as far as this device's own admission.
fn enter(
    home: Home,
    began: Option<u64>,
    config: &Config,
    deadline: Option<Duration>,
    output: &mut Output,
) -> Outcome<Done> {
    let shared = Opened::start(config, home.clone(), deadline)?;
    let member = shared.run(async {
        let members = shared.members().await?;
        Ok(members.own(home.device())?)
    });
    let member = shared.close(member, output)?;
    if !output.json() {
        output.line(&format!("volume    {}", home.volume()))?;
        output.line(&format!("name      {}", home.name()))?;
        output.line(&format!("device    {}", member.device.0))?;
        output.raw(b"user      ")?;
        output.name(member.user.as_bytes())?;
        output.raw(b"\n")?;
        if let Some(size) = began {
            output.line(&format!(
                "begins    with a checkpoint of {}",
                units::leaves(size)
            ))?;
        }
    }
    Ok(Done::ok(fields(json!({
        "volume": home.volume().to_string(),
        "name": home.name(),
        "server": home.server(),
        "device": member.device.0,
        "key": member.key.to_string(),
        "user": member.user,
        "checkpoint": began,
    }))))
}

/// The line, or the one on stdin.
fn read(line: &str) -> Outcome<String> {
    if line != "-" {
        return Ok(line.trim().to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin()
        .take(MAX_LINE_BYTES)
        .read_to_string(&mut text);
    read.map_err(|e| Failure::io("cannot read the line from stdin", &e))?;
    Ok(text.trim().to_owned())
}

fn parse(line: &str) -> Outcome<Invitation> {
    Invitation::from_line(line)
        .map_err(|why| Failure::of(Kind::BadInvitation, "the line is no invitation", &why))
}
