//! Arbitrary bytes as a key file, as an answer of an ssh-agent, and as a file with a public key. They are refused, or give
//! the key whose public half they state. No passphrase is given, so only the header of a locked file is read. A reference
//! to a key elsewhere has one text.
#![no_main]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use bulla_fuzz::plant;
use keys::elsewhere::agent::{Identities, signature_in};
use keys::elsewhere::{By, Reference, public_file};
use keys::keyfile::{self, Content};
use libfuzzer_sys::fuzz_target;

fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let here = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    DIRECTORY
        .get_or_init(|| here().expect("a directory"))
        .path()
}

fn seeds() -> Vec<Vec<u8>> {
    let key = trust::key::SecretKey::from_seed(&[1; 32]).public();
    let refers = |by| {
        let within = std::time::Duration::from_secs(60);
        let public = key;
        Reference { public, within, by }
            .to_text()
            .expect("a reference")
            .into_bytes()
    };
    let string = |bytes: &[u8]| [&(bytes.len() as u32).to_be_bytes(), bytes].concat();
    let kind = string(b"ssh-ed25519");
    let blob = string(&[kind.clone(), string(key.as_bytes())].concat());
    let list = [vec![12, 0, 0, 0, 1], blob, string(b"ada")].concat();
    let signed = [vec![14], string(&[kind, string(&[7; 64])].concat())].concat();
    let files = [None, Some(b"word".as_slice())]
        .into_iter()
        .map(|passphrase| {
            let path = directory().join("seed");
            keyfile::create(&path, passphrase).expect("a key file");
            let bytes = std::fs::read(&path).expect("its bytes");
            std::fs::remove_file(&path).expect("gone");
            bytes
        });
    let command = By::Command(vec!["sign".to_owned(), "--id=1".to_owned()]);
    files
        .chain([refers(By::Agent), refers(command), list, signed])
        .collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let path = directory().join("key");
    std::fs::write(&path, data).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("its mode");
    let _ = (Identities::decode(data), signature_in(data));
    if let Ok(text) = std::str::from_utf8(data) {
        let _ = public_file::parse(text);
    }
    let content = keyfile::content(&path);
    if let Ok(Content::Reference(reference)) = &content {
        let text = reference.to_text().expect("a reference that was read");
        assert_eq!(text.as_bytes(), data);
    }
    let public = content.map(|content| content.public());
    if let Ok(key) = keyfile::load(&path, || Err::<_, &str>("no passphrase")) {
        assert_eq!(key.public(), public.expect("a file that was loaded"));
        let text = std::str::from_utf8(data).expect("a key file is text");
        assert!(text.contains(&key.public().to_string()));
    }
});
