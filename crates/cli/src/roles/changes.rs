//! The roles of a policy beside those of the policy before: shown with what changes, and compared with what a signer
//! names.

use trust::key::PublicKey;
use trust::policy::Roles;

use super::{Expected, Role, plain_lines, unknown};
use crate::failure::{Failure, Kind};

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

/// The longest validity of what this role signs, seconds.
fn longest(role: Role, roles: &Roles) -> Option<u64> {
    match role {
        Role::Publishers => Some(roles.record_max),
        Role::Timestamps => Some(roles.timestamp_max),
        _ => None,
    }
}

/// Whether each role that the signer names is as named.
pub fn fits(after: &Roles, expected: &[Expected]) -> bool {
    expected.iter().all(|e| e.keys == *e.role.of(after))
}

/// Whether the signer has named each role that changes, in its keys or in how long its statements may be valid.
pub fn is_named(before: &Roles, after: &Roles, expected: &[Expected]) -> bool {
    Role::ALL.into_iter().all(|role| {
        let stays =
            role.of(before) == role.of(after) && longest(role, before) == longest(role, after);
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
