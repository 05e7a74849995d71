//! Arbitrary bytes as a witnessed checkpoint, and as what a witness is asked. They are never accepted for another log than the
//! one they name, and have one spelling.
#![no_main]

use std::sync::OnceLock;

use bulla_fuzz::{honest_head, plant, witnesses};
use libfuzzer_sys::fuzz_target;
use trust::checkpoint;
use trust::head::Head;
use trust::history::LogPoint;
use trust::statement::VolumeId;
use trust::witness::{Note, Submission};

static HONEST: OnceLock<(VolumeId, Head, LogPoint)> = OnceLock::new();

fuzz_target!(
    init: {
        let (_, head, _) = honest_head();
        let note = head.checkpoint.map(|note| note.to_vec());
        let asked = note.clone().map(|note| [b"old 0\n\n".as_slice(), &note].concat());
        plant(note.into_iter().chain(asked));
    },
    |data: &[u8]| {
        let (volume, _, log) = HONEST.get_or_init(honest_head);
        let good = checkpoint::verify(data, *volume, log, &witnesses()).is_ok();
        if good {
            assert!(data.starts_with(checkpoint::text(*volume, log).as_bytes()));
            assert!(data.len() <= checkpoint::MAX_CHECKPOINT_BYTES);
        }
        if let Ok(note) = Note::decode(data) {
            assert_eq!(note.encode().as_bytes(), data);
        }
        if let Ok(asked) = Submission::decode(data) {
            assert_eq!(asked.encode().as_bytes(), data);
            // Nobody has named the volume.
            assert!(asked.check(&[]).is_err());
        }
        let other = LogPoint { size: log.size + 1, ..*log };
        assert!(checkpoint::verify(data, *volume, &other, &witnesses()).is_err());
    }
);
