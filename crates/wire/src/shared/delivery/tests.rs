//! Deliveries come back from their parts; parts that do not fit together are refused.

use trust::device::{DeviceKey, Incarnation};
use trust::history::LogPoint;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust_shared::attest::Attest;
use trust_shared::entry::{Content, Entry, Ops, Prefix, body_hash};
use trust_shared::mark::MarkTree;
use trust_shared::note::Note;

use super::*;

const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

fn key() -> SecretKey {
    SecretKey::from_seed(&[3; 32])
}

fn prefix() -> Prefix {
    Prefix {
        size: 300,
        root: [9; 32],
    }
}

fn entry(n: u64, body: Option<&'static [u8]>) -> SentLeaf {
    let ops = Ops {
        n,
        previous: [4; 32],
        outline: Bytes::from_static(b"outline"),
        body_hash: body_hash(body.unwrap_or_default()),
    };
    let entry = Entry {
        epoch: 0,
        device: DeviceKey::from(&key().public()),
        incarnation: Incarnation::from_bytes([5; 16]),
        seen: prefix(),
        kept: 290,
        content: match n {
            0 => Content::Resume,
            _ => Content::Ops(ops),
        },
    };
    SentLeaf::Entry {
        entry: Box::new(entry.sign(VOLUME, &key()).unwrap()),
        body: body.map(Bytes::from_static),
    }
}

fn marks() -> SentLeaf {
    let nonces: Vec<Nonce> = (0..9).map(|n| Nonce::from_bytes([n * 7; 32])).collect();
    let tree = MarkTree::new(nonces.clone()).unwrap();
    let proofs = nonces.iter().take(2);
    SentLeaf::Marks {
        marks: tree.marks(),
        proofs: proofs.map(|n| (*n, tree.prove(n).unwrap())).collect(),
    }
}

fn note() -> SignedNote {
    Note {
        log: LogPoint {
            epoch: 0,
            size: 300,
            root: [9; 32],
        },
        time_ms: 5,
    }
    .sign(VOLUME, &key())
}

fn attest() -> SignedAttest {
    let attest = Attest {
        epoch: 0,
        device: DeviceKey::from(&key().public()),
        seen: prefix(),
    };
    attest.sign(VOLUME, &key()).unwrap()
}

fn delivery() -> Delivery {
    Delivery {
        from: 296,
        leaves: vec![
            entry(0, None),
            entry(1, None),
            entry(2, Some(b"body")),
            marks(),
        ],
        note: note(),
        more: true,
        attests: vec![attest(), attest()],
        asked: true,
        refused: Some([1; 32]),
        unstored: Some([2; 32]),
    }
}

fn push(part: &mut LeavesPart, leaf: &SentLeaf) {
    match leaf {
        SentLeaf::Entry { entry, body } => part.push(entry.bytes(), body.as_deref(), &[]),
        SentLeaf::Marks { marks, proofs } => part.push(&marks.encode(), None, proofs),
    }
}

/// The messages of a delivery, `each` leaves in a part.
fn parts(delivery: &Delivery, each: usize) -> Vec<(u8, Bytes)> {
    let mut messages = Vec::new();
    let mut from = delivery.from;
    for leaves in delivery.leaves.chunks(each) {
        let mut part = LeavesPart::new(from);
        assert!(part.is_empty());
        leaves.iter().for_each(|leaf| push(&mut part, leaf));
        assert!(!part.is_empty() && part.len() > 8);
        messages.push((kind::LEAVES_PART, part.finish()));
        from += leaves.len() as u64;
    }
    for attest in &delivery.attests {
        let mut body = BytesMut::new();
        put_attest(attest, &mut body);
        messages.push((kind::ATTESTS, body.freeze()));
    }
    let end = End {
        from: delivery.from,
        note: delivery.note,
        more: delivery.more,
        asked: delivery.asked,
        refused: delivery.refused,
        unstored: delivery.unstored,
    };
    messages.push((kind::DELIVERY, end.encode()));
    messages
}

fn gather(messages: &[(u8, Bytes)]) -> Result<Option<Delivery>, Reject> {
    let mut gather = Gather::default();
    let mut last = None;
    for (kind, body) in messages {
        assert!(last.is_none() && Gather::is_part(*kind));
        last = gather.take(*kind, body)?;
    }
    Ok(last)
}

#[test]
fn delivery_comes_back_from_any_parts() {
    for each in 1..5 {
        let sent = delivery();
        assert_eq!(gather(&parts(&sent, each)), Ok(Some(sent)));
    }
    let empty = Delivery {
        leaves: Vec::new(),
        attests: Vec::new(),
        more: false,
        asked: false,
        refused: None,
        unstored: None,
        ..delivery()
    };
    assert_eq!(gather(&parts(&empty, 1)), Ok(Some(empty)));
}

#[test]
fn parts_that_do_not_fit_together_are_refused() {
    let messages = parts(&delivery(), 2);
    let mut gap = messages.clone();
    gap.remove(1);
    gap.insert(1, messages[0].clone());
    assert!(gather(&gap).is_err());
    let mut elsewhere = messages.clone();
    elsewhere.remove(0);
    assert!(gather(&elsewhere).is_err());
    assert_eq!(Gather::default().take(kind::DONE, &[]).ok(), None);
}

#[test]
fn each_part_has_one_encoding() {
    for (kind, body) in parts(&delivery(), 4) {
        let decode = |body: &[u8]| match kind {
            kind::LEAVES_PART => decode_leaves(body).map(drop),
            kind::ATTESTS => decode_attests(body).map(drop),
            _ => End::decode(body).map(drop),
        };
        assert_eq!(decode(&body), Ok(()));
        assert!(decode(&[&body[..], &[0xff]].concat()).is_err());
        let cuts = (0..body.len())
            .filter(|cut| decode(&body[..*cut]).is_ok())
            .count();
        // Parts of leaves may end after each of the four leaves.
        let most = if kind == kind::LEAVES_PART { 3 } else { 0 };
        assert_eq!(cuts, most, "{kind:#x}");
    }
    // Each of the two entries is there or not, whatever the other is.
    let one = End {
        refused: None,
        ..End::decode(&parts(&delivery(), 4).pop().unwrap().1).unwrap()
    };
    assert_eq!(End::decode(&one.encode()), Ok(one));
    assert_eq!(one.unstored, Some([2; 32]));
    let mut odd = parts(&delivery(), 4).pop().unwrap().1.to_vec();
    odd[8] |= 16;
    assert!(End::decode(&odd).is_err());
}

#[test]
fn delivery_has_a_bounded_number_of_leaves_and_bytes() {
    let mut part = LeavesPart::new(0);
    let SentLeaf::Marks { marks, .. } = marks() else {
        unreachable!()
    };
    let leaf = SentLeaf::Marks {
        marks,
        proofs: Vec::new(),
    };
    (0..MAX_LEAVES).for_each(|_| push(&mut part, &leaf));
    let full = part.finish();
    let mut gather = Gather::default();
    assert_eq!(gather.take(kind::LEAVES_PART, &full), Ok(None));
    let mut next = LeavesPart::new(MAX_LEAVES as u64);
    push(&mut next, &leaf);
    assert!(gather.take(kind::LEAVES_PART, &next.finish()).is_err());
    assert!(decode_leaves(&[&full[..], &full[8..]].concat()).is_err());
    assert!(decode_leaves(&full[..8]).is_err());
    assert!(!Gather::default().has_room(MAX_DELIVERY_BYTES + 1));
    let end = [&u64::MAX.to_le_bytes()[..], &full[8..]].concat();
    assert!(decode_leaves(&end).is_err());
}
