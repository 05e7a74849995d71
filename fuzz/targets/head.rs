//! Arbitrary bytes as a replica's head, judged by a reader that has seen nothing. They are refused, or they
//! have exactly the record that the publisher signed.
#![no_main]

use std::sync::OnceLock;

use bulla_fuzz::{NOW, honest_head, plant};
use libfuzzer_sys::fuzz_target;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::Terms;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

static HONEST: OnceLock<(VolumeId, Head)> = OnceLock::new();

fuzz_target!(
    init: {
        let (_, head, _) = honest_head();
        let mut bare = head.clone();
        bare.timestamp = None;
        bare.checkpoint = None;
        plant([&head, &bare].map(|h| h.encode().expect("a head")));
    },
    |data: &[u8]| {
        let Ok(head) = Head::decode(data) else {
            return;
        };
        assert_eq!(head.encode().as_deref(), Ok(data));
        let (volume, honest) = HONEST.get_or_init(|| {
            let (volume, head, _) = honest_head();
            (volume, head)
        });
        let mut signatures = Signatures::default();
        let floor = Floor::new(*volume);
        if let Ok(offer) = floor.judge(&head, &Terms::strict(NOW), &mut signatures) {
            // Only the publisher has the keys.
            assert_eq!(offer.record_hash, honest.record.hash());
            assert!(head.next_log(*volume).is_ok());
            let floor = floor.adopt(&offer).expect("what was just judged");
            assert_eq!(Floor::decode(&floor.encode()), Ok(floor));
        }
        if let Some(genesis) = head.policies.first() {
            let own = VolumeId::from_bytes(genesis.hash());
            let _ = head.next_log(own);
            let _ = Floor::new(own).judge_all(&[head, honest.clone()], &Terms::strict(NOW), &mut signatures);
        }
    }
);
