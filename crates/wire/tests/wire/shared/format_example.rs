//! The code writes the bytes of the example in `docs/formats/shared-protocol.md`.

use bytes::BytesMut;
use trust::Handle;
use trust::history::LogPoint;
use trust::volume_id::VolumeId;
use trust_shared::mark::{MarkTree, Nonce};
use trust_shared::note::Note;
use wire::frame::{Header, hello};
use wire::session::{Claim, Exporter};
use wire::shared::answer::{encode_have, encode_policies};
use wire::shared::delivery::{End, LeavesPart};
use wire::shared::enter::{Enter, SIGNING_DOMAIN, Welcome};
use wire::shared::terms::{Pace, Terms};
use wire::shared::usage::{UNKNOWN, Usage};
use wire::shared::{PROTOCOL, Request, SESSION_ID, kind};

use super::peer::key;

/// Messages by name.
type Named = Vec<(&'static str, Vec<u8>)>;

fn request(request: &Request, id: u32) -> Vec<u8> {
    let mut out = BytesMut::new();
    request.put(id, &mut out);
    out.to_vec()
}

fn answer(kind: u8, id: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header::new(kind, id, body.len()).put(&mut out);
    [&out, body].concat()
}

fn enter(device: Option<Claim>) -> Vec<u8> {
    let volume = VolumeId::from_bytes([0x11; 32]);
    let mut out = BytesMut::new();
    Enter { volume, device }.put(SESSION_ID, &mut out);
    out.to_vec()
}

fn delivery() -> [Vec<u8>; 2] {
    let nonce = Nonce::from_bytes([0x44; 32]);
    let tree = MarkTree::new(vec![nonce]).unwrap();
    let proofs = [(nonce, tree.prove(&nonce).unwrap())];
    let leaf = tree.marks().encode();
    let mut part = LeavesPart::new(0);
    part.push(&leaf, None, &proofs);
    let log = LogPoint {
        epoch: 0,
        size: 1,
        root: trust::history::leaf_hash(&leaf),
    };
    let volume = VolumeId::from_bytes([0x11; 32]);
    let end = End {
        from: 0,
        note: Note { log, time_ms: 1 }.sign(volume, &key(1)),
        more: false,
        asked: true,
        refused: None,
        unstored: None,
    };
    [
        answer(kind::LEAVES_PART, 0, &part.finish()),
        answer(kind::DELIVERY, 0, &end.encode()),
    ]
}

fn terms() -> Terms {
    let pace = |per_second, at_once| Pace {
        per_second,
        at_once,
    };
    Terms {
        heartbeat_ms: 1000,
        bytes: pace(1 << 30, 1 << 30),
        entries: pace(4000, 8000),
        entry_bytes: pace(1 << 20, 64 << 20),
        outstanding_bytes: 4 << 20,
    }
}

fn messages() -> Named {
    let welcome = Welcome { newest_policy: 0 };
    let volume = VolumeId::from_bytes([0x11; 32]);
    let claim = Claim::new(SIGNING_DOMAIN, volume, &key(2), &Exporter([0x33; 32]));
    let used = Usage {
        today_bytes: 70_000,
        daily_bytes: UNKNOWN,
        temporary_bytes: 4_000,
        temporary_most_bytes: UNKNOWN,
        disk_bytes: 1 << 40,
        disk_free_bytes: 1 << 38,
    };
    let [part, end] = delivery();
    let open = Request::Open {
        heartbeat_ms: 1000,
        note: None,
    };
    vec![
        ("hello", hello(PROTOCOL).to_vec()),
        ("ENTER of a guest", enter(None)),
        ("POLICIES", request(&Request::Policies(0), 2)),
        (
            "WELCOME",
            answer(kind::WELCOME, SESSION_ID, &welcome.encode()),
        ),
        (
            "POLICIES_PART, a policy of one byte",
            answer(kind::POLICIES_PART, 2, &encode_policies([&b"p"[..]])),
        ),
        ("ENTER of a device", enter(Some(claim))),
        ("OPEN", request(&open, SESSION_ID)),
        (
            "OPENED",
            answer(kind::OPENED, SESSION_ID, &terms().encode()),
        ),
        (
            "MARK",
            request(&Request::Mark(Nonce::from_bytes([0x44; 32])), SESSION_ID),
        ),
        (
            "CSTORE",
            request(&Request::Cstore(vec![Handle::from_bytes([0x55; 32])]), 3),
        ),
        ("HAVE", answer(kind::HAVE, 3, &encode_have(&[true]))),
        ("USAGE", request(&Request::Usage, 4)),
        ("USED", answer(kind::USED, 4, &used.encode())),
        ("LEAVES_PART", part),
        ("DELIVERY", end),
        ("NEXT", request(&Request::Next, SESSION_ID)),
    ]
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Each line has the name of a message, two spaces, and its bytes; more bytes are on lines that begin with a space.
fn written() -> String {
    let mut text = String::new();
    for (name, bytes) in messages() {
        text += name;
        text.push('\n');
        for line in hex(&bytes).as_bytes().chunks(96) {
            text += &format!("    {}\n", String::from_utf8_lossy(line));
        }
    }
    text
}

#[test]
fn the_code_writes_the_documented_bytes() {
    let text = include_str!("../../../../../docs/formats/shared-protocol.md");
    let example = text.split("## Example").nth(1).unwrap();
    let block = example.split("```text\n").nth(1).unwrap_or_default();
    let block = block.split("```").next().unwrap();
    let written = written();
    assert_eq!(block, written, "write this:\n{written}");
}
