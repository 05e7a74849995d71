//! Rows of checkpoints: keys and values.

use bytes::Bytes;
use trust::Handle;
use trust::device::{DeviceKey, Incarnation};
use trust::encode::Encoder;
use trust::history::LogPoint;
use trust::inode::{Content as FileContents, FileContent, FileKind, Inode, Time};
use trust::map::MapRoot;
use trust_shared::calls::decide;
use trust_shared::checkpoint::{File, Reader, Row};
use trust_shared::decision::Decision;
use trust_shared::entry::Author;
use trust_shared::ops::Body;
use trust_shared::principal::{Device, Principal, Target};

use crate::key;
use crate::lines::Lines;

/// Keys and values of a checkpoint's rows.
pub fn add(lines: &mut Lines) {
    let file = File {
        principal: [6; 32],
        device: 1,
        counter: 258,
    };
    let good = [
        ("policy", Row::Policy),
        ("author", Row::Author(DeviceKey::from_bytes([3; 32]))),
        ("device", Row::Device(7)),
        ("principal", Row::Principal([6; 32])),
        ("role", Row::Role([5; 32], [6; 32])),
        ("accepted", Row::Accepted(7)),
        ("lock", Row::Lock(file)),
        ("fold", Row::Fold([6; 32])),
        ("inode", Row::Inode(file)),
        ("entry", Row::Entry(file, Bytes::from_static(b"name"))),
        ("added", Row::Added(file, 999)),
        ("times", Row::Times(file)),
        ("hold", Row::Hold(file, 1, 7)),
        ("snapshot", Row::Pin(Bytes::from_static(b"v1"))),
        ("retention", Row::Retention),
        ("late", Row::Late(999, 2)),
        ("before", Row::Before),
        ("leaves", Row::Leaves(640)),
    ];
    let mut add = |name: &str, verdict: &str, bytes: &[u8]| {
        lines.add("row", name, verdict, bytes, Row::decode(bytes));
    };
    for (name, row) in good {
        add(name, "good", &row.encode());
    }
    add("of-an-unknown-kind", "malformed", &[19]);
    add("longer-policy", "malformed", &[1, 0]);
    let nameless = Row::Entry(file, Bytes::new()).encode();
    add("entry-without-a-name", "malformed", &nameless);
    let author = Author {
        incarnation: Incarnation::from_bytes([1; 16]),
        n: 300,
        last: [8; 32],
        last_at: 1000,
        resume_at: 5,
        attested: 900,
    };
    let impossible = Author {
        attested: 1001,
        ..author
    };
    for (name, verdict, author) in [
        ("of-an-entry", "good", author),
        ("attested-beyond-its-last", "malformed", impossible),
    ] {
        let bytes = author.encode();
        lines.add("author", name, verdict, &bytes, Author::decode(&bytes));
    }
    values(lines, file);
}

/// Values of rows.
fn values(lines: &mut Lines, file: File) {
    let log = LogPoint {
        epoch: 1,
        size: 1000,
        root: [9; 32],
    };
    let span = [3, 1, 200, 1];
    let inode = Inode::new(
        0o644,
        Time::default(),
        FileContents::Regular(FileContent::Empty),
    );
    let kind = FileKind::Regular;
    let target = Target {
        file: file.into(),
        kind,
    };
    let decision = Decision::RemoveDevice { device: Device(7) };
    let body = Body::new(vec![decide(decision)]).unwrap().encode();
    let key = *key(7).public().as_bytes();
    let name = Bytes::from_static(b"name");
    let map = MapRoot {
        handle: Handle::from_bytes([0xbb; 32]),
        height: 1,
        entries: 3,
        salt: [0; 16],
    };
    let mut root = Encoder::new();
    map.encode(&mut root);
    let (root, seven) = (root.finish(), [7u8]);
    let good: Vec<(&str, Row, Vec<u8>)> = vec![
        (
            "policy",
            Row::Policy,
            [&[3, 0, 0, 0, 0, 0, 0, 0][..], &[4; 32]].concat(),
        ),
        (
            "device",
            Row::Device(7),
            [&key[..], &[6; 32], &span].concat(),
        ),
        (
            "principal",
            Row::Principal([6; 32]),
            [&[0][..], &span, b"\x03ada"].concat(),
        ),
        ("role", Row::Role([5; 32], [6; 32]), vec![2]),
        ("no-role", Row::Role([5; 32], [6; 32]), vec![0]),
        ("accepted", Row::Accepted(7), vec![0xe8, 7]),
        ("lock", Row::Lock(file), vec![7, 0xe7, 7]),
        ("empty-fold", Row::Fold([6; 32]), vec![0xe8, 7, 0]),
        (
            "fold",
            Row::Fold([6; 32]),
            [&[200, 1, 1][..], &root].concat(),
        ),
        (
            "inode",
            Row::Inode(file),
            [&[200, 1, 1][..], &inode.encode()].concat(),
        ),
        (
            "large-inode",
            Row::Inode(file),
            [&[200, 1, 1, 0xff][..], &[0xcc; 32]].concat(),
        ),
        ("inode-that-is-gone", Row::Inode(file), vec![200, 1, 0]),
        (
            "entry",
            Row::Entry(file, name.clone()),
            [&seven[..], &[1], &target.encode()].concat(),
        ),
        ("entry-that-is-gone", Row::Entry(file, name), vec![7, 0]),
        (
            "added",
            Row::Added(file, 999),
            (-1i64).to_le_bytes().to_vec(),
        ),
        ("times", Row::Times(file), vec![0xe7, 7, 1, 5, 0x80, 1, 0]),
        (
            "hold",
            Row::Hold(file, 1, 7),
            vec![200, 1, 0xe7, 7, 2, 0, 10, 1, 10, 5, 0],
        ),
        (
            "snapshot",
            Row::Pin(Bytes::from_static(b"v1")),
            vec![0xe8, 7],
        ),
        ("retention", Row::Retention, vec![0x80, 0xa3, 5]),
        (
            "late",
            Row::Late(999, 2),
            [&[7, 200, 1, 100][..], &body].concat(),
        ),
        ("before", Row::Before, vec![0]),
        ("leaves", Row::Leaves(0), [1; 64].to_vec()),
    ];
    let bad: Vec<(&str, Row, Vec<u8>)> = vec![
        (
            "span-that-ends-before",
            Row::Device(7),
            [&key[..], &[6; 32], &[3, 1, 2]].concat(),
        ),
        (
            "span-beyond-the-log",
            Row::Principal([6; 32]),
            vec![0, 0xe9, 7, 0, 3, 97, 98, 99],
        ),
        ("unknown-role", Row::Role([5; 32], [6; 32]), vec![4]),
        ("accepted-beyond-the-log", Row::Accepted(7), vec![0xe9, 7]),
        ("lock-beyond-the-log", Row::Lock(file), vec![7, 0xe8, 7]),
        ("fold-beyond-the-log", Row::Fold([6; 32]), vec![0xe9, 7, 0]),
        (
            "inode-of-a-byte",
            Row::Inode(file),
            [&[7, 1][..], &inode.encode()[..1]].concat(),
        ),
        ("nothing-added", Row::Added(file, 999), vec![0; 8]),
        ("added-beyond-the-log", Row::Added(file, 1000), vec![1; 8]),
        (
            "times-beyond-the-log",
            Row::Times(file),
            vec![0xe8, 7, 1, 5, 0x80, 1, 0],
        ),
        (
            "time-of-a-second-of-nanoseconds",
            Row::Times(file),
            vec![7, 0, 0x80, 0x94, 0xeb, 0xdc, 3, 0, 0],
        ),
        (
            "hold-beyond-the-log",
            Row::Hold(file, 0, 7),
            vec![7, 0xe8, 7, 1, 0, 10, 1],
        ),
        (
            "hold-renewed-before-it-was-taken",
            Row::Hold(file, 0, 7),
            vec![8, 7, 1, 0, 10, 1],
        ),
        (
            "hold-of-an-unknown-family",
            Row::Hold(file, 2, 7),
            vec![7, 7, 1, 0, 10, 1],
        ),
        ("hold-of-nothing", Row::Hold(file, 0, 7), vec![7, 7, 0]),
        (
            "snapshot-beyond-the-log",
            Row::Pin(Bytes::from_static(b"v1")),
            vec![0xe9, 7],
        ),
        (
            "snapshot-of-nothing",
            Row::Pin(Bytes::from_static(b"v1")),
            vec![0],
        ),
        (
            "snapshot-with-a-control-character",
            Row::Pin(Bytes::from_static(b"v\n")),
            vec![7],
        ),
        (
            "retention-of-less-than-a-day",
            Row::Retention,
            vec![0xff, 0xa2, 5],
        ),
        (
            "late-without-a-decision",
            Row::Late(999, 2),
            [&[7, 9, 9][..], &[0, 0, 0]].concat(),
        ),
        (
            "late-beyond-the-log",
            Row::Late(1000, 2),
            [&[7, 9, 9][..], &body].concat(),
        ),
        (
            "leaves-that-do-not-follow",
            Row::Leaves(64),
            [1; 64].to_vec(),
        ),
        ("leaves-of-half-a-hash", Row::Leaves(0), [1; 48].to_vec()),
    ];
    let all = [("good", good), ("malformed", bad)];
    for (verdict, rows) in all {
        for (name, row, value) in rows {
            let mut e = Encoder::new();
            e.bytes(&row.encode()).bytes(&value);
            let mut reader = Reader::new(Principal::from_bytes([5; 32]), log);
            let taken = reader.take(&row.encode(), &value);
            lines.add("value", name, verdict, &e.finish(), taken);
        }
    }
}
