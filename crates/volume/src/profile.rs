//! Profiles: lists of what a program reads of a tree when it starts, so that a mount fetches it first and all at once.
//!
//! A profile is text, one path on each line, as a mount records it or a person writes it:
//!
//! ```text
//! # Lines with this sign are not read.
//! usr/bin/python3
//! usr/lib/libpython3.so<TAB>0-1048575,4194304-4259839
//! etc/python3<TAB>-
//! ```
//!
//! A path alone stands for all of it: the content of a file, the names in a directory. Behind a tab are the ranges of the
//! content that are needed, first and last byte, or `-` for the inode alone. In a path `\\`, `\n`, `\t` and `\xHH` stand
//! for bytes that a line cannot have.
//!
//! Paths stay right from version to version, as handles would not. A profile decides nothing: what is fetched is verified
//! like any block, a path that is not there is left out, and [`reader::Ahead`] bounds the bytes. So a publisher may put
//! one into the tree ([`ATTACHED`]), and mounts use it unasked.

use std::collections::BTreeMap;
use std::ops::Range;

use reader::{Fetch, ReadError, Selection, Tree};
use trust::inode::{Content, MAX_NAME_BYTES};

/// Where a publisher puts a profile for all mounts.
pub const ATTACHED: &[u8] = b".bulla/profile";
/// Longest profile, bytes.
pub const MAX_PROFILE_BYTES: usize = 8 << 20;
/// Paths of a profile, at most.
pub const MAX_PROFILE_PATHS: usize = 1 << 16;
/// Ranges of one path, at most. A file of which more is needed is needed whole.
const MAX_RANGES: usize = 64;
/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 4096;

/// What a program reads of a tree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Profile {
    parts: BTreeMap<Vec<u8>, Part>,
    /// There was no room for a path.
    is_full: bool,
}

/// What is needed of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Whole,
    /// Start and end; they do not touch.
    Ranges(BTreeMap<u64, u64>),
}

impl Part {
    /// The inode alone.
    fn nothing() -> Part {
        Part::Ranges(BTreeMap::new())
    }

    fn join(&mut self, other: Part) {
        match (&mut *self, other) {
            (Part::Ranges(own), Part::Ranges(ranges)) => {
                for (start, end) in ranges {
                    add(own, start..end);
                }
                if own.len() > MAX_RANGES {
                    *self = Part::Whole;
                }
            }
            _ => *self = Part::Whole,
        }
    }
}

/// Why a text is no profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// A line that is none of a profile.
    #[error("line {line}: {why}")]
    Line {
        /// Its number, from 1 on.
        line: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// It is longer than [`MAX_PROFILE_BYTES`].
    #[error("it is longer than {} MiB", MAX_PROFILE_BYTES >> 20)]
    TooLong,
    /// It has more paths than [`MAX_PROFILE_PATHS`].
    #[error("it has more than {MAX_PROFILE_PATHS} paths")]
    TooMany,
    /// It could not be read from the volume.
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Profile {
    /// Reads the text of a profile.
    ///
    /// # Errors
    /// [`ProfileError`].
    pub fn parse(text: &[u8]) -> Result<Profile, ProfileError> {
        if text.len() > MAX_PROFILE_BYTES {
            return Err(ProfileError::TooLong);
        }
        let mut profile = Profile::default();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let (path, part) = parse_line(line).map_err(|why| ProfileError::Line {
                line: number + 1,
                why,
            })?;
            // A path may stand there twice: two profiles are joined by joining their texts.
            let known = profile.parts.entry(path).or_insert_with(Part::nothing);
            known.join(part);
            if profile.parts.len() > MAX_PROFILE_PATHS {
                return Err(ProfileError::TooMany);
            }
        }
        Ok(profile)
    }

    /// The text of the profile.
    pub fn to_text(&self) -> Vec<u8> {
        let mut text = Vec::new();
        for (path, part) in &self.parts {
            escape(path, &mut text);
            if let Part::Ranges(ranges) = part {
                text.push(b'\t');
                let ranges = ranges
                    .iter()
                    .map(|(start, end)| format!("{start}-{}", end - 1));
                let ranges = ranges.collect::<Vec<_>>().join(",");
                text.extend_from_slice(if ranges.is_empty() {
                    b"-"
                } else {
                    ranges.as_bytes()
                });
            }
            text.push(b'\n');
        }
        text
    }

    /// The profile that the publisher of a tree has put into it.
    ///
    /// # Errors
    /// [`ProfileError`]: it could not be read, or it is no profile.
    pub async fn attached(tree: &Tree, how: Fetch) -> Result<Option<Profile>, ProfileError> {
        let Some(inode) = tree.follow(ATTACHED, how).await? else {
            return Ok(None);
        };
        if !matches!(inode.content, Content::Regular(_)) {
            return Ok(None);
        }
        if inode.size > MAX_PROFILE_BYTES as u64 {
            return Err(ProfileError::TooLong);
        }
        let text = tree.read(&inode, 0, MAX_PROFILE_BYTES, how).await?;
        Profile::parse(&text.concat()).map(Some)
    }

    /// Notes that the inode at a path (names with `/` between them, `""` for the root) was read.
    pub fn note(&mut self, path: &[u8]) {
        self.part(path);
    }

    /// Notes that all of a content was read.
    pub fn note_whole(&mut self, path: &[u8]) {
        if let Some(part) = self.part(path) {
            *part = Part::Whole;
        }
    }

    /// Notes that a range of a content of `size` bytes was read.
    pub fn note_range(&mut self, path: &[u8], range: Range<u64>, size: u64) {
        let Some(part) = self.part(path) else { return };
        let Part::Ranges(ranges) = part else { return };
        add(ranges, range.start..range.end.min(size));
        let is_whole = ranges.first_key_value() == Some((&0, &size));
        if is_whole || ranges.len() > MAX_RANGES {
            *part = Part::Whole;
        }
    }

    /// Number of paths.
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// Whether it has no path.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether a path was left out because the profile had [`MAX_PROFILE_PATHS`].
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// What is to be fetched.
    pub fn selection(&self) -> Selection {
        let mut selection = Selection::new();
        for (path, part) in &self.parts {
            match part {
                Part::Whole => selection.add_whole(path),
                Part::Ranges(ranges) => {
                    selection.add(path, 0..0);
                    for (start, end) in ranges {
                        selection.add(path, *start..*end);
                    }
                }
            }
        }
        selection
    }

    fn part(&mut self, path: &[u8]) -> Option<&mut Part> {
        if path.len() > MAX_PATH_BYTES {
            return None;
        }
        if self.parts.len() >= MAX_PROFILE_PATHS && !self.parts.contains_key(path) {
            self.is_full = true;
            return None;
        }
        let part = self.parts.entry(path.to_vec());
        Some(part.or_insert_with(Part::nothing))
    }
}

/// Adds a range to ranges that do not touch.
fn add(ranges: &mut BTreeMap<u64, u64>, range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    let Range { mut start, mut end } = range;
    while let Some((&from, &to)) = ranges.range(..=end).next_back() {
        if to < start {
            break;
        }
        (start, end) = (start.min(from), end.max(to));
        ranges.remove(&from);
    }
    ranges.insert(start, end);
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, Part), &'static str> {
    let mut fields = line.splitn(2, |byte| *byte == b'\t');
    let path = unescape(fields.next().unwrap_or_default())?;
    let path = path.strip_prefix(b"/").unwrap_or(&path).to_vec();
    let is_name = |name: &[u8]| {
        !name.is_empty() && name != b"." && name != b".." && name.len() <= MAX_NAME_BYTES
    };
    if path.len() > MAX_PATH_BYTES {
        return Err("the path is too long");
    }
    if path.contains(&0) || !(path.is_empty() || path.split(|byte| *byte == b'/').all(is_name)) {
        return Err("this is no path below the root of a volume");
    }
    let part = match fields.next() {
        None => Part::Whole,
        Some(b"-") => Part::nothing(),
        Some(ranges) => parse_ranges(ranges).ok_or("after the tab must be FIRST-LAST,… or -")?,
    };
    Ok((path, part))
}

fn parse_ranges(text: &[u8]) -> Option<Part> {
    let mut part = Part::nothing();
    for range in std::str::from_utf8(text).ok()?.split(',') {
        let (first, last) = range.split_once('-')?;
        let (first, last): (u64, u64) = (first.parse().ok()?, last.parse().ok()?);
        if first > last {
            return None;
        }
        let one = BTreeMap::from([(first, last.checked_add(1)?)]);
        part.join(Part::Ranges(one));
    }
    Some(part)
}

fn escape(path: &[u8], to: &mut Vec<u8>) {
    for (at, byte) in path.iter().enumerate() {
        match byte {
            b'\\' => to.extend_from_slice(b"\\\\"),
            b'\n' => to.extend_from_slice(b"\\n"),
            b'\t' => to.extend_from_slice(b"\\t"),
            b'#' if at == 0 => to.extend_from_slice(b"\\x23"),
            0..0x20 | 0x7f => to.extend_from_slice(format!("\\x{byte:02x}").as_bytes()),
            _ => to.push(*byte),
        }
    }
    if path.is_empty() {
        to.push(b'/');
    }
}

fn unescape(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        if *byte != b'\\' {
            path.push(*byte);
            continue;
        }
        let (byte, used) = match rest {
            [b'\\', ..] => (b'\\', 1),
            [b'n', ..] => (b'\n', 1),
            [b't', ..] => (b'\t', 1),
            [b'x', high, low, ..] => (hex(*high, *low).ok_or(BACKSLASH)?, 3),
            _ => return Err(BACKSLASH),
        };
        path.push(byte);
        rest = rest.get(used..).unwrap_or_default();
    }
    Ok(path)
}

const BACKSLASH: &str = "a backslash must begin \\\\, \\n, \\t or \\xHH";

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refused(text: &[u8]) -> String {
        Profile::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn people_may_write_profiles() {
        let text = b"# the program\n\n/usr/bin/a\r\nusr/lib/b\t0-9,10-19,30-39\nusr/share\t-\n\\x23c\\\\\n";
        let profile = Profile::parse(text).unwrap();
        assert_eq!(profile.len(), 4);
        let text = String::from_utf8(profile.to_text()).unwrap();
        let expected = "\\x23c\\\\\nusr/bin/a\nusr/lib/b\t0-19,30-39\nusr/share\t-\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn lines_that_are_no_paths_are_refused_with_their_number() {
        assert!(refused(b"a\n../b").starts_with("line 2: this is no path"));
        for wrong in [
            &b"a//b"[..],
            b"a/",
            b"./a",
            b"a/../b",
            b"//",
            b"a\0b",
            &[b'x'; 300],
        ] {
            assert!(refused(wrong).contains("no path"), "{wrong:?}");
        }
        for wrong in ["a\\", "a\\y", "a\\x1", "a\\xgg", "\\x+1"] {
            assert!(refused(wrong.as_bytes()).contains("backslash"), "{wrong}");
        }
        let ranges = [
            "",
            "1",
            "2-1",
            "-1",
            "1-",
            "a-b",
            "0-18446744073709551615",
            "0-1,",
            "0-1\t",
        ];
        for wrong in ranges {
            let line = format!("a\t{wrong}");
            assert!(refused(line.as_bytes()).contains("FIRST-LAST"), "{wrong}");
        }
    }

    #[test]
    fn profiles_are_bounded() {
        let many = |count: usize| (0..count).map(|n| format!("{n}\n")).collect::<String>();
        assert!(Profile::parse(many(MAX_PROFILE_PATHS).as_bytes()).is_ok());
        assert!(refused(many(MAX_PROFILE_PATHS + 1).as_bytes()).contains("65536 paths"));
        assert!(refused(&vec![b'\n'; MAX_PROFILE_BYTES + 1]).contains("8 MiB"));
        let mut full = Profile::parse(many(MAX_PROFILE_PATHS).as_bytes()).unwrap();
        full.note(b"1");
        assert!(!full.is_full());
        full.note(b"another");
        assert!(full.is_full() && full.len() == MAX_PROFILE_PATHS);
        let ranges = |count: usize| (0..count).map(|n| format!("{}-{0}", 2 * n));
        let line = |count| format!("f\t{}", ranges(count).collect::<Vec<_>>().join(","));
        let text = |line: String| Profile::parse(line.as_bytes()).unwrap().to_text();
        assert_eq!(
            text(line(MAX_RANGES)),
            format!("{}\n", line(MAX_RANGES)).into_bytes()
        );
        assert_eq!(text(line(MAX_RANGES + 1)), b"f\n");
    }

    #[test]
    fn reads_are_noted_as_few_ranges() {
        let mut profile = Profile::default();
        profile.note(b"stat");
        profile.note_range(b"f", 0..10, 100);
        profile.note_range(b"f", 20..30, 100);
        profile.note_range(b"f", 5..21, 100);
        profile.note_range(b"f", 90..200, 100);
        profile.note_range(b"all", 50..150, 100);
        profile.note_range(b"all", 0..50, 100);
        profile.note_range(b"stat", 0..0, 0);
        profile.note_whole(b"names");
        let text = String::from_utf8(profile.to_text()).unwrap();
        assert_eq!(text, "all\nf\t0-29,90-99\nnames\nstat\t-\n");
    }

    #[test]
    fn texts_that_are_joined_are_a_profile_of_both() {
        let text = b"a\t-\nb\t0-9\nc\na\t5-6\nb\t8-20\nc\t-\nd\t-\nd\n";
        let text = Profile::parse(text).unwrap().to_text();
        assert_eq!(String::from_utf8(text).unwrap(), "a\t5-6\nb\t0-20\nc\nd\n");
    }

    #[test]
    fn root_is_a_slash() {
        let mut profile = Profile::default();
        profile.note_whole(b"");
        assert_eq!(profile.to_text(), b"/\n");
        assert_eq!(Profile::parse(b"/\n").unwrap(), profile);
    }

    proptest! {
        #[test]
        fn text_gives_the_profile_back(
            parts: Vec<(Vec<Vec<u8>>, Option<Vec<(u32, u16)>>)>,
        ) {
            let mut profile = Profile::default();
            for (names, ranges) in parts {
                let usable = |name: &Vec<u8>| {
                    !name.is_empty() && name != b"." && name != b".." && !name.contains(&0) && !name.contains(&b'/')
                };
                let names: Vec<_> = names.into_iter().filter(usable).take(3).collect();
                let path = names.join(&b'/');
                match ranges {
                    None => profile.note_whole(&path),
                    Some(ranges) => {
                        profile.note(&path);
                        for (start, len) in ranges {
                            let start = u64::from(start);
                            profile.note_range(&path, start..start + u64::from(len), u64::MAX);
                        }
                    }
                }
            }
            prop_assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
        }

        #[test]
        fn ranges_hold_what_was_added_and_do_not_touch(added: Vec<(u8, u8)>) {
            let mut ranges = BTreeMap::new();
            let mut held = [false; 600];
            for (start, len) in added {
                let (start, end) = (u64::from(start), u64::from(start) + u64::from(len));
                add(&mut ranges, start..end);
                (start..end).for_each(|at| held[at as usize] = true);
            }
            let mut last = None;
            for (start, end) in &ranges {
                prop_assert!(start < end && last.is_none_or(|last| last < *start));
                last = Some(*end);
            }
            for (at, held) in (0_u64..).zip(held) {
                prop_assert_eq!(ranges.iter().any(|(start, end)| (*start..*end).contains(&at)), held);
            }
        }

        #[test]
        fn any_bytes_are_a_profile_or_an_error(text: Vec<u8>) {
            if let Ok(profile) = Profile::parse(&text) {
                prop_assert_eq!(Profile::parse(&profile.to_text()).unwrap(), profile);
            }
        }
    }
}
