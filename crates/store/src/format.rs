//! The format file `bulla`: a few lines of text that mark the directory as a repository and list the
//! features that a program must know to read or to write it.

use crate::StoreError;
use crate::disk::{Disk, damaged, read_whole};
use crate::names::FORMAT_FILE;

/// Content of the format file that this build writes.
pub const TEXT: &str =
    "bulla repository\nformat 0\nincompatible\nreadonly-compatible\ncompatible\n";

/// Content of the format file of a directory in which the server of a shared volume keeps its files. Every build
/// that knows repositories only refuses it by name.
pub const SHARED_TEXT: &str =
    "bulla repository\nformat 0\nincompatible shared\nreadonly-compatible\ncompatible\n";

const MAX_BYTES: usize = 4096;
/// Maximum length of a feature's name, bytes.
const MAX_NAME_BYTES: usize = 32;

/// What this build may do with a repository.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowed {
    /// Whether it may write. (If it may not read, [`read`] fails.)
    pub write: bool,
}

/// Reads and checks the format file.
///
/// # Errors
/// [`StoreError::NoRepository`] when there is none, [`StoreError::Format`] when it names a format or
/// an incompatible feature that this build does not know, [`StoreError::Damaged`] when it is not a
/// format file.
pub fn read(disk: &dyn Disk) -> Result<Allowed, StoreError> {
    let bytes = match read_whole(disk, FORMAT_FILE, MAX_BYTES) {
        Err(StoreError::Io { source, .. })
            if matches!(
                source.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Err(StoreError::NoRepository {
                path: disk.path(""),
            });
        }
        other => other?,
    };
    judge(&bytes).map_err(|wrong| match wrong {
        Wrong::Unknown(found) => StoreError::Format {
            path: disk.path(""),
            found,
        },
        Wrong::Damaged(why) => damaged(disk, FORMAT_FILE, why),
    })
}

/// Whether the format file is that of a shared volume's server.
///
/// # Errors
/// Those of [`read`], but for [`StoreError::Format`] about this feature alone.
pub fn is_shared(disk: &dyn Disk) -> Result<bool, StoreError> {
    match read_whole(disk, FORMAT_FILE, MAX_BYTES) {
        Ok(bytes) if bytes == SHARED_TEXT.as_bytes() => Ok(true),
        _ => read(disk).map(|_| false),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Wrong {
    Unknown(String),
    Damaged(&'static str),
}

fn judge(bytes: &[u8]) -> Result<Allowed, Wrong> {
    let text = std::str::from_utf8(bytes).map_err(|_| Wrong::Damaged("not text"))?;
    if !text
        .bytes()
        .all(|b| b == b'\n' || (b' '..0x7f).contains(&b))
    {
        return Err(Wrong::Damaged("not plain text"));
    }
    let text = text.strip_suffix('\n').ok_or(Wrong::Damaged("cut short"))?;
    let mut lines = text.split('\n');
    if lines.next() != Some("bulla repository") {
        return Err(Wrong::Damaged("not a repository's format file"));
    }
    let format = lines
        .next()
        .and_then(|l| l.strip_prefix("format "))
        .ok_or(Wrong::Damaged("has no format line"))?;
    if !is_number(format) {
        return Err(Wrong::Damaged("has no format number"));
    }
    if format != "0" {
        return Err(Wrong::Unknown(format!("number {format}")));
    }
    let mut features = |name: &str| {
        let list = lines.next().and_then(|l| l.strip_prefix(name));
        let malformed = Wrong::Damaged("a feature line is malformed");
        list.and_then(feature_names).ok_or(malformed)
    };
    let incompatible = features("incompatible")?;
    let readonly_compatible = features("readonly-compatible")?;
    features("compatible")?;
    if lines.next().is_some() {
        return Err(Wrong::Damaged("has extra lines"));
    }
    if !incompatible.is_empty() {
        let found = format!("feature {}", incompatible.join(" "));
        return Err(Wrong::Unknown(found));
    }
    Ok(Allowed {
        write: readonly_compatible.is_empty(),
    })
}

/// Whether the text is a number in its one spelling.
fn is_number(text: &str) -> bool {
    text.parse::<u32>()
        .is_ok_and(|number| number.to_string() == text)
}

/// The names that follow the first word of a feature line: a space before each, in ascending order.
fn feature_names(list: &str) -> Option<Vec<&str>> {
    let mut names = list.split(' ');
    if !names.next()?.is_empty() {
        return None;
    }
    let names: Vec<&str> = names.collect();
    let is_name = |name: &&str| {
        let known = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(known)
    };
    let canonical = names.iter().all(is_name) && names.is_sorted_by(|a, b| a < b);
    canonical.then_some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_file_of_this_build_is_read_and_unknown_ones_are_refused() {
        assert_eq!(judge(TEXT.as_bytes()), Ok(Allowed { write: true }));
        assert_eq!(
            judge(SHARED_TEXT.as_bytes()),
            Err(Wrong::Unknown("feature shared".into()))
        );
        let with = |from: &str, to: &str| judge(TEXT.replace(from, to).as_bytes());
        assert_eq!(
            with("format 0", "format 1"),
            Err(Wrong::Unknown("number 1".into()))
        );
        for names in ["packs", "guarded shared", "shared"] {
            assert_eq!(
                with("\nincompatible", &format!("\nincompatible {names}")),
                Err(Wrong::Unknown(format!("feature {names}")))
            );
        }
        // Not canonical, so damaged.
        for names in ["b a", "a a", "a  b", " a", "a ", "A", "", &"a".repeat(33)] {
            let read = with("\nincompatible", &format!("\nincompatible {names}"));
            assert!(matches!(read, Err(Wrong::Damaged(_))), "{names:?}");
        }
        for number in ["", "x", "+1", "01", "-1", "4294967296"] {
            let read = with("format 0", &format!("format {number}"));
            assert!(matches!(read, Err(Wrong::Damaged(_))), "{number:?}");
        }
        assert_eq!(
            with("readonly-compatible", "readonly-compatible packs"),
            Ok(Allowed { write: false })
        );
        assert_eq!(
            with("\ncompatible", "\ncompatible hints more"),
            Ok(Allowed { write: true })
        );
        for cut in 0..TEXT.len() {
            assert!(judge(&TEXT.as_bytes()[..cut]).is_err(), "cut at {cut}");
        }
        assert!(judge(format!("{TEXT}\n").as_bytes()).is_err());
        assert!(judge(TEXT.replace('\n', "\r\n").as_bytes()).is_err());
    }
}
