//! Tests of the file `start`: it comes back as it was, or is refused.

use trust::Handle;
use trust::history::{Frontier, leaf_hash};
use trust::key::SecretKey;
use trust::map::MapRoot;
use trust_shared::checkpoint::Row;
use trust_shared::decision::Label;
use trust_shared::members::{FirstMembers, Members};
use trust_shared::note::Note;

use super::*;

const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

/// A checkpoint of a log of three leaves, and its rows.
fn rows() -> (Posted, Vec<(Bytes, Bytes)>) {
    let label = |text: &str| Label::new(text).unwrap();
    let members = Members::new(FirstMembers {
        volume: Principal::from_bytes(*VOLUME.as_bytes()),
        volume_label: label("everybody"),
        user: Principal::from_bytes([9; 32]),
        user_label: label("anna"),
        device: key(1).public(),
    });
    let window = Window {
        before: Frontier::new(),
        leaves: (0..3u8).map(|at| leaf_hash(&[at])).collect(),
    };
    let mut log = Frontier::new();
    for leaf in &window.leaves {
        log.push_hash(*leaf).unwrap();
    }
    let policy = [[0; 8].as_slice(), &[4; 32]].concat();
    let all = [(Row::Policy, policy)].into_iter();
    let all = all.chain(members.rows()).chain(window.rows());
    let rows: Vec<(Bytes, Bytes)> = all
        .map(|(row, value)| (row.encode().into(), value.into()))
        .collect();
    let checkpoint = Checkpoint {
        log: log.point(0),
        state: MapRoot {
            handle: Handle::from_bytes([3; 32]),
            height: 1,
            entries: rows.len() as u64,
            salt: [0; 16],
        },
    };
    let note = Note {
        log: checkpoint.log,
        time_ms: 5,
    };
    let posted = Posted {
        note: note.sign(VOLUME, &key(2)),
        signed: checkpoint.statement(VOLUME).sign(&[&key(4), &key(5)]),
    };
    (posted, rows)
}

#[test]
fn start_comes_back_as_it_was_written() {
    let home = tempfile::tempdir().unwrap();
    assert!(Start::read(home.path(), VOLUME, 0).unwrap().is_none());
    let (posted, rows) = rows();
    let start = Start::new(VOLUME, posted.clone(), rows.clone()).unwrap();
    start.write(home.path(), VOLUME).unwrap();
    let found = Start::read(home.path(), VOLUME, 0).unwrap().unwrap();
    assert_eq!((&found.posted, &found.rows), (&posted, &rows));
    assert_eq!(found.log(), start.log());
    assert_eq!(found.parts().window, start.parts().window);
    assert!(Start::read(home.path(), VOLUME, 1).is_err());
    let other = VolumeId::from_bytes([8; 32]);
    assert!(Start::read(home.path(), other, 0).is_err());
}

#[test]
fn damaged_start_is_refused_wherever_it_is_damaged() {
    let home = tempfile::tempdir().unwrap();
    let (posted, rows) = rows();
    Start::new(VOLUME, posted, rows)
        .unwrap()
        .write(home.path(), VOLUME)
        .unwrap();
    let path = home.path().join(FILE);
    let whole = std::fs::read(&path).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        std::fs::write(&path, &changed).unwrap();
        assert!(Start::read(home.path(), VOLUME, 0).is_err(), "byte {at}");
        std::fs::write(&path, &whole[..at]).unwrap();
        assert!(Start::read(home.path(), VOLUME, 0).is_err(), "cut at {at}");
    }
}

#[test]
fn rows_that_are_not_those_of_the_log_are_no_start() {
    let (posted, rows) = rows();
    for at in 0..rows.len() {
        let mut fewer = rows.clone();
        let (key, _) = fewer.remove(at);
        let begun = Start::new(VOLUME, posted.clone(), fewer).is_ok();
        let may_lack = matches!(Row::decode(&key), Ok(Row::Role(..) | Row::Device(_)));
        assert_eq!(begun, may_lack, "without row {at}");
    }
}
