//! `bulla share invite`, `bulla share device add`: how an administrator lets a device in. The server's
//! word admits no device: the invitation's secret proves the request, and six words, which people compare, prove the device.

use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::share::admission::{self, Answered};
use ::share::home::Home;
use serde_json::json;
use state::private;
use tokio::time::Instant;
use trust::device::DeviceKey;
use trust::words::Words;
use trust_shared::decision::{Decision, Label};
use trust_shared::invitation::{Invitation, Secret};
use wire::shared::{Link, LinkOptions, ServerAddress};

use crate::args::{Global, ShareDeviceAdd, ShareInvite, Waiting};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{self, Done, Output, fields};
use bulla::members::Member;

use crate::sharing::{self, random, session::Opened};
use crate::{session, text};

/// How long an inviter waits, if nothing is said. The server keeps the messages that long.
pub const WAIT: Duration = Duration::from_mins(10);
/// How long an answered invitation is kept for its words.
const KEPT: Duration = Duration::from_hours(24);
/// Directory of answered invitations in a home.
const INVITATIONS: &str = "invitations";
/// How often a person may mistype the words.
const TRIES: usize = 3;

/// Invites a device, answers its request, and at a terminal admits it.
pub fn invite(
    args: &ShareInvite,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let home = sharing::home(config, &args.volume)?;
    let invitation = prepare(config, &home, &args.waiting, args.user.as_ref(), output)?;
    let line = invitation
        .to_line()
        .map_err(|why| Failure::of(Kind::Usage, "the invitation has no line", &why))?;
    match output.json() {
        true => output.record("invitation", fields(json!({"line": *line})))?,
        false => output.line(&line)?,
    }
    output.flush()?;
    output.note(
        "Give this line to the other device on a way that the server does not see; there: bulla share join LINE. Waiting \
         for it.",
    );
    let wait = args.wait.unwrap_or(WAIT);
    let answered = answer(&home, &invitation, wait)?;
    let kept = keep(&home, &answered)?;
    let is_asked = std::io::stdin().is_terminal() && !global.no_input && !output.json();
    if !is_asked {
        output.note(&format!(
            "A device has answered. Admit it with the six words that it shows: bulla share device add {} WORDS --user NAME",
            home.name()
        ));
        return Ok(Done::ok(fields(json!({"answered": true}))));
    }
    let device = ask_words(&answered)?;
    let user = match &args.user {
        Some(user) => user.clone(),
        None => ask_user()?,
    };
    let named = (device, &user, args.device_name.as_ref());
    let member = admit(config, &home, &args.waiting, named, output)?;
    forget(&kept);
    tell(&member, output)
}

/// The invitation: what this device knows of the volume, and a new secret. Refuses what cannot work out.
fn prepare(
    config: &Config,
    home: &Home,
    waiting: &Waiting,
    user: Option<&Label>,
    output: &mut Output,
) -> Outcome<Invitation> {
    let shared = Opened::start(config, home.clone(), waiting.deadline)?;
    let asked = shared.run(async {
        let members = shared.members().await?;
        members.require_admin(home.device())?;
        if let Some(user) = user {
            members.user(user)?;
        }
        Ok(shared.client().status(shared.until()).await?.log)
    });
    let (policy, epoch) = {
        let policies = shared.client().policies();
        let newest = policies.chain().newest_hash();
        (newest, policies.newest_epoch().number)
    };
    let prefix = shared.close(asked, output)?;
    Ok(Invitation {
        volume: home.volume(),
        policy,
        epoch,
        prefix,
        server: home.server().to_owned(),
        secret: Secret::from_bytes(random()?),
    })
}

/// Waits for the request, and answers it.
fn answer(home: &Home, invitation: &Invitation, wait: Duration) -> Outcome<Answered> {
    let to: ServerAddress = home.server().parse()?;
    let policies = home.policies()?;
    let orderer = policies.newest_epoch().orderer;
    let (key, number) = (home.key()?, random()?);
    let runtime = session::runtime()?;
    session::run(&runtime, async {
        let (volume, options) = (home.volume(), LinkOptions::default());
        let connect = async || {
            let linked = Link::connect(&to, volume, &orderer, Some(&key), &options);
            Ok(linked.await?.0)
        };
        let until = Instant::now() + wait;
        Ok(admission::answer(connect, invitation, number, until).await?)
    })
}

/// Keeps an answered invitation until the words come.
fn keep(home: &Home, answered: &Answered) -> Outcome<PathBuf> {
    let directory = home.directory().join(INVITATIONS);
    private::create_directory(&directory)?;
    let name: String = answered
        .id()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let path = directory.join(name);
    let bytes = answered
        .encode()
        .map_err(|why| Failure::of(Kind::Defect, "an invitation cannot be kept", &why))?;
    private::replace(&path, &bytes)?;
    Ok(path)
}

fn forget(path: &Path) {
    // Without its words nobody can use it, and it is removed when it is old.
    let _ = fs::remove_file(path);
}

/// The answered invitations of a home. Old ones are removed.
fn kept(home: &Home) -> Outcome<Vec<(PathBuf, Answered)>> {
    let directory = home.directory().join(INVITATIONS);
    let failed =
        |e: std::io::Error| Failure::io(format!("cannot read {}", directory.display()), &e);
    let entries = match fs::read_dir(&directory) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut kept = Vec::new();
    for entry in entries {
        let path = entry.map_err(failed)?.path();
        let made = path
            .metadata()
            .and_then(|it| it.modified())
            .map_err(failed)?;
        if made.elapsed().is_ok_and(|age| age > KEPT) {
            forget(&path);
            continue;
        }
        let bytes = fs::read(&path).map_err(failed)?;
        // A half-written one has another name, and one of a later bulla is not ours.
        kept.extend(
            Answered::decode(&bytes)
                .ok()
                .map(|answered| (path, answered)),
        );
    }
    Ok(kept)
}

/// Admits the device that shows these words.
pub fn add(args: &ShareDeviceAdd, config: &Config, output: &mut Output) -> Outcome<Done> {
    let home = sharing::home(config, &args.volume)?;
    let said = args.words.join(" ").parse();
    let said: Words =
        said.map_err(|e| Failure::of(Kind::OtherWords, "these are not six words", &e))?;
    let kept = kept(&home)?;
    if kept.is_empty() {
        let error = "no device has asked for admission here";
        return Err(Failure::new(Kind::NoRequest, error));
    }
    let mut found = None;
    for (path, answered) in kept {
        let device = answered.device(&said);
        let device = device.map_err(|why| {
            Failure::of(
                Kind::ForgedAdmission,
                "the invitation was answered wrongly",
                &why,
            )
        })?;
        if let Some(device) = device {
            found = Some((path, device));
        }
    }
    let (path, device) = found.ok_or_else(other_words)?;
    let named = (device, &args.user, args.device_name.as_ref());
    let member = admit(config, &home, &args.waiting, named, output)?;
    forget(&path);
    tell(&member, output)
}

fn other_words() -> Failure {
    let error = "no device that has asked for admission shows these words";
    Failure::new(Kind::OtherWords, error)
}

/// Signs the admission. Returns the new device.
fn admit(
    config: &Config,
    home: &Home,
    waiting: &Waiting,
    (device, user, label): (DeviceKey, &Label, Option<&Label>),
    output: &mut Output,
) -> Outcome<Member> {
    let shared = Opened::start(config, home.clone(), waiting.deadline)?;
    let admitted = shared.run(async {
        let members = shared.members().await?;
        let key = device
            .key()
            .map_err(|why| Failure::of(Kind::ForgedAdmission, "the device has no key", &why))?;
        if let Some(member) = members.with_key(&device) {
            return Ok((member, None));
        }
        let member = Member {
            device: members.next_device()?,
            key: device,
            principal: members.user(user)?,
            user: user.as_str().to_owned(),
            label: label.map(|label| label.as_str().to_owned()),
        };
        let decision = Decision::AdmitDevice {
            device: member.device,
            key,
            user: member.principal,
        };
        let about = || format!("device {device}");
        shared.decide(decision, &about).await?;
        let Some(label) = label else {
            return Ok((member, None));
        };
        let name = Decision::NameDevice {
            device: member.device,
            label: label.clone(),
        };
        let unnamed = shared.decide(name, &about).await.err();
        Ok((member, unnamed))
    });
    let (mut member, unnamed) = shared.close(admitted, output)?;
    if let Some(why) = unnamed {
        // It is a member all the same.
        member.label = None;
        output.warn(&format!(
            "device {} is admitted, and has no name: {}; `bulla share device name` gives it one",
            member.device.0,
            Failure::from(why).error
        ));
    }
    Ok(member)
}

fn tell(member: &Member, output: &mut Output) -> Outcome<Done> {
    let (number, user) = (member.device.0, &member.user);
    if !output.json() {
        output.name(member.shown().as_bytes())?;
        output.line(&format!(" is admitted: {}", member.key))?;
    }
    Ok(Done::ok(fields(json!({
        "device": number,
        "key": member.key.to_string(),
        "user": user,
        "device_name": member.label,
    }))))
}

/// Asks for the words until they are right.
fn ask_words(answered: &Answered) -> Outcome<DeviceKey> {
    for _ in 0..TRIES {
        let typed = ask(
            "Type the six words that the device shows, read to you by somebody whose voice you know: ",
        )?;
        match typed.parse::<Words>() {
            Err(why) => output::say(&format!("{}\n", text::printable_message(&why.to_string()))),
            Ok(said) => match answered.device(&said) {
                Ok(Some(device)) => return Ok(device),
                _ => output::say("The device shows other words.\n"),
            },
        }
    }
    Err(other_words())
}

fn ask_user() -> Outcome<Label> {
    let typed = ask("Whose device is it? The name of a user: ")?;
    Label::new(&typed).map_err(|why| Failure::of(Kind::Usage, format!("`{typed}`"), &why))
}

/// Asks one question at the terminal. Ctrl-C and SIGTERM end it.
fn ask(question: &str) -> Outcome<String> {
    output::say(question);
    let line = session::unless_interrupted(|| {
        let mut line = String::new();
        Some(std::io::stdin().read_line(&mut line).map(|_| line))
    })?;
    let line = line.ok_or_else(|| Failure::new(Kind::Interrupted, "interrupted"))?;
    let line = line.map_err(|e| Failure::io("cannot read the answer", &e))?;
    Ok(line.trim().to_owned())
}
