//! Any bytes as a head: refused, or encoded again to the same bytes; judging it never panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::Terms;
use trust::signatures::Signatures;
use trust::statement::VolumeId;

fuzz_target!(|data: &[u8]| {
    if let Ok(head) = Head::decode(data) {
        assert_eq!(head.encode().ok().as_deref(), Some(data));
        let floor = Floor::new(VolumeId::from_bytes([7; 32]));
        let mut signatures = Signatures::default();
        assert!(floor.judge(&head, &Terms::strict(1 << 31), &mut signatures).is_err());
    }
});
