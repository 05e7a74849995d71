//! The signatures of one role under one statement: who has signed, who has not yet. Those who gather signatures on
//! several machines show it; [`crate::statement::signatures`] makes it.

use std::fmt;

use crate::key::PublicKey;

/// Who of a role has signed a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tally {
    /// The role, for people: `owners`, `publishers`, ...
    pub role: &'static str,
    /// How many of the keys must sign.
    pub needed: u8,
    /// The keys that have signed, verified.
    pub signed: Vec<PublicKey>,
    /// The keys that have not signed.
    pub waiting: Vec<PublicKey>,
}

impl Tally {
    /// Whether enough keys have signed.
    pub fn is_enough(&self) -> bool {
        self.signed.len() >= usize::from(self.needed)
    }

    /// Whether the role has this key.
    pub fn has(&self, key: &PublicKey) -> bool {
        self.signed.contains(key) || self.waiting.contains(key)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (signed, needed, role) = (self.signed.len(), self.needed, self.role);
        write!(f, "{role}: {signed} signed, {needed} must")?;
        for (at, key) in self.waiting.iter().enumerate() {
            f.write_str(if at == 0 { "; not yet: " } else { ", " })?;
            write!(f, "{key}")?;
        }
        Ok(())
    }
}
