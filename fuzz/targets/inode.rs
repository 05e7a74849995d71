//! Any bytes as an inode, an entry, a list of extended attributes: refused, or canonical.
#![no_main]

use libfuzzer_sys::fuzz_target;
use trust::inode::{Entry, Inode, decode_xattrs, encode_xattrs};

fuzz_target!(|data: &[u8]| {
    if let Ok(inode) = Inode::decode(data) {
        assert_eq!(inode.encode(), data);
    }
    if let Ok(entry) = Entry::decode(data) {
        assert_eq!(entry.encode(), data);
    }
    if let Ok(list) = decode_xattrs(data) {
        assert_eq!(encode_xattrs(&list), data);
    }
});
