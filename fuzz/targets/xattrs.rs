//! Arbitrary bytes as a list of extended attributes. They are refused, or they are the canonical encoding of
//! a sorted list.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use trust::inode::{decode_xattrs, encode_xattrs};

fuzz_target!(
    init: plant([
        encode_xattrs(&[("user.a".into(), "1".into())]),
        encode_xattrs(&[("security.b".into(), "".into()), ("user.c".into(), vec![9; 300].into())]),
    ]),
    |data: &[u8]| {
        if let Ok(list) = decode_xattrs(data) {
            assert_eq!(encode_xattrs(&list), data);
            assert!(list.is_sorted_by(|a, b| a.0 < b.0));
            assert!(list.iter().all(|(name, _)| !name.starts_with(b"user.bulla.")));
        }
    }
);
