//! Entries of a later format: a device that cannot read them answers nothing, and takes nobody for a liar.

use std::sync::Arc;

use bytes::Bytes;
use ordering::roster::OpsCodec;
use ordering::signed::{Codec, Entry};
use ordering::volume::{Attempt, Build, Roll, Volume};
use share::files::{Answer, Call, Files, Refused, Shelf};
use trust::device::Incarnation;
use trust_shared::calls::decide;
use trust_shared::decision::Decision;
use trust_shared::entry::{self, Content, Ops, Prefix, body_hash};
use trust_shared::principal::Device;

use crate::world::{device, key, policies};

fn files() -> Files {
    Files::new(&policies(), Arc::new(Shelf::default())).unwrap()
}

/// An entry of the founder's device with this outline and this body.
fn written(outline: Bytes, body: Bytes) -> Entry {
    let content = Content::Ops(Ops {
        n: 1,
        previous: [1; 32],
        outline,
        body_hash: body_hash(&body),
    });
    let entry = entry::Entry {
        epoch: 0,
        device: device(0),
        incarnation: Incarnation::from_bytes([2; 16]),
        seen: Prefix {
            size: 9,
            root: [4; 32],
        },
        kept: 9,
        content,
    };
    let signed = entry.sign(policies().chain().volume(), &key(0)).unwrap();
    Entry::with_body(signed, body).unwrap()
}

fn decision() -> (Bytes, Bytes) {
    let device = Device(5);
    OpsCodec::encode(vec![decide(Decision::RemoveDevice { device })]).unwrap()
}

/// The same bytes of the next format.
fn later(bytes: &Bytes) -> Bytes {
    let mut bytes = bytes.to_vec();
    bytes[0] += 1;
    bytes.into()
}

fn answer(files: &Files) -> Answer {
    let attempt = Attempt {
        device: device(0),
        failed: 0,
        foldable: 0,
        lapsed: 0,
    };
    match files.build(&Call::Members.into(), &attempt) {
        Build::Says(answer, _) => answer,
        _ => panic!("no answer"),
    }
}

#[test]
fn decision_or_outline_of_a_later_format_silences_the_device_and_convicts_nobody() {
    let (outline, body) = decision();
    let unread = [
        written(outline.clone(), later(&body)),
        written(later(&outline), body.clone()),
    ];
    for entry in unread {
        let mut files = files();
        assert!(matches!(answer(&files), Answer::Members(_)));
        assert!(!files.active(device(5)));
        assert_eq!(files.lacks(&entry), None);
        assert_eq!(files.malformed(&entry), None);
        files.extend(0, &entry);
        assert!(matches!(
            answer(&files),
            Answer::Refused(Refused::Unsupported(_))
        ));
        // Perhaps the entry admitted this device: nobody is told that the orderer took a stranger's entry.
        assert!(files.active(device(5)));
        assert_eq!(files.admitted(device(5)), 0);
    }
}

#[test]
fn malformed_outline_or_body_has_no_ops_and_silences_nobody() {
    let (outline, body) = decision();
    let nothing = Bytes::from_static(&[0]);
    for entry in [written(outline, nothing.clone()), written(nothing, body)] {
        let mut files = files();
        assert_eq!(files.malformed(&entry), None);
        files.extend(0, &entry);
        assert!(matches!(answer(&files), Answer::Members(_)));
        assert!(files.active(device(0)) && !files.active(device(5)));
    }
}
