//! Arbitrary bytes as a key file. They are refused, or give the key whose public half they state. No
//! passphrase is given, so only the header of a locked file is read.
#![no_main]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::OnceLock;

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use state::keyfile;

fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<tempfile::TempDir> = OnceLock::new();
    let here = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    DIRECTORY
        .get_or_init(|| here().expect("a directory"))
        .path()
}

fn seeds() -> Vec<Vec<u8>> {
    [None, Some(b"word".as_slice())]
        .into_iter()
        .map(|passphrase| {
            let path = directory().join("seed");
            keyfile::create(&path, passphrase).expect("a key file");
            let bytes = std::fs::read(&path).expect("its bytes");
            std::fs::remove_file(&path).expect("gone");
            bytes
        })
        .collect()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let path = directory().join("key");
    std::fs::write(&path, data).expect("a file");
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("its mode");
    let public = keyfile::public(&path);
    if let Ok(key) = keyfile::load(&path, || Err::<_, &str>("no passphrase")) {
        assert_eq!(key.public(), public.expect("a file that was loaded"));
        let text = std::str::from_utf8(data).expect("a key file is text");
        assert!(text.contains(&key.public().to_string()));
    }
});
