//! `bulla share checkpoint`: signs what the log comes to, so that new devices begin there instead of replaying it. The
//! first checkpointer proposes a prefix; others sign the same one if they have replayed the same.

use std::time::{Duration, Instant};

use ::share::client::{Signable, Status};
use serde_json::json;
use trust::key::{PublicKey, SecretKey};
use trust_shared::checkpoint::Checkpoint;
use trust_shared::checkpoint::Posted;
use trust_shared::genesis::Policies;

use crate::args::{Global, ShareCheckpoint};
use crate::commands::key;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::session::Opened;
use crate::units;
use bulla::shared::SharedVolume;

/// Signs a checkpoint, or compares one.
pub fn run(
    args: &ShareCheckpoint,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let key = match &args.key {
        Some(path) => Some(key::load(path, &args.passphrase, global.no_input)?),
        None => None,
    };
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let patience = shared.until().saturating_duration_since(Instant::now());
    if args.check {
        let checked = shared.run(check(&shared, patience));
        return tell_checked(shared.close(checked, output)?, output);
    }
    let key = match key {
        Some(key) => Ok(key),
        None => shared.home().key().map_err(Failure::from),
    };
    let made = key.and_then(|key| shared.run(sign(&shared, &key, args.anew, patience)));
    let name = shared.home().name().to_owned();
    let made = shared.close(made, output)?;
    tell(&made, &name, output)
}

/// A checkpoint that has been signed.
struct Made {
    size: u64,
    rows: u64,
    /// How many have signed, and how many must.
    by: usize,
    needed: u8,
    /// It was signed before.
    old: bool,
    /// Proposals of others that this device's log does not come to.
    wrong: Vec<Failure>,
}

fn tell(made: &Made, name: &str, output: &mut Output) -> Outcome<Done> {
    let (by, needed) = (made.by, made.needed);
    for wrong in &made.wrong {
        output.warn(&wrong.error);
    }
    if !output.json() {
        output.line(&format!("checkpoint  {}", units::first(made.size)))?;
        output.line(&format!("signed by   {by} of {needed}"))?;
        if by < usize::from(needed) {
            output.note(&format!(
                "Next: another checkpointer runs `bulla share checkpoint {name}`. It signs the same prefix if its own log \
                 comes to the same."
            ));
        } else if needed == 1 {
            output.note(
                "A checkpoint of one signer counts only for who names its key: `bulla share join LINE --checkpoint-by KEY`.",
            );
        }
    }
    Ok(Done::ok(fields(json!({
        "size": made.size,
        "rows": made.rows,
        "signed_by": by,
        "needed": needed,
        "whole": by >= usize::from(needed),
        "new": !made.old,
        "wrong": made.wrong.len(),
    }))))
}

/// A checkpoint of the server with what it says.
struct Known {
    posted: Posted,
    checkpoint: Checkpoint,
    by: usize,
}

/// The checkpoints of the server that a checkpointer has signed, the newest first.
async fn known(shared: &SharedVolume) -> Outcome<Vec<Known>> {
    let policies = shared.client().policies();
    let posted = shared.client().checkpoints(shared.until()).await?;
    let mut known: Vec<Known> = posted
        .into_iter()
        .filter_map(|posted| {
            let checkpoint = posted.read(policies).ok()?;
            let by = posted.signers(policies).len();
            (by > 0).then_some(Known {
                posted,
                checkpoint,
                by,
            })
        })
        .collect();
    known.sort_by_key(|known| std::cmp::Reverse((known.checkpoint.log.size, known.by)));
    Ok(known)
}

/// Signs what another checkpointer has proposed, the newest that is right. Proposes the log as it is if there is no
/// proposal, or `anew` if there are only wrong ones.
async fn sign(
    shared: &SharedVolume,
    key: &SecretKey,
    anew: bool,
    patience: Duration,
) -> Outcome<Made> {
    let client = shared.client();
    let policies = client.policies();
    may_sign(policies, key)?;
    let needed = policies.roles().checkpointers.needed();
    let known = known(shared).await?;
    let is_whole = |known: &&Known| known.by >= usize::from(needed);
    let whole = known.iter().find(is_whole);
    let newest = whole.map_or(0, |known| known.checkpoint.log.size);
    let waits = |known: &&Known| known.checkpoint.log.size > newest && !is_whole(known);
    let (mut wrong, mut own) = (Vec::new(), None);
    for proposed in known.iter().filter(waits) {
        if proposed.posted.signers(policies).contains(&key.public()) {
            own = own.or(Some(proposed));
            continue;
        }
        match second(shared, proposed, key, patience).await {
            // It stays at the server. Another checkpointer's must not be kept up by it.
            Err(failure) if failure.kind == Kind::OtherState => wrong.push(failure),
            Err(failure) => return Err(failure),
            Ok(made) => return Ok(Made { wrong, ..made }),
        }
    }
    match (wrong.first(), own) {
        (Some(first), _) if !anew => return Err(first.clone()),
        (None, Some(own)) if !anew => return Ok(signed(own, needed, 0)),
        _ => {}
    }
    let note = match client.signable(None, shared.until()).await? {
        Signable::Yes(note) => *note,
        Signable::Silent(status) => return Err(silent(shared, &status).await),
    };
    let size = note.note().log.size;
    let checkpoint = client
        .state_at(shared.home(), size, true, patience, |_| ())
        .await?;
    let statement = checkpoint.statement(shared.home().volume());
    let signed = statement.sign(&[key]);
    let posted = Posted { note, signed };
    client.post_checkpoint(&posted, shared.until()).await?;
    Ok(Made {
        size,
        rows: checkpoint.state.entries,
        by: 1,
        needed,
        old: false,
        wrong,
    })
}

/// A proposal, with so many new signatures.
fn signed(proposed: &Known, needed: u8, new: usize) -> Made {
    Made {
        size: proposed.checkpoint.log.size,
        rows: proposed.checkpoint.state.entries,
        by: proposed.by.saturating_add(new),
        needed,
        old: new == 0,
        wrong: Vec::new(),
    }
}

/// Signs what another checkpointer has proposed, if this device's own log comes to the same.
async fn second(
    shared: &SharedVolume,
    proposed: &Known,
    key: &SecretKey,
    patience: Duration,
) -> Outcome<Made> {
    let client = shared.client();
    let size = proposed.checkpoint.log.size;
    has_replayed(shared, size).await?;
    let note = Some(proposed.posted.note);
    if let Signable::Silent(status) = client.signable(note, shared.until()).await? {
        return Err(silent(shared, &status).await);
    }
    let own = client
        .state_at(shared.home(), size, true, patience, |_| ())
        .await?;
    is_same(&own, proposed, client.policies())?;
    let mut posted = proposed.posted.clone();
    posted.signed.add(key);
    client.post_checkpoint(&posted, shared.until()).await?;
    let needed = client.policies().roles().checkpointers.needed();
    Ok(signed(proposed, needed, 1))
}

fn may_sign(policies: &Policies, key: &SecretKey) -> Outcome<()> {
    let role = &policies.roles().checkpointers;
    if role.keys().contains(&key.public()) {
        return Ok(());
    }
    let (error, hint) = match role.is_empty() {
        true => (
            "the rules of this volume name no checkpointers",
            "`bulla share init --checkpointer KEY` names them when a volume begins",
        ),
        false => (
            "this key is not one of the volume's checkpointers",
            "run the command on the device of a checkpointer, or name the checkpointer's key file with --key FILE",
        ),
    };
    Err(Failure::new(Kind::NoPermission, error).with_hint(hint))
}

/// Whether this device has replayed so much of the log, and not begun there with somebody's word for it.
async fn has_replayed(shared: &SharedVolume, size: u64) -> Outcome<()> {
    let begins = shared.client().status(shared.until()).await?.begins;
    if begins < size {
        return Ok(());
    }
    let error = format!(
        "this device began with a checkpoint of {begins}, and has not replayed what the one of {size} is about"
    );
    let hint =
        "run the command on a device that has replayed the log (`bulla share join --replay`)";
    Err(Failure::new(Kind::NoEntry, error).with_hint(hint))
}

fn is_same(own: &Checkpoint, known: &Known, policies: &Policies) -> Outcome<()> {
    let theirs = &known.checkpoint;
    let size = theirs.log.size;
    if own.log != theirs.log {
        let error = format!("the checkpoint of {size} is of another log than this device has seen");
        let hint = "the server has shown the two different logs: `bulla share compare` between the two devices makes \
                    evidence";
        return Err(Failure::new(Kind::OtherHistory, error).with_hint(hint));
    }
    if own.state != theirs.state {
        let signers = known.posted.signers(policies);
        let signers: Vec<String> = signers.iter().map(PublicKey::to_string).collect();
        let error = format!(
            "this device's log of {size} comes to something else than its checkpoint says, which {} signed",
            signers.join(" and ")
        );
        return Err(Failure::new(Kind::OtherState, error));
    }
    Ok(())
}

/// The failure for a prefix with entries that nothing speaks for.
async fn silent(shared: &SharedVolume, status: &Status) -> Failure {
    let members = shared.members().await.ok();
    let name = |(device, at): &(trust::device::DeviceKey, u64)| {
        let member = members
            .as_ref()
            .and_then(|members| members.with_key(device));
        match member {
            Some(member) => format!("{} (entry {at})", member.shown()),
            None => format!("the device {device} (entry {at})"),
        }
    };
    let silent: Vec<String> = status.unsupported.iter().map(name).collect();
    let who = match silent.is_empty() {
        true => "the server".to_owned(),
        false => format!("the server or {}", silent.join(", ")),
    };
    let error = format!(
        "{who} is silent: nobody has confirmed what was written last, so it cannot be signed"
    );
    Failure::new(Kind::Unattested, error)
}

/// Compares the newest checkpoint that is whole, or the newest one.
async fn check(shared: &SharedVolume, patience: Duration) -> Outcome<Option<(u64, usize)>> {
    let needed = usize::from(shared.client().policies().roles().checkpointers.needed());
    let known = known(shared).await?;
    let whole = known.iter().find(|known| known.by >= needed);
    let Some(newest) = whole.or(known.first()) else {
        return Ok(None);
    };
    let size = newest.checkpoint.log.size;
    has_replayed(shared, size).await?;
    let own = shared
        .client()
        .state_at(shared.home(), size, false, patience, |_| ());
    is_same(&own.await?, newest, shared.client().policies())?;
    Ok(Some((size, newest.by)))
}

fn tell_checked(checked: Option<(u64, usize)>, output: &mut Output) -> Outcome<Done> {
    let Some((size, by)) = checked else {
        let error = "the server has no checkpoint of this volume";
        return Err(Failure::new(Kind::NoCheckpoint, error));
    };
    if !output.json() {
        output.line(&format!(
            "the checkpoint of {} is what this device has replayed too",
            units::first(size)
        ))?;
    }
    Ok(Done::ok(fields(json!({"size": size, "signed_by": by}))))
}
