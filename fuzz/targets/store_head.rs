//! Arbitrary bytes as a repository's head file, with a right checksum so that the decoder is reached. They
//! are refused, or they are the canonical encoding.
#![no_main]

use bulla_fuzz::{plant, repository_files};
use libfuzzer_sys::fuzz_target;
use store::head::{Head, MAX_HEAD_BYTES};

fuzz_target!(
    init: {
        let (_, head) = repository_files(".idx");
        plant([head[..head.len() - 32].to_vec(), Head::default().encode()]);
    },
    |data: &[u8]| {
        assert!(Head::decode(data).is_err() || data.len() <= MAX_HEAD_BYTES);
        let mut bytes = data.to_vec();
        bytes.extend_from_slice(blake3::hash(data).as_bytes());
        if let Ok(head) = Head::decode(&bytes) {
            assert_eq!(head.encode(), bytes);
        }
    }
);
