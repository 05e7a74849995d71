//! Arbitrary bytes as an inode and as the value of a directory entry. They are refused, or they are the
//! canonical encoding.
#![no_main]

use bulla_fuzz::{hasher, plant};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::array::ArrayRoot;
use trust::inode::{
    Content, Entry, Extension, FileContent, Inode, MAX_BLOCK_INLINE_BYTES, MAX_EXTENSIONS,
    MAX_INLINE_BYTES, MAX_INODE_BYTES, Owner, Time, Xattrs, check_name,
};
use trust::map::{MAX_ENTRY_BYTES, MapRoot};
use trust::{Handle, Reject};

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
        Content::Regular(FileContent::Inline(Bytes::from_static(&[7; 300]))),
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
            Time {
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
    let extension = |tag, value: &'static [u8]| Extension {
        tag,
        value: value.into(),
    };
    full.extensions = vec![extension(0x80, b"later"), extension(0xff, b"")];
    seeds.push(full.encode());
    seeds.push(Entry::Block(Handle::from_bytes([2; 32])).encode());
    seeds.push([&[0xf0, 1][..], &[5; 32], &[0; 12]].concat());
    seeds
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Ok(inode) = Inode::decode(data) {
        assert_eq!(inode.encode(), data);
        assert_eq!(inode.size, inode.content.size());
        assert!(inode.links > 0 && inode.mode <= 0o7777 && inode.mtime.nanos < 1_000_000_000);
        assert!(data.len() <= MAX_INODE_BYTES && inode.extensions.len() <= MAX_EXTENSIONS);
        let (value, block) = Entry::place(b"name", &inode, &hasher());
        assert!(value.len() <= MAX_ENTRY_BYTES);
        assert_eq!(block.is_none(), value == data);
        match Entry::decode(&value) {
            Ok(Entry::Inode(again)) => assert_eq!(again, inode),
            Ok(Entry::Block(_)) => assert!(block.is_some()),
            Err(why) => panic!("a placed entry is refused: {why}"),
        }
        if let Content::Regular(FileContent::Inline(bytes)) = &inode.content {
            assert!((1..=MAX_BLOCK_INLINE_BYTES).contains(&bytes.len()));
            assert_eq!(Entry::decode(data).is_ok(), bytes.len() <= MAX_INLINE_BYTES);
        }
    }
    if let Ok(entry) = Entry::decode(data) {
        assert_eq!(entry.encode(), data);
        if let Entry::Inode(inode) = entry {
            assert_eq!(Inode::decode(data), Ok(inode));
        }
    }
    if (0xf0..=0xfe).contains(&data.first().copied().unwrap_or_default()) {
        let refused = Entry::decode(data);
        assert!(matches!(refused, Err(Reject::Unsupported { .. })));
    }
    if check_name(data).is_ok() {
        assert!((1..=255).contains(&data.len()));
        assert!(!data.contains(&0) && !data.contains(&b'/') && data != b"." && data != b"..");
    }
});
