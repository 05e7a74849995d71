//! A witness that is asked by several at once, that restarts, and that is shown two histories.

use std::convert::Infallible;
use std::sync::mpsc;
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

fn key() -> SecretKey {
    SecretKey::from_seed(&[40; 32])
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A directory with the empty memory of the witness.
fn memory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), &key().public(), soon()).unwrap();
    dir
}

fn open(directory: &Path) -> WitnessState {
    WitnessState::open(directory, &key().public(), soon()).unwrap()
}

/// The line of the witness of this name, at this time.
fn line(text: &str, name: &str, time: u64) -> String {
    let message = checkpoint::cosigned_message(text, time);
    let signature = key().sign(message.as_bytes());
    checkpoint::cosignature_line(name, &key().public(), time, &signature)
}

fn ask(state: &WitnessState, of: &Submission) -> Result<Cosigned, CosignError<Infallible>> {
    let sign = |text: &str| Ok(line(text, "w", 7));
    state.cosign(of, &[log_key().public()], "w", sign)
}

/// Why the witness refuses.
fn refusal(state: &WitnessState, of: &Submission) -> Refusal {
    match ask(state, of) {
        Err(CosignError::Refused { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_witness_that_restarts_remembers() {
    let dir = memory();
    let state = open(dir.path());
    assert_eq!(
        ask(&state, &submission(0, point(0, 3, 1))).unwrap().before,
        None
    );
    assert!(matches!(
        WitnessState::open(dir.path(), &key().public(), Instant::now()),
        Err(MemoryError::State(StateError::Locked { .. }))
    ));
    drop(state);
    let state = open(dir.path());
    let again = ask(&state, &submission(3, point(0, 3, 1))).unwrap();
    assert_eq!(again.before, Some(point(0, 3, 1)));
    let refused = refusal(&state, &submission(0, point(0, 3, 2)));
    assert_eq!(refused, Refusal::OtherSize { size: 3 });
    // A later log, and then the earlier one is over.
    ask(&state, &submission(0, point(2, 1, 1))).unwrap();
    drop(state);
    let state = open(dir.path());
    let refused = refusal(&state, &submission(3, point(0, 3, 1)));
    assert_eq!(refused, Refusal::Ended { later: 2 });
    let epochs: Vec<u64> = cosigned(dir.path())
        .unwrap()
        .iter()
        .map(|n| n.log.epoch)
        .collect();
    assert_eq!(epochs, [0, 2]);
}

#[test]
fn a_note_that_cannot_be_read_is_not_forgotten() {
    let dir = memory();
    let state = open(dir.path());
    ask(&state, &submission(0, point(0, 3, 1))).unwrap();
    drop(state);
    let path = dir.path().join(format!("cosigned/{}.0", volume()));
    let whole = fs::read(&path).unwrap();
    for bytes in [&b""[..], b"\xff", &whole[..40]] {
        fs::write(&path, bytes).unwrap();
        assert!(WitnessState::open(dir.path(), &key().public(), soon()).is_err());
    }
    // That of another log under this name.
    let other = checkpoint::note(volume(), &point(1, 1, 1), &log_key()).unwrap();
    fs::write(&path, other).unwrap();
    assert!(cosigned(dir.path()).is_err());
    fs::write(&path, whole).unwrap();
    assert_eq!(cosigned(dir.path()).unwrap().len(), 1);
    // All of them are gone.
    fs::remove_dir_all(dir.path().join(COSIGNED)).unwrap();
    assert!(WitnessState::open(dir.path(), &key().public(), soon()).is_err());
}

#[test]
fn nothing_is_signed_that_cannot_be_kept() {
    let dir = memory();
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
    let dir = memory();
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
    let dir = memory();
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

/// The lines of strangers, as many and as long as a note can have beside the log's own.
fn padded(mut submission: Submission) -> Submission {
    for stranger in 0..99 {
        let line = format!("\u{2014} {stranger:0>150}\n");
        submission.note.add(&line);
    }
    Submission::decode(submission.encode().as_bytes()).unwrap()
}

#[test]
fn lines_of_strangers_do_not_stop_a_witness() {
    let dir = memory();
    let state = open(dir.path());
    let first = submission(0, point(0, 3, 1));
    ask(&state, &padded(first.clone())).unwrap();
    ask(&state, &padded(submission(3, point(0, 3, 1)))).unwrap();
    drop(state);
    // The kept files have the signatures of the log's key and of the witness.
    let state = open(dir.path());
    let mut kept = first.note.clone();
    kept.add(&line(&first.note.text(), "w", 7));
    assert_eq!(cosigned(dir.path()).unwrap(), [kept.clone()]);
    let refused = padded(submission(3, point(0, 3, 2)));
    assert_eq!(refusal(&state, &refused), Refusal::OtherRoot { size: 3 });
    let evidence = evidence(dir.path()).unwrap();
    let beside = fs::read(evidence[0].with_extension("cosigned")).unwrap();
    assert_eq!(Note::decode(&beside).unwrap(), kept);
    let refused = fs::read(&evidence[0]).unwrap();
    let refused = Submission::decode(&refused).unwrap();
    assert_eq!(refused, submission(3, point(0, 3, 2)));
}

#[test]
fn note_that_could_not_be_read_again_is_not_kept() {
    let dir = memory();
    let state = open(dir.path());
    let first = submission(0, point(0, 3, 1));
    for line in [
        "no line\n".to_owned(),
        format!("\u{2014} w {}\n", "x".repeat(1 << 14)),
    ] {
        let sign = |_: &str| Ok::<_, Infallible>(line);
        let refused = state.cosign(&first, &[log_key().public()], "w", sign);
        assert!(matches!(refused, Err(CosignError::State(_))));
        assert_eq!(cosigned(dir.path()).unwrap(), []);
    }
    ask(&state, &first).unwrap();
}

#[test]
fn log_that_was_cosigned_last_costs_nothing() {
    let dir = memory();
    let state = open(dir.path());
    let again = submission(3, point(0, 3, 1));
    let first = ask(&state, &submission(0, point(0, 3, 1))).unwrap();
    // Nothing could be written.
    fs::rename(dir.path().join(COSIGNED), dir.path().join("away")).unwrap();
    let keys = [log_key().public()];
    let never = |_: &str| -> Result<String, Infallible> { panic!("nothing is signed") };
    let second = state.cosign(&again, &keys, "w", never).unwrap();
    assert_eq!(second.line, first.line);
    fs::rename(dir.path().join("away"), dir.path().join(COSIGNED)).unwrap();
    // The witness has another name now.
    let renamed = |text: &str| Ok::<_, Infallible>(line(text, "x", 9));
    let renamed = state.cosign(&again, &keys, "x", renamed).unwrap();
    assert!(renamed.line.starts_with("\u{2014} x "), "{}", renamed.line);
}

#[test]
fn memory_belongs_to_one_key() {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (key().public(), log_key().public());
    // A disk that is not mounted, or a path that was mistyped.
    for path in [dir.path().to_owned(), dir.path().join("none")] {
        let missing = WitnessState::open(&path, &own, soon());
        assert!(matches!(missing, Err(MemoryError::Missing { .. })));
    }
    assert_eq!(names(dir.path()).unwrap(), [""; 0]);
    create(dir.path(), &own, soon()).unwrap();
    let foreign = WitnessState::open(dir.path(), &other, soon());
    assert!(matches!(foreign, Err(MemoryError::OtherKey { key, .. }) if key == own));
    for key in [own, other] {
        let again = create(dir.path(), &key, soon());
        assert!(matches!(again, Err(MemoryError::Exists { key, .. }) if key == own));
    }
    ask(&open(dir.path()), &submission(0, point(0, 3, 1))).unwrap();
    // A memory that has lost its key's name is not taken for a new one.
    fs::write(dir.path().join(WITNESS), "key1").unwrap();
    assert!(WitnessState::open(dir.path(), &own, soon()).is_err());
    assert!(create(dir.path(), &own, soon()).is_err());
    fs::remove_file(dir.path().join(WITNESS)).unwrap();
    assert!(create(dir.path(), &own, soon()).is_err());
}

#[test]
fn ended_logs_do_not_fill_the_disk() {
    let dir = memory();
    let state = open(dir.path());
    for epoch in 0..100 {
        ask(&state, &submission(0, point(epoch, 1, 1))).unwrap();
    }
    drop(state);
    let kept = cosigned(dir.path()).unwrap();
    let mut epochs: Vec<u64> = kept.iter().map(|note| note.log.epoch).collect();
    epochs.sort_unstable();
    assert_eq!(epochs, (84..100).collect::<Vec<_>>());
    let state = open(dir.path());
    for epoch in [0, 50, 98] {
        let refused = refusal(&state, &submission(0, point(epoch, 1, 1)));
        assert_eq!(refused, Refusal::Ended { later: 99 });
    }
}

#[test]
fn evidence_that_cannot_be_kept_does_not_change_the_refusal() {
    let dir = memory();
    let state = open(dir.path());
    ask(&state, &submission(0, point(0, 3, 1))).unwrap();
    fs::write(dir.path().join(EVIDENCE), "in the way").unwrap();
    let refused = ask(&state, &submission(3, point(0, 3, 2)));
    assert!(matches!(
        refused,
        Err(CosignError::Refused {
            why: Refusal::OtherRoot { size: 3 },
            not_kept: Some(_),
        })
    ));
}

#[test]
fn requests_without_a_signature_do_not_wait_for_the_key() {
    let dir = memory();
    let state = open(dir.path());
    let (go_on, wait) = mpsc::channel::<()>();
    let (begins, begun) = mpsc::channel();
    std::thread::scope(|scope| {
        let slow = move |text: &str| {
            begins.send(()).unwrap();
            wait.recv().unwrap();
            Ok::<_, Infallible>(line(text, "w", 7))
        };
        let first = submission(0, point(0, 3, 1));
        let (state, keys) = (&state, [log_key().public()]);
        let slow = scope.spawn(move || state.cosign(&first, &keys, "w", slow).is_ok());
        begun.recv().unwrap();
        let (tell, told) = mpsc::channel();
        let foreign = Submission {
            note: Note::new(volume(), point(0, 3, 1)),
            ..submission(0, point(0, 3, 1))
        };
        scope.spawn(move || tell.send(refusal(state, &foreign)).unwrap());
        let answer = told.recv_timeout(Duration::from_secs(20));
        go_on.send(()).unwrap();
        assert_eq!(answer, Ok(Refusal::NotSigned));
        assert!(slow.join().unwrap());
    });
}

/// The proof that the log of 5 leaves continues the one of 3, both made of `salt` after the third leaf.
fn grown(salt: u8) -> Submission {
    let mut frontier = Frontier::new();
    let mut leaves = Vec::new();
    for leaf in 0..5_u64 {
        let of = if leaf < 3 { 1 } else { salt };
        let hash = leaf_hash(&[leaf.to_be_bytes().as_slice(), &[of]].concat());
        leaves.push(hash);
        frontier.push_hash(hash).unwrap();
    }
    // RFC 6962, 2.1.2: PROOF(3, D[5]) = leaf 2, leaf 3, the node over leaves 0 and 1, leaf 4.
    let node = trust::history::node_hash(&leaves[0], &leaves[1]);
    Submission {
        proof: vec![leaves[2], leaves[3], node, leaves[4]],
        ..submission(3, frontier.point(0))
    }
}

#[test]
fn of_two_continuations_at_once_one_is_cosigned() {
    let dir = memory();
    let state = open(dir.path());
    ask(&state, &submission(0, point(0, 3, 1))).unwrap();
    let cosigned: usize = std::thread::scope(|scope| {
        let ask = |salt| {
            let state = &state;
            scope.spawn(move || {
                let sign = |text: &str| {
                    std::thread::sleep(Duration::from_millis(5));
                    Ok::<_, Infallible>(line(text, "w", 7))
                };
                let keys = [log_key().public()];
                state.cosign(&grown(salt), &keys, "w", sign).is_ok()
            })
        };
        let asked: Vec<_> = (10..18).map(ask).collect();
        asked
            .into_iter()
            .map(|t| usize::from(t.join().unwrap()))
            .sum()
    });
    assert_eq!(cosigned, 1);
}
