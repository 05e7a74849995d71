//! How two states of a volume differ, one path a line.

use std::os::unix::ffi::OsStrExt;

use serde_json::Map;
use trust::change::{Change, Difference};

use crate::failure::Outcome;
use crate::output::Output;
use crate::text;

/// Prints a change and counts it: added, changed, removed.
pub fn tell(change: &Change, counts: &mut [u64; 3], output: &mut Output) -> Outcome<()> {
    let [added, changed, removed] = counts;
    let (word, count) = match change.difference {
        Difference::Added => ("added", added),
        Difference::Changed => ("changed", changed),
        Difference::Removed => ("removed", removed),
    };
    *count += 1;
    let name = change.path.as_os_str().as_bytes();
    if output.json() {
        let mut one = Map::new();
        text::put_name(&mut one, "path", name);
        one.insert("difference".to_owned(), word.into());
        one.insert("directory".to_owned(), change.is_directory.into());
        return output.record("change", one);
    }
    output.raw(format!("{word:<8} ").as_bytes())?;
    output.name(name)?;
    output.raw(if change.is_directory { b"/\n" } else { b"\n" })
}
