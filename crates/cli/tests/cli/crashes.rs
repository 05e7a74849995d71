//! Publications that are interrupted, by a kill at any moment or by a full disk. The last acknowledged
//! version stays whole, and the next run continues.

use std::process::Stdio;
use std::time::Duration;

use crate::support::{self, Home, Tmpfs, noise, skipped};

/// Kills at random moments; many more with BULLA_LONG.
#[test]
fn a_killed_publisher_leaves_the_last_version_whole() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let kills: u64 = if std::env::var_os("BULLA_LONG").is_some() {
        300
    } else {
        12
    };
    let mut acknowledged = 1;
    for round in 0..kills {
        for file in 0..40 {
            let bytes = noise(round * 100 + file + 1, 30_000);
            std::fs::write(home.path(&format!("tree/f{file}")), bytes).unwrap();
        }
        let mut child = home
            .command(&["publish", "tree", "repo", "--key", "key"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The rounds spread the kill over the whole run, from before the first write to after the last.
        std::thread::sleep(Duration::from_micros(500 + round * 7919 % 40_000));
        let finished = child.try_wait().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        let verified = home.run(&["--json", "verify", &source]).ends(0);
        let version = verified.field("version").as_u64().unwrap();
        if finished.is_some_and(|status| status.success()) {
            assert!(
                version > acknowledged,
                "round {round}: acknowledged and lost"
            );
        }
        // A version that was signed but not committed is never signed again, so numbers are skipped, at
        // most one for each attempt.
        assert!(
            (acknowledged..=round + 2).contains(&version),
            "round {round}: version {version} after {acknowledged}"
        );
        acknowledged = version;
    }
    let next = home.publish().ends(0);
    let version = next.field("version").as_u64().unwrap();
    assert!((acknowledged + 1..=kills + 2).contains(&version));
    home.run(&["verify", &source]).ends(0);
}

/// The disk becomes full at many different points of a publication.
#[test]
fn publication_on_a_full_disk_keeps_the_last_version() {
    let home = Home::new();
    let volume = home.published();
    let Some(small) = Tmpfs::of(&home, "small", 4 << 20) else {
        return skipped("full disk", "a tmpfs cannot be mounted here");
    };
    support::copy(&home.path("repo"), &home.path("small/repo"));
    let source = home.source(&volume, "small/repo");
    let publish = ["publish", "tree", "small/repo", "--key", "key"];
    let mut failures = 0;
    for step in 0..16u64 {
        // Another file fills the disk and leaves a little more space each time.
        std::fs::write(home.path("tree/more"), noise(1000 + step, 600_000)).unwrap();
        small.leave_free(step * 48 * 1024);
        let ran = home.run(&publish);
        if ran.code != 0 {
            failures += 1;
            let ran = ran.ends(1);
            assert!(ran.err.contains("free some space"), "{}", ran.err);
        }
        home.run(&["verify", &source]).ends(0);
        if failures > 0 && step > 13 {
            break;
        }
    }
    assert!(failures > 3, "the disk was never full: {failures}");
    small.free();
    home.run(&publish).ends(0);
    home.run(&["verify", &source]).ends(0);
}
