//! Evidence is bounded in files and bytes, and what is cheap to make leaves room for forks.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use state::{LockedState, VolumeState};
use trust::evidence::{Evidence, EvidenceClass};
use trust::statement::VolumeId;

fn locked(top: &Path) -> (LockedState, PathBuf) {
    let id = VolumeId::from_bytes([1; 32]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let locked = VolumeState::at(top, &id).lock(deadline).unwrap();
    let directory = top.join("volumes").join(id.to_string()).join("evidence");
    (locked, directory)
}

fn piece(class: EvidenceClass, name: &str, bytes: usize) -> Evidence {
    Evidence {
        class,
        name: format!("{}{name}", class.prefix()),
        bytes: vec![7; bytes],
    }
}

/// The lengths of the files, by name.
fn kept(directory: &Path) -> BTreeMap<String, u64> {
    let files = fs::read_dir(directory).unwrap().map(Result::unwrap);
    let length = |file: fs::DirEntry| {
        let name = file.file_name().into_string().unwrap();
        (name, file.metadata().unwrap().len())
    };
    files.map(length).collect()
}

const CLASSES: [EvidenceClass; 3] = [
    EvidenceClass::Fork,
    EvidenceClass::Rollback,
    EvidenceClass::StrayPolicy,
];

#[test]
fn each_class_has_a_quota_of_its_own() {
    let top = tempfile::tempdir().unwrap();
    let (locked, directory) = locked(top.path());
    for (class, most) in CLASSES.into_iter().zip([64, 32, 16]).rev() {
        for number in 0..100 {
            let piece = piece(class, &format!("{number}"), 100);
            let kept = locked.keep_evidence(&piece).unwrap();
            assert_eq!(kept, number < most, "{number}");
            // The same again changes nothing.
            assert_eq!(locked.keep_evidence(&piece).unwrap(), kept);
        }
        let kept = kept(&directory);
        let names = || kept.keys().filter(|name| name.starts_with(class.prefix()));
        assert_eq!(names().count(), most);
        assert!(
            names().any(|name| name.ends_with("-0")),
            "the first ones stay"
        );
    }
}

#[test]
fn long_evidence_is_bounded_in_bytes() {
    let top = tempfile::tempdir().unwrap();
    let (locked, directory) = locked(top.path());
    for class in CLASSES {
        for number in 0..20 {
            let piece = piece(class, &format!("{number}"), 1 << 20);
            locked.keep_evidence(&piece).unwrap();
        }
    }
    let bytes: u64 = kept(&directory).values().sum();
    assert_eq!(bytes, 26 << 20);
    for class in CLASSES {
        assert!(kept(&directory).contains_key(&format!("{}0", class.prefix())));
    }
}

#[test]
fn evidence_of_earlier_builds_stays_and_takes_no_room() {
    let top = tempfile::tempdir().unwrap();
    let (locked, directory) = locked(top.path());
    fs::create_dir_all(&directory).unwrap();
    for number in 0..64 {
        fs::write(directory.join(format!("blk1old{number}")), b"a head").unwrap();
    }
    let fork = piece(EvidenceClass::Fork, "new", 10);
    locked.keep_evidence(&fork).unwrap();
    let kept = kept(&directory);
    assert_eq!(kept.len(), 65);
    assert_eq!(kept.get(&fork.name), Some(&10));
}
