//! Arbitrary bytes as a call on a shared volume, as the journal of a device has it. They are refused, or they are the
//! one encoding of a call within the bounds.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use share::files::{Attributes, Call, FileRef, MAX_PLACE_NAMES, Over, Place};
use trust::inode::{Content, FileContent, Inode, Time};
use trust_shared::decision::Decision;
use trust_shared::principal::{Device, FileId, INumber, Name, Principal};

fn file() -> FileId {
    let (device, counter) = (Device(7), 1 << 40);
    FileId {
        principal: Principal::from_bytes([3; 32]),
        number: INumber { device, counter },
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let name = |text: &[u8]| Name::new(text).expect("a name");
    let place = || Place {
        start: file(),
        path: vec![name(b"a"), name(b"b")],
    };
    let content = Content::Regular(FileContent::Inline(b"text".as_slice().into()));
    let inode = Inode::new(0o644, Time::default(), content.clone());
    let value = Some(b"1".as_slice().into());
    let attributes = Attributes {
        mode: Some(0o600),
        mtime: Some(Time::default()),
        owner: None,
        xattrs: vec![(b"user.a".as_slice().into(), value)],
    };
    let calls = [
        Call::Lookup {
            place: place(),
            follow: true,
        },
        Call::List {
            directory: FileRef::File(file()),
            after: Some(name(b"c")),
            most: 100,
            inodes: true,
        },
        Call::Create {
            place: place(),
            number: 5,
            inode: Box::new(inode),
            owner: Some(Principal::from_bytes([4; 32])),
            replace: true.into(),
        },
        Call::SetContent {
            file: FileRef::Place(place()),
            content: content.clone(),
            mtime: Time::default(),
            expect: Some(content),
        },
        Call::SetAttributes {
            file: FileRef::Place(place()),
            attributes,
            expect: None,
        },
        Call::Rename {
            from: place(),
            to: place(),
            over: Over::Exchange,
        },
        Call::Decide(Decision::RemoveDevice { device: Device(7) }),
        Call::Lock {
            file: FileRef::File(file()),
            wait: true,
        },
    ];
    calls.iter().map(Call::encode).collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let Ok(call) = Call::decode(data) else {
        return;
    };
    assert_eq!(call.encode(), data);
    if let Call::Lookup { place, .. } | Call::Unlink { place } | Call::Rmdir { place } = call {
        assert!(place.path.len() <= MAX_PLACE_NAMES);
    }
});
