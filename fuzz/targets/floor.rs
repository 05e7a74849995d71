//! Arbitrary bytes as a stored floor. They are refused, or they are the canonical encoding. A reader with
//! that floor judges a valid head and never accepts less than the floor says.
#![no_main]

use std::sync::OnceLock;

use bulla_fuzz::{NOW, honest_head, plant, with_checksum};
use libfuzzer_sys::fuzz_target;
use trust::floor::Floor;
use trust::head::Head;
use trust::history::LogPoint;
use trust::judge::Terms;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

static HONEST: OnceLock<(VolumeId, Head, LogPoint)> = OnceLock::new();

fuzz_target!(
    init: {
        let (volume, head, _) = honest_head();
        let fresh = Floor::new(volume);
        let offer = fresh.judge(&head, &Terms::strict(NOW), &mut Signatures::default());
        let adopted = fresh.adopt(&offer.expect("an honest head")).expect("an offer");
        plant([fresh.encode(), adopted.encode()]);
    },
    |data: &[u8]| {
        let _ = Floor::decode(data);
        let data = with_checksum(data);
        let Ok(floor) = Floor::decode(&data) else {
            return;
        };
        assert_eq!(floor.encode(), data);
        let (_, head, _) = HONEST.get_or_init(honest_head);
        let mut signatures = Signatures::default();
        if let Ok(offer) = floor.judge(head, &Terms::strict(NOW), &mut signatures) {
            if let Some(adopted) = floor.adopted() {
                assert!(offer.record.version >= adopted.version);
            }
            if let Ok(after) = floor.adopt(&offer) {
                assert!(after.newest_start() >= floor.newest_start());
                assert_eq!(Floor::decode(&after.encode()), Ok(after));
            }
        }
    }
);
