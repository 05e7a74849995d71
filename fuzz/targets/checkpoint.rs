//! Arbitrary bytes as a witnessed checkpoint. They are never accepted for another log than the one they name.
#![no_main]

use std::sync::OnceLock;

use bulla_fuzz::{honest_head, plant, witnesses};
use libfuzzer_sys::fuzz_target;
use trust::checkpoint;
use trust::head::Head;
use trust::history::LogPoint;
use trust::statement::VolumeId;

static HONEST: OnceLock<(VolumeId, Head, LogPoint)> = OnceLock::new();

fuzz_target!(
    init: {
        let (_, head, _) = honest_head();
        plant(head.checkpoint.map(|note| note.to_vec()));
    },
    |data: &[u8]| {
        let (volume, _, log) = HONEST.get_or_init(honest_head);
        let good = checkpoint::verify(data, *volume, log, &witnesses()).is_ok();
        if good {
            assert!(data.starts_with(checkpoint::text(*volume, log).as_bytes()));
            assert!(data.len() <= checkpoint::MAX_CHECKPOINT_BYTES);
        }
        let other = LogPoint { size: log.size + 1, ..*log };
        assert!(checkpoint::verify(data, *volume, &other, &witnesses()).is_err());
    }
);
