//! Homes: made whole or not at all, found by name and id, refused when they are damaged.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use trust::policy::Genesis;
use trust::roles::{Roles, Threshold};
use trust_shared::genesis::{Founder, SharedRoles, Silence, genesis};

use super::*;

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

fn policy(number: u8) -> (VolumeId, Signed) {
    let owner = Roles::single(key(100).public());
    let terms = Genesis::new("v", [number; 32], [2; 32], owner).unwrap();
    let signed = genesis(&terms, &roles()).sign(&[&key(100)]);
    (VolumeId::from_bytes(signed.hash()), signed)
}

fn founder() -> Founder {
    Founder {
        user: [7; 32],
        name: "ada".to_owned(),
        device: key(1).public(),
    }
}

fn roles() -> SharedRoles {
    SharedRoles {
        orderer: key(101).public(),
        checkpointers: Threshold::none(),
        silence: Silence::Strict,
        patience_ms: 5000,
        founder: Some(founder()),
    }
}

/// The policies of a volume whose first device has this key.
pub(crate) fn policies_of(device: PublicKey) -> (VolumeId, Policies) {
    let owner = Roles::single(key(100).public());
    let terms = Genesis::new("v", [1; 32], [2; 32], owner).unwrap();
    let roles = SharedRoles {
        founder: Some(Founder {
            device,
            ..founder()
        }),
        ..roles()
    };
    let signed = genesis(&terms, &roles).sign(&[&key(100)]);
    let volume = VolumeId::from_bytes(signed.hash());
    (volume, verify(volume, &[signed]).unwrap())
}

fn make(at: &TempDir, number: u8, name: &str) -> Result<Home, HomeError> {
    let (volume, signed) = policy(number);
    let begins = (number == 2).then_some(LogPoint {
        epoch: 0,
        size: 12,
        root: [0xab; 32],
    });
    let new = NewHome {
        volume,
        name,
        server: "bulla://host:28553",
        key: &key(number),
        policies: &[signed],
        begins,
    };
    Home::create(at.path(), &new)
}

#[test]
fn home_is_found_by_its_name_and_its_id_and_has_what_it_was_given() {
    let at = tempfile::tempdir().unwrap();
    assert!(Home::list(at.path()).unwrap().is_empty());
    make(&at, 2, "photos").unwrap();
    make(&at, 1, "letters").unwrap();
    let names: Vec<String> = Home::list(at.path())
        .unwrap()
        .iter()
        .map(|home| home.name().to_owned())
        .collect();
    assert_eq!(names, ["letters", "photos"]);
    let (volume, signed) = policy(2);
    for text in ["photos", &volume.to_string()] {
        let home = Home::find(at.path(), text).unwrap().unwrap();
        assert_eq!(
            (home.volume(), home.name(), home.server()),
            (volume, "photos", "bulla://host:28553")
        );
        assert_eq!(home.begins().map(|begins| begins.size), Some(12));
        assert_eq!(home.key().unwrap().public(), *home.device());
        assert_eq!(
            home.signed_policies().unwrap(),
            std::slice::from_ref(&signed)
        );
        assert_eq!(home.policies().unwrap().founder().name, "ada");
    }
    assert!(Home::find(at.path(), "other").unwrap().is_none());
    assert!(
        Home::find(at.path(), &policy(3).0.to_string())
            .unwrap()
            .is_none()
    );
}

#[test]
fn name_and_volume_are_there_once() {
    let at = tempfile::tempdir().unwrap();
    let mut home = make(&at, 1, "a").unwrap();
    assert!(matches!(make(&at, 1, "b"), Err(HomeError::Exists { name }) if name == "a"));
    assert!(matches!(
        make(&at, 2, "a"),
        Err(HomeError::NameTaken { .. })
    ));
    make(&at, 2, "b").unwrap();
    home.set_server("bulla://elsewhere").unwrap();
    let found = Home::find(at.path(), "a").unwrap().unwrap();
    assert_eq!(found.server(), "bulla://elsewhere");
    assert!(home.set_server("two words").is_err());
    for name in [
        "",
        "-x",
        ".x",
        "a b",
        "a/b",
        "a@b",
        "x:y",
        "cod\u{202e}exe",
        "photos\u{200b}",
        &"x".repeat(65),
        &policy(9).0.to_string(),
    ] {
        assert!(
            matches!(make(&at, 3, name), Err(HomeError::BadName { .. })),
            "{name}"
        );
    }
}

#[test]
fn home_that_was_never_finished_is_no_home_and_in_nobodys_way() {
    let at = tempfile::tempdir().unwrap();
    let unfinished = at
        .path()
        .join("shared")
        .join(format!("{}.new", policy(1).0));
    private::create_directory(&unfinished).unwrap();
    std::fs::write(unfinished.join(KEY), "half").unwrap();
    assert!(Home::list(at.path()).unwrap().is_empty());
    make(&at, 1, "a").unwrap();
    assert!(!unfinished.exists());
}

#[test]
fn policies_of_another_volume_make_no_home() {
    let at = tempfile::tempdir().unwrap();
    let new = NewHome {
        volume: policy(1).0,
        name: "a",
        server: "bulla://host",
        key: &key(1),
        policies: &[policy(2).1],
        begins: None,
    };
    assert!(matches!(
        Home::create(at.path(), &new),
        Err(HomeError::Policies(_))
    ));
    assert!(Home::list(at.path()).unwrap().is_empty());
    let home = make(&at, 1, "a").unwrap();
    let soon = Instant::now() + Duration::from_secs(60);
    let follow = |policies: &[Signed]| home.follow(policies, soon);
    assert!(follow(&[policy(2).1]).is_err());
    assert!(follow(&[]).is_err());
    assert_eq!(follow(&[policy(1).1]).unwrap(), Followed::Known);
}

#[test]
fn secrets_are_closed_to_others_and_damage_is_an_error() {
    let at = tempfile::tempdir().unwrap();
    let home = make(&at, 2, "a").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(home.directory()), 0o700);
    for entry in std::fs::read_dir(home.directory()).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    let id = home.volume().to_string();
    for name in [ABOUT, POLICIES, KEY] {
        let path = home.directory().join(name);
        let whole = std::fs::read(&path).unwrap();
        for len in [0, 1, whole.len() / 2, whole.len() - 1] {
            std::fs::write(&path, &whole[..len]).unwrap();
            let found = Home::find(at.path(), "a");
            let used = found.and_then(|home| {
                let home = home.ok_or_else(|| damaged(&path, "gone"))?;
                home.key()?;
                home.policies()
            });
            assert!(used.is_err(), "{name} of {len} bytes");
        }
        std::fs::write(&path, [whole.as_slice(), b"x\n"].concat()).unwrap();
        let used = Home::find(at.path(), &id).and_then(|home| home.unwrap().policies());
        assert!(used.is_err(), "{name} with more behind");
        std::fs::write(&path, whole).unwrap();
        assert!(Home::find(at.path(), "a").unwrap().is_some());
    }
}

#[test]
fn damaged_home_is_in_the_way_of_no_other() {
    let at = tempfile::tempdir().unwrap();
    make(&at, 1, "a").unwrap();
    let broken = make(&at, 2, "b").unwrap();
    let find = |name: &str| Home::find(at.path(), name);
    for (file, keeps_name) in [(KEY, true), (ABOUT, false)] {
        let path = broken.directory().join(file);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(find("a").unwrap().unwrap().name(), "a");
        assert_eq!(Home::list(at.path()).unwrap().len(), 1);
        // Who names it is told what is wrong.
        let id = policy(2).0.to_string();
        let told = find(&id).unwrap_err().to_string();
        assert!(told.contains(file), "{told}");
        match find("b") {
            Err(why) if keeps_name => assert!(why.to_string().contains(file), "{why}"),
            found => assert!(!keeps_name && found.unwrap().is_none()),
        }
        // It still has its volume, and its name as long as that can be read.
        assert!(make(&at, 2, "c").is_err());
        assert_eq!(make(&at, 3, "b").is_err(), keeps_name);
        std::fs::write(&path, whole).unwrap();
    }
    // Volume 3 got the name while that of volume 2 could not be read.
    let two = find("b");
    assert!(matches!(two, Err(HomeError::Ambiguous { .. })), "{two:?}");
    assert_eq!(find(&policy(3).0.to_string()).unwrap().unwrap().name(), "b");
}
