//! Messages: each is read as it was written, frozen bytes, and what is malformed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use store::StoreError;
use trust::device::DeviceKey;
use trust::frame::Packer;
use trust::handle::Kind;
use trust::history::LogPoint;
use trust::key::SecretKey;
use trust::tree::inode::{Content, FileContent, FileKind, Inode, Time};
use trust::volume_id::VolumeId;
use trust::{Handle, Record};
use trust_shared::entry::Prefix;
use trust_shared::genesis::Founder;
use trust_shared::hold::Ranges;
use trust_shared::members::{FirstMembers, Members};
use trust_shared::note::{Note, SignedNote};
use trust_shared::principal::{Device, FileId, INumber, Name, Principal, Target};

use super::engine::TROUBLES;
use super::*;
use crate::client::disk::DiskError;
use crate::client::{
    Answered, BeaconStatus, ClientError, Compared, Connection, DeviceStatus, Differing, Lost,
    Phase, Status, Stopped, Trouble, View,
};
use crate::files::{
    After, Answer, Basis, Call, Changed, Cursor, Feed, File, History, Listed, Refused, Roll, Thing,
    Touched,
};

const DEVICE: DeviceKey = DeviceKey::from_bytes([5; 32]);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn file(counter: u64) -> FileId {
    FileId {
        principal: Principal::from_bytes([2; 32]),
        number: INumber {
            device: Device(3),
            counter,
        },
    }
}

fn known(counter: u64) -> File {
    let content = FileContent::Inline(Bytes::from_static(b"hello"));
    let inode = Inode::new(0o644, Time::default(), Content::Regular(content));
    File {
        id: file(counter),
        inode: Arc::new(inode),
    }
}

fn note() -> SignedNote {
    let key = SecretKey::from_seed(&[9; 32]);
    let log = LogPoint {
        epoch: 1,
        size: 7,
        root: [8; 32],
    };
    Note { log, time_ms: 5 }.sign(VolumeId::from_bytes([4; 32]), &key)
}

fn record() -> Record {
    let frame = Packer::new().pack(Kind::Data, b"bulla").unwrap();
    Record {
        handle: Handle::from_bytes([6; 32]),
        frame,
    }
}

fn asked() -> Vec<(u64, Asked)> {
    let call = Call::List {
        directory: crate::files::FileRef::File(file(1)),
        after: None,
        most: 9,
        inodes: true,
    };
    let handles = vec![Handle::from_bytes([6; 32]), Handle::from_bytes([7; 32])];
    vec![
        (1, Asked::Call(call.into())),
        (300, Asked::Look(Call::Members)),
        (2, Asked::Query(Query::Status)),
        (3, Asked::Query(Query::Compare(note()))),
        (4, Asked::Blocks(Want::Get(handles.clone()))),
        (5, Asked::Blocks(Want::Put(vec![record(), record()]))),
        (6, Asked::Blocks(Want::Touch(handles))),
        (1, Asked::Cancel),
        (7, Asked::Query(Query::Beacons)),
    ]
}

fn answers() -> Vec<Answer> {
    let founder = Founder {
        user: [7; 32],
        name: "ada".to_owned(),
        device: SecretKey::from_seed(&[1; 32]).public(),
    };
    let first = FirstMembers::founded(VolumeId::from_bytes([4; 32]), &founder).unwrap();
    let listed = Listed {
        name: Name::new(b"plan").unwrap(),
        target: Target {
            file: file(2),
            kind: FileKind::Symlink,
        },
        file: Some(known(2)),
    };
    let bare = Listed {
        file: None,
        ..listed.clone()
    };
    let changed = Changed {
        at: 300,
        device: Device(7),
    };
    let cursor = Cursor {
        epoch: 1,
        size: 300,
    };
    vec![
        Answer::Found(known(1)),
        Answer::Listed {
            directory: file(1),
            names: vec![listed, bare],
            next: Some(Name::new(b"plan").unwrap()),
        },
        Answer::Members(Roll {
            at: 9,
            members: Arc::new(Members::new(first)),
        }),
        Answer::History(History {
            entries: Vec::new(),
            next: Some(4),
        }),
        Answer::Root(None),
        Answer::Root(Some([3; 32])),
        Answer::Done(file(4)),
        Answer::Settled,
        Answer::Held {
            file: file(4),
            since: 300,
        },
        Answer::Holders(vec![(Device(300), Ranges::whole(true))]),
        Answer::Replaced(file(4), changed),
        Answer::Changed(None),
        Answer::Changed(Some(changed)),
        Answer::Feed(Feed::LookAgain { now: cursor }),
        Answer::Feed(Feed::Changes {
            changes: vec![Touched {
                at: 300,
                what: Thing::File(file(4)),
            }],
            until: cursor,
            after: After::Held,
        }),
        Answer::Refused(Refused::NotFound),
        Answer::Refused(Refused::Full),
        Answer::Refused(Refused::Forgotten(5)),
        Answer::Refused(Refused::Damaged("bad".to_owned())),
        Answer::Refused(Refused::Unsupported("new".to_owned())),
        Answer::Silent {
            position: 8,
            device: DEVICE,
        },
    ]
}

fn stops() -> Vec<Stopped> {
    let disk = DiskError::Damaged {
        path: PathBuf::from("/x"),
        why: "gone".to_owned(),
    };
    let locked = state::StateError::Locked {
        path: "p".to_owned(),
        holder: "h".to_owned(),
        waited_ms: 3,
    };
    let failed = state::StateError::Failed {
        path: "p".to_owned(),
        cause: "c".to_owned(),
    };
    let stalled = state::StateError::Stalled {
        path: "p".to_owned(),
        begun: true,
    };
    let evidence = Some(PathBuf::from("/evidence/1"));
    vec![
        Stopped::Elsewhere,
        Stopped::Unsigned,
        Stopped::Convicted {
            what: "lie".to_owned(),
            evidence,
        },
        Stopped::Convicted {
            what: "lie".to_owned(),
            evidence: None,
        },
        Stopped::OtherBeginning,
        Stopped::Disk(disk),
        Stopped::Disk(DiskError::State(locked)),
        Stopped::Disk(DiskError::State(failed)),
        Stopped::Disk(DiskError::State(stalled)),
    ]
}

fn errors() -> Vec<ClientError> {
    let trouble = Trouble::NotMember;
    let lost = Lost {
        trouble,
        text: "no".to_owned(),
    };
    let deadline = |connection| ClientError::Deadline { connection };
    let (within, age) = (Duration::from_secs(60), Duration::from_millis(61_500));
    let mut errors: Vec<ClientError> = stops().into_iter().map(ClientError::from).collect();
    errors.extend([
        ClientError::Home("home".to_owned()),
        deadline(Connection::Connecting),
        deadline(Connection::Online),
        deadline(Connection::Offline(lost)),
        ClientError::Busy,
        ClientError::Interrupted,
        ClientError::Unsupported("new".to_owned()),
        ClientError::Overdue {
            device: DEVICE,
            within,
            age,
        },
        ClientError::OtherBuild {
            build: "9".to_owned(),
            process: 77,
        },
        ClientError::EngineElsewhere { process: 78 },
    ]);
    errors
}

fn status() -> Status {
    let (device, size) = (DEVICE, 9);
    Status {
        connection: Connection::Online,
        phase: Phase::Running,
        log: Prefix {
            size: 7,
            root: [8; 32],
        },
        note: Some(note()),
        kept: 6,
        outlines: 5,
        devices: vec![DeviceStatus {
            device,
            last_at: 4,
            attested: 3,
            active: true,
        }],
        awaited: vec![device],
        differing: vec![Differing { device, size }],
        beacons: vec![BeaconStatus {
            device,
            within: Duration::from_secs(60),
            age: Duration::from_millis(1500),
        }],
        supported: 6,
        unsupported: vec![(device, 6)],
        own_attested: true,
        begins: 3,
    }
}

fn answer(id: u64, answer: Result<Answered, ClientError>) -> Told {
    Told::Response(id, Response::Answer(Box::new(answer)))
}

fn told() -> Vec<Told> {
    let view = |phase| View {
        connection: Connection::Connecting,
        phase,
        size: 3,
        process: None,
    };
    let answered = |answer| Answered {
        answer,
        at: 11,
        marked: Basis::new(vec![(4, DEVICE)]),
    };
    let compared = |compared| Told::Response(4, Response::Compared(compared));
    let done = |done| Told::Response(6, Response::Done(done));
    let mut told: Vec<Told> = Vec::new();
    told.extend(
        stops()
            .into_iter()
            .map(|why| Told::View(view(Phase::Stopped(why)))),
    );
    told.extend([Phase::Outside, Phase::Resuming, Phase::Running].map(|it| Told::View(view(it))));
    told.extend(answers().into_iter().map(|it| answer(1, Ok(answered(it)))));
    told.extend(errors().into_iter().map(|why| answer(2, Err(why))));
    told.push(Told::Response(3, Response::Status(Box::new(status()))));
    let evidence = [Ok(PathBuf::from("/evidence/1")), Err("none".to_owned())];
    told.extend(evidence.map(|evidence| compared(Compared::Fork { evidence })));
    told.extend(
        [
            Compared::Same { size: 1 },
            Compared::Behind { size: 2 },
            Compared::NotSigned,
            Compared::Unreadable("x".to_owned()),
            Compared::Early { first: 300 },
        ]
        .map(compared),
    );
    told.push(Told::Records(5, vec![record()]));
    told.push(done(Ok(vec![Handle::from_bytes([6; 32])])));
    let (place, cause) = (String::new(), "full".to_owned());
    told.push(done(Err(StoreError::Full { place, cause })));
    let (place, cause) = (String::new(), "gone".to_owned());
    told.push(done(Err(StoreError::Unavailable { place, cause })));
    told.push(Told::Leaving(12));
    told
}

#[test]
fn messages_are_read_as_they_were_written() {
    for (id, asked) in asked() {
        let bytes = Bytes::from(asked.encode(id));
        let (number, read) = Asked::decode(&bytes).unwrap();
        assert_eq!(number, id);
        assert_eq!(format!("{read:?}"), format!("{asked:?}"));
        assert_eq!(read.encode(number), bytes);
    }
    for told in told() {
        let bytes = Bytes::from(told.encode());
        let read = Told::decode(&bytes).unwrap();
        assert_eq!(read.encode(), bytes, "{told:?}");
        if !matches!(&told, Told::Response(_, Response::Answer(answer)) if matches!(**answer, Ok(Answered { answer: Answer::Members(_), .. })))
        {
            assert_eq!(format!("{read:?}"), format!("{told:?}"));
        }
    }
}

#[test]
fn messages_that_are_cut_or_longer_are_refused() {
    for (id, asked) in asked() {
        let bytes = asked.encode(id);
        for cut in 0..bytes.len() {
            let read = Asked::decode(&Bytes::copy_from_slice(&bytes[..cut]));
            // A shorter list of records is one.
            assert!(
                read.is_err() || matches!(read, Ok((_, Asked::Blocks(Want::Put(_))))),
                "{asked:?} {cut}"
            );
        }
        let more = [&bytes[..], &[0]].concat();
        assert!(Asked::decode(&more.into()).is_err(), "{asked:?}");
    }
    for told in told() {
        let bytes = told.encode();
        for cut in 0..bytes.len() {
            let read = Told::decode(&Bytes::copy_from_slice(&bytes[..cut]));
            assert!(
                read.is_err() || matches!(read, Ok(Told::Records(..))),
                "{told:?} {cut}"
            );
        }
        let more = [&bytes[..], &[0]].concat();
        assert!(Told::decode(&more.into()).is_err(), "{told:?}");
    }
}

#[test]
fn lists_that_are_too_long_are_refused() {
    let handles = vec![Handle::from_bytes([6; 32]); MAX_HANDLES + 1];
    assert!(Asked::decode(&Asked::Blocks(Want::Get(handles)).encode(1).into()).is_err());
    // A list that claims more than it has takes no memory.
    let claims = [&[6, 1, 0][..], &[0xff; 9], &[1]].concat();
    assert!(Told::decode(&claims.into()).is_err());
}

/// Frozen bytes: docs/formats/shared-local.md gives the same.
#[test]
fn vectors() {
    assert_eq!(
        hex(&Hello {
            protocol: 2,
            build: "0.1.0".to_owned()
        }
        .encode()[..19]),
        "62756c6c612d686f6d650200302e312e3000".to_owned() + "00"
    );
    assert_eq!(hex(&Asked::Look(Call::Members).encode(300)), "02ac020003");
    assert_eq!(hex(&Asked::Cancel.encode(1)), "0801");
    assert_eq!(hex(&Asked::Query(Query::Status).encode(2)), "0302");
    assert_eq!(hex(&Asked::Query(Query::Beacons).encode(7)), "0907");
    let done = Told::Response(7, Response::Done(Ok(Vec::new())));
    assert_eq!(hex(&done.encode()), "06070000");
    assert_eq!(hex(&Told::Leaving(12).encode()), "070c");
    let view = View {
        connection: Connection::Online,
        phase: Phase::Running,
        size: 300,
        process: None,
    };
    assert_eq!(hex(&Told::View(view).encode()), "010102ac02");
    let late = answer(9, Err(ClientError::Interrupted));
    assert_eq!(hex(&late.encode()), "02090105");
    let settled = Answered {
        answer: Answer::Settled,
        at: 11,
        marked: Basis::default(),
    };
    assert_eq!(hex(&answer(9, Ok(settled)).encode()), "020900070b00");
}

#[test]
fn program_is_told_every_trouble_of_the_engine() {
    for trouble in TROUBLES {
        let text = "no".to_owned();
        let view = View {
            connection: Connection::Offline(Lost { trouble, text }),
            phase: Phase::Running,
            size: 3,
            process: None,
        };
        let told = Told::View(view);
        let came = Told::decode(&told.encode().into()).unwrap();
        assert_eq!(format!("{came:?}"), format!("{told:?}"));
    }
}
