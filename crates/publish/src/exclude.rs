//! Decides which names `publish --exclude` leaves out.
//!
//! A pattern is a glob over bytes. Without a `/` (other than one at its end) it is matched against the
//! name at any depth; with one, against the whole path from the published directory. `*` and `?` do not
//! match `/`, `**` does, `**/` also matches nothing; `[a-z]`, `[!a-z]` and `\x` are as in the shell; a
//! `/` at the end matches directories only. The walk does not enter an excluded directory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::publish_error::PublishError;

/// Patterns that leave names out.
#[derive(Debug, Clone, Default)]
pub struct Exclude {
    globs: Vec<Glob>,
    /// Whether each has left something out; clones share it.
    used: Arc<[AtomicBool]>,
}

impl Exclude {
    /// Reads patterns.
    ///
    /// # Errors
    /// [`PublishError::BadPattern`] for an empty one or an open bracket.
    pub fn new<P: AsRef<[u8]>>(patterns: &[P]) -> Result<Exclude, PublishError> {
        let globs = patterns.iter().map(|p| Glob::parse(p.as_ref()));
        Ok(Exclude {
            globs: globs.collect::<Result<_, _>>()?,
            used: patterns.iter().map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// Whether each pattern, in the order given, has left something out so far.
    pub fn used(&self) -> impl Iterator<Item = bool> {
        self.used.iter().map(|used| used.load(Ordering::Relaxed))
    }

    /// Whether nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.globs.is_empty()
    }

    /// Whether the entry `name` of the directory `directory` (relative, empty for the top) is left out.
    pub fn leaves_out(&self, directory: &[u8], name: &[u8], is_directory: bool) -> bool {
        let mut is_out = false;
        for (glob, used) in self.globs.iter().zip(self.used.iter()) {
            // A name that is left out already only shows that further patterns are of use.
            if is_out && used.load(Ordering::Relaxed) {
                continue;
            }
            let matches = if glob.only_directories && !is_directory {
                false
            } else if !glob.anchored || directory.is_empty() {
                glob.matches(name.iter())
            } else {
                glob.matches(directory.iter().chain(b"/").chain(name))
            };
            if matches {
                is_out = true;
                used.store(true, Ordering::Relaxed);
            }
        }
        is_out
    }
}

#[derive(Debug, Clone)]
struct Glob {
    tokens: Vec<Token>,
    anchored: bool,
    only_directories: bool,
}

#[derive(Debug, Clone)]
enum Token {
    Byte(u8),
    AnyByte,
    OneOf {
        ranges: Vec<(u8, u8)>,
        negated: bool,
    },
    /// `*`
    Run,
    /// `**`
    Path,
    /// `**/`
    Directories,
}

impl Glob {
    fn parse(pattern: &[u8]) -> Result<Glob, PublishError> {
        let bad = |why| PublishError::BadPattern {
            pattern: String::from_utf8_lossy(pattern).into_owned(),
            why,
        };
        let (body, only_directories) = match pattern.strip_suffix(b"/") {
            Some(body) => (body, true),
            None => (pattern, false),
        };
        let anchored = body.contains(&b'/');
        let mut rest = body.strip_prefix(b"/").unwrap_or(body);
        if rest.is_empty() {
            return Err(bad("it is empty"));
        }
        let mut tokens = Vec::new();
        while let [first, after @ ..] = rest {
            let (token, next) = match (*first, after) {
                (b'*', [b'*', b'/', next @ ..]) => (Token::Directories, next),
                (b'*', [b'*', next @ ..]) => (Token::Path, next),
                (b'*', _) => (Token::Run, after),
                (b'?', _) => (Token::AnyByte, after),
                (b'\\', [byte, next @ ..]) => (Token::Byte(*byte), next),
                (b'[', _) => class(after).ok_or_else(|| bad("a bracket is not closed"))?,
                (byte, _) => (Token::Byte(byte), after),
            };
            tokens.push(token);
            rest = next;
        }
        Ok(Glob {
            tokens,
            anchored,
            only_directories,
        })
    }

    /// Follows all ways through the pattern at once, so that no pattern is slow.
    fn matches<'a>(&self, text: impl Iterator<Item = &'a u8>) -> bool {
        let end = self.tokens.len();
        let mut here = vec![false; end + 1];
        self.reach(&mut here, 0);
        for &byte in text {
            let mut next = vec![false; end + 1];
            for (at, token) in self.tokens.iter().enumerate() {
                if !here[at] {
                    continue;
                }
                match token {
                    Token::Byte(b) if *b == byte => self.reach(&mut next, at + 1),
                    Token::AnyByte if byte != b'/' => self.reach(&mut next, at + 1),
                    Token::OneOf { ranges, negated }
                        if byte != b'/' && is_in(ranges, byte) != *negated =>
                    {
                        self.reach(&mut next, at + 1);
                    }
                    Token::Run if byte != b'/' => self.reach(&mut next, at),
                    Token::Path => self.reach(&mut next, at),
                    Token::Directories => {
                        next[at] = true;
                        if byte == b'/' {
                            self.reach(&mut next, at + 1);
                        }
                    }
                    _ => {}
                }
            }
            here = next;
        }
        here[end]
    }

    /// Marks a place and those that are reached from it without a byte.
    fn reach(&self, places: &mut [bool], mut at: usize) {
        places[at] = true;
        // A `**/` that has begun to match must end in a slash: it is left empty only when it is entered.
        while let Some(Token::Run | Token::Path | Token::Directories) = self.tokens.get(at) {
            at += 1;
            places[at] = true;
        }
    }
}

fn is_in(ranges: &[(u8, u8)], byte: u8) -> bool {
    ranges.iter().any(|(a, z)| (a..=z).contains(&&byte))
}

/// Reads what follows a `[`: the token and the rest behind `]`.
fn class(after: &[u8]) -> Option<(Token, &[u8])> {
    let (negated, mut rest) = match after {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut ranges = Vec::new();
    loop {
        rest = match rest {
            [b']', next @ ..] if !ranges.is_empty() => {
                return Some((Token::OneOf { ranges, negated }, next));
            }
            [a, b'-', z, next @ ..] if *z != b']' => {
                ranges.push((*a, *z));
                next
            }
            [b'\\', byte, next @ ..] | [byte, next @ ..] => {
                ranges.push((*byte, *byte));
                next
            }
            [] => return None,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn out(pattern: &str, path: &str) -> bool {
        let (path, is_directory) = match path.strip_suffix('/') {
            Some(path) => (path, true),
            None => (path, false),
        };
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        Exclude::new(&[pattern]).unwrap().leaves_out(
            directory.as_bytes(),
            name.as_bytes(),
            is_directory,
        )
    }

    #[test]
    fn globs() {
        for (pattern, yes, no) in [
            ("*.o", "a.o a/b/c.o .o", "a.ob a.o/b"),
            (".git/", ".git/ a/.git/", ".git a/.github/"),
            ("/target", "target target/", "a/target targets"),
            ("a/*/c", "a/b/c a/xx/c", "a/c a/b/b/c x/a/b/c"),
            ("a/**/c", "a/c a/b/c a/b/b/c", "b/a/c ac a/bc"),
            ("a/**", "a/b a/b/c", "a ab"),
            ("?[a-c][!x]", "1az a/1bz", "1dz 1ax 1a"),
            ("\\*", "*", "a \\*"),
            ("[]]", "]", "[]"),
            (
                "a**********************b",
                "ab a/x/b aaab",
                "aaaaaaaaaaaaaaaaaaaaaaaaac",
            ),
        ] {
            let anchored = pattern.contains("**") && !pattern.contains('/');
            for path in yes.split(' ').filter(|p| !anchored || !p.contains('/')) {
                assert!(out(pattern, path), "{pattern} should match {path}");
            }
            for path in no.split(' ') {
                assert!(!out(pattern, path), "{pattern} should not match {path}");
            }
        }
        for bad in ["", "/", "[a", "a[!"] {
            assert!(Exclude::new(&[bad]).is_err(), "{bad}");
        }
    }
}
