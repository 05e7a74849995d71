//! What a replica notes about itself: for which record its closure was proved, and which paths it holds.
//!
//! ```text
//! bulla replica
//! format 0
//! partial                      if it ever held less than everything
//! record HEX                   one or two sections: the version of the head, and the next
//! path HEX                     none: everything; names are bytes, so they are written in hexadecimal
//! ```
//!
//! The machine may crash between writing the note and moving the head, so the section of the previous
//! version stays until the next pull. A repository without a note is a publisher's and holds everything.

use store::notes::Note;
use store::{Repository, StoreError, Writer};

/// Most paths that a replica can be limited to.
pub const MAX_PATHS: usize = 256;
const SECTIONS: usize = 2;

/// Which part of a volume a replica holds: everything, or the trees at some paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Scope {
    /// Sorted; empty for everything.
    pub paths: Vec<Vec<u8>>,
}

impl Scope {
    /// The part at these paths, or everything if there are none. Paths are normalised (`/a//b/` is
    /// `a/b`), and paths below others are left out.
    pub fn new(paths: impl IntoIterator<Item = Vec<u8>>) -> Scope {
        let mut paths: Vec<Vec<u8>> = paths
            .into_iter()
            .map(|path| {
                let parts = path.split(|b| *b == b'/');
                let parts: Vec<&[u8]> = parts
                    .filter(|part| !part.is_empty() && *part != b".")
                    .collect();
                parts.join(&b'/')
            })
            .collect();
        paths.sort();
        paths.dedup();
        let below = |path: &[u8], top: &[u8]| {
            top.is_empty()
                || path
                    .strip_prefix(top)
                    .is_some_and(|rest| rest.starts_with(b"/"))
        };
        let tops = paths.clone();
        paths.retain(|path| !tops.iter().any(|top| top != path && below(path, top)));
        if paths.iter().any(Vec::is_empty) {
            paths.clear();
        }
        Scope { paths }
    }

    /// Whether it is everything.
    pub fn is_everything(&self) -> bool {
        self.paths.is_empty()
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_everything() {
            return f.write_str("everything");
        }
        for (i, path) in self.paths.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{}", path.escape_ascii())?;
        }
        Ok(())
    }
}

/// The note of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplicaNote {
    /// Whether it ever held less than everything: its older versions may lack blocks.
    pub partial: bool,
    /// Hash of a record, and the part of its tree that is held.
    pub proved: Vec<([u8; 32], Scope)>,
}

impl ReplicaNote {
    /// The note of a repository; `None` if nothing was ever pulled into it.
    ///
    /// # Errors
    /// [`StoreError::Io`]; [`StoreError::Damaged`] when the file is malformed.
    pub fn load(repository: &Repository) -> Result<Option<ReplicaNote>, StoreError> {
        let Some(bytes) = repository.note(Note::Replica)? else {
            return Ok(None);
        };
        let damaged = || StoreError::Damaged {
            path: repository.disk_shared().path(Note::Replica.name()),
            why: "not the note of a replica".to_owned(),
        };
        ReplicaNote::decode(&bytes).map(Some).ok_or_else(damaged)
    }

    /// What the note says of a record; `None` when its closure was not proved here.
    pub fn of(&self, record_hash: &[u8; 32]) -> Option<&Scope> {
        let section = self.proved.iter().find(|(hash, _)| hash == record_hash);
        section.map(|(_, scope)| scope)
    }

    /// The note after a record was proved. It names both versions, because the head may or may not have
    /// moved when it is read.
    pub(crate) fn with(
        &self,
        record_hash: [u8; 32],
        scope: Scope,
        stands: Option<[u8; 32]>,
    ) -> Self {
        let mut proved = vec![(record_hash, scope)];
        let before = self.proved.iter().filter(|(hash, _)| Some(*hash) == stands);
        proved.extend(before.filter(|(hash, _)| *hash != record_hash).cloned());
        ReplicaNote {
            partial: self.partial || proved.iter().any(|(_, s)| !s.is_everything()),
            proved,
        }
    }

    pub(crate) fn store(&self, writer: &mut Writer) -> Result<(), StoreError> {
        writer.put_note(Note::Replica, self.encode().as_bytes())
    }

    fn encode(&self) -> String {
        let mut out = "bulla replica\nformat 0\n".to_owned();
        if self.partial {
            out.push_str("partial\n");
        }
        for (hash, scope) in &self.proved {
            out.push_str(&format!("record {}\n", hex(hash)));
            for path in &scope.paths {
                out.push_str(&format!("path {}\n", hex(path)));
            }
        }
        out
    }

    fn decode(bytes: &[u8]) -> Option<ReplicaNote> {
        let text = std::str::from_utf8(bytes).ok()?.strip_suffix('\n')?;
        let mut lines = text.split('\n').peekable();
        if lines.next()? != "bulla replica" || lines.next()? != "format 0" {
            return None;
        }
        let mut note = ReplicaNote {
            partial: lines.next_if(|line| *line == "partial").is_some(),
            proved: Vec::new(),
        };
        for line in lines {
            if let Some(hash) = line.strip_prefix("record ") {
                let hash = unhex(hash)?.try_into().ok()?;
                note.proved.push((hash, Scope::default()));
            } else {
                let path = unhex(line.strip_prefix("path ")?)?;
                note.proved.last_mut()?.1.paths.push(path);
            }
        }
        let fits = note.proved.len() <= SECTIONS
            && note.proved.iter().all(|(_, scope)| {
                scope.paths.len() <= MAX_PATHS && Scope::new(scope.paths.clone()) == *scope
            });
        fits.then_some(note)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digit = |c: &u8| char::from(*c).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => Some((digit(high)? << 4 | digit(low)?) as u8),
        _ => None,
    };
    text.as_bytes().chunks(2).map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(paths: &[&str]) -> Scope {
        Scope::new(paths.iter().map(|p| p.as_bytes().to_vec()))
    }

    #[test]
    fn paths_are_normalised() {
        assert_eq!(
            scope(&["/a//b/", "a/b/c", "./x"]).paths,
            [b"a/b".to_vec(), b"x".to_vec()]
        );
        assert_eq!(scope(&["ab", "a"]).paths.len(), 2);
        assert!(scope(&["a", "/"]).is_everything());
        assert_eq!(scope(&["a\n", "b"]).to_string(), "a\\n, b");
    }

    #[test]
    fn a_note_is_read_back_and_keeps_the_current_version() {
        let note = ReplicaNote::default().with([1; 32], scope(&["a", "b\n"]), None);
        assert!(note.partial);
        assert_eq!(
            ReplicaNote::decode(note.encode().as_bytes()),
            Some(note.clone())
        );
        let next = note.with([2; 32], Scope::default(), Some([1; 32]));
        assert_eq!(next.of(&[1; 32]), Some(&scope(&["a", "b\n"])));
        assert_eq!(next.of(&[2; 32]), Some(&Scope::default()));
        assert!(next.partial, "an older version may lack blocks");
        let third = next.with([3; 32], Scope::default(), Some([2; 32]));
        assert_eq!(third.of(&[1; 32]), None);
        for bad in ["", "bulla replica\n", "bulla replica\nformat 0\npath 61\n"] {
            assert_eq!(ReplicaNote::decode(bad.as_bytes()), None, "{bad:?}");
        }
    }
}
