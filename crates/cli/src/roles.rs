//! The roles of a policy: shown before something is signed under it, and compared with those that the signer
//! expects.
//!
//! The machine that made a request may be compromised. If its policy gives a role to another key too, the owner
//! of that key can take the volume over, so it must not be signed without a look.

use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value, json};
use trust::algorithm::UnknownKey;
use trust::key::PublicKey;
use trust::policy::{NO_END, Roles, Threshold};
use trust::tally::Tally;

use crate::failure::{Failure, Kind, Outcome};
use crate::{text, units};

pub mod changes;

/// A role that a policy gives to keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// They sign policies.
    Owners,
    /// They sign versions.
    Publishers,
    /// They sign timestamps.
    Timestamps,
    /// They sign checkpoints of the log. Without such keys, the publishers do.
    Log,
    /// They cosign the log.
    Witnesses,
}

impl Role {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Role; 5] = [
        Role::Owners,
        Role::Publishers,
        Role::Timestamps,
        Role::Log,
        Role::Witnesses,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Role::Owners => "owners",
            Role::Publishers => "publishers",
            Role::Timestamps => "timestamps",
            Role::Log => "log",
            Role::Witnesses => "witnesses",
        }
    }

    /// The keys of this role.
    pub fn of(self, roles: &Roles) -> &Threshold {
        match self {
            Role::Owners => &roles.owners,
            Role::Publishers => &roles.publishers,
            Role::Timestamps => &roles.timestamps,
            Role::Log => &roles.log,
            Role::Witnesses => &roles.witnesses,
        }
    }
}

impl Role {
    /// The keys of this role, to be changed.
    pub fn of_mut(self, roles: &mut Roles) -> &mut Threshold {
        match self {
            Role::Owners => &mut roles.owners,
            Role::Publishers => &mut roles.publishers,
            Role::Timestamps => &mut roles.timestamps,
            Role::Log => &mut roles.log,
            Role::Witnesses => &mut roles.witnesses,
        }
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Role, String> {
        let role = Role::ALL.into_iter().find(|role| role.name() == text);
        role.ok_or_else(|| {
            "the roles are owners, publishers, timestamps, log and witnesses".to_owned()
        })
    }
}

/// The keys of one role, as the signer expects them: `owners=KEY`, `owners=2/KEY,KEY,KEY`, `witnesses=none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    role: Role,
    keys: Threshold,
}

impl FromStr for Expected {
    type Err = String;

    fn from_str(text: &str) -> Result<Expected, String> {
        let (role, keys) = text
            .split_once('=')
            .ok_or("write ROLE=KEY or ROLE=K/KEY,KEY,...")?;
        let role: Role = role.parse()?;
        if keys == "none" {
            let keys = Threshold::none();
            return Ok(Expected { role, keys });
        }
        let (needed, keys) = match keys.split_once('/') {
            Some((needed, keys)) => (needed.parse().ok(), keys),
            None if keys.contains(',') => {
                return Err(
                    "of several keys, say how many must sign: ROLE=K/KEY,KEY,...".to_owned(),
                );
            }
            None => (Some(1), keys),
        };
        let needed = needed.ok_or("the number of keys that must sign is not a number")?;
        let parsed = keys.split(',').map(|key| {
            let parsed: Result<PublicKey, _> = key.parse();
            parsed.map_err(|e| format!("`{key}`: {e}"))
        });
        let keys = Threshold::new(needed, parsed.collect::<Result<_, _>>()?);
        let keys = keys.map_err(|e| e.to_string())?;
        Ok(Expected { role, keys })
    }
}

/// Whether the roles are those expected: each role that is not named belongs to `own` alone if it must exist,
/// and to nobody otherwise.
pub fn are_expected(roles: &Roles, own: PublicKey, expected: &[Expected]) -> bool {
    let alone = Roles::single(own);
    Role::ALL.into_iter().all(|role| {
        let mut named = expected.iter().filter(|e| e.role == role).peekable();
        match named.peek() {
            None => role.of(roles) == role.of(&alone),
            Some(_) => named.all(|e| e.keys == *role.of(roles)),
        }
    })
}

/// The lines that show the roles: each role with its threshold, and each key. `own` is marked.
pub fn lines(roles: &Roles, own: &PublicKey) -> Vec<(&'static str, String)> {
    lines_marking(roles, Some(own))
}

/// The same without a key of one's own.
pub fn plain_lines(roles: &Roles) -> Vec<(&'static str, String)> {
    lines_marking(roles, None)
}

fn lines_marking(roles: &Roles, own: Option<&PublicKey>) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    for role in Role::ALL {
        let keys = role.of(roles);
        let all = keys.keys().len() + keys.unknown().len();
        let mut first = format!("{} of {all} must sign", keys.needed());
        if keys.is_empty() {
            first = "none".to_owned();
        }
        let most = match role {
            Role::Publishers => roles.record_max,
            Role::Timestamps => roles.timestamp_max,
            _ => 0,
        };
        if most > 0 && !keys.is_empty() {
            let most = units::span(Duration::from_secs(most));
            first.push_str(&format!(", for {most} at most"));
        }
        lines.push((role.name(), first));
        for key in keys.keys() {
            let whose = if own == Some(key) { " (this key)" } else { "" };
            lines.push(("", format!("{key}{whose}")));
        }
        for key in keys.unknown() {
            lines.push(("", unknown(key)));
        }
    }
    lines
}

/// A key that only a later bulla can use.
fn unknown(key: &UnknownKey) -> String {
    let name = text::base64(key.bytes());
    format!("algorithm {} (unknown here): {name}", key.algorithm())
}

/// The same for JSON.
pub fn fields(roles: &Roles) -> Value {
    let mut all = Map::new();
    for role in Role::ALL {
        let keys = role.of(roles);
        let names: Vec<String> = keys.keys().iter().map(PublicKey::to_string).collect();
        let unknown: Vec<String> = keys.unknown().iter().map(unknown).collect();
        let value = json!({"needed": keys.needed(), "keys": names, "unknown": unknown});
        all.insert(role.name().to_owned(), value);
    }
    Value::Object(all)
}

/// The end of a policy, for people.
pub fn end(not_after: u64) -> String {
    match not_after {
        NO_END => "no end".to_owned(),
        _ => units::time(not_after),
    }
}

/// Roles that have not signed enough, for JSON.
pub fn missing(tallies: &[Tally]) -> Value {
    let one = |tally: &Tally| {
        let names =
            |keys: &[PublicKey]| -> Vec<String> { keys.iter().map(PublicKey::to_string).collect() };
        json!({
            "role": tally.role,
            "needed": tally.needed,
            "signed": names(&tally.signed),
            "waiting": names(&tally.waiting),
        })
    };
    tallies.iter().map(one).collect()
}

/// The longest validity of a record where roles are separate, three months: what a thief of a publisher's key can sign.
pub const RECORD_MAX: Duration = Duration::from_secs(7_890_048);
/// The longest validity of a timestamp: how long a mirror can hide a newer version.
pub const TIMESTAMP_MAX: Duration = Duration::from_secs(DAY);
/// How long a policy is valid where roles are separate, two years. Owners who renew it every year have a year left.
pub const POLICY_VALID: Duration = Duration::from_secs(63_115_200);
const DAY: u64 = 24 * 3600;

/// How long a policy is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyEnd {
    /// For ever.
    Never,
    /// For so long from now on.
    After(Duration),
}

/// The time of this end, unix seconds.
pub fn not_after(end: PolicyEnd, now: u64) -> u64 {
    match end {
        PolicyEnd::Never => NO_END,
        PolicyEnd::After(time) => now.saturating_add(time.as_secs()),
    }
}

/// A threshold that the command line names.
pub fn threshold(needed: u8, keys: Vec<PublicKey>) -> Outcome<Threshold> {
    if needed == 0 {
        return Err(Failure::new(Kind::Usage, "at least one key must sign"));
    }
    Threshold::new(needed, keys)
        .map_err(|why| Failure::of(Kind::Usage, "these keys form no role", &why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::key::SecretKey;

    fn key(number: u8) -> PublicKey {
        SecretKey::from_seed(&[number; 32]).public()
    }

    /// This key, and one that only a later bulla can use.
    fn with_unknown(known: PublicKey) -> Threshold {
        let later = UnknownKey::new(9, b"later".as_slice().into()).unwrap();
        Threshold::with_unknown(1, vec![known], vec![later]).unwrap()
    }

    #[test]
    fn every_key_of_every_role_is_shown() {
        let roles = Roles {
            owners: Threshold::single(key(1)),
            publishers: with_unknown(key(2)),
            record_max: 3600,
            timestamps: Threshold::single(key(3)),
            timestamp_max: 60,
            log: Threshold::single(key(4)),
            witnesses: Threshold::single(key(5)),
        };
        let shown = lines(&roles, &key(1)).into_iter();
        let shown: Vec<String> = shown.map(|(name, line)| format!("{name} {line}")).collect();
        let shown = shown.join("\n");
        let json = fields(&roles).to_string();
        for number in 1..=5 {
            let key = key(number).to_string();
            assert!(shown.contains(&key) && json.contains(&key), "{shown}");
        }
        let later = text::base64(b"later");
        assert!(shown.contains(&later) && json.contains(&later), "{shown}");
        assert!(
            shown.contains("1 of 2 must sign, for 1 h at most"),
            "{shown}"
        );
        assert!(shown.contains("log 1 of 1 must sign"), "{shown}");
    }

    fn expected(text: &str) -> Expected {
        text.parse().unwrap()
    }

    #[test]
    fn roles_are_expected_only_if_every_key_and_threshold_is() {
        let own = key(1);
        let single = Roles::single(own);
        assert!(are_expected(&single, own, &[]));
        assert!(!are_expected(&single, key(2), &[]));
        let two = |needed| Threshold::new(needed, vec![key(1), key(2)]).unwrap();
        let hostile = |change: &dyn Fn(&mut Roles)| {
            let mut roles = single.clone();
            change(&mut roles);
            roles
        };
        let others = [
            hostile(&|r| r.owners = two(1)),
            hostile(&|r| r.owners = two(2)),
            hostile(&|r| r.publishers = two(1)),
            hostile(&|r| r.publishers = Threshold::single(key(2))),
            hostile(&|r| r.timestamps = Threshold::single(own)),
            hostile(&|r| r.witnesses = Threshold::single(own)),
            hostile(&|r| r.log = Threshold::single(key(2))),
            hostile(&|r| r.publishers = with_unknown(key(1))),
        ];
        for roles in &others {
            assert!(!are_expected(roles, own, &[]), "{roles:?}");
        }
        let owners = format!("owners=2/{},{}", key(2), key(1));
        assert!(are_expected(&others[1], own, &[expected(&owners)]));
        assert!(!are_expected(&others[0], own, &[expected(&owners)]));
        assert!(!are_expected(&single, own, &[expected(&owners)]));
        let publisher = format!("publishers={}", key(2));
        assert!(are_expected(&others[3], own, &[expected(&publisher)]));
        // A role that is named twice must be both, which it cannot.
        let both = [
            expected(&publisher),
            expected(&format!("publishers={}", key(1))),
        ];
        assert!(!are_expected(&others[3], own, &both));
        assert!(are_expected(&single, own, &[expected("witnesses=none")]));
    }

    #[test]
    fn nonsense_is_no_expectation() {
        assert_eq!(expected("witnesses=none").keys, Threshold::none());
        for bad in [
            "owners".to_owned(),
            "owners=".to_owned(),
            "kings=none".to_owned(),
            format!("owners={},{}", key(1), key(2)),
            format!("owners=3/{},{}", key(1), key(2)),
            format!("owners=x/{}", key(1)),
            format!("owners=2/{},{}", key(1), key(1)),
        ] {
            assert!(bad.parse::<Expected>().is_err(), "{bad}");
        }
    }
}
