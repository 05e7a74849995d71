//! Arbitrary bytes as an inode and as the value of a directory entry. They are refused, or they are the
//! canonical encoding.
#![no_main]

use bulla_fuzz::{hasher, plant};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::Handle;
use trust::array::ArrayRoot;
use trust::inode::{Content, Entry, FileContent, Inode, Mtime, Owner, Xattrs, check_name};
use trust::map::{MAX_ENTRY_BYTES, MapRoot};

fn seeds() -> Vec<Vec<u8>> {
    let array = ArrayRoot {
        len: 5000,
        height: 1,
        top: [4; 32],
    };
    let map = MapRoot {
        handle: Handle::from_bytes([6; 32]),
        height: 2,
        entries: 900,
        salt: [1; 16],
    };
    let contents = [
        Content::Regular(FileContent::Empty),
        Content::Regular(FileContent::Inline(Bytes::from_static(b"inline"))),
        Content::Regular(FileContent::Array(array)),
        Content::Directory {
            map: None,
            opaque: true,
        },
        Content::Directory {
            map: Some(map),
            opaque: false,
        },
        Content::Symlink(Bytes::from_static(b"../target")),
        Content::CharDevice {
            major: 300,
            minor: 5,
        },
    ];
    let plain = |content| {
        Inode::new(
            0o4755,
            Mtime {
                seconds: -5,
                nanos: 7,
            },
            content,
        )
    };
    let mut seeds: Vec<Vec<u8>> = contents.into_iter().map(|c| plain(c).encode()).collect();
    let mut full = plain(Content::Regular(FileContent::Array(array)));
    full.links = 3;
    full.link_group = Some([8; 16]);
    full.owner = Some(Owner {
        uid: 1000,
        gid: 100,
    });
    full.xattrs = Xattrs::Inline(vec![("user.a".into(), "b".into())]);
    seeds.push(full.encode());
    full.xattrs = Xattrs::Stored(array);
    seeds.push(full.encode());
    seeds.push(Entry::Block(Handle::from_bytes([2; 32])).encode());
    seeds
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Ok(inode) = Inode::decode(data) {
        assert_eq!(inode.encode(), data);
        assert_eq!(inode.size, inode.content.size());
        assert!(inode.links > 0 && inode.mode <= 0o7777 && inode.mtime.nanos < 1_000_000_000);
        let (value, block) = Entry::place(b"name", &inode, &hasher());
        assert!(value.len() <= MAX_ENTRY_BYTES);
        assert_eq!(block.is_none(), value == data);
    }
    if let Ok(entry) = Entry::decode(data) {
        assert_eq!(entry.encode(), data);
    }
    if check_name(data).is_ok() {
        assert!((1..=255).contains(&data.len()));
        assert!(!data.contains(&0) && !data.contains(&b'/') && data != b"." && data != b"..");
    }
});
