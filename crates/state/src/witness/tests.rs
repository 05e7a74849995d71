//! A witness that is asked by several at once, that restarts, and that is shown two histories.

use std::convert::Infallible;
use std::time::Duration;

use trust::checkpoint;
use trust::history::{Frontier, leaf_hash};
use trust::key::SecretKey;

use super::*;

fn volume() -> VolumeId {
    VolumeId::from_bytes([5; 32])
}

fn log_key() -> SecretKey {
    SecretKey::from_seed(&[30; 32])
}

/// The log of this epoch and size, whose leaves are made of `salt`.
fn point(epoch: u64, size: u64, salt: u8) -> LogPoint {
    let mut frontier = Frontier::new();
    for leaf in 0..size {
        let leaf = [leaf.to_be_bytes().as_slice(), &[salt]].concat();
        frontier.push_hash(leaf_hash(&leaf)).unwrap();
    }
    frontier.point(epoch)
}

/// A submission without a proof.
fn submission(old: u64, log: LogPoint) -> Submission {
    let note = checkpoint::note(volume(), &log, &log_key()).unwrap();
    Submission {
        old,
        proof: vec![],
        note: Note::decode(note.as_bytes()).unwrap(),
    }
}

fn open(directory: &Path) -> WitnessState {
    let deadline = Instant::now() + Duration::from_secs(60);
    WitnessState::open(directory, deadline).unwrap()
}

fn ask(state: &WitnessState, of: &Submission) -> Result<Cosigned, CosignError<Infallible>> {
    let line = |text: &str| Ok(format!("\u{2014} w {}\n", text.len()));
    state.cosign(of, &[log_key().public()], line)
}

#[test]
fn a_witness_that_restarts_remembers() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    assert_eq!(
        ask(&state, &submission(0, point(0, 3, 1))).unwrap().before,
        None
    );
    assert!(matches!(
        WitnessState::open(dir.path(), Instant::now()),
        Err(StateError::Locked { .. })
    ));
    drop(state);
    let state = open(dir.path());
    let again = ask(&state, &submission(3, point(0, 3, 1))).unwrap();
    assert_eq!(again.before, Some(point(0, 3, 1)));
    let refused = ask(&state, &submission(0, point(0, 3, 2)));
    assert!(matches!(
        refused,
        Err(CosignError::Refused(Refusal::OtherSize { size: 3 }))
    ));
    // A later log, and then the earlier one is over.
    ask(&state, &submission(0, point(2, 1, 1))).unwrap();
    drop(state);
    let state = open(dir.path());
    let refused = ask(&state, &submission(3, point(0, 3, 1)));
    assert!(matches!(
        refused,
        Err(CosignError::Refused(Refusal::Ended { later: 2 }))
    ));
    let epochs: Vec<u64> = cosigned(dir.path())
        .unwrap()
        .iter()
        .map(|n| n.log.epoch)
        .collect();
    assert_eq!(epochs, [0, 2]);
}

#[test]
fn a_note_that_cannot_be_read_is_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    ask(&state, &submission(0, point(0, 3, 1))).unwrap();
    drop(state);
    let path = dir.path().join(format!("cosigned/{}.0", volume()));
    let whole = fs::read(&path).unwrap();
    for bytes in [&b""[..], b"\xff", &whole[..40]] {
        fs::write(&path, bytes).unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        assert!(WitnessState::open(dir.path(), deadline).is_err());
    }
    // That of another log under this name.
    let other = checkpoint::note(volume(), &point(1, 1, 1), &log_key()).unwrap();
    fs::write(&path, other).unwrap();
    assert!(cosigned(dir.path()).is_err());
    fs::write(&path, whole).unwrap();
    assert_eq!(cosigned(dir.path()).unwrap().len(), 1);
}

#[test]
fn nothing_is_signed_that_cannot_be_kept() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    fs::remove_dir(dir.path().join(COSIGNED)).unwrap();
    let failed = ask(&state, &submission(0, point(0, 3, 1)));
    assert!(matches!(failed, Err(CosignError::State(_))));
    fs::create_dir(dir.path().join(COSIGNED)).unwrap();
    // It was not counted as cosigned either.
    assert_eq!(
        ask(&state, &submission(0, point(0, 2, 9))).unwrap().before,
        None
    );
}

#[test]
fn of_two_histories_at_once_one_is_cosigned() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    let cosigned: usize = std::thread::scope(|scope| {
        let ask = |salt| {
            let state = &state;
            scope.spawn(move || ask(state, &submission(0, point(0, 3, salt))).is_ok())
        };
        let asked: Vec<_> = (0..8).map(ask).collect();
        asked
            .into_iter()
            .map(|t| usize::from(t.join().unwrap()))
            .sum()
    });
    assert_eq!(cosigned, 1);
}

#[test]
fn contradictions_are_kept_as_evidence_within_bounds() {
    let dir = tempfile::tempdir().unwrap();
    let state = open(dir.path());
    ask(&state, &submission(0, point(0, 3, 1))).unwrap();
    // Wrong proofs first: they leave room for contradictions.
    for salt in 10..40 {
        assert!(ask(&state, &submission(3, point(0, 4, salt))).is_err());
    }
    for salt in 10..40 {
        for _ in 0..2 {
            assert!(ask(&state, &submission(3, point(0, 3, salt))).is_err());
        }
    }
    // Nobody but the log's key fills this directory.
    let mut foreign = submission(3, point(0, 3, 9));
    foreign.note = Note::new(volume(), point(0, 3, 9));
    assert!(ask(&state, &foreign).is_err());
    let kept = evidence(dir.path()).unwrap();
    let of = |kind: &str| {
        let begins = |path: &&PathBuf| path.to_string_lossy().contains(&format!("/{kind}."));
        kept.iter().filter(begins).count()
    };
    assert_eq!((of("conflict"), of("unproved")), (16, 16));
    let refused = fs::read(&kept[0]).unwrap();
    let refused = Submission::decode(&refused).unwrap();
    let shown = |salt| refused == submission(3, point(0, 3, salt));
    assert!((10..26).any(shown), "the first ones are kept");
    let beside = kept[0].with_extension("cosigned");
    let cosigned = Note::decode(&fs::read(beside).unwrap()).unwrap();
    assert_eq!(cosigned.log, point(0, 3, 1));
}
