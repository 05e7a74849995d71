//! Any bytes as a frame: refused, or unpacked to exactly the length that the header states.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trust::Frame;

fuzz_target!(|data: &[u8]| {
    if let Ok(frame) = Frame::parse(bytes::Bytes::copy_from_slice(data)) {
        let stated = frame.plaintext_len();
        if let Ok(plain) = frame.unpack() {
            assert_eq!(plain.len(), stated);
            assert!(stated <= 1 << 20);
        }
    }
});
