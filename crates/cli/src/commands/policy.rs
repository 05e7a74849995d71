//! `bulla policy show | new | sign | install`: the next policy of a volume. Owners see all that they sign, and what it
//! changes.

use std::path::Path;
use std::time::Duration;

use publish::pipeline::PublishOptions;
use publish::rotation::{self, Accepted, Current, ReceivedProposal};
use serde_json::{Map, Value, json};
use trust::key::PublicKey;
use trust::policy::{NO_END, Policy, Revocation, Roles};
use trust::proposal::{Decided, ExaminedProposal};
use trust::text::{Noun, write};
use trust::witness::log_verifier_key;

use super::alterations::altered;
use super::{key, timestamp};
use crate::args::{Global, PolicyInstall, PolicyNew, PolicyShow, PolicySign};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{self, Done, Output, fields};
use crate::roles::{PolicyEnd, changes};
use crate::{asking, questions, roles, text, units};

/// A policy that ends sooner than this after it is signed ends the volume, if the owners do not hurry.
const SOON: Duration = Duration::from_secs(30 * 24 * 3600);

/// Shows a policy.
pub fn show(args: &PolicyShow, output: &mut Output) -> Outcome<Done> {
    if args.path.is_dir() {
        let current = rotation::current(&args.path)?;
        if !output.json() {
            for (name, value) in current_lines(&current) {
                output.line(&format!("{name:<10} {}", text::printable_message(&value)))?;
            }
        }
        return Ok(Done::ok(current_fields(&current)));
    }
    let received = rotation::read(&args.path)?;
    let examined = &received.examined;
    if !output.json() {
        for line in lines(examined, None) {
            output.line(&text::printable_message(&line))?;
        }
    }
    Ok(Done::ok(proposal_fields(examined)))
}

/// Proposes the next policy.
pub fn new(args: &PolicyNew, output: &mut Output) -> Outcome<Done> {
    let current = rotation::current(&args.repo)?;
    let decided = decided(args, &current)?;
    let proposal = rotation::propose(&current, &args.repo, decided)?;
    let bytes = rotation::write(&args.out, &proposal)?;
    let received = rotation::read(&args.out)?;
    if !output.json() {
        for line in lines(&received.examined, None) {
            output.line(&text::printable_message(&line))?;
        }
        let size = units::size(bytes);
        output.line(&format!("{:<10} {} ({size})", "file", args.out.display()))?;
        output.note(
            "Nothing has changed yet. The owners run `bulla policy sign` on this file, then `bulla policy install` makes \
             it the newest policy.",
        );
        let witnesses = &received.examined.policy.roles.witnesses;
        if witnesses.needed() == 0 && !witnesses.is_empty() {
            output.note(
                "Witnesses are named, and no version needs their cosignatures: `--needed witnesses=K` says how many \
                 must cosign.",
            );
        }
    }
    let mut fields = proposal_fields(&received.examined);
    text::put_name(&mut fields, "file", args.out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(fields))
}

/// What the flags say, on top of the current policy.
fn decided(args: &PolicyNew, current: &Current) -> Outcome<Decided> {
    let before = &current.policy;
    let now = PublishOptions::default().clock.now();
    let end = args.policy_valid.unwrap_or(match before.not_after() {
        NO_END => PolicyEnd::Never,
        _ => PolicyEnd::After(roles::POLICY_VALID),
    });
    let mut refused = args.refuse.clone();
    refused.sort_unstable();
    refused.dedup();
    Ok(Decided {
        roles: altered(before.roles(), args)?,
        not_after: roles::not_after(end, now),
        lower: args.lower,
        revoked: args.revoke.then_some(Revocation {
            successor: args.successor_volume,
        }),
        refused,
    })
}

/// Shows a proposal, asks for confirmation, and signs it.
pub fn sign(
    args: &PolicySign,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let path = key::path(args.key.as_ref(), config)?;
    let received = rotation::read(&args.file)?;
    consent(args, global, &received, key::public(&path)?, output)?;
    let key = key::signer(&path, &args.passphrase, global)?;
    let options = PublishOptions {
        state_dir: config.path("state-dir"),
        ..PublishOptions::default()
    };
    let accepted = Accepted {
        other_policy: args.replace,
        skipped_policies: args.accept_skipped_policies,
    };
    let (proposal, examined) = rotation::sign(&received, &*key, accepted, &options)?;
    let bytes = rotation::write(&args.out, &proposal)?;
    if !output.json() {
        let hash = write(Noun::Policy, &examined.hash);
        output.line(&format!("policy   {hash}"))?;
        let size = units::size(bytes);
        output.line(&format!("file     {} ({size})", args.out.display()))?;
        match examined.missing().as_slice() {
            [] => output.note("Enough owners have signed: `bulla policy install` it."),
            missing => {
                for tally in missing {
                    output.note(&format!("More keys must sign. {tally}"));
                }
            }
        }
    }
    let mut fields = proposal_fields(&examined);
    text::put_name(&mut fields, "file", args.out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(fields))
}

/// Shows the proposal, and requires that the owner wants to sign it. `--yes` answers only for what the owner has named, or
/// what stays as it is: the machine that made the proposal may be compromised.
fn consent(
    args: &PolicySign,
    global: &Global,
    received: &ReceivedProposal,
    own: PublicKey,
    output: &Output,
) -> Outcome<()> {
    rotation::check_owner(received, &own)?;
    let examined = &received.examined;
    let (before, after) = (examined.before.roles(), &examined.policy.roles);
    if !changes::fits(after, &args.expect) {
        return Err(changes::other_roles(after));
    }
    let version = examined.record.version;
    if args.expect_last.is_some_and(|expected| expected != version) {
        let error = format!("nothing was signed: version {version} is the last one that counts");
        return Err(Failure::new(Kind::OtherLast, error));
    }
    let is_named = changes::is_named(before, after, &args.expect)
        && (args.expect_drastic || !is_drastic(examined))
        && (args.expect_last.is_some() || !distrusts(examined));
    let asks = !is_named || !global.yes;
    for line in lines(examined, Some(&own)) {
        let line = text::printable_message(&line);
        // On stderr, because stdout is for the result. What is asked about is shown even with -q.
        match asks {
            true => output::say(&format!("{line}\n")),
            false => output.note(&line),
        }
    }
    match is_named {
        true if global.yes => Ok(()),
        true => questions::sign(global, Kind::NotConfirmed, "Sign this policy? Type yes: "),
        false => questions::sign(
            global,
            Kind::UnknownChange,
            "Check each change with its + and -. Sign this policy? Type yes: ",
        ),
    }
}

/// Whether the policy does more than to name keys and times, ends so soon that the volume ends with it, or has no end
/// where there was one.
fn is_drastic(examined: &ExaminedProposal) -> bool {
    let policy = &examined.policy;
    let soon = PublishOptions::default().clock.now() + SOON.as_secs();
    let ends_soon = policy.not_after < soon;
    let loses_its_end = policy.not_after == NO_END && examined.before.not_after() != NO_END;
    let is_more = policy.lower || policy.revoked.is_some() || !policy.refused.is_empty();
    is_more || ends_soon || loses_its_end
}

/// Whether the policy says that publishers are not trusted any more. Then the version that it names as the last one may
/// be theirs, and the owner must know which one it is.
fn distrusts(examined: &ExaminedProposal) -> bool {
    let publishers = |roles: &Roles| roles.publishers.keys().to_vec();
    let after = publishers(&examined.policy.roles);
    let before = publishers(examined.before.roles());
    examined.policy.lower || !before.iter().all(|key| after.contains(key))
}

/// Installs a policy.
pub fn install(
    args: &PolicyInstall,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let Some((repo, files)) = args.paths.split_last() else {
        return Err(Failure::new(Kind::Usage, "FILE or REPO is missing"));
    };
    let keys = key::signers(&args.key, &args.passphrase, global, key::reach())?;
    let options = PublishOptions {
        valid: config.duration("valid")?,
        state_dir: config.path("state-dir"),
        cosigning: asking::cosigning(&args.asking, Some(&args.by_file), config)?,
        timestamps: args.timestamp.clone(),
        ..PublishOptions::default()
    };
    if let Some(out) = &args.timestamp_out {
        let request = rotation::timestamp_request(files, repo, &key::borrowed(&keys), &options)?;
        return timestamp::requested(&request, out, output);
    }
    let installed = rotation::install(files, repo, &key::borrowed(&keys), &options)?;
    let examined = &installed.examined;
    let until = installed.valid_until.map(units::time);
    let waits = installed.waits_for_witnesses;
    if !output.json() && !waits {
        tell(examined, installed.again, until.as_deref(), repo, output)?;
    }
    let mut fields = proposal_fields(examined);
    if let Some(out) = args.by_file.checkpoint_out.as_ref().filter(|_| waits) {
        asking::written(out, "bulla policy install", &mut fields, output)?;
    }
    fields.insert("waits_for_witnesses".to_owned(), waits.into());
    fields.insert("again".to_owned(), installed.again.into());
    fields.insert("version_valid_until".to_owned(), until.into());
    Ok(Done::ok(fields))
}

fn tell(
    examined: &ExaminedProposal,
    again: bool,
    until: Option<&str>,
    repo: &Path,
    output: &mut Output,
) -> Outcome<()> {
    let word = if again { " (installed already)" } else { "" };
    output.line(&format!("volume   {}", examined.volume))?;
    output.line(&format!("policy   {}{word}", examined.policy.number))?;
    if examined.policy.revoked.is_some() {
        output.note("The volume has ended. Readers and mirrors learn it from this repository.");
        return Ok(());
    }
    match until {
        Some(until) => output.line(&format!("valid to {until}"))?,
        None => output.warn(&format!(
            "no reader believes the newest version now: it has ended, begins later, or needs a timestamp. `bulla renew {}`",
            repo.display()
        )),
    }
    output.note("Readers and mirrors learn it from this repository.");
    let (before, now) = (examined.before.roles(), &examined.policy.roles);
    if now.witnesses.needed() > 0 && before.log_keys().keys() != now.log_keys().keys() {
        output.note(
            "Other keys sign the log now. A witness cosigns nothing new before its operator starts it with --volume \
             VOLUMEID=KEY for each new key, and without the old ones.",
        );
    }
    Ok(())
}

fn current_lines(current: &Current) -> Vec<(&'static str, String)> {
    let policy = &current.policy;
    let mut lines = vec![
        ("volume", format!("{} ({})", current.volume, current.name)),
        (
            "policy",
            format!(
                "{}, {}",
                policy.number(),
                write(Noun::Policy, &current.hash)
            ),
        ),
        ("valid to", roles::end(policy.not_after())),
    ];
    if let Some(revocation) = policy.revocation() {
        lines.push(("revoked", ended(revocation)));
    }
    lines.extend(roles::plain_lines(policy.roles()));
    lines
}

fn current_fields(current: &Current) -> Map<String, Value> {
    let policy = &current.policy;
    let mut told = policy_fields(policy);
    told.insert("volume".to_owned(), current.volume.to_string().into());
    told.insert(
        "policy".to_owned(),
        write(Noun::Policy, &current.hash).into(),
    );
    let keys = policy.roles().log_keys().keys().iter();
    let keys = keys.map(|key| log_verifier_key(current.volume, policy.log_epoch(), key));
    let keys: Vec<String> = keys.collect();
    told.insert("checkpoint_keys".to_owned(), keys.into());
    told
}

fn ended(revocation: &Revocation) -> String {
    match &revocation.successor {
        None => "the volume ends, without a successor".to_owned(),
        Some(volume) => format!("the volume ends; readers are told of {volume}"),
    }
}

/// All that a proposal says, line by line, with what it changes.
fn lines(examined: &ExaminedProposal, own: Option<&PublicKey>) -> Vec<String> {
    let (before, policy) = (&examined.before, &examined.policy);
    let named = |name: &str, value: &str| format!("{name:<10} {value}");
    let mut lines = vec![
        named(
            "volume",
            &format!("{} ({})", examined.volume, examined.name),
        ),
        named(
            "policy",
            &format!("{}, {}", policy.number, write(Noun::Policy, &examined.hash)),
        ),
        named(
            "valid to",
            &changed(roles::end(before.not_after()), roles::end(policy.not_after)),
        ),
        named("last", &last(examined)),
    ];
    if policy.lower {
        lines.push(named(
            "LOWERS",
            "readers go back to that version, from any later one",
        ));
    }
    if let Some(revocation) = &policy.revoked {
        lines.push(named("REVOKES", &ended(revocation)));
    }
    for hash in &policy.refused {
        lines.push(named("REFUSES", &write(Noun::Policy, hash)));
    }
    lines.extend(changes::lines(before.roles(), &policy.roles, own));
    for tally in examined.owners() {
        lines.push(named("signed", &tally.to_string()));
    }
    lines
}

fn last(examined: &ExaminedProposal) -> String {
    let hash = write(Noun::Record, &examined.record_hash);
    let until = units::time(examined.record.until());
    format!(
        "version {}, {hash}, valid to {until}",
        examined.record.version
    )
}

fn changed(before: String, after: String) -> String {
    match before == after {
        true => after,
        false => format!("{after} (before: {before})"),
    }
}

fn policy_fields(policy: &Policy) -> Map<String, Value> {
    let end = |not_after| (not_after != NO_END).then(|| units::time(not_after));
    fields(json!({
        "number": policy.number(),
        "valid_until": end(policy.not_after()),
        "roles": roles::fields(policy.roles()),
        "record_max_s": policy.roles().record_max,
        "timestamp_max_s": policy.roles().timestamp_max,
        "lower": policy.lowers(),
        "revokes": policy.revocation().is_some(),
        "successor_volume": policy.revocation().and_then(|r| r.successor).map(|v| v.to_string()),
        "refuses": policy.refused().iter().map(|hash| write(Noun::Policy, hash)).collect::<Vec<_>>(),
        "last_version": policy.last().map(|last| last.version),
        "last_record": policy.last().map(|last| write(Noun::Record, &last.record_hash)),
    }))
}

fn proposal_fields(examined: &ExaminedProposal) -> Map<String, Value> {
    let mut told = policy_fields(&Policy::Successor(examined.policy.clone()));
    told.extend(fields(json!({
        "volume": examined.volume.to_string(),
        "policy": write(Noun::Policy, &examined.hash),
        "before": policy_fields(&examined.before),
        "missing": roles::missing(&examined.missing()),
    })));
    told
}
