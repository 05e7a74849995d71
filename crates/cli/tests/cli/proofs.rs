//! `prove` and `check`: a file that shows to somebody without a network that a path is in a volume, or that it is not.

use serde_json::Value;

use crate::support::{Home, Ran, copy};

/// Writes a proof of `path` into the file `out`.
fn prove(home: &Home, source: &str, path: &str, out: &str) -> Ran {
    home.run(&["--json", "prove", source, path, "--out", out])
}

/// Judges a proof with the volume id.
fn check(home: &Home, file: &str, volume: &str, more: &[&str]) -> Ran {
    let args = ["--json", "check", file, "--volume", volume];
    home.run(&[&args[..], more].concat())
}

/// A home that has nothing but the files of `names`: another person.
fn stranger(home: &Home, names: &[&str]) -> Home {
    let other = Home::new();
    for name in names {
        std::fs::copy(home.path(name), other.path(name)).unwrap();
    }
    other
}

#[test]
fn proofs_of_presence_and_absence_are_checked_without_the_volume() {
    let home = Home::new();
    let volume = home.published();
    let server = home.serve("repo");
    let key = home.run(&["key", "show", "key"]).ends(0).out;
    for source in [&home.source(&volume, "repo"), &server.source] {
        let made = prove(&home, source, "sub/deep/big", "present").ends(0);
        assert_eq!(made.field("present"), true);
        let made = prove(&home, source, "sub/none", "absent").ends(0);
        assert_eq!(made.field("present"), false);
        prove(&home, source, "link", "link").ends(0);
        prove(&home, source, "/", "root").ends(0);
        prove(&home, source, "a/below", "below").ends(0);
        let other = stranger(&home, &["present", "absent", "link", "root", "below"]);
        let stat = home
            .run(&["--json", "stat", source, "sub/deep/big"])
            .ends(0);
        let told = check(&other, "present", &volume, &["--path", "/sub/deep/big"]).ends(0);
        assert_eq!(told.field("what"), "path-proof");
        for same in [
            "path",
            "kind",
            "mode",
            "size",
            "handle",
            "version",
            "record",
            "signed",
            "valid_until",
        ] {
            assert_eq!(told.field(same), stat.field(same), "{same}");
        }
        assert_eq!(told.field("signers")[0], key.trim());
        assert_eq!(told.field("policy_number"), 0);
        let told = check(&other, "absent", &volume, &[]).ends(0);
        assert_eq!(told.field("present"), false);
        assert_eq!(told.field("why"), "`sub` has no `none`");
        let told = check(&other, "link", &volume, &[]).ends(0);
        assert_eq!(told.field("target"), "sub/deep/big");
        assert_eq!(
            check(&other, "root", &volume, &[]).ends(0).field("kind"),
            "directory"
        );
        let told = check(&other, "below", &volume, &[]).ends(0);
        assert_eq!(told.field("why"), "`a` is not a directory");
        let lines = other
            .run(&["check", "absent", "--volume", &volume])
            .ends(0)
            .out;
        assert!(lines.contains("absent   `sub` has no `none`"), "{lines}");
        assert!(lines.contains(&format!("signer   {key}")), "{lines}");
        for name in ["present", "absent", "link", "root", "below"] {
            std::fs::remove_file(home.path(name)).unwrap();
        }
    }
}

#[test]
fn exit_code_tells_a_script_what_it_did_not_expect() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    prove(&home, &source, "a", "present").ends(0);
    prove(&home, &source, "none", "absent").ends(0);
    check(&home, "present", &volume, &["--expect", "present"]).ends(0);
    check(&home, "absent", &volume, &["--expect", "absent"]).ends(0);
    let refused = check(&home, "absent", &volume, &["--expect", "present"]).ends(10);
    assert_eq!(refused.field("present"), false);
    check(&home, "present", &volume, &["--expect", "absent"]).ends(1);
    // A proof that exists is not overwritten, and `..` is no name.
    prove(&home, &source, "a", "present").ends(1);
    prove(&home, &source, "a/../b", "dots").ends(2);
    assert!(!home.path("dots").exists());
}

#[test]
fn proof_of_another_volume_path_or_time_is_refused() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    prove(&home, &source, "a", "proof").ends(0);
    let other = stranger(&home, &["proof"]);
    // The volume id is what is trusted: without it nothing is proved, and the claimed one is shown.
    let refused = other.run(&["check", "proof"]).ends(2);
    assert!(refused.err.contains(&volume), "{}", refused.err);
    let foreign = Home::new().published();
    check(&other, "proof", &foreign, &[]).ends(20);
    check(&other, "proof", &volume, &["--path", "b"]).ends(2);
    check(
        &other,
        "proof",
        &volume,
        &["--at-time", "2020-01-01T00:00:00Z"],
    )
    .ends(24);
    check(
        &other,
        "proof",
        &volume,
        &["--at-time", "2120-01-01T00:00:00Z"],
    )
    .ends(24);
    check(&other, "proof", &volume, &["--least-policy", "1"]).ends(21);
    check(&other, "proof", "vol1nonsense", &[]).ends(2);
    // The exact second: `valid_until` is exclusive.
    let until = check(&other, "proof", &volume, &[])
        .ends(0)
        .field("valid_until");
    check(
        &other,
        "proof",
        &volume,
        &["--at-time", until.as_str().unwrap()],
    )
    .ends(24);
}

#[test]
fn damaged_short_and_huge_files_prove_nothing() {
    let home = Home::new();
    let volume = home.published();
    prove(&home, &home.source(&volume, "repo"), "sub/none", "proof").ends(0);
    let bytes = std::fs::read(home.path("proof")).unwrap();
    let step = bytes.len() / 24;
    for at in (0..bytes.len()).step_by(step) {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(home.path("changed"), &changed).unwrap();
        let code = check(&home, "changed", &volume, &["--path", "sub/none"]).code;
        // A changed number can mean a later format, a changed path is another path.
        assert!(matches!(code, 20 | 13 | 2), "byte {at}: {code}");
    }
    std::fs::write(home.path("cut"), &bytes[..bytes.len() - 1]).unwrap();
    check(&home, "cut", &volume, &[]).ends(20);
    std::fs::write(home.path("longer"), [&bytes[..], b"x"].concat()).unwrap();
    check(&home, "longer", &volume, &[]).ends(20);
    std::fs::write(home.path("empty"), b"").unwrap();
    check(&home, "empty", &volume, &[]).ends(20);
    let huge = std::fs::File::create(home.path("huge")).unwrap();
    huge.set_len(5 << 30).unwrap();
    check(&home, "huge", &volume, &[]).ends(20);
    check(&home, "nowhere", &volume, &[]).ends(10);
}

#[test]
fn machine_that_has_seen_a_newer_version_says_so() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    prove(&home, &source, "a", "old").ends(0);
    copy(&home.path("repo"), &home.path("before"));
    std::fs::remove_file(home.path("tree/a")).unwrap();
    home.publish().ends(0);
    // A reader that has seen nothing of the volume accepts it: it has not expired.
    let other = stranger(&home, &["old"]);
    let told = check(&other, "old", &volume, &[]).ends(0);
    assert_eq!(told.field("newer_version"), Value::Null);
    home.run(&["ls", &source]).ends(0);
    let told = check(&home, "old", &volume, &[]).ends(0);
    assert_eq!(told.field("newer_version"), 2);
    assert!(told.err.contains("version 2"), "{}", told.err);
    // And proves nothing from a mirror that is behind.
    prove(&home, &home.source(&volume, "before"), "a", "older").ends(21);
    assert!(!home.path("older").exists());
}

#[test]
fn expired_or_pinned_version_is_not_proved() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let record = home.run(&["--json", "stat", &source]).ends(0);
    let pin = format!("pinned=1:{}", record.field("record").as_str().unwrap());
    let args = ["prove", &source, "a", "--out", "proof", "--freshness"];
    home.run(&[&args[..], &[&pin]].concat()).ends(2);
    let renew = ["renew", "repo", "--key", "key", "--valid", "1s"];
    home.run(&renew).ends(0);
    crate::support::wait_until("the version expires", || {
        home.run(&["ls", &source]).code == 24
    });
    home.run(&[&args[..], &["grace=1h"]].concat()).ends(24);
    assert!(!home.path("proof").exists());
}
