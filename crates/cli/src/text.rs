//! Makes names and messages safe for terminals and JSON records. Names come from strangers: they may not be
//! UTF-8, and may contain control sequences of terminals.

use serde_json::{Map, Value};
pub use trust::text::printable;
use trust::text::reorders;

/// Replaces control characters in a message for a terminal. Newlines and backslashes stay.
pub fn printable_message(message: &str) -> String {
    message
        .chars()
        .map(|c| match c {
            '\n' => c,
            c if c.is_control() || reorders(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Breaks a message into lines of at most `columns` characters, at its spaces. Words are never broken: an id can be copied
/// whole. Lines after the first are indented by two spaces.
pub fn wrapped(message: &str, columns: usize) -> String {
    let mut out = String::with_capacity(message.len());
    for (at, line) in message.split('\n').enumerate() {
        if at > 0 {
            out.push('\n');
        }
        let mut column = 0;
        for (at, word) in line.split(' ').enumerate() {
            let width = word.chars().count();
            match (at, column + 1 + width <= columns) {
                (0, _) => column = width,
                (_, true) => {
                    out.push(' ');
                    column += 1 + width;
                }
                (_, false) => {
                    out.push_str("\n  ");
                    column = 2 + width;
                }
            }
            out.push_str(word);
        }
    }
    out
}

/// Adds a name to a JSON record: `KEY` is the name as text. If the name is not UTF-8, `KEY` is an
/// approximation and `KEY_base64` has the exact bytes.
pub fn put_name(record: &mut Map<String, Value>, key: &str, name: &[u8]) {
    record.insert(
        key.to_owned(),
        Value::String(String::from_utf8_lossy(name).into_owned()),
    );
    if std::str::from_utf8(name).is_err() {
        record.insert(format!("{key}_base64"), Value::String(base64(name)));
    }
}

/// Formats the name of a block.
pub fn block_name(bytes: &[u8; 32]) -> String {
    trust::text::write(trust::text::Noun::Block, bytes)
}

/// RFC 4648 base64 with padding.
pub fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group
            .iter()
            .chain(std::iter::repeat(&0))
            .take(3)
            .fold(0usize, |word, byte| word << 8 | usize::from(*byte));
        for i in 0..4 {
            let symbol = ALPHABET.get(word >> (18 - 6 * i) & 63);
            out.push(match symbol {
                Some(symbol) if i <= group.len() => char::from(*symbol),
                _ => '=',
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc_4648_vectors() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
        assert_eq!(base64(&[0xff, 0xff, 0xfe]), "///+");
    }

    #[test]
    fn printable_names_have_no_control_characters() {
        assert_eq!(printable(b"plain \xc3\xa9"), "plain \u{e9}");
        assert_eq!(printable(b"\x1b[2Jx"), "\\x1b[2Jx");
        assert_eq!(printable(b"a\\b\nc\xff"), "a\\\\b\\nc\\xff");
        assert_eq!(
            printable("cod\u{202e}exe".as_bytes()),
            "cod\\xe2\\x80\\xaeexe"
        );
        assert_eq!(printable_message("a\x1b[0mb\nc"), "a\u{fffd}[0mb\nc");
    }

    #[test]
    fn messages_are_broken_at_spaces_only() {
        let id = "v".repeat(64);
        let message = format!("error: the volume {id} is not here\nand  this stays as it is");
        let broken = wrapped(&message, 40);
        assert_eq!(
            broken,
            format!("error: the volume\n  {id}\n  is not here\nand  this stays as it is")
        );
        let words = "five words ".repeat(60);
        let broken = wrapped(&words, 100);
        assert!(broken.lines().all(|line| line.chars().count() <= 100));
        assert!(broken.lines().count() > 6);
        let joined = broken.replace("\n  ", " ");
        assert_eq!(joined, words, "nothing is lost");
    }

    #[test]
    fn json_names_are_lossless() {
        let mut record = Map::new();
        put_name(&mut record, "path", b"ok");
        assert_eq!(record.len(), 1);
        put_name(&mut record, "other", b"\xffx");
        assert_eq!(record.get("other_base64"), Some(&Value::from("/3g=")));
    }
}
