//! The roles of the next policy: those of the policy before, with the changes that the flags of `policy new` name.

use trust::key::PublicKey;
use trust::policy::{Roles, Threshold};

use crate::args::PolicyNew;
use crate::failure::{Failure, Kind, Outcome};
use crate::roles::{Role, TIMESTAMP_MAX, threshold};

/// The roles after the changes that the flags name.
///
/// # Errors
/// A usage failure for a key that is not there or there twice, and for a threshold that the keys cannot reach.
pub fn altered(before: &Roles, args: &PolicyNew) -> Outcome<Roles> {
    let mut roles = before.clone();
    for role in Role::ALL {
        *role.of_mut(&mut roles) = altered_role(role, role.of(before), args)?;
    }
    if let Some(most) = args.record_max {
        roles.record_max = most.as_secs();
    }
    let longest = args.timestamp_max.map(|most| most.as_secs());
    roles.timestamp_max = match (roles.timestamps.is_empty(), roles.timestamp_max) {
        (true, _) => 0,
        (false, 0) => longest.unwrap_or(TIMESTAMP_MAX.as_secs()),
        (false, most) => longest.unwrap_or(most),
    };
    for (old, _) in &args.replace_key {
        require_somewhere(before, old)?;
    }
    for (_, key) in args.remove.iter().filter(|(role, _)| role.is_none()) {
        require_somewhere(before, key)?;
    }
    Ok(roles)
}

fn altered_role(role: Role, before: &Threshold, args: &PolicyNew) -> Outcome<Threshold> {
    let name = role.name();
    let mut keys = before.keys().to_vec();
    for (old, new) in &args.replace_key {
        let places = keys.iter_mut().filter(|key| *key == old);
        places.for_each(|key| *key = *new);
    }
    for (named, key) in &args.remove {
        if *named == Some(role) && !keys.contains(key) {
            return Err(unusable(format!("{key} is not one of the {name}")));
        }
        if named.is_none_or(|named| named == role) {
            keys.retain(|kept| kept != key);
        }
    }
    for (_, key) in args.add.iter().filter(|(named, _)| *named == role) {
        keys.push(*key);
    }
    let said = args.needed.iter().rev().find(|(named, _)| *named == role);
    let is_first = before.is_empty() && role != Role::Witnesses;
    let needed = match said {
        Some((_, needed)) => *needed,
        None if is_first && !keys.is_empty() => 1,
        None => before.needed(),
    };
    let all = keys.len() + before.unknown().len();
    if all == 0 && said.is_none() && !matches!(role, Role::Owners | Role::Publishers) {
        return Ok(Threshold::none());
    }
    if role == Role::Witnesses && needed == 0 {
        let made = Threshold::with_unknown(0, keys, before.unknown().to_vec());
        return made.map_err(|why| unusable(format!("the {name}: {why}")));
    }
    if usize::from(needed) > all {
        return Err(unusable(format!(
            "{needed} of the {name} must sign, and there are {all}"
        ))
        .with_hint(format!(
            "say how many must sign with --needed {name}=K, or add keys with --add {name}=KEY"
        )));
    }
    if before.unknown().is_empty() {
        return threshold(needed, keys);
    }
    let made = Threshold::with_unknown(needed, keys, before.unknown().to_vec());
    made.map_err(|why| unusable(format!("the {name}: {why}")))
}

fn require_somewhere(roles: &Roles, key: &PublicKey) -> Outcome<()> {
    let has = |role: Role| role.of(roles).keys().contains(key);
    match Role::ALL.into_iter().any(has) {
        true => Ok(()),
        false => Err(unusable(format!("{key} has no role in the policy before"))),
    }
}

fn unusable(why: String) -> Failure {
    Failure::new(Kind::Usage, why)
        .with_hint("`bulla policy show REPO` lists the keys of each role".to_owned())
}
