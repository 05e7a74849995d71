//! Inodes: each has one encoding, and every rule is enforced.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::handle::{Handle, Hasher, Kind};
use crate::tree::array::ArrayRoot;
use crate::tree::map::{MAX_ENTRY_BYTES, MapRoot};

mod document;
mod unhex;

fn bytes(range: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), range).prop_map(Bytes::from)
}

fn text(range: std::ops::Range<usize>) -> impl Strategy<Value = Bytes> {
    prop::collection::vec(1..=255u8, range).prop_map(Bytes::from)
}

fn array(range: std::ops::RangeInclusive<u64>) -> impl Strategy<Value = ArrayRoot> {
    let height = prop_oneof![1..=16u8, Just(crate::tree::array::HOLE)];
    (range, height, any::<[u8; 32]>()).prop_map(|(len, height, top)| ArrayRoot {
        len,
        height,
        top: if height == crate::tree::array::HOLE {
            [0; 32]
        } else {
            top
        },
    })
}

fn map() -> impl Strategy<Value = MapRoot> {
    let salt = prop_oneof![Just([0; 16]), any::<[u8; 16]>()];
    (any::<[u8; 32]>(), 1..=16u8, 1..=u64::MAX, salt).prop_map(|(handle, height, entries, salt)| {
        MapRoot {
            handle: Handle::from_bytes(handle),
            height,
            entries,
            salt,
        }
    })
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        Just(Content::Regular(FileContent::Empty)),
        bytes(1..257).prop_map(|b| Content::Regular(FileContent::Inline(b))),
        bytes(257..4097).prop_map(|b| Content::Regular(FileContent::Inline(b))),
        array(257..=i64::MAX as u64).prop_map(|a| Content::Regular(FileContent::Array(a))),
        (prop::option::of(map()), any::<bool>())
            .prop_map(|(map, opaque)| Content::Directory { map, opaque }),
        text(1..4096).prop_map(Content::Symlink),
        Just(Content::Fifo),
        Just(Content::Socket),
        (any::<u32>(), any::<u32>())
            .prop_map(|(major, minor)| Content::CharDevice { major, minor }),
        (any::<u32>(), any::<u32>())
            .prop_map(|(major, minor)| Content::BlockDevice { major, minor }),
    ]
}

fn xattrs() -> impl Strategy<Value = Xattrs> {
    let list = prop::collection::btree_map(text(1..30), bytes(0..40), 1..12);
    prop_oneof![
        Just(Xattrs::None),
        list.prop_map(|list| Xattrs::Inline(list.into_iter().collect())),
        array(1025..=1 << 20).prop_map(Xattrs::Stored),
    ]
}

/// At most 16, at most 2,048 bytes with tags and lengths.
fn extensions() -> impl Strategy<Value = Vec<Extension>> {
    let few_long = prop::collection::btree_map(FIRST_EXTENSION.., bytes(0..509), 0..5);
    let many_short = prop::collection::btree_map(FIRST_EXTENSION.., bytes(0..126), 0..17);
    prop_oneof![few_long, many_short].prop_map(|fields| {
        let extension = |(tag, value)| Extension { tag, value };
        fields.into_iter().map(extension).collect()
    })
}

/// Whether an entry can hold it.
fn fits_entry(inode: &Inode) -> bool {
    !matches!(&inode.content, Content::Regular(FileContent::Inline(b)) if b.len() > MAX_INLINE_BYTES)
}

fn times() -> impl Strategy<Value = Time> {
    let parts = (any::<i64>(), 0..1_000_000_000u32);
    parts.prop_map(|(seconds, nanos)| Time { seconds, nanos })
}

fn inodes() -> impl Strategy<Value = Inode> {
    let owner = prop::option::of((any::<u32>(), any::<u32>()));
    let links = (1..=u32::MAX, prop::option::of(any::<[u8; 16]>()));
    let optional = (owner, xattrs(), prop::option::of(times()), extensions());
    (0..=0o7777u16, times(), content(), links, optional).prop_map(
        |(mode, mtime, content, (links, group), (owner, xattrs, ctime, extensions))| {
            let group = group.filter(|_| links > 1 && content.kind() != FileKind::Directory);
            Inode {
                links,
                link_group: group,
                owner: owner.map(|(uid, gid)| Owner { uid, gid }),
                xattrs,
                ctime,
                extensions,
                ..Inode::new(mode, mtime, content)
            }
        },
    )
}

proptest! {
    #[test]
    fn every_inode_survives_its_encoding(inode in inodes()) {
        let bytes = inode.encode();
        prop_assert!(bytes.len() <= MAX_INODE_BYTES);
        prop_assert_eq!(Inode::decode(&bytes), Ok(inode.clone()));
        if fits_entry(&inode) {
            prop_assert_eq!(Entry::decode(&bytes), Ok(Entry::Inode(inode)));
        } else {
            let refused = matches!(Entry::decode(&bytes), Err(Reject::Malformed { .. }));
            prop_assert!(refused);
        }
    }

    #[test]
    fn arbitrary_inode_bytes_are_refused_or_canonical(
        inode in inodes(), at in any::<prop::sample::Index>(), mask in 1..=255u8,
        noise in prop::collection::vec(any::<u8>(), 0..80), head in any::<bool>(),
    ) {
        let mut noise = noise;
        if head && noise.len() > 4 {
            noise[0] = 0;
            noise[1] &= 0x37;
            noise[3] &= 0x0f;
        }
        let mut damaged = inode.encode();
        let i = at.index(damaged.len());
        damaged[i] ^= mask;
        let mut cut = inode.encode();
        cut.truncate(i);
        for bytes in [noise, damaged, cut] {
            if let Ok(entry) = Entry::decode(&bytes) {
                prop_assert_eq!(&entry.encode(), &bytes);
            }
            if let Ok(inode) = Inode::decode(&bytes) {
                prop_assert_eq!(&inode.encode(), &bytes);
            }
            if let Ok(list) = decode_xattrs(&bytes) {
                prop_assert_eq!(&encode_xattrs(&list), &bytes);
            }
        }
    }

    #[test]
    fn directory_entry_never_exceeds_its_limit(inode in inodes(), name in text(1..256)) {
        let hasher = Hasher::new(&[7; 32]);
        let (value, block) = Entry::place(&name, &inode, &hasher);
        prop_assert!(name.len() + value.len() + 4 <= MAX_ENTRY_BYTES);
        match (Entry::decode(&value).unwrap(), block) {
            (Entry::Inode(again), None) => prop_assert_eq!(again, inode),
            (Entry::Block(named), Some((handle, bytes))) => {
                prop_assert_eq!(named, handle);
                let block = hasher.check(&handle, bytes).unwrap();
                prop_assert_eq!(Inode::from_block(&block), Ok(inode));
            }
            other => prop_assert!(false, "{:?}", other),
        }
    }
}

fn file(content: FileContent) -> Inode {
    let mtime = Time {
        seconds: 1_700_000_000,
        nanos: 123_456_789,
    };
    Inode::new(0o644, mtime, Content::Regular(content))
}

#[test]
fn inode_encoding_is_compact() {
    let inode = file(FileContent::Array(ArrayRoot {
        len: 1_000_000,
        height: 1,
        top: [3; 32],
    }));
    assert_eq!(inode.encode().len(), 49);
    let owned = Inode {
        owner: Some(Owner {
            uid: 1000,
            gid: 1000,
        }),
        ..inode
    };
    assert_eq!(owned.encode().len(), 54);
}

#[test]
fn each_rule_of_an_inode_is_enforced() {
    let good = file(FileContent::Empty);
    let inline = |len| file(FileContent::Inline(Bytes::from(vec![1; len])));
    let array = |len| {
        file(FileContent::Array(ArrayRoot {
            len,
            height: 1,
            top: [0; 32],
        }))
    };
    let link =
        |target: &'static [u8]| Inode::new(0o777, Time::default(), Content::Symlink(target.into()));
    let pair = |name: &'static [u8]| (Bytes::from_static(name), Bytes::new());
    let with = |list| Inode {
        xattrs: Xattrs::Inline(list),
        ..good.clone()
    };
    let big = vec![(Bytes::from_static(b"user.big"), Bytes::from(vec![0; 1020]))];
    let stored = |len| Inode {
        xattrs: Xattrs::Stored(ArrayRoot {
            len,
            height: 1,
            top: [0; 32],
        }),
        ..good.clone()
    };
    let directory = Content::Directory {
        map: None,
        opaque: false,
    };
    let bad = [
        Inode {
            mode: 0o10000,
            ..good.clone()
        },
        Inode {
            links: 0,
            ..good.clone()
        },
        Inode {
            link_group: Some([1; 16]),
            ..good.clone()
        },
        Inode {
            link_group: Some([1; 16]),
            links: 2,
            ..Inode::new(0o755, Time::default(), directory)
        },
        Inode::new(
            0,
            Time {
                seconds: 0,
                nanos: 1_000_000_000,
            },
            Content::Fifo,
        ),
        inline(0),
        inline(4097),
        array(256),
        array(0),
        link(b""),
        link(b"a\0b"),
        link(&[b'a'; 4096]),
        with(vec![]),
        with(vec![pair(b"")]),
        with(vec![pair(b"user.b"), pair(b"user.a")]),
        with(vec![pair(b"user.a"), pair(b"user.a")]),
        with(vec![pair(b"user.\0")]),
        with(vec![pair(b"user.bulla.version")]),
        with(vec![pair(&[b'a'; 256])]),
        with(big),
        stored(1024),
        stored((1 << 20) + 1),
    ];
    for inode in bad {
        let result = Inode::decode(&inode.encode());
        assert!(
            matches!(result, Err(Reject::Malformed { .. })),
            "{inode:?}: {result:?}"
        );
    }
    for inode in [
        inline(1),
        inline(256),
        inline(4096),
        array(257),
        link(&[b'a'; 4095]),
        stored(1025),
    ] {
        assert_eq!(Inode::decode(&inode.encode()), Ok(inode));
    }
}

#[test]
fn newer_format_is_reported_as_unsupported() {
    let good = file(FileContent::Empty).encode();
    let unsupported =
        |bytes: &[u8]| matches!(Entry::decode(bytes), Err(Reject::Unsupported { .. }));
    let mut format = good.clone();
    format[0] = 1;
    assert!(unsupported(&format));
    let mut kind = good.clone();
    kind[1] = 0x08;
    assert!(unsupported(&kind));
    for tag in 7..FIRST_EXTENSION {
        let mut later = good.clone();
        later.push(tag);
        assert!(unsupported(&later), "{tag}");
    }
    for form in 0xf0..=0xfe {
        assert!(unsupported(&[form]), "{form}");
        assert!(unsupported(&[form; 4000]), "{form}");
    }
    // A later format may have longer inodes.
    let later = Inode::decode(&[1; MAX_INODE_BYTES + 1]);
    assert!(matches!(later, Err(Reject::Unsupported { .. })));
    let mut order = good;
    order.extend_from_slice(&[3, 0, 0, 1, 2]);
    assert!(matches!(
        Inode::decode(&order),
        Err(Reject::Malformed { .. })
    ));
}

#[test]
fn unknown_extension_is_skipped_and_kept() {
    let plain = file(FileContent::Empty);
    let rich = Inode {
        owner: Some(Owner { uid: 5, gid: 6 }),
        ..plain.clone()
    };
    for inode in [plain, rich] {
        let mut bytes = inode.encode();
        bytes.extend_from_slice(&[0x80, 2, 7, 8, 0xfe, 0]);
        let read = Inode::decode(&bytes).unwrap();
        assert_eq!(read.encode(), bytes);
        assert_ne!(read, inode, "a difference that nobody sees");
        let known = Inode {
            extensions: Vec::new(),
            ..read
        };
        assert_eq!(known, inode);
    }
}

#[test]
fn extensions_are_bounded() {
    let with = |extensions: Vec<(u8, usize)>| {
        let extension = |(tag, len)| Extension {
            tag,
            value: vec![9; len].into(),
        };
        let inode = Inode {
            extensions: extensions.into_iter().map(extension).collect(),
            ..file(FileContent::Empty)
        };
        Inode::decode(&inode.encode()).is_ok()
    };
    let count = |n: u8| (0..n).map(|i| (FIRST_EXTENSION + i, 0)).collect();
    assert!(with(count(MAX_EXTENSIONS as u8)));
    assert!(!with(count(MAX_EXTENSIONS as u8 + 1)));
    // A tag and a length of two bytes.
    assert!(with(vec![(0x80, MAX_EXTENSION_BYTES - 3)]));
    assert!(!with(vec![(0x80, MAX_EXTENSION_BYTES - 2)]));
    // The bound is for all of them together.
    assert!(with(vec![(0x80, 1000), (0x81, 1042)]));
    assert!(!with(vec![(0x80, 1000), (0x81, 1043)]));
}

#[test]
fn names_follow_posix() {
    for good in [&b"a"[..], b"...", b" ", b"\xff\n", &[b'x'; 255]] {
        assert_eq!(check_name(good), Ok(()));
    }
    for bad in [&b""[..], b".", b"..", b"a/b", b"a\0", &[b'x'; 256]] {
        assert!(check_name(bad).is_err());
    }
}

#[test]
fn a_link_group_is_bound_to_path_and_volume() {
    let (a, b) = (Hasher::new(&[1; 32]), Hasher::new(&[2; 32]));
    assert_eq!(link_group(&a, b"x/y"), link_group(&a, b"x/y"));
    assert_ne!(link_group(&a, b"x/y"), link_group(&a, b"x/z"));
    assert_ne!(link_group(&a, b"x/y"), link_group(&b, b"x/y"));
    for kind in Kind::ALL {
        let handle = a.name(kind, b"x/y");
        assert!(!handle.as_bytes().starts_with(&link_group(&a, b"x/y")));
    }
}

/// What docs/formats/inode.md gives the bytes of.
fn vector_inodes() -> [Inode; 8] {
    let root = ArrayRoot {
        len: 1_000_000,
        height: 1,
        top: [0xaa; 32],
    };
    let map = MapRoot {
        handle: Handle::from_bytes([0xbb; 32]),
        height: 1,
        entries: 3,
        salt: [0; 16],
    };
    let before_1970 = Time {
        seconds: -1,
        nanos: 0,
    };
    let pair = (Bytes::from_static(b"user.a"), Bytes::from_static(b"1"));
    let rich = Inode {
        links: 2,
        link_group: Some([0xcc; 16]),
        owner: Some(Owner {
            uid: 1000,
            gid: 100,
        }),
        xattrs: Xattrs::Inline(vec![pair]),
        ..file(FileContent::Inline(Bytes::from_static(b"bulla")))
    };
    let extension = |tag, value: &'static [u8]| Extension {
        tag,
        value: value.into(),
    };
    let changed = Inode {
        ctime: Some(file(FileContent::Empty).mtime),
        ..Inode::new(0o644, Time::default(), Content::Regular(FileContent::Empty))
    };
    let extended = Inode {
        extensions: vec![extension(0x80, b"later"), extension(0xff, b"")],
        ..Inode::new(0o644, Time::default(), Content::Regular(FileContent::Empty))
    };
    [
        file(FileContent::Empty),
        file(FileContent::Array(root)),
        rich,
        Inode::new(
            0o755,
            before_1970,
            Content::Directory {
                map: Some(map),
                opaque: false,
            },
        ),
        Inode::new(
            0o777,
            Time::default(),
            Content::Symlink(Bytes::from_static(b"bulla")),
        ),
        Inode::new(
            0o600,
            Time::default(),
            Content::CharDevice { major: 1, minor: 3 },
        ),
        changed,
        extended,
    ]
}

#[test]
fn entry_of_a_block_is_its_handle() {
    let block = Entry::Block(Handle::from_bytes([0xdd; 32]));
    assert_eq!(hex(&block.encode()), format!("ff{}", "dd".repeat(32)));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
