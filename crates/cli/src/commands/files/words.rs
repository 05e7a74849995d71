//! The words of `bulla put FILE... VOLUME [PATH]`. The last word that names a shared volume of this machine is VOLUME,
//! and at most one word follows it. A path with a slash names no volume.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use ::share::home::Home;

use crate::failure::{Failure, Kind, Outcome};

/// The arguments of `put`: files, volume and path.
pub struct Words {
    /// The files of this machine.
    pub files: Vec<PathBuf>,
    /// The volume.
    pub home: Home,
    /// The path in it; empty for the root directory.
    pub path: OsString,
}

impl Words {
    /// Finds VOLUME among the words. `find` gives the volume of a name, if this machine has it.
    pub fn of(words: &[OsString], find: impl Fn(&str) -> Outcome<Option<Home>>) -> Outcome<Words> {
        let named = |word: Option<&OsString>| match word.and_then(|word| word.to_str()) {
            Some(word) if !word.contains('/') => find(word),
            _ => Ok(None),
        };
        let last = named(words.last())?;
        let before = named(words.iter().rev().nth(1))?;
        let (home, files, path) = match (before, last) {
            (Some(_), Some(_)) if words.len() > 2 => return Err(twice(words)),
            (_, Some(home)) => (home, words.split_last().map_or(&[][..], |it| it.1), None),
            (Some(home), None) => {
                let files = words.get(..words.len().saturating_sub(2));
                (home, files.unwrap_or_default(), words.last())
            }
            (None, None) => return Err(none(words)),
        };
        if files.is_empty() {
            let error = "no FILE is given: write `bulla put FILE... VOLUME [PATH]`";
            return Err(Failure::new(Kind::Usage, error));
        }
        Ok(Words {
            files: files.iter().map(PathBuf::from).collect(),
            home,
            path: path.map_or_else(OsString::new, OsString::clone),
        })
    }
}

fn shown(word: Option<&OsString>) -> String {
    let word = word.map_or(OsStr::new(""), OsString::as_os_str);
    crate::text::printable(word.as_encoded_bytes())
}

/// Two words could be VOLUME.
fn twice(words: &[OsString]) -> Failure {
    let (before, last) = (shown(words.iter().rev().nth(1)), shown(words.last()));
    let error = format!("`{before}` and `{last}` both name a shared volume");
    let hint = format!("write the path in the volume as /{last}, or the file as ./{before}");
    Failure::new(Kind::Usage, error).with_hint(hint)
}

/// No word is VOLUME.
fn none(words: &[OsString]) -> Failure {
    let (before, last) = (shown(words.iter().rev().nth(1)), shown(words.last()));
    let error = format!("neither `{before}` nor `{last}` is a shared volume of this machine");
    Failure::new(Kind::NoShared, error)
}
