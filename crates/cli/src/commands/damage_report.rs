//! What `verify` and `prefetch` have in common: both read a tree whole, and tell what of it is damaged.

use std::sync::Arc;

use bulla::Tree;
use bulla::verify::{self, Report};
use reader::Tally;
use serde_json::Map;

use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::progress::Progress;
use crate::{text, units};

/// Reads and verifies the tree below `path`, and shows how far it is.
pub(super) async fn read(
    tree: &Tree<'_>,
    path: &[u8],
    tally: &Arc<Tally>,
    bar: &mut Progress,
) -> Outcome<Report> {
    let top = tree.find(path).await?;
    if let (b"", Some(snapshot)) = (path, tree.snapshot()) {
        bar.signed(&snapshot.record().totals);
    }
    let work = verify::verify(tree, &top, tally);
    Ok(bar.during(tally, work).await?)
}

/// Tells of names of a shared volume that were left out.
pub(super) fn tell_hidden(names: u64, output: &Output) {
    if names > 0 && !output.json() {
        output.warn(&format!(
            "{} left out: this user may not read the files, or they are gone or damaged",
            units::count(names, "name is", "names are")
        ));
    }
}

/// Where several codes apply, the first of these is the exit code.
const GRAVEST: [u8; 6] = [22, 21, 20, 24, 13, 30];

fn rank(failure: &Failure) -> usize {
    let code = failure.exit().code();
    let known = GRAVEST.iter().position(|grave| *grave == code);
    known.unwrap_or(GRAVEST.len())
}

/// Tells of damaged files: a record `damage` for each, or a warning for each if there are several. Returns the failure
/// with which the command ends: for one file it says what is wrong, so that nothing is told twice. `count` is the number
/// of all damages, of which `damages` are the first.
pub(super) fn tell(
    damages: Vec<(Vec<u8>, Failure)>,
    count: u64,
    output: &mut Output,
) -> Outcome<Option<Failure>> {
    for (path, failure) in &damages {
        if output.json() {
            let mut one = Map::new();
            text::put_name(&mut one, "path", path);
            one.insert("why".to_owned(), failure.error.clone().into());
            output.record("damage", one)?;
        } else if count > 1 {
            output.warn(&located(path, &failure.error));
        }
    }
    let listed = damages.len() as u64;
    let gravest = damages.into_iter().min_by_key(|(_, why)| rank(why));
    Ok(gravest.map(|(path, mut failure)| {
        if count == 1 {
            failure.error = located(&path, &failure.error);
            return failure;
        }
        let listed = match listed == count {
            true => "listed above".to_owned(),
            false => format!("the first {listed} are listed above"),
        };
        failure.error = format!("{count} problems were found ({listed})");
        failure.causes.clear();
        failure
    }))
}

fn located(path: &[u8], why: &str) -> String {
    match path {
        b"" => why.to_owned(),
        path => format!("{}: {why}", text::printable(path)),
    }
}

/// The damages of a report, as [`tell`] takes them.
pub(super) fn of(report: &Report) -> Vec<(Vec<u8>, Failure)> {
    let damages = report.damages.iter();
    damages
        .map(|it| (it.path.to_vec(), Failure::from(it.why.clone())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;
    use crate::output::Color;

    fn told(kinds: &[Kind], count: u64) -> Failure {
        let mut output = Output::new("verify", false, true, Color::Never);
        let damages = kinds.iter().map(|kind| {
            let failure = Failure::new(*kind, "a block is wrong");
            (b"a/b".to_vec(), failure)
        });
        tell(damages.collect(), count, &mut output)
            .unwrap()
            .unwrap()
    }

    #[test]
    fn one_problem_is_the_error_itself_and_several_are_counted() {
        let one = told(&[Kind::Integrity], 1);
        assert_eq!(one.error, "a/b: a block is wrong");
        let several = told(&[Kind::Unavailable, Kind::Integrity], 2);
        assert_eq!(several.error, "2 problems were found (listed above)");
        assert_eq!(several.kind, Kind::Integrity, "the gravest counts");
        let many = told(&[Kind::Integrity, Kind::Unavailable], 7);
        assert_eq!(
            many.error,
            "7 problems were found (the first 2 are listed above)"
        );
    }
}
