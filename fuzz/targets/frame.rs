//! Arbitrary bytes as a frame. They are refused, or unpacked to exactly the length that the header states.
#![no_main]

use bulla_fuzz::{plant, record};
use libfuzzer_sys::fuzz_target;
use trust::frame::Packer;
use trust::{Frame, Kind};

fuzz_target!(
    init: plant([
        record(1, 40).frame.as_bytes().to_vec(),
        Packer::new().pack(Kind::Map, &[7; 3000]).expect("a frame").as_bytes().to_vec(),
    ]),
    |data: &[u8]| {
        if let Ok(frame) = Frame::parse(bytes::Bytes::copy_from_slice(data)) {
            let stated = frame.plaintext_len();
            if let Ok(plain) = frame.unpack() {
                assert_eq!(plain.len(), stated);
                assert!(stated <= 1 << 20);
            }
        }
    }
);
