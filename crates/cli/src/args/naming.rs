//! Arguments of `source`: names that stand for a SOURCE, its mirrors and its pins.

use clap::{Args, Subcommand};
use trust::words::Words;

use crate::sources::{check_name, parse_policy};
use crate::units::parse_freshness;

/// `bulla source`.
#[derive(Debug, Subcommand)]
pub enum SourceCommand {
    /// Keep a SOURCE under a name, with its mirrors and pins
    Add(SourceAdd),
    /// List the names
    List,
    /// Show what a name stands for, and the words by which people compare the volume id
    Show(SourceShow),
    /// Remove a name
    Remove(SourceRemove),
}

impl SourceCommand {
    /// The command's name in records.
    pub fn name(&self) -> &'static str {
        match self {
            SourceCommand::Add(_) => "source add",
            SourceCommand::List => "source list",
            SourceCommand::Show(_) => "source show",
            SourceCommand::Remove(_) => "source remove",
        }
    }
}

/// `bulla source add`.
#[derive(Debug, Args)]
pub struct SourceAdd {
    /// The name: letters, digits, `-`, `_` and `.`
    #[arg(value_parser = parse_name)]
    pub name: String,
    /// What it stands for: VOLUMEID@LOCATION
    pub source: String,
    /// Another location of the volume (repeatable)
    #[arg(long, value_name = "LOCATION")]
    pub mirror: Vec<String>,
    /// Which versions to accept, as in commands that read: `strict`, `grace=D` or `pinned=VERSION:RECORD`
    #[arg(long, value_name = "HOW", value_parser = checked_freshness)]
    pub freshness: Option<String>,
    /// Accept only versions under this policy (pol1...) or a successor of it
    #[arg(long, value_name = "POLICY", value_parser = checked_policy)]
    pub policy: Option<String>,
    /// The six words of the volume id, as the publisher says them. If the id has others, nothing is added
    #[arg(long, value_name = "WORDS")]
    pub words: Option<Words>,
    /// Replace what the name stands for now
    #[arg(long)]
    pub replace: bool,
}

/// `bulla source show`.
#[derive(Debug, Args)]
pub struct SourceShow {
    /// A name, a volume id, or VOLUMEID@LOCATION
    pub source: String,
}

/// `bulla source remove`.
#[derive(Debug, Args)]
pub struct SourceRemove {
    /// The name: a name from the configuration that `source add` wrote
    pub name: String,
}

fn parse_name(text: &str) -> Result<String, String> {
    check_name(text).map(|()| text.to_owned())
}

fn checked_freshness(text: &str) -> Result<String, String> {
    parse_freshness(text).map(|_| text.to_owned())
}

fn checked_policy(text: &str) -> Result<String, String> {
    parse_policy(text).map(|_| text.to_owned())
}
