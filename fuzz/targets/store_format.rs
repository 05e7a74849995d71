//! Arbitrary bytes as a repository's format file. A file that this build may write to has the text that this
//! build makes, except for features that may be ignored.
#![no_main]

use bulla_fuzz::{disk, plant};
use libfuzzer_sys::fuzz_target;
use store::format::{self, TEXT};

fuzz_target!(
    init: plant([
        TEXT.as_bytes().to_vec(),
        TEXT.replace("readonly-compatible", "readonly-compatible x").into_bytes(),
    ]),
    |data: &[u8]| {
        if let Ok(allowed) = format::read(&*disk(&[("bulla", data)])) {
            assert!(data.starts_with(b"bulla repository\nformat 0\nincompatible\n"));
            let known = TEXT.strip_suffix('\n').unwrap_or(TEXT).as_bytes();
            assert_eq!(allowed.write, data.starts_with(known));
        }
    }
);
