//! Replicas with the real binary: pulled over a network, served at once, killed at any moment, on a full
//! disk, with a source that vanishes; and pruning while others read and publish.

use std::process::Stdio;
use std::time::Duration;

use crate::metrics;
use crate::support::{self, Home, Tmpfs, at_terminal, noise, skipped, wait_until};

/// Publishes a tree with some more files. Returns the SOURCE of its server.
fn served(home: &Home) -> (String, support::Server) {
    let volume = home.published();
    grow(home, 0);
    home.publish().ends(0);
    let server = home.serve("repo");
    (volume, server)
}

/// Waits until a server has seen a version. This reader has its own state, so that the other commands of the
/// test have not seen the version yet.
fn wait_for_version(home: &Home, source: &str, version: u64) {
    wait_until("the server sees the version", || {
        let mut stat = home.command(&["--json", "stat", source]);
        stat.env("BULLA_STATE_DIR", home.path("observer"));
        let ran = support::Ran::of(stat.output().unwrap());
        ran.code == 0 && ran.field("version") == version
    });
}

fn grow(home: &Home, round: u64) {
    let dir = home.path("tree/grown");
    std::fs::create_dir_all(&dir).unwrap();
    for file in 0..30 {
        std::fs::write(
            dir.join(format!("f{file}")),
            noise(round * 100 + file, 40_000),
        )
        .unwrap();
    }
}

#[test]
fn a_pulled_replica_serves_at_once_and_follows() {
    let home = Home::new();
    let (volume, server) = served(&home);
    let pulled = home
        .run(&["--json", "pull", &server.source, "replica"])
        .ends(0);
    assert_eq!(pulled.field("version"), 2);
    assert_eq!(pulled.field("previous"), serde_json::Value::Null);
    assert_eq!(pulled.field("log_whole"), true);
    let replica = home.serve("replica");
    home.run(&["verify", &replica.source]).ends(0);
    grow(&home, 1);
    home.publish().ends(0);
    wait_for_version(&home, &server.source, 3);
    let update = home
        .run(&["--json", "pull", &server.source, "replica"])
        .ends(0);
    assert_eq!(
        (update.field("version"), update.field("previous")),
        (3.into(), 2.into())
    );
    let new = update.field("block_bytes").as_u64().unwrap();
    let received = update.field("received_bytes").as_u64().unwrap();
    assert!(received <= new + new / 5, "{received} for {new}");
    assert!(update.field("waves").as_u64().unwrap() <= 4);
    // The server of the replica finds the new version by itself.
    wait_for_version(&home, &replica.source, 3);
    let verified = home.run(&["--json", "verify", &replica.source]).ends(0);
    assert_eq!(verified.field("version"), 3);
    let again = home
        .run(&["--json", "pull", &server.source, "replica"])
        .ends(0);
    assert_eq!(again.field("unchanged"), true);
    // A replica of the replica, from a directory, with a mirror that does not exist.
    let source = home.source(&volume, "replica");
    let gone = ["pull", &source, "second", "--mirror", "/nowhere"];
    home.run(&gone).ends(0);
    home.run(&["verify", &home.source(&volume, "second")])
        .ends(0);
}

#[test]
fn a_replica_of_a_path_says_so_and_denies_the_rest() {
    let home = Home::new();
    let (volume, server) = served(&home);
    let pull = ["pull", &server.source, "part", "--path", "sub/deep"];
    let pulled = home.run(&pull).ends(0);
    assert!(pulled.err.contains("holds only sub/deep"), "{}", pulled.err);
    let part = home.source(&volume, "part");
    home.run(&["verify", &part, "sub/deep"]).ends(0);
    home.run(&["cat", &part, "grown/f1"]).ends(30);
    let no = ["pull", &server.source, "part", "--path", "no/such"];
    home.run(&no).ends(10);
    home.run(&["verify", &part, "sub/deep"]).ends(0);
}

#[test]
fn failures_of_pull_have_their_exit_codes() {
    let home = Home::new();
    let (volume, mut server) = served(&home);
    home.run(&["pull", &server.source, "tree"]).ends(1);
    let other = Home::new();
    let stranger = other.published();
    let wrong = format!("{stranger}@{}", home.path("repo").display());
    home.run(&["pull", &wrong, "new"]).ends(30);
    home.run(&["pull", &server.source, "replica"]).ends(0);
    let source = other.source(&stranger, "repo");
    home.run(&["pull", &source, "replica"]).ends(2);
    // Only one at a time: the second fails.
    let slow = [
        "pull",
        &server.source,
        "slow",
        "--bwlimit",
        "200kB/s",
        "--deadline",
        "3s",
    ];
    let mut first = home
        .command(&slow)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the first block is written", || {
        let segments = std::fs::read_dir(home.path("slow/segments"));
        segments.is_ok_and(|mut files| files.next().is_some())
    });
    home.run(&["pull", &server.source, "slow"]).ends(11);
    // The source vanishes during the pull; blocks that arrived are kept.
    server.kill();
    let status = first.wait().unwrap();
    assert_eq!(status.code(), Some(30));
    let deadline = ["pull", &server.source, "slow", "--deadline", "1s"];
    home.run(&deadline).ends(30);
    let whole = home.source(&volume, "repo");
    let rest = home.run(&["--json", "pull", &whole, "slow"]).ends(0);
    let all = home.run(&["--json", "pull", &whole, "fresh"]).ends(0);
    let blocks = |ran: &support::Ran| ran.field("blocks").as_u64().unwrap();
    assert!(blocks(&rest) < blocks(&all), "nothing was kept");
    home.run(&["verify", &home.source(&volume, "slow")]).ends(0);
}

/// Kills at random moments; many more with BULLA_LONG.
#[test]
fn a_killed_pull_leaves_the_last_version_whole() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let replica = home.source(&volume, "replica");
    home.run(&["pull", &source, "replica"]).ends(0);
    let kills: u64 = if std::env::var_os("BULLA_LONG").is_some() {
        300
    } else {
        12
    };
    let mut acknowledged = 1;
    for round in 1..=kills {
        grow(&home, round);
        home.publish().ends(0);
        let mut child = home
            .command(&["pull", &source, "replica", "--keep", "1"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(500 + round * 7919 % 40_000));
        let finished = child.try_wait().unwrap();
        let _ = child.kill();
        child.wait().unwrap();
        let verified = home.run(&["--json", "verify", &replica]).ends(0);
        let version = verified.field("version").as_u64().unwrap();
        assert!(
            (acknowledged..=round + 1).contains(&version),
            "round {round}: {version}"
        );
        if finished.is_some_and(|status| status.success()) {
            assert_eq!(version, round + 1, "round {round}: acknowledged and lost");
        }
        acknowledged = version;
    }
    home.run(&["pull", &source, "replica"]).ends(0);
    let verified = home.run(&["--json", "verify", &replica]).ends(0);
    assert_eq!(verified.field("version"), kills + 1);
}

#[test]
fn pull_on_a_full_disk_keeps_the_last_version() {
    let home = Home::new();
    let volume = home.published();
    let source = home.source(&volume, "repo");
    let Some(small) = Tmpfs::of(&home, "small", 4 << 20) else {
        return skipped("full disk", "a tmpfs cannot be mounted here");
    };
    home.run(&["pull", &source, "small/replica"]).ends(0);
    let replica = home.source(&volume, "small/replica");
    grow(&home, 1);
    home.publish().ends(0);
    let mut failures = 0;
    for step in 0..10u64 {
        small.leave_free(step * 100 * 1024);
        let ran = home.run(&["pull", &source, "small/replica"]);
        if ran.code != 0 {
            failures += 1;
            let ran = ran.ends(1);
            assert!(ran.err.contains("free some space"), "{}", ran.err);
        }
        home.run(&["verify", &replica]).ends(0);
    }
    assert!(failures > 3, "the disk was never full: {failures}");
    small.leave_free(u64::MAX);
    home.run(&["pull", &source, "small/replica"]).ends(0);
    home.run(&["verify", &replica]).ends(0);
}

#[test]
fn old_versions_are_collected_while_the_repository_is_served() {
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    std::fs::create_dir(home.path("tree")).unwrap();
    let publish = [
        "--json", "publish", "tree", "repo", "--key", "key", "--valid", "1s",
    ];
    for round in 0..4 {
        grow(&home, round);
        home.run(&publish).ends(0);
    }
    let last = ["--json", "publish", "tree", "repo", "--key", "key"];
    home.run(&last).ends(0);
    let serve = ["--json", "serve", "repo", "--listen", "127.0.0.1:0"];
    let (_server, told) = metrics::start(&home, &[&serve[..], &metrics::ANY_PORT].concat(), 2);
    let metrics_at = told[0]["address"].as_str().unwrap();
    let source = told[1]["source"].as_str().unwrap();
    home.run(&["verify", source]).ends(0);
    let dry_run = || home.run(&["--json", "prune", "repo", "--dry-run"]).ends(0);
    wait_until("only the newest version is valid", || {
        dry_run().field("kept").as_array().unwrap().len() == 1
    });
    let would = dry_run();
    let freed = would.field("freed_bytes").as_u64().unwrap();
    assert!(freed > 3_000_000, "{freed}");
    let size = || {
        let files = std::fs::read_dir(home.path("repo/segments")).unwrap();
        files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum::<u64>()
    };
    let before = size();
    home.run(&["prune", "repo", "--grace", "1s"]).ends(0);
    // Before and after the server has seen the new index, and when the files are gone.
    home.run(&["verify", source]).ends(0);
    wait_until("the server has seen the new index", || {
        !metrics::get(metrics_at).contains("\nbulla_serve_new_heads_total 0\n")
    });
    home.run(&["verify", source]).ends(0);
    // The grace of one second is measured in real time.
    wait_until("the files are gone", || {
        let prune = ["--json", "prune", "repo", "--grace", "0s"];
        assert_eq!(home.run(&prune).ends(0).field("freed_bytes"), 0);
        size() + freed / 2 < before
    });
    home.run(&["verify", source]).ends(0);
    home.run(&last).ends(0);
    home.run(&["prune", "nowhere"]).ends(10);
}

#[test]
fn progress_of_whole_volumes_shows_the_rate_and_the_time_that_is_left() {
    let home = Home::new();
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    std::fs::create_dir_all(home.path("tree")).unwrap();
    for n in 0..8 {
        let file = home.path(&format!("tree/{n}"));
        std::fs::write(file, noise(n, 300_000)).unwrap();
    }
    let told = home.publish().ends(0);
    let volume = told.field("volume").as_str().unwrap().to_owned();
    let server = home.serve("repo");
    // The limit holds a first pull for some seconds.
    let pull = ["pull", &server.source, "replica", "--bwlimit", "600kB/s"];
    let Some(screen) = at_terminal(&home.command(&pull), "") else {
        return skipped("a bar at a terminal", "no script(1)");
    };
    assert!(screen.contains("code 0"), "{screen}");
    for shown in ["pulling", "/2.29 MiB", "blocks", "/s", " left"] {
        assert!(screen.contains(shown), "{shown}: {screen}");
    }
    // Nothing of it where nobody looks.
    let ran = home.run(&["pull", &server.source, "other"]).ends(0);
    assert!(!ran.err.contains("left"), "{}", ran.err);
    home.run(&["verify", &home.source(&volume, "replica")])
        .ends(0);
}
