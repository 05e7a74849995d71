//! Names as text for people: lower-case base32 with a prefix and a checksum (bech32m, BIP 350). A mistyped
//! name is refused, never looked up. And which characters make a name look like another.

use bech32::{Bech32m, Hrp, primitives::decode::CheckedHrpstring};

/// The kind of thing that a name denotes; it gives the prefix of the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Noun {
    /// A volume id.
    Volume,
    /// A block's handle.
    Block,
    /// A public key.
    Key,
    /// The hash of a root record.
    Record,
    /// The hash of a policy.
    Policy,
}

impl Noun {
    fn prefix(self) -> &'static str {
        match self {
            Noun::Volume => "vol",
            Noun::Block => "blk",
            Noun::Key => "key",
            Noun::Record => "rec",
            Noun::Policy => "pol",
        }
    }
}

/// Escapes a name for a terminal: control characters, backslashes and bytes that are not UTF-8 become
/// `\n`, `\\`, `\x1b`.
pub fn printable(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\t' => out.push_str("\\t"),
                c if c.is_control() || reorders(c) => {
                    let mut bytes = [0; 4];
                    for byte in c.encode_utf8(&mut bytes).bytes() {
                        out.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    out
}

/// Characters that change the order of others on a screen (Unicode, *Bidi_Control*).
pub fn reorders(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

/// Characters that nobody sees, or that change the order of others: with them a name looks like another one. Names that
/// people choose have none. From Unicode's *Default_Ignorable_Code_Point*, *White_Space* and *Bidi_Control*.
pub fn is_hidden(c: char) -> bool {
    let is_space = c.is_whitespace() && c != ' ';
    let is_ignored = matches!(
        c,
        '\u{ad}' | '\u{34f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
    );
    c.is_control() || is_space || is_ignored || reorders(c)
}

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadText {
    /// The prefix is that of another kind of name.
    #[error("expected a name beginning with `{expected}1`")]
    Prefix {
        /// The prefix wanted.
        expected: &'static str,
    },
    /// The checksum fails, or a character is not allowed in names.
    #[error("mistyped: the checksum does not match (copy the name whole)")]
    Mistyped,
    /// It carries more or fewer than 32 bytes.
    #[error("a name has 32 bytes")]
    Length,
    /// The bytes are not an Ed25519 public key.
    #[error("not a public key")]
    NotAKey,
}

/// Writes 32 bytes as a name.
pub fn write(noun: Noun, bytes: &[u8; 32]) -> String {
    write_long(noun.prefix(), bytes)
}

/// Reads a name back.
///
/// # Errors
/// [`BadText`] says whether the prefix, the checksum or the length is wrong. Upper case is refused:
/// one value has one text.
pub fn read(noun: Noun, text: &str) -> Result<[u8; 32], BadText> {
    let expected = noun.prefix();
    let bytes: [u8; 32] = read_long(expected, text)?
        .try_into()
        .map_err(|_| BadText::Length)?;
    Ok(bytes)
}

/// Writes bytes of any length, up to some 600, under a prefix.
pub fn write_long(prefix: &str, bytes: &[u8]) -> String {
    let hrp = Hrp::parse_unchecked(prefix);
    bech32::encode::<Bech32m>(hrp, bytes).unwrap_or_default()
}

/// Reads what [`write_long`] wrote.
pub fn read_long(expected: &'static str, text: &str) -> Result<Vec<u8>, BadText> {
    let rest = text
        .strip_prefix(expected)
        .and_then(|r| r.strip_prefix('1'));
    if rest.is_none() {
        return Err(BadText::Prefix { expected });
    }
    if text.bytes().any(|b| b.is_ascii_uppercase()) {
        return Err(BadText::Mistyped);
    }
    let parsed = CheckedHrpstring::new::<Bech32m>(text).map_err(|_| BadText::Mistyped)?;
    let bytes: Vec<u8> = parsed.byte_iter().collect();
    // The byte iterator drops padding bits. Writing again refuses a second text of one value.
    match write_long(expected, &bytes) == text {
        true => Ok(bytes),
        false => Err(BadText::Mistyped),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_each_single_error_is_caught() {
        let bytes: [u8; 32] = std::array::from_fn(|i| (i * 7) as u8);
        let text = write(Noun::Volume, &bytes);
        assert!(text.starts_with("vol1"));
        assert_eq!(read(Noun::Volume, &text), Ok(bytes));
        assert_eq!(
            read(Noun::Block, &text),
            Err(BadText::Prefix { expected: "blk" })
        );
        assert!(read(Noun::Volume, &text.to_uppercase()).is_err());
        for i in 4..text.len() {
            let mut bad = text.clone().into_bytes();
            bad[i] = if bad[i] == b'q' { b'p' } else { b'q' };
            assert!(
                read(Noun::Volume, &String::from_utf8(bad).unwrap()).is_err(),
                "at {i}"
            );
        }
        assert!(read(Noun::Volume, &text[..text.len() - 1]).is_err());
    }

    #[test]
    fn characters_that_nobody_sees_are_hidden_and_letters_are_not() {
        for text in [
            "\u{202e}",
            "\u{61c}",
            "\u{200b}",
            "\u{200d}",
            "\u{feff}",
            "\u{a0}",
            "\u{2028}",
            "\u{e0041}",
            "\u{ad}",
            "\n",
            "\u{85}",
        ] {
            assert!(text.chars().all(is_hidden), "{}", text.escape_unicode());
        }
        for text in [
            "ada lovelace",
            "Ådne",
            "Ευκλείδης",
            "محمد",
            "山田",
            "नमस्ते",
            "🙂",
        ] {
            assert!(!text.chars().any(is_hidden), "{text}");
        }
    }
}
