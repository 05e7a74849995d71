//! `--exclude` and `--exclude-file` of `bulla publish`: the patterns, and those that have matched nothing.

use std::io::Read;
use std::path::{Path, PathBuf};

use publish::exclude::Exclude;

use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::text;

/// Longest file of patterns, bytes.
const MAX_PATTERNS_BYTES: u64 = 1 << 20;

/// The patterns of the flags, then those of the files.
pub fn patterns(given: &[String], files: &[PathBuf]) -> Outcome<Exclude> {
    let given = given.iter().map(|text| text.clone().into_bytes());
    let mut patterns: Vec<Vec<u8>> = given.collect();
    for file in files {
        patterns.extend(patterns_of(file)?);
    }
    Ok(Exclude::new(&patterns)?)
}

/// The patterns of --exclude-file.
fn patterns_of(file: &Path) -> Outcome<Vec<Vec<u8>>> {
    let shown = file.display();
    let wrong = |what: String| Failure::new(Kind::BadPattern, what);
    let read = |path: &Path| {
        let mut text = Vec::new();
        let file = std::fs::File::open(path)?;
        file.take(MAX_PATTERNS_BYTES + 1).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read(file).map_err(|e| Failure::io(format!("cannot read {shown}"), &e))?;
    if text.len() as u64 > MAX_PATTERNS_BYTES {
        return Err(wrong(format!("{shown} is too long for a file of patterns")));
    }
    let mut patterns = Vec::new();
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line = line.trim_ascii_end();
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        let number = at + 1;
        if line.starts_with(b"!") {
            return Err(wrong(format!("{shown}, line {number}: `!` is not supported"))
                .with_hint("remove the line: nothing that a pattern leaves out can be taken in again; write `\\!` for a name that begins with `!`"));
        }
        Exclude::new(&[line]).map_err(|error| {
            let mut failure = Failure::from(error);
            failure.error = format!("{shown}, line {number}: {}", failure.error);
            failure
        })?;
        patterns.push(line.to_vec());
    }
    Ok(patterns)
}

/// Warns of patterns of --exclude that have left nothing out. Those of a file may be meant for other trees too.
pub fn unmatched(given: &[String], exclude: &Exclude, output: &mut Output) -> Vec<String> {
    let used = given.iter().zip(exclude.used());
    let unmatched = used.filter(|(_, used)| !used).map(|(text, _)| text.clone());
    let unmatched: Vec<String> = unmatched.collect();
    for pattern in &unmatched {
        let shown = text::printable(pattern.as_bytes());
        output.warn(&format!(
            "--exclude `{shown}` matched nothing; a pattern with a slash is matched against the whole path below DIR"
        ));
    }
    unmatched
}
