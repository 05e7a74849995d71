//! Questions whose answer is yes or no.

use std::io::IsTerminal;

use crate::args::Global;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;

/// Asks for a confirmation, unless `--yes` gives it. `refused` says what is not done without one.
pub fn confirm(global: &Global, question: &str, refused: &str) -> Outcome<()> {
    if global.yes {
        return Ok(());
    }
    let hint = "check what is there, and answer yes or give --yes";
    let failure = |why: &str| {
        let mut failure = Failure::new(Kind::NotConfirmed, refused).with_hint(hint);
        failure.push_cause(why.to_owned());
        failure
    };
    if global.no_input || !std::io::stdin().is_terminal() {
        return Err(failure("it cannot be confirmed without a terminal"));
    }
    output::say(question);
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|e| Failure::io("cannot read the answer", &e))?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(failure("the answer was not yes")),
    }
}

/// Asks before something is signed. Unlike [`confirm`], `--yes` does not answer: the caller decides what it covers.
pub fn sign(global: &Global, kind: Kind, question: &str) -> Outcome<()> {
    let refused = |why: &str| Failure::new(kind, format!("nothing was signed: {why}"));
    if global.no_input || !std::io::stdin().is_terminal() {
        return Err(refused(match kind {
            Kind::UnknownChange => "it changes more than was named, and nobody can be asked",
            Kind::UnknownRoles => "its policy has keys of others, and nobody can be asked",
            _ => "it cannot be confirmed without a terminal",
        }));
    }
    output::say(question);
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    read.map_err(|e| Failure::io("cannot read the answer", &e))?;
    match answer.trim() {
        "yes" => Ok(()),
        _ => Err(refused("the answer was not yes")),
    }
}
