//! The roles of a policy beside those of the policy before: made by the flags of `policy new`, shown with what changes, and
//! compared with what a signer names.

use std::time::Duration;

use trust::key::PublicKey;
use trust::policy::{Roles, Threshold};

use super::{Expected, Role, TIMESTAMP_MAX, plain_lines, threshold, unknown};
use crate::args::PolicyNew;
use crate::failure::{Failure, Kind, Outcome};
use crate::units;

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

/// The lines that show the roles, with what changes: `+` a key that is new in a role, `-` one that leaves it.
pub fn lines(before: &Roles, after: &Roles, own: Option<&PublicKey>) -> Vec<String> {
    let mut lines = Vec::new();
    for role in Role::ALL {
        let (old, new) = (role.of(before), role.of(after));
        lines.push(format!("{:<10} {}", role.name(), head(role, before, after)));
        let whose = |key: &PublicKey| if own == Some(key) { " (this key)" } else { "" };
        for key in new.keys() {
            let sign = if old.keys().contains(key) { ' ' } else { '+' };
            lines.push(format!("         {sign} {key}{}", whose(key)));
        }
        for key in old.keys().iter().filter(|key| !new.keys().contains(key)) {
            lines.push(format!("         - {key}{}", whose(key)));
        }
        for key in new.unknown() {
            let sign = if old.unknown().contains(key) {
                ' '
            } else {
                '+'
            };
            lines.push(format!("         {sign} {}", unknown(key)));
        }
        for key in old
            .unknown()
            .iter()
            .filter(|key| !new.unknown().contains(key))
        {
            lines.push(format!("         - {}", unknown(key)));
        }
    }
    lines
}

/// The first line of a role, with the one before if it differs in more than its keys.
fn head(role: Role, before: &Roles, after: &Roles) -> String {
    let first = |roles: &Roles| {
        let lines = plain_lines(roles).into_iter();
        let mut named = lines.filter(|(name, _)| *name == role.name());
        named.next().map_or_else(String::new, |(_, line)| line)
    };
    let (old, new) = (first(before), first(after));
    let most = |roles: &Roles| (role.of(roles).needed(), longest(role, roles));
    match most(before) == most(after) {
        true => new,
        false => format!("{new} (before: {old})"),
    }
}

fn longest(role: Role, roles: &Roles) -> Option<String> {
    let most = match role {
        Role::Publishers => roles.record_max,
        Role::Timestamps => roles.timestamp_max,
        _ => return None,
    };
    Some(units::span(Duration::from_secs(most)))
}

/// Whether each role that the signer names is as named.
pub fn fits(after: &Roles, expected: &[Expected]) -> bool {
    expected.iter().all(|e| e.keys == *e.role.of(after))
}

/// Whether the signer has named each role that changes.
pub fn is_named(before: &Roles, after: &Roles, expected: &[Expected]) -> bool {
    Role::ALL.into_iter().all(|role| {
        let stays = role.of(before) == role.of(after);
        stays || expected.iter().any(|e| e.role == role)
    })
}

/// The failure for roles that contradict `--expect`.
pub fn other_roles(after: &Roles) -> Failure {
    let error = "nothing was signed: the policy has other roles than expected";
    let mut failure = Failure::new(Kind::OtherRoles, error);
    let shown = plain_lines(after).into_iter();
    failure.causes = shown
        .map(|(name, value)| format!("{name:<10} {value}"))
        .collect();
    failure
}
