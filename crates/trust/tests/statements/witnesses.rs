//! What a witness refuses, and the proofs that publishers make for it. One attack for each check of `trust::witness`.

use std::collections::HashMap;

use bytes::Bytes;
use trust::checkpoint;
use trust::history::proof::consistency;
use trust::history::{Frontier, LogPoint, leaf_hash, verify_consistency};
use trust::key::PublicKey;
use trust::policy::Threshold;
use trust::statement::VolumeId;
use trust::tiles::{Edge, TileName};
use trust::witness::{
    MAX_PROOF_LINES, MAX_SUBMISSION_BYTES, Note, Refusal, Submission, is_name, log_verifier_key,
    verifier_key,
};

use crate::world::{NOW, key};

/// A log of leaves with its tiles.
struct Log {
    points: Vec<LogPoint>,
    tiles: HashMap<TileName, Bytes>,
}

fn volume() -> VolumeId {
    VolumeId::from_bytes([5; 32])
}

/// The log whose leaves are made of these numbers.
fn log_of(epoch: u64, leaves: impl Iterator<Item = u64>) -> Log {
    let (mut edge, mut filled) = (Edge::new(), Vec::new());
    let mut frontier = Frontier::new();
    let mut log = Log {
        points: vec![frontier.point(epoch)],
        tiles: HashMap::new(),
    };
    for leaf in leaves {
        let hash = leaf_hash(&leaf.to_be_bytes());
        edge.push(hash, &mut filled).unwrap();
        frontier.push_hash(hash).unwrap();
        log.points.push(frontier.point(epoch));
        let tiles = filled.drain(..).chain(edge.tiles());
        let tiles = tiles.map(|(name, bytes)| (name, Bytes::from(bytes)));
        log.tiles.extend(tiles);
    }
    log
}

impl Log {
    fn at(&self, size: u64) -> LogPoint {
        self.points[size as usize]
    }

    /// A checkpoint signed by key 30, with the proof from `old` on.
    fn submission(&self, old: u64, size: u64) -> Submission {
        let tile = |name: TileName| self.tiles.get(&name).cloned();
        Submission {
            old,
            proof: consistency(old, &self.at(size), tile).unwrap(),
            note: signed(self.at(size), 30),
        }
    }

    /// What a witness says that follows this volume by key 30 and has cosigned the log of this size.
    fn asked(&self, of: &Submission, last: u64) -> Result<(), Refusal> {
        let last = Some(self.at(last)).filter(|last| last.size > 0);
        admit(of, last.as_ref())
    }
}

/// The answer of a witness that follows this volume by key 30.
fn admit(of: &Submission, last: Option<&LogPoint>) -> Result<(), Refusal> {
    of.check(&keys())?.admit(last)
}

fn keys() -> [PublicKey; 1] {
    [key(30).public()]
}

fn signed(log: LogPoint, number: u8) -> Note {
    let note = checkpoint::note(volume(), &log, &key(number)).unwrap();
    Note::decode(note.as_bytes()).unwrap()
}

#[test]
fn proofs_of_tiles_hold_between_all_sizes() {
    let log = log_of(0, 0..600);
    let tile = |name: TileName| log.tiles.get(&name).cloned();
    let few = [1, 2, 3, 5, 8, 255, 256, 257, 300, 511, 512, 513, 599, 600];
    for new in few {
        for old in (0..=new).filter(|old| few.contains(old) || *old % 37 == 0) {
            let proof = consistency(old, &log.at(new), tile).unwrap();
            let shown = verify_consistency(&log.at(old), &log.at(new), &proof);
            assert_eq!(shown, Ok(()), "{old} to {new}");
            assert!(proof.len() <= MAX_PROOF_LINES);
        }
    }
    assert_eq!(consistency(601, &log.at(600), tile), None);
    // A tile that is missing, or of another log, gives no proof.
    assert_eq!(consistency(3, &log.at(600), |_| None), None);
    let other = log_of(0, 1..601);
    let tile = |name: TileName| other.tiles.get(&name).cloned();
    assert_eq!(consistency(3, &log.at(600), tile), None);
    let short = |name: TileName| log.tiles.get(&name).map(|tile| tile.slice(..32));
    assert_eq!(consistency(3, &log.at(600), short), None);
}

#[test]
fn log_that_grows_is_cosigned() {
    let log = log_of(0, 0..300);
    for (old, new) in [(0, 1), (1, 2), (2, 7), (7, 7), (7, 256), (256, 300)] {
        let submission = log.submission(old, new);
        assert_eq!(log.asked(&submission, old), Ok(()));
        let body = submission.encode();
        assert_eq!(Submission::decode(body.as_bytes()), Ok(submission));
    }
}

#[test]
fn checkpoint_that_no_log_key_signed_is_not_cosigned() {
    let log = log_of(0, 0..9);
    let mut submission = log.submission(0, 9);
    submission.note = signed(log.at(9), 31);
    assert_eq!(log.asked(&submission, 0), Err(Refusal::NotSigned));
    // The line of another checkpoint.
    let mut note = Note::new(volume(), log.at(9));
    note.add(signed(log.at(8), 30).lines());
    submission.note = note.clone();
    assert_eq!(log.asked(&submission, 0), Err(Refusal::NotSigned));
    // A cosignature by the log's key is no signature of the log.
    let message = checkpoint::cosigned_message(&note.text(), NOW);
    let signature = key(30).sign(message.as_bytes());
    let name = format!("bulla/{}/0", volume());
    let line = checkpoint::cosignature_line(&name, &key(30).public(), NOW, &signature);
    submission.note.add(&line);
    assert_eq!(log.asked(&submission, 0), Err(Refusal::NotSigned));
    // A line under another name.
    let renamed = signed(log.at(9), 30).lines().replace("/0 ", "/1 ");
    submission.note.add(&renamed);
    assert_eq!(log.asked(&submission, 0), Err(Refusal::NotSigned));
    // Beside other lines the right one counts.
    submission.note.add(signed(log.at(9), 30).lines());
    assert_eq!(log.asked(&submission, 0), Ok(()));
}

#[test]
fn note_is_reduced_to_the_lines_of_the_log() {
    let log = log_of(0, 0..9);
    let own = signed(log.at(9), 30);
    let mut note = own.clone();
    for stranger in 0..99 {
        note.add(&format!("\u{2014} stranger {stranger}\n"));
    }
    note.add(signed(log.at(8), 30).lines());
    let mut submission = Submission {
        old: 0,
        proof: vec![],
        note,
    };
    let checked = submission.check(&keys()).unwrap();
    assert_eq!(checked.note(), &own);
    // One line of each key, however often it comes.
    let twice = own.encode() + own.lines();
    submission.note = Note::decode(twice.as_bytes()).unwrap();
    let checked = submission.check(&keys()).unwrap();
    assert_eq!(checked.note(), &own);
    // The line of a witness is found by its name and its key, beside another one of the same key.
    let line = |name: &str| {
        let message = checkpoint::cosigned_message(&own.text(), NOW);
        let signature = key(31).sign(message.as_bytes());
        checkpoint::cosignature_line(name, &key(31).public(), NOW, &signature)
    };
    let mut note = own.clone();
    note.add(&line("former"));
    note.add(&line("w"));
    assert_eq!(note.line_of("w", key(31).public()), Some(line("w")));
    assert_eq!(note.line_of("x", key(31).public()), None);
    assert_eq!(note.line_of("w", key(32).public()), None);
}

#[test]
fn volume_that_nobody_named_is_unknown() {
    let submission = log_of(0, 0..3).submission(0, 3);
    assert_eq!(submission.check(&[]), Err(Refusal::UnknownVolume));
}

#[test]
fn second_history_is_not_cosigned() {
    let (log, other) = (log_of(0, 0..9), log_of(0, (0..6).chain(70..90)));
    // Of the same size.
    let refused = log.asked(&other.submission(9, 9), 9);
    assert_eq!(refused, Err(Refusal::OtherRoot { size: 9 }));
    // Longer, with the proof that fits the other history.
    let refused = log.asked(&other.submission(9, 12), 9);
    assert_eq!(refused, Err(Refusal::BadProof { size: 9 }));
    // Shorter, or from another size than the one that was cosigned.
    for (old, new) in [(6, 12), (0, 12), (6, 8), (0, 3)] {
        let refused = log.asked(&other.submission(old, new), 9);
        assert_eq!(refused, Err(Refusal::OtherSize { size: 9 }), "{old} {new}");
    }
    let submission = Submission {
        old: 9,
        ..log.submission(0, 8)
    };
    assert!(matches!(
        log.asked(&submission, 9),
        Err(Refusal::Malformed(_))
    ));
    // Where both histories are one, either is cosigned.
    assert_eq!(log.asked(&other.submission(6, 12), 6), Ok(()));
}

#[test]
fn log_that_the_owners_ended_is_not_cosigned_any_more() {
    let (log, later) = (log_of(3, 0..9), log_of(4, 50..52));
    // The later one begins anew.
    assert_eq!(admit(&later.submission(0, 2), Some(&log.at(9))), Ok(()));
    let refused = admit(&later.submission(1, 2), Some(&log.at(9)));
    assert_eq!(refused, Err(Refusal::OtherSize { size: 0 }));
    let refused = admit(&log.submission(9, 9), Some(&later.at(2)));
    assert_eq!(refused, Err(Refusal::Ended { later: 4 }));
}

#[test]
fn empty_log_has_one_root() {
    let submission = |root| Submission {
        old: 0,
        proof: vec![],
        note: signed(
            LogPoint {
                epoch: 0,
                size: 0,
                root,
            },
            30,
        ),
    };
    let right = submission(Frontier::new().root());
    assert_eq!(admit(&right, None), Ok(()));
    let refused = admit(&submission([7; 32]), None);
    assert_eq!(refused, Err(Refusal::OtherRoot { size: 0 }));
}

#[test]
fn bodies_have_one_spelling_and_bounds() {
    let log = log_of(0, 0..9);
    let body = log.submission(3, 9).encode();
    let refused = |body: &str| Submission::decode(body.as_bytes()).is_err();
    assert!(!refused(&body));
    let origin = format!("bulla/{}/0", volume());
    for (find, replace) in [
        ("old 3", "old 03"),
        ("old 3", "old +3"),
        ("old 3", "old"),
        ("old 3", "new 3"),
        ("old 3\n", "old 3\nxyz\n"),
        ("old 3\n", "old 3\nAAAA\n"),
        ("\n\n", "\n"),
        (origin.as_str(), "example.com/log"),
        (
            origin.as_str(),
            "bulla/vol1nj8nmtllrm059w4raplj0hc9eyjrfkyemyyhlxtqjz3maz92q6xsnrgpaz/00",
        ),
        ("/0\n9\n", "/0\n09\n"),
        ("/0\n9\n", "/0\n9\nextension\n"),
        ("/0\n9\n", "/0\n"),
        ("\u{2014} ", "- "),
    ] {
        let changed = body.replace(find, replace);
        assert!(changed != body && refused(&changed), "{find:?} {replace:?}");
    }
    assert!(refused(&format!(
        "{body}{}",
        "x".repeat(MAX_SUBMISSION_BYTES)
    )));
    let many = vec![[1; 32]; MAX_PROOF_LINES + 1];
    let many = Submission {
        proof: many,
        ..log.submission(3, 9)
    };
    assert!(refused(&many.encode()));
    assert!(
        refused(body.trim_end_matches('\n')),
        "a line without an end"
    );
    // One line is the log's own.
    let lines = |count, line: &str| format!("{body}{}", line.repeat(count));
    assert!(refused(&lines(100, "\u{2014} x\n")));
    assert!(!refused(&lines(99, "\u{2014} x\n")));
    let long = format!("\u{2014} {}\n", "x".repeat(200));
    assert!(refused(&lines(85, &long)), "a note of more than 16 KiB");
    assert!(!refused(&lines(70, &long)));
}

#[test]
fn only_good_lines_of_witnesses_are_taken() {
    let log = log_of(0, 0..9).at(9);
    let text = checkpoint::text(volume(), &log);
    let line = |number: u8, name: &str, time: u64, text: &str| {
        let message = checkpoint::cosigned_message(text, time);
        let signature = key(number).sign(message.as_bytes());
        checkpoint::cosignature_line(name, &key(number).public(), time, &signature)
    };
    let witnesses = Threshold::new(2, vec![key(20).public(), key(21).public()]).unwrap();
    let found =
        |lines: &str| checkpoint::cosignatures(lines.as_bytes(), volume(), &log, &witnesses);
    let good = line(20, "w/20", NOW, &text);
    let other = checkpoint::text(volume(), &log_of(0, 1..10).at(9));
    for bad in [
        line(22, "w/22", NOW, &text),
        line(20, "w/20", NOW, &other),
        good.replace("w/20", "w/21"),
        "\u{2014} w/20 AAAA\n".to_owned(),
        "\u{2014}\n\n".to_owned(),
    ] {
        assert_eq!(found(&bad), [], "{bad:?}");
    }
    let all = format!(
        "{}{good}{good}{}",
        line(22, "w/22", NOW, &text),
        line(21, "w/21", NOW + 5, &text)
    );
    let taken = found(&all);
    let taken: Vec<_> = taken
        .iter()
        .map(|c| (c.name.as_str(), c.time, c.witness))
        .collect();
    let (first, second) = (key(20).public(), key(21).public());
    assert_eq!(taken, [("w/20", NOW, first), ("w/21", NOW + 5, second)]);
    // The lines are as they came, so they can be put under the text.
    let lines: String = found(&all).into_iter().map(|c| c.line).collect();
    let note = format!("{text}\n{lines}");
    assert_eq!(
        checkpoint::verify(note.as_bytes(), volume(), &log, &witnesses),
        Ok(())
    );
    // More lines than are looked at hide the good one: nobody reads without end.
    let flood = "\u{2014} x AAAA\n".repeat(100) + &good;
    assert_eq!(found(&flood), []);
    assert_eq!(
        checkpoint::cosignatures(&[0xff, 0xfe], volume(), &log, &witnesses),
        []
    );
}

#[test]
fn names_and_verifier_keys_are_those_of_signed_notes() {
    for name in ["w", "witness.example/20", "ümlaut"] {
        assert!(is_name(name), "{name}");
    }
    for name in ["", "a b", "a+b", "a\nb", "a\u{2003}b", &"x".repeat(257)] {
        assert!(!is_name(name), "{name:?}");
    }
    let public = key(20).public();
    let line = checkpoint::cosignature_line("witness.example/20", &public, NOW, &[0; 64]);
    assert!(line.starts_with("\u{2014} witness.example/20 ItLojg"));
    let vkey = verifier_key("witness.example/20", &public);
    assert!(vkey.starts_with("witness.example/20+22d2e88e+B"), "{vkey}");
    let vkey = log_verifier_key(volume(), 1, &public);
    assert!(vkey.starts_with(&format!("bulla/{}/1+", volume())));
}
