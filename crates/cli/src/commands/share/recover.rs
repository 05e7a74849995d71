//! `bulla share recover VOLUME`: after a fork, the owners sign which log stands, and who orders from then on. Devices go
//! over to it ([`super::follow`]).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use ::share::client::{Client, ClientError, Options, Status};
use ::share::files::{Answer, Call};
use ::share::home::{self, Followed, Home};
use serde_json::json;
use state::private;
use trust::policy::Successor;
use trust::signatures::Signatures;
use trust::signer::Signer;
use trust::statement::Signed;
use trust_shared::entry::Prefix;
use trust_shared::genesis::{self, Policies, SharedRoles};

use super::compare;
use crate::args::{Global, ShareRecover};
use crate::commands::key;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::{self, recovery};
use crate::{session, units};

/// How long the command waits for what the server has and this device has not seen.
const FRESH: Duration = Duration::from_secs(3);

/// What this device knows of the log.
struct Known {
    status: Status,
    /// The log that stands.
    start: Prefix,
    /// What others have seen: the file, and what it comes to.
    seen: Vec<(String, Seen)>,
}

/// What another device has seen, beside this one.
enum Seen {
    /// A beginning of this device's log.
    Here(u64),
    /// More than this device.
    More(u64),
    /// Another log.
    Elsewhere(u64),
}

/// Signs the rules of the next epoch, and goes over to it.
pub fn recover(
    args: &ShareRecover,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let home = sharing::home(config, &args.volume)?;
    let (policies, signed) = (home.policies()?, home.signed_policies()?);
    let texts = args.seen.iter().map(|path| compare::read(path));
    let texts = texts.collect::<Outcome<Vec<_>>>()?;
    // Made first, so that the owner does not type a passphrase in vain.
    let mut file = create(args, &signed)?;
    let signing = || {
        let known = look(args, config, &home, &policies, &texts)?;
        tell(&known, output)?;
        let keys = key::signers(&args.owner_key, &args.passphrase, global, key::reach())?;
        // Two different rules with one number are a fork of the owners. So sign only if this device can go over.
        let idle = home.clone().idle(deadline(config, &args.waiting)?)?;
        let rules = sign(args, &policies, signed, &known.start, &key::borrowed(&keys))?;
        if idle.home().signed_policies()?.len() >= rules.len() {
            return Err(ClientError::GoneOver.into());
        }
        write(&mut file, &args.out, &rules)?;
        Ok((known, rules, idle))
    };
    let made: Outcome<_> = signing();
    let (known, rules, idle) = made.inspect_err(|_| drop(std::fs::remove_file(&args.out)))?;
    let gone_over = idle.follow(&rules).map_err(Failure::from);
    let gone_over = gone_over.and_then(|epoch| {
        set_server(home, args.server.as_ref())?;
        Ok(epoch)
    });
    let epoch = gone_over.map_err(|failure| failure.with_hint(signed_already(args)))?;
    next(args, &known, output);
    Ok(Done::ok(fields(json!({
        "epoch": match epoch {
            Followed::Epoch(epoch) => epoch,
            Followed::Known | Followed::Rules => policies.newest_epoch().number,
        },
        "size": known.start.size,
        "seen": known.status.log.size,
        "elsewhere": known.seen.iter().filter(|(_, seen)| matches!(seen, Seen::Elsewhere(_))).count(),
        "rules": args.out.display().to_string(),
    }))))
}

fn deadline(config: &Config, waiting: &crate::args::Waiting) -> Outcome<Instant> {
    Ok(Instant::now() + patience(config, waiting)?)
}

pub(super) fn patience(config: &Config, waiting: &crate::args::Waiting) -> Outcome<Duration> {
    match waiting.deadline {
        Some(deadline) => Ok(deadline),
        None => config.duration("deadline"),
    }
}

/// What this device has verified, without the server.
fn look(
    args: &ShareRecover,
    config: &Config,
    home: &Home,
    policies: &Policies,
    texts: &[String],
) -> Outcome<Known> {
    let until = deadline(config, &args.waiting)?;
    let runtime = session::runtime()?;
    session::run(&runtime, async {
        let client = Client::start(home, Options::default(), until).await?;
        // So that as much as possible stands. A device that has proof against the server, or that is alone, has what
        // it has.
        let _ = client.running(until.min(Instant::now() + FRESH)).await;
        let status = client.status(until).await?;
        let size = args.at.unwrap_or(status.log.size);
        let begun = policies.newest_epoch().start.size;
        if size > status.log.size || size < begun {
            let has = status.log.size;
            let error = format!(
                "--at {size}: this device has seen {has} entries and marks of the log, and the first {begun} stand already"
            );
            return Err(Failure::new(Kind::NoEntry, error));
        }
        let root = root(&client, size, until).await?;
        let mut seen = Vec::new();
        for (text, path) in texts.iter().zip(&args.seen) {
            let orderer = policies.newest_epoch().orderer;
            let note = compare::note_of(text, home.volume(), &orderer)?;
            let log = *note.log();
            let what = match log.size > status.log.size {
                true => Seen::More(log.size),
                false => match self::root(&client, log.size, until).await? == log.root {
                    true => Seen::Here(log.size),
                    false => Seen::Elsewhere(log.size),
                },
            };
            seen.push((path.display().to_string(), what));
        }
        client.close(until).await?;
        Ok(Known {
            status,
            start: Prefix { size, root },
            seen,
        })
    })
}

async fn root(client: &Client, size: u64, until: Instant) -> Outcome<[u8; 32]> {
    match client.look(Call::Root { size }, until).await?.answer {
        Answer::Root(Some(root)) => Ok(root),
        _ => {
            let error = format!("this device does not have the first {size} entries and marks");
            Err(Failure::new(Kind::NoEntry, error))
        }
    }
}

/// Shows what there is to choose from.
fn tell(known: &Known, output: &mut Output) -> Outcome<()> {
    if output.json() {
        return Ok(());
    }
    output.line(&format!(
        "seen      {}",
        units::leaves(known.status.log.size)
    ))?;
    output.line(&format!(
        "agreed    the first {} by all devices",
        known.status.agreed()
    ))?;
    for (file, seen) in &known.seen {
        let what = match seen {
            Seen::Here(size) => format!("has seen the first {size} of this log"),
            Seen::More(size) => {
                format!("has seen {size}, more than this device: recover there, or compare later")
            }
            Seen::Elsewhere(size) => {
                format!("has seen {size} of ANOTHER LOG: its work comes back as copies")
            }
        };
        output.line(&format!("{file}: {what}"))?;
    }
    output.line(&format!("stands    the first {}", known.start.size))
}

/// All rules of the volume with the next ones.
fn sign(
    args: &ShareRecover,
    policies: &Policies,
    mut signed: Vec<Signed>,
    start: &Prefix,
    keys: &[&dyn Signer],
) -> Outcome<Vec<Signed>> {
    let newest = policies.chain().newest();
    let epoch = policies.newest_epoch();
    let successor = Successor {
        number: newest.number().saturating_add(1),
        previous: policies.chain().newest_hash(),
        not_after: newest.not_after(),
        log_epoch: epoch.number.saturating_add(1),
        roles: newest.roles().clone(),
        last: Some(genesis::standing(epoch.number, start)),
        // Devices on other branches give up what they have beyond the prefix.
        lower: true,
        revoked: None,
        refused: Vec::new(),
    };
    let roles = SharedRoles {
        orderer: args.orderer.unwrap_or(epoch.orderer),
        founder: None,
        ..policies.roles().clone()
    };
    let volume = policies.chain().volume();
    let statement = genesis::successor(volume, &successor, &roles);
    signed.push(statement.sign_by(keys)?);
    let mut signatures = Signatures::new(signed.len().saturating_mul(8));
    Policies::verify(volume, &signed, &mut signatures).map_err(|why| {
        let error = "these keys are not those of the owners of the volume, or too few of them";
        Failure::of(Kind::OwnerKey, error, &why)
    })?;
    Ok(signed)
}

/// Creates the file for the rules. An earlier run may have signed some, and been ended before this device went over.
fn create(args: &ShareRecover, known: &[Signed]) -> Outcome<File> {
    let path = &args.out;
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.map_err(|e| {
        let failure = Failure::io(format!("cannot create {}", path.display()), &e);
        let there = std::fs::metadata(path).is_ok_and(|it| it.is_file());
        let rules = there.then(|| recovery::read(path)).and_then(Result::ok);
        let continues = |rules: &Vec<Signed>| {
            let mut both = known.iter().zip(rules);
            rules.len() > known.len() && both.all(|(one, other)| one.hash() == other.hash())
        };
        match rules.filter(continues) {
            Some(_) => failure.with_hint(signed_already(args)),
            None => failure,
        }
    })
}

fn signed_already(args: &ShareRecover) -> String {
    let (rules, volume) = (args.out.display(), &args.volume);
    format!(
        "{rules} has the next rules of the volume, signed: sign no others. This device goes over with: bulla share follow \
         {volume} {rules}"
    )
}

fn write(file: &mut File, path: &Path, rules: &[Signed]) -> Outcome<()> {
    let written = file.write_all(&home::encode_rules(rules));
    written
        .and_then(|()| file.sync_all())
        .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
    Ok(private::sync_parent(path)?)
}

pub(super) fn set_server(
    mut home: Home,
    server: Option<&wire::shared::ServerAddress>,
) -> Outcome<()> {
    match server {
        Some(server) => Ok(home.set_server(&server.to_string())?),
        None => Ok(()),
    }
}

/// Says what everybody does next.
fn next(args: &ShareRecover, known: &Known, output: &mut Output) {
    let (rules, volume) = (args.out.display(), &args.volume);
    let server = match &args.server {
        Some(server) => format!(" --server {server}"),
        None => String::new(),
    };
    output.note(&format!(
        "Next: take {rules} to the server (it holds no secret), stop the server that runs there, and run: bulla serve REPO \
         --accept {rules} --orderer-key FILE. REPO is a directory whose log begins with these {} entries and marks. \
         Devices go over when the server shows them the rules; one that writes nothing more, or that must find another \
         server, does so with: bulla share follow {volume} {rules}{server}",
        known.start.size
    ));
}
