//! Arguments of `fork`: contradictions that this machine remembers.

use clap::{Args, Subcommand};
use trust::text::{BadText, Noun, read};

/// `bulla fork`.
#[derive(Debug, Subcommand)]
pub enum ForkCommand {
    /// Show the forks that this machine remembers for a volume, and where the evidence is
    Show(ForkShow),
    /// Settle a fork: keep one policy or record and refuse the other
    Settle(ForkSettle),
}

/// `bulla fork show`.
#[derive(Debug, Args)]
pub struct ForkShow {
    /// The volume: its id, VOLUMEID@LOCATION, or a name from the configuration
    pub volume: String,
}

/// `bulla fork settle`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("side").required(true))]
pub struct ForkSettle {
    /// The volume: its id, VOLUMEID@LOCATION, or a name from the configuration
    pub volume: String,
    /// Keep this policy (pol1...) or record (rec1...) and refuse the one that contradicts it
    #[arg(long, value_name = "HASH", group = "side", value_parser = parse_side)]
    pub keep: Option<Named>,
    /// Refuse this policy (pol1...) or record (rec1...) and keep the one that contradicts it
    #[arg(long, value_name = "HASH", group = "side", value_parser = parse_side)]
    pub refuse: Option<Named>,
}

/// A policy or record, as the user wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Named {
    /// Whether it is the hash of a policy or of a record.
    pub noun: Noun,
    /// The hash.
    pub hash: [u8; 32],
}

fn parse_side(text: &str) -> Result<Named, String> {
    let as_noun = |noun| read(noun, text).map(|hash| Named { noun, hash });
    let named = as_noun(Noun::Policy).or_else(|policy: BadText| {
        // The error of the kind that the user meant.
        as_noun(Noun::Record).map_err(|record| match text.starts_with("pol") {
            true => policy,
            false => record,
        })
    });
    named.map_err(|e| format!("`{text}`: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use trust::text::write;

    #[test]
    fn side_of_a_fork_is_a_whole_policy_or_record() {
        for noun in [Noun::Policy, Noun::Record] {
            let hash = [7; 32];
            let text = write(noun, &hash);
            assert_eq!(parse_side(&text), Ok(Named { noun, hash }));
            assert!(parse_side(&text[..text.len() - 1]).is_err());
        }
        assert!(parse_side(&write(Noun::Key, &[7; 32])).is_err());
    }
}
