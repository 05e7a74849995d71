//! Tests of notes in both forms.

use proptest::prelude::*;

use super::super::samples::{VOLUME, key, refuses_cuts, refuses_flips};
use super::*;
use trust::published::checkpoint;

fn note(size: u64) -> Note {
    Note {
        log: LogPoint {
            epoch: 1,
            size,
            root: [9; 32],
        },
        time_ms: 1_800_000_000_123,
    }
}

fn encoded(signed: &SignedNote) -> Vec<u8> {
    let mut e = Encoder::new();
    signed.encode(&mut e);
    e.finish()
}

fn decoded(bytes: &[u8]) -> Result<SignedNote, Reject> {
    let mut d = Decoder::new(bytes, WHAT);
    let note = SignedNote::decode(&mut d)?;
    d.finish()?;
    Ok(note)
}

#[test]
fn note_with_any_bit_or_length_changed_is_refused() {
    let orderer = key(1).public();
    let bytes = encoded(&note(300).sign(VOLUME, &key(1)));
    assert_eq!(bytes.len(), NOTE_BYTES);
    refuses_cuts(&bytes, |bytes| decoded(bytes).map(drop));
    refuses_flips(&bytes, |bytes| {
        decoded(bytes)?.verify(VOLUME, &orderer).map(drop)
    });
}

#[test]
fn note_holds_for_one_volume_and_one_key() {
    let signed = note(300).sign(VOLUME, &key(1));
    let verified = signed.verify(VOLUME, &key(1).public()).unwrap();
    assert_eq!(verified.note(), &note(300));
    assert_eq!(verified.log(), &note(300).log);
    assert!(signed.verify(VOLUME, &key(2).public()).is_err());
    let elsewhere = VolumeId::from_bytes([8; 32]);
    assert!(signed.verify(elsewhere, &key(1).public()).is_err());
}

#[test]
fn text_of_a_note_is_a_checkpoint_of_that_log() {
    let orderer = key(1).public();
    let signed = note(300).sign(VOLUME, &key(1));
    let text = signed.to_text(VOLUME, &orderer);
    let checkpoint = checkpoint::text(VOLUME, &note(300).log);
    assert!(text.starts_with(&checkpoint), "{text}");
    assert!(
        text.contains("\ntime 1800000000123\n\n\u{2014} bulla/vol1"),
        "{text}"
    );
    let read = SignedNote::from_text(&text, VOLUME, &orderer).unwrap();
    assert_eq!(read.signed(), &signed);
}

#[test]
fn text_with_any_letter_changed_is_refused() {
    let orderer = key(1).public();
    let text = note(300).sign(VOLUME, &key(1)).to_text(VOLUME, &orderer);
    let read = |text: &str| SignedNote::from_text(text, VOLUME, &orderer).map(drop);
    assert_eq!(read(&text), Ok(()));
    for (at, letter) in text.char_indices() {
        for other in ['0', 'A', '\n', '\r', ' '] {
            let rest = &text[at + letter.len_utf8()..];
            let changed = format!("{}{other}{rest}", &text[..at]);
            assert!(other == letter || read(&changed).is_err(), "{changed}");
            let longer = format!("{}{other}{}", &text[..at], &text[at..]);
            assert!(longer == text || read(&longer).is_err(), "{longer}");
        }
        assert!(read(&text[..at]).is_err());
    }
    assert!(read(&text.replace("300", "0300")).is_err());
    assert!(SignedNote::from_text(&text, VOLUME, &key(2).public()).is_err());
    let long = format!("{text}{}", " ".repeat(MAX_NOTE_TEXT_BYTES));
    assert!(read(&long).is_err());
}

proptest! {
    #[test]
    fn notes_have_one_encoding_and_one_text(epoch: u64, size: u64, root: [u8; 32], time_ms: u64) {
        let made = Note { log: LogPoint { epoch, size, root }, time_ms };
        let signed = made.sign(VOLUME, &key(1));
        prop_assert_eq!(decoded(&encoded(&signed)).unwrap(), signed);
        let orderer = key(1).public();
        let text = signed.to_text(VOLUME, &orderer);
        prop_assert!(text.len() <= MAX_NOTE_TEXT_BYTES);
        let read = SignedNote::from_text(&text, VOLUME, &orderer).unwrap();
        prop_assert_eq!(read.signed(), &signed);
    }

    #[test]
    fn arbitrary_text_is_refused_or_canonical(text in "\\PC{0,40}(/0\n[0-9]{1,3}\n[A-Za-z0-9+/=]{44}\ntime [0-9]{1,4}\n)?\n?\\PC{0,60}") {
        prop_assert!(SignedNote::from_text(&text, VOLUME, &key(1).public()).is_err());
    }
}
