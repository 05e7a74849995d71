//! Files of bulla's own, by their first bytes: keys, and what a machine keeps beside them. Commands that hand files to
//! others refuse them (docs/decisions/0082).
//!
//! Every text file that bulla keeps for itself begins with the line `bulla-NAME-NUMBER`: key files of publishers,
//! devices and orderers, references to keys, homes of shared volumes, anchors of protected devices, journals. So a
//! new kind of such a file is known here without a change. What a machine keeps of a volume, or as a witness, are
//! records as they are served; the lock file beside them has such a line.

/// Bytes at the beginning of a file that suffice for [`what`].
pub const START_BYTES: usize = 64;

const PREFIX: &[u8] = b"bulla-";
const KEY: &[u8] = b"bulla-key-";
const REFERENCE: &[u8] = b"bulla-key-reference-";
const SLOTS: &[u8] = b"bulla key slots\n";

/// What a file of bulla's own is, by its beginning; `None` for any other file.
pub fn what(start: &[u8]) -> Option<&'static str> {
    if start.starts_with(SLOTS) {
        return Some("the key slots of a protected device");
    }
    let line = start.get(..START_BYTES).unwrap_or(start);
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.starts_with(REFERENCE) {
        return Some("a reference to a signing key");
    }
    if line.starts_with(KEY) {
        return Some("a key file");
    }
    let rest = line.strip_prefix(PREFIX)?;
    let dash = rest.iter().rposition(|b| *b == b'-')?;
    let (name, number) = rest.split_at(dash);
    let number = number.get(1..).unwrap_or_default();
    let is_name = !name.is_empty() && name.iter().all(|b| b.is_ascii_lowercase() || *b == b'-');
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    (is_name && is_number).then_some("a file of bulla's own state")
}

#[cfg(test)]
mod tests {
    use super::what;

    #[test]
    fn own_files_are_known_by_their_first_line() {
        let key = Some("a key file");
        let state = Some("a file of bulla's own state");
        for (start, expected) in [
            (&b"bulla-key-1\npublic key1abc\n"[..], key),
            (b"bulla-key-1", key),
            (b"bulla-key-1\r\npublic", key),
            (b"bulla-key-2\n", key),
            (
                b"bulla-key-reference-1\npublic",
                Some("a reference to a signing key"),
            ),
            (
                b"bulla key slots\n\0\0",
                Some("the key slots of a protected device"),
            ),
            (b"bulla-home-1\nvolume", state),
            (b"bulla-joining-1\n", state),
            (b"bulla-anchor-1\n", state),
            (b"bulla-journal-1\n\0\xff", state),
            (b"bulla-lock-1\n", state),
            (b"bulla-notes\n", None),
            (b"bulla-notes-1a\n", None),
            (b"bulla-1\n", None),
            (b"bulla\n", None),
            (b" bulla-key-1\n", None),
            (b"The first line of a key file is bulla-key-1.\n", None),
            (b"", None),
        ] {
            assert_eq!(what(start), expected, "{}", start.escape_ascii());
        }
    }
}
