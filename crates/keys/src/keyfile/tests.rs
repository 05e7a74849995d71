//! Key files that are read again, and those that are refused.

use std::os::unix::fs::PermissionsExt;

use super::*;

fn never() -> Result<Zeroizing<Vec<u8>>, String> {
    panic!("nobody should be asked")
}
fn word(w: &str) -> impl FnOnce() -> Result<Zeroizing<Vec<u8>>, String> {
    let w = Zeroizing::new(w.as_bytes().to_vec());
    || Ok(w)
}

#[test]
fn plain_key_round_trip() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    let key = create(&path, None).unwrap();
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o600);
    assert_eq!(load(&path, never).unwrap().public(), key);
    assert_eq!(content(&path).unwrap().public(), key);
    assert!(matches!(create(&path, None), Err(KeyError::Exists { .. })));
    let kept = content(&path).unwrap();
    assert_eq!(kept.public(), key, "an existing key is untouched");
}

#[test]
fn locked_key_needs_its_passphrase_and_its_header() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    let key = create(&path, Some(b"open sesame")).unwrap();
    let locked = Content::Key {
        public: key,
        passphrase: true,
    };
    assert_eq!(content(&path).unwrap(), locked);
    assert_eq!(load(&path, word("open sesame")).unwrap().public(), key);
    let wrong = load(&path, word("open says me"));
    assert!(matches!(wrong, Err(KeyError::WrongPassphrase { .. })));
    let none = load(&path, || Err("no terminal"));
    assert!(matches!(none, Err(KeyError::NoPassphrase { .. })));
    // Another public key in the header is refused.
    let text = std::fs::read_to_string(&path).unwrap();
    let other = SecretKey::from_seed(&[7; 32]).public();
    std::fs::write(&path, text.replace(&key.to_string(), &other.to_string())).unwrap();
    let swapped = load(&path, word("open sesame"));
    assert!(matches!(swapped, Err(KeyError::WrongPassphrase { .. })));
}

#[test]
fn reference_of_another_user_is_refused() {
    assert!(may_name_program(7, 7) && may_name_program(0, 7));
    assert!(!may_name_program(7, 8) && !may_name_program(7, 0));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    let reference = Reference {
        public: SecretKey::from_seed(&[1; 32]).public(),
        within: std::time::Duration::from_secs(1),
        by: elsewhere::By::Command(vec!["true".to_owned()]),
    };
    refer(&path, &reference).unwrap();
    assert!(content(&path).is_ok());
    // Only root can give a file away.
    if std::os::unix::fs::chown(&path, Some(12345), None).is_ok() {
        assert!(matches!(
            content(&path),
            Err(KeyError::Foreign { owner: 12345, .. })
        ));
        assert!(matches!(load(&path, never), Err(KeyError::Foreign { .. })));
    }
}

#[test]
fn exposed_and_malformed_files_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("k");
    create(&path, None).unwrap();
    for mode in [0o640, 0o604, 0o620, 0o644] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let error = load(&path, never).unwrap_err();
        assert!(matches!(error, KeyError::Exposed { mode: m, .. } if m == mode));
    }
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    let mut bad: Vec<Vec<u8>> = vec![
        b"".to_vec(),
        b"\xff\xfe".to_vec(),
        vec![b'a'; 100_000],
        good.replace("bulla-key-1", "bulla-key-2").into_bytes(),
        good.replace("kdf none", "kdf argon2id m=99999999 t=1 p=1 salt=00")
            .into_bytes(),
        good.replace("cipher none", "cipher rot13").into_bytes(),
        good.replace("secret ", "secret 00").into_bytes(),
        good.replace("secret ", "comment\nsecret ").into_bytes(),
        good.to_uppercase().into_bytes(),
    ];
    bad.extend((0..good.len()).map(|n| good.as_bytes()[..n].to_vec()));
    for text in bad {
        std::fs::write(&path, &text).unwrap();
        let result = load(&path, never);
        let text = text.escape_ascii();
        assert!(matches!(result, Err(KeyError::Malformed { .. })), "{text}");
    }
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    assert!(load(&path, never).is_err());
}
