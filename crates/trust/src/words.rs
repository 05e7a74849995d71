//! Words that people compare or type: the English list of BIP-39, 2048 words of which no two have the same first four
//! letters (`words.txt`, frozen by a test). Devices show them when they join a shared volume; people compare the words of
//! a volume id by voice.

use std::fmt;
use std::str::FromStr;

use crate::volume_id::VolumeId;

const LIST: &str = include_str!("words.txt");
/// Bits that a word stands for.
const WORD_BITS: u32 = 11;
/// How many words a person compares.
pub const WORDS: usize = 6;

/// Six words: 66 bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Words([u16; WORDS]);

/// Why a text is not six words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadWords {
    /// There are more or fewer.
    #[error("expected six words")]
    Number,
    /// A word that is not in the list.
    #[error("`{0}` is not one of the words that are used (compare the spelling)")]
    Unknown(String),
}

/// Steps from a volume id to its words. They cost a person a tenth of a second, and an attacker as much for every
/// volume id that he tries.
pub const VOLUME_STEPS: u32 = 1 << 20;
const VOLUME_CONTEXT: &str = "bulla 0 words of a volume id";

impl Words {
    /// The words of a volume id, published or shared, for people who compare it by voice (formats/statements.md, *Words
    /// of a volume id*). It takes about a tenth of a second.
    ///
    /// A volume with the same words as a given one costs 2^66 tries of [`VOLUME_STEPS`] hashes: 2^86 hashes. A pair of
    /// volumes with the same words costs 2^33 tries, but only their publisher has a use for it, who can sign two
    /// versions of one volume anyway.
    pub fn of_volume(volume: &VolumeId) -> Words {
        let key = blake3::derive_key(VOLUME_CONTEXT, volume.as_bytes());
        let mut hash = key;
        for _ in 0..VOLUME_STEPS {
            hash = *blake3::keyed_hash(&key, &hash).as_bytes();
        }
        Words::of(&hash)
    }

    /// The words of the first 66 bits.
    pub fn of(hash: &[u8; 32]) -> Words {
        let [a, b, c, d, e, f, g, h, i, ..] = *hash;
        let bits = [0, 0, 0, 0, 0, 0, 0, a, b, c, d, e, f, g, h, i];
        let mut bits = u128::from_be_bytes(bits) >> (72 - WORDS as u32 * WORD_BITS);
        let mut words = [0; WORDS];
        for word in words.iter_mut().rev() {
            *word = (bits & ((1 << WORD_BITS) - 1)) as u16;
            bits >>= WORD_BITS;
        }
        Words(words)
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, word) in self.0.iter().enumerate() {
            let word = LIST.lines().nth(usize::from(*word)).unwrap_or_default();
            let space = if at == 0 { "" } else { " " };
            write!(f, "{space}{word}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Words {
    type Err = BadWords;

    /// Reads six words, in any case and with any white space or hyphens between them.
    fn from_str(text: &str) -> Result<Words, BadWords> {
        let text = text.to_ascii_lowercase();
        let between = |c: char| c.is_whitespace() || c == '-';
        let mut words = [0; WORDS];
        let mut found = text.split(between).filter(|word| !word.is_empty());
        for place in &mut words {
            let word = found.next().ok_or(BadWords::Number)?;
            let at = LIST.lines().position(|known| known == word);
            *place = at.ok_or_else(|| BadWords::Unknown(word.to_owned()))? as u16;
        }
        match found.next() {
            None => Ok(Words(words)),
            Some(_) => Err(BadWords::Number),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sha2::{Digest, Sha256};

    use super::*;

    /// The hash of `english.txt` of BIP-39.
    #[test]
    fn list_is_that_of_bip_39() {
        let hash: [u8; 32] = Sha256::digest(LIST).into();
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let published = "2f5eed53a4727b4bf8880d8f3f199efc90e58503646d9ff8eff3a2ed3b24dbda";
        assert_eq!(hex, published);
        assert_eq!(LIST.lines().count(), 1 << WORD_BITS);
    }

    #[test]
    fn words_are_the_first_bits() {
        let mut hash = [0; 32];
        assert_eq!(Words::of(&hash).0, [0; WORDS]);
        hash[0] = 0x80;
        hash[8] = 0x40;
        assert_eq!(Words::of(&hash).0, [0x400, 0, 0, 0, 0, 1]);
        hash[8] = 0x7f;
        hash[9] = 0xff;
        assert_eq!(Words::of(&hash).0, [0x400, 0, 0, 0, 0, 1]);
        assert_eq!(
            Words::of(&[0xff; 32]).to_string(),
            "zoo zoo zoo zoo zoo zoo"
        );
    }

    /// Computed by another program; see formats/statements.md.
    #[test]
    fn words_of_a_volume_id_are_those_of_the_document() {
        let words = |byte| Words::of_volume(&VolumeId::from_bytes([byte; 32])).to_string();
        let document = include_str!("../../../docs/formats/statements.md");
        for (byte, id) in [(0, "00"), (1, "01")] {
            let row = format!("| {id} × 32 | {} |", words(byte));
            assert!(document.contains(&row), "{row}");
        }
    }

    #[test]
    fn text_of_another_number_of_words_or_of_unknown_ones_is_refused() {
        let words: Words = "Zoo abandon\tABILITY-able  about above".parse().unwrap();
        assert_eq!(words.0, [2047, 0, 1, 2, 3, 4]);
        for few in [
            "",
            "zoo",
            "zoo zoo zoo zoo zoo",
            "zoo zoo zoo zoo zoo zoo zoo",
        ] {
            assert_eq!(few.parse::<Words>(), Err(BadWords::Number), "{few}");
        }
        let unknown = "zoo zoo zoo zoo zoo bulla".parse::<Words>();
        assert_eq!(unknown, Err(BadWords::Unknown("bulla".to_owned())));
    }

    proptest! {
        #[test]
        fn words_come_back(hash: [u8; 32]) {
            let words = Words::of(&hash);
            prop_assert_eq!(words.to_string().parse(), Ok(words));
        }
    }
}
