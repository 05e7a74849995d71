//! `bulla fork show`, `bulla fork settle`: the contradictions that this machine remembers for a volume
//! (docs/operations/forks.md). Neither asks a location.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Instant;

use serde_json::{Map, Value, json};
use state::VolumeState;
use trust::key::PublicKey;
use trust::policy::Policy;
use trust::root::RootRecord;
use trust::statement::VolumeId;
use trust::text::{Noun, write};
use volume::forks::{self, Contradicting, Fork, ForkError, Remembered, Shown, Side, Sort};
use wire::location::Source;

use crate::args::{ForkSettle, ForkShow, Global, Named};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{self, Done, Output, fields};
use crate::{roles, text, units};

/// Shows what this machine remembers.
pub fn show(args: &ForkShow, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (volume, state) = known(&args.volume, config)?;
    let remembered = forks::remembered(&state, deadline(config)?)?;
    if output.json() {
        for fork in &remembered.forks {
            output.record("fork", record(fork))?;
        }
    } else {
        output.line(&format!("volume    {volume}"))?;
        for line in lines(&remembered) {
            output.line(&text::printable_message(&line))?;
        }
        if let Some(fork) = remembered.forks.first() {
            let [side, _] = &fork.sides;
            output.note(&format!(
                "Nothing new is adopted until a later policy of the volume settles this, or you do. Find out over a \
                 channel that you trust which side is right; then `bulla fork settle {volume} --keep HASH`, for \
                 example with HASH {}.",
                name(fork.sort, &side.hash)
            ));
        }
    }
    Ok(Done::ok(fields(json!({
        "volume": volume.to_string(),
        "forks": remembered.forks.len(),
        "refused": remembered.refused,
        "evidence": remembered.evidence.display().to_string(),
        "pieces": remembered.pieces,
    }))))
}

/// Settles a fork as the user says.
pub fn settle(
    args: &ForkSettle,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let (volume, state) = known(&args.volume, config)?;
    let remembered = forks::remembered(&state, deadline(config)?)?;
    let (fork, keep) = chosen(args, &remembered.forks)?;
    let refuse = fork.rival(&keep).ok_or(ForkError::Unknown)?;
    let gives_up = fork
        .sides
        .iter()
        .any(|it| it.hash == refuse && it.is_in_use);
    let (kept, refused) = (name(fork.sort, &keep), name(fork.sort, &refuse));
    consent(&volume, fork, &kept, &refused, gives_up, global, output)?;
    forks::settle(&state, fork, &keep, deadline(config)?)?;
    if !output.json() {
        output.line(&format!("volume    {volume}"))?;
        output.line(&format!("kept      {kept}"))?;
        output.line(&format!("refused   {refused}"))?;
        output.note("Mounts that run take this up when they next check for a new version.");
    }
    let mut record = what(fork);
    record.extend(fields(json!({
        "volume": volume.to_string(),
        "kept": kept,
        "refused": refused,
        "gave_up": gives_up,
    })));
    Ok(Done::ok(record))
}

/// The volume that the argument names, if this machine has seen it.
fn known(argument: &str, config: &Config) -> Outcome<(VolumeId, VolumeState)> {
    let named = config.source(argument).map(|named| named.source.as_str());
    let argument = named.unwrap_or(argument);
    let volume = match argument.contains('@') {
        true => Source::from_str(argument)?.volume,
        false => VolumeId::from_str(argument)
            .map_err(|e| Failure::new(Kind::BadSource, format!("`{argument}`: {e}")))?,
    };
    let state_dir = config.path("state-dir").unwrap_or_default();
    let state = VolumeState::at(&state_dir, &volume);
    if !state.is_known() {
        let error = format!("this machine has never read the volume {volume}");
        return Err(Failure::new(Kind::NeverSeen, error));
    }
    Ok((volume, state))
}

/// Until when the lock of the state is waited for.
fn deadline(config: &Config) -> Outcome<Instant> {
    Ok(Instant::now() + config.duration("deadline")?)
}

/// The fork that the user means, and the side that is kept.
fn chosen<'a>(args: &ForkSettle, forks: &'a [Fork]) -> Outcome<(&'a Fork, [u8; 32])> {
    let both = [(args.keep, true), (args.refuse, false)];
    let named = both
        .into_iter()
        .find_map(|(named, keeps)| Some((named?, keeps)));
    let (Named { noun, hash }, keeps) =
        named.ok_or_else(|| Failure::new(Kind::Usage, "neither --keep nor --refuse is given"))?;
    let sort = match noun {
        Noun::Policy => Sort::Policies,
        _ => Sort::Records,
    };
    let rival = |fork: &'a Fork| Some((fork, fork.rival(&hash)?));
    let mut found = forks
        .iter()
        .filter(|fork| fork.sort == sort)
        .filter_map(rival);
    let (fork, rival) = found.next().ok_or(ForkError::Unknown)?;
    Ok((fork, if keeps { hash } else { rival }))
}

/// Shows the fork and requires that the user wants to settle it so.
fn consent(
    volume: &VolumeId,
    fork: &Fork,
    kept: &str,
    refused: &str,
    gives_up: bool,
    global: &Global,
    output: &Output,
) -> Outcome<()> {
    let told = |line: &str| match global.yes {
        true => output.note(line),
        false => output::say(&format!("{}\n", text::printable_message(line))),
    };
    told(&format!("volume    {volume}"));
    fork_lines(fork).iter().for_each(|line| told(line));
    told(&format!("keep      {kept}"));
    told(&format!("refuse    {refused}"));
    if gives_up {
        told("This machine uses what is refused now: it will give that up.");
    }
    if global.yes {
        return Ok(());
    }
    let refuse = |why: &str| {
        let error = format!("nothing was settled: {why}");
        Failure::new(Kind::NotConfirmed, error).with_hint(
            "check both sides and answer yes, or give --yes to settle it without a question",
        )
    };
    if global.no_input || !std::io::stdin().is_terminal() {
        return Err(refuse("it cannot be confirmed without a terminal"));
    }
    output::say("This cannot be taken back. Settle the fork so? Type yes: ");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|e| Failure::io("cannot read the answer", &e))?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(refuse("the answer was not yes")),
    }
}

/// The name of a policy or record.
fn name(sort: Sort, hash: &[u8; 32]) -> String {
    let noun = match sort {
        Sort::Policies => Noun::Policy,
        Sort::Records => Noun::Record,
    };
    write(noun, hash)
}

/// All that is remembered, for people.
fn lines(remembered: &Remembered) -> Vec<String> {
    let mut lines: Vec<String> = remembered.forks.iter().flat_map(fork_lines).collect();
    if remembered.forks.is_empty() {
        lines.push("forks     none that is not settled".to_owned());
    }
    if remembered.refused > 0 {
        let refused = units::count(
            remembered.refused as u64,
            "policy or record",
            "policies and records",
        );
        lines.push(format!(
            "refused   {refused}, when earlier forks were settled"
        ));
    }
    let pieces = units::count(remembered.pieces as u64, "piece", "pieces");
    lines.push(format!(
        "evidence  {pieces} in {}",
        remembered.evidence.display()
    ));
    lines
}

/// A fork, for people.
fn fork_lines(fork: &Fork) -> Vec<String> {
    let (first, noun, in_use) = match fork.sort {
        Sort::Policies => (
            format!("fork      two policies have the number {}", fork.number),
            "policy",
            " (this machine follows it)",
        ),
        Sort::Records => (
            format!("fork      two records have the version {}", fork.number),
            "record",
            " (this machine has adopted it)",
        ),
    };
    let mut lines = vec![first];
    for side in &fork.sides {
        let used = if side.is_in_use { in_use } else { "" };
        lines.push(format!("{noun:<9} {}{used}", name(fork.sort, &side.hash)));
        lines.extend(
            side_lines(side)
                .into_iter()
                .map(|line| format!("          {line}")),
        );
    }
    lines
}

fn side_lines(side: &Side) -> Vec<String> {
    let mut lines = match &side.shown {
        None => vec!["this machine has only its hash".to_owned()],
        Some(Shown { statement, signers }) => {
            let mut lines = match statement {
                Contradicting::Policy(policy) => policy_lines(policy),
                Contradicting::Record(record) => record_lines(record),
            };
            lines.extend(signers.iter().map(|key| format!("signed by {key}")));
            lines
        }
    };
    for path in &side.evidence {
        lines.push(format!("evidence {}", path.display()));
    }
    if let Some(since) = side.kept_since {
        lines.push(format!("evidence kept since {}", units::system_time(since)));
    }
    lines
}

fn policy_lines(policy: &Policy) -> Vec<String> {
    let mut lines = vec![format!("valid until {}", units::time(policy.not_after()))];
    if let Some(last) = policy.last() {
        let lowers = if policy.lowers() {
            ", and goes back to it"
        } else {
            ""
        };
        lines.push(format!(
            "names version {} as the last one{lowers}",
            last.version
        ));
    }
    if policy.revocation().is_some() {
        lines.push("ends the volume".to_owned());
    }
    for (role, value) in roles::plain_lines(policy.roles()) {
        lines.push(format!("{role:<10} {value}"));
    }
    lines
}

fn record_lines(record: &RootRecord) -> Vec<String> {
    let (start, until) = (units::time(record.start), units::time(record.until()));
    vec![
        format!("valid from {start} to {until}"),
        format!("root {}", record.root),
        format!(
            "under the policy {}, {}",
            record.policy_number,
            write(Noun::Policy, &record.policy_hash)
        ),
    ]
}

/// What contradicts each other, as JSON.
fn what(fork: &Fork) -> Map<String, Value> {
    let (what, key) = match fork.sort {
        Sort::Policies => ("policies", "number"),
        Sort::Records => ("records", "version"),
    };
    let mut out = fields(json!({"what": what}));
    out.insert(key.to_owned(), fork.number.into());
    out
}

/// A fork as JSON.
fn record(fork: &Fork) -> Map<String, Value> {
    let mut out = what(fork);
    let side = |side: &Side| {
        let paths = side
            .evidence
            .iter()
            .map(|path: &PathBuf| path.display().to_string());
        let mut one = fields(json!({
            "hash": name(fork.sort, &side.hash),
            "in_use": side.is_in_use,
            "evidence": paths.collect::<Vec<_>>(),
            "kept_since": side.kept_since.map(units::system_time),
        }));
        one.extend(side.shown.iter().flat_map(statement));
        Value::Object(one)
    };
    out.insert("sides".to_owned(), fork.sides.iter().map(side).collect());
    out
}

/// The JSON fields of one side's statement.
fn statement(shown: &Shown) -> Map<String, Value> {
    let mut out = match &shown.statement {
        Contradicting::Policy(policy) => fields(json!({
            "valid_until": units::time(policy.not_after()),
            "last_version": policy.last().map(|last| last.version),
            "lower": policy.lowers(),
            "revokes": policy.revocation().is_some(),
            "roles": roles::fields(policy.roles()),
        })),
        Contradicting::Record(record) => fields(json!({
            "signed": units::time(record.start),
            "valid_until": units::time(record.until()),
            "root": record.root.to_string(),
            "policy_number": record.policy_number,
            "policy": write(Noun::Policy, &record.policy_hash),
        })),
    };
    let signers = shown.signers.iter().map(PublicKey::to_string);
    out.insert("signers".to_owned(), signers.collect::<Vec<_>>().into());
    out
}
