//! A recovery key: 160 random bits that are printed once, kept on paper, and typed when all else is lost.
//!
//! Written in Crockford's base32: digits and capital letters without I, L, O and U, in six groups of six. The last four
//! symbols are a checksum, so that a mistyped key is noticed before it is tried.

use std::fmt;
use std::str::FromStr;

use zeroize::Zeroizing;

use super::{SlotError, random};

const SECRET_BYTES: usize = 20;
const SYMBOLS: usize = 36;
const GROUP: usize = 6;
const CHECK_SYMBOLS: usize = 4;
const ALPHABET: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Longest text that is looked at.
const MAX_TEXT_BYTES: usize = 256;

/// A recovery key. Wiped when it is dropped.
#[derive(Clone)]
pub struct RecoveryKey(Zeroizing<[u8; SECRET_BYTES]>);

/// A text is not a recovery key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadRecoveryKey {
    /// It has another number of symbols.
    #[error("a recovery key has 36 symbols, this one has {symbols}")]
    Length {
        /// How many it has.
        symbols: usize,
    },
    /// It has a character that no recovery key has.
    #[error("the character `{0}` is in no recovery key")]
    Character(char),
    /// The checksum fails.
    #[error("mistyped: the checksum does not match")]
    Mistyped,
}

impl fmt::Debug for RecoveryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RecoveryKey(secret)")
    }
}

impl RecoveryKey {
    /// A new key.
    ///
    /// # Errors
    /// [`SlotError::Random`].
    pub fn random() -> Result<RecoveryKey, SlotError> {
        let mut bytes = Zeroizing::new([0; SECRET_BYTES]);
        random(&mut *bytes)?;
        Ok(RecoveryKey(bytes))
    }

    /// The key with these bytes.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> RecoveryKey {
        RecoveryKey(Zeroizing::new(bytes))
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &*self.0
    }

    /// The text to print: six groups of six symbols.
    pub fn text(&self) -> Zeroizing<String> {
        let mut out = Zeroizing::new(String::with_capacity(SYMBOLS + SYMBOLS / GROUP));
        for (i, value) in self.values().iter().enumerate() {
            if i > 0 && i % GROUP == 0 {
                out.push('-');
            }
            let symbol = ALPHABET.get(usize::from(*value)).copied();
            out.push(symbol.map_or('?', char::from));
        }
        out
    }

    /// The values of the symbols: 32 of the secret, then 4 of the checksum.
    fn values(&self) -> Zeroizing<[u8; SYMBOLS]> {
        let mut values = Zeroizing::new([0; SYMBOLS]);
        let check = self.check().to_be_bytes();
        let secret = self.0.chunks_exact(5).flat_map(fives);
        let both = secret.chain(
            fives(&[0, 0, check[1], check[2], check[3]])
                .into_iter()
                .skip(4),
        );
        for (place, value) in values.iter_mut().zip(both) {
            *place = value;
        }
        values
    }

    /// The checksum: 20 bits.
    fn check(&self) -> u32 {
        let hash = blake3::derive_key("bulla recovery key checksum", &*self.0);
        let [a, b, c, ..] = hash;
        u32::from_be_bytes([0, a, b, c]) >> 4
    }
}

/// Five bytes as eight values of five bits, most significant first.
fn fives(bytes: &[u8]) -> [u8; 8] {
    let number = bytes
        .iter()
        .fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    std::array::from_fn(|i| (number >> (35 - 5 * i) & 31) as u8)
}

impl FromStr for RecoveryKey {
    type Err = BadRecoveryKey;

    /// Reads a key as people type it: lower case, with or without hyphens and spaces, `O` for zero, `I` or `L` for one.
    fn from_str(text: &str) -> Result<RecoveryKey, BadRecoveryKey> {
        let mut values = Zeroizing::new([0_u8; SYMBOLS]);
        let mut symbols = 0;
        for c in text.chars().take(MAX_TEXT_BYTES) {
            if c == '-' || c.is_whitespace() {
                continue;
            }
            let value = value(c).ok_or(BadRecoveryKey::Character(c))?;
            if let Some(place) = values.get_mut(symbols) {
                *place = value;
            }
            symbols += 1;
        }
        if symbols != SYMBOLS {
            return Err(BadRecoveryKey::Length { symbols });
        }
        let mut secret = Zeroizing::new([0; SECRET_BYTES]);
        let (groups, _) = values.as_chunks::<8>();
        for (bytes, eight) in secret.chunks_exact_mut(5).zip(groups) {
            let number = eight
                .iter()
                .fold(0_u64, |number, value| number << 5 | u64::from(*value));
            for (byte, shift) in bytes.iter_mut().zip([32, 24, 16, 8, 0]) {
                *byte = (number >> shift & 0xff) as u8;
            }
        }
        let key = RecoveryKey(secret);
        let right = key.values();
        let checks = (right.iter().zip(values.iter())).skip(SYMBOLS - CHECK_SYMBOLS);
        match checks.into_iter().all(|(a, b)| a == b) {
            true => Ok(key),
            false => Err(BadRecoveryKey::Mistyped),
        }
    }
}

fn value(c: char) -> Option<u8> {
    let c = match c.to_ascii_uppercase() {
        'O' => '0',
        'I' | 'L' => '1',
        other => other,
    };
    let byte = u8::try_from(c).ok()?;
    let at = ALPHABET.iter().position(|symbol| *symbol == byte)?;
    u8::try_from(at).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn printed_key_is_read_back_as_people_type_it() {
        let key = RecoveryKey::new(std::array::from_fn(|i| (i * 13) as u8));
        let text = key.text();
        assert_eq!(*text, "006HM9-SM8575-PT3NGA-7SSADP-RF8DVT-QQEZM1");
        for typed in [
            text.to_lowercase(),
            text.replace('-', ""),
            text.replace('-', " "),
            format!("  {}\n", text.replace('0', "o").replace('1', "l")),
        ] {
            let read: RecoveryKey = typed.parse().unwrap();
            assert_eq!(read.bytes(), key.bytes());
        }
        assert_eq!(format!("{key:?}"), "RecoveryKey(secret)");
    }

    #[test]
    fn mistyped_key_is_noticed() {
        let text = RecoveryKey::new([7; SECRET_BYTES]).text().replace('-', "");
        for at in 0..text.len() {
            let mut wrong = text.clone().into_bytes();
            wrong[at] = if wrong[at] == b'7' { b'8' } else { b'7' };
            let wrong = String::from_utf8(wrong).unwrap();
            assert_eq!(
                wrong.parse::<RecoveryKey>().unwrap_err(),
                BadRecoveryKey::Mistyped
            );
        }
        let short = text[1..].parse::<RecoveryKey>();
        assert_eq!(short.unwrap_err(), BadRecoveryKey::Length { symbols: 35 });
        let odd = text.replace(&text[..1], "U").parse::<RecoveryKey>();
        assert_eq!(odd.unwrap_err(), BadRecoveryKey::Character('U'));
    }

    proptest! {
        #[test]
        fn any_key_is_read_back(bytes: [u8; SECRET_BYTES]) {
            let text = RecoveryKey::new(bytes).text();
            let read: RecoveryKey = text.parse().unwrap();
            prop_assert_eq!(read.bytes(), &bytes[..]);
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,300}") {
            let _ = text.parse::<RecoveryKey>();
        }
    }
}
