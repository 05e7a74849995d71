//! A volume whose owners rotated hundreds of times, with the real binary: published into, read over a disk, bulla://
//! and HTTP by newcomers and by readers that know some policies, pulled, verified, pruned, and signed elsewhere.

use std::path::Path;

use store::{Repository, Writer};
use trust::head::Head;
use trust::key::SecretKey;
use trust::policy::{Last, Roles, Successor};
use trust::root::RootRecord;

use crate::support::{Home, Ran};

/// Adds policies with the same key for all roles, as owners do.
fn rotate(home: &Home, repo: &str, count: usize) {
    let refuse = || -> Result<_, std::convert::Infallible> { unreachable!("no passphrase") };
    let key: SecretKey = keys::keyfile::load(&home.path("key"), refuse).unwrap();
    let repository = Repository::open(home.path(repo)).unwrap();
    let mut writer = Writer::begin(&repository).unwrap();
    let mut head = Head::decode(writer.statements()).unwrap();
    let volume = head.volume().unwrap();
    let record: RootRecord = head.record.statement().read(volume).unwrap();
    for _ in 0..count {
        let (log, _) = head.next_log(volume).unwrap();
        let policy = Successor {
            number: head.newest_policy() + 1,
            previous: head.policies.last().unwrap().hash(),
            not_after: u64::MAX,
            log_epoch: 0,
            roles: Roles::single(key.public()),
            last: Some(Last {
                version: record.version,
                record_hash: head.record.hash(),
                log,
            }),
            lower: false,
            revoked: None,
            refused: Vec::new(),
        };
        let policy = policy.statement(volume).sign(&[&key]);
        head = head.rotated(policy.clone()).unwrap();
        let (number, bytes) = (head.newest_policy(), policy.to_bytes());
        writer.put_policy(number, &bytes).unwrap();
        writer.put_log_leaf(0, log.size, &bytes).unwrap();
    }
    assert!(writer.tile_log(&head.next_log(volume).unwrap().0));
    writer.commit(&head.encode().unwrap()).unwrap();
}

/// Runs as a reader with a state directory of its own.
fn as_reader(home: &Home, state: &str, args: &[&str]) -> Ran {
    let mut command = home.command(args);
    command.env("BULLA_STATE_DIR", home.path(state));
    Ran::of(command.output().unwrap())
}

fn remove(repo: &Path, number: u64) {
    std::fs::remove_file(repo.join("policies").join(number.to_string())).unwrap();
}

#[test]
fn volume_with_300_policies_lives_on() {
    let home = Home::new();
    let volume = home.published();
    rotate(&home, "repo", 5);
    let source = home.source(&volume, "repo");
    as_reader(&home, "knows-five", &["cat", &source, "a"]).ends(0);
    rotate(&home, "repo", 295);
    std::fs::write(home.path("tree/new"), b"new\n").unwrap();
    assert_eq!(home.publish().ends(0).field("version"), 2);
    let serving = home.serve_both("repo");
    let sources = [&[source.clone()][..], &serving.sources].concat();
    for (at, source) in sources.iter().enumerate() {
        let newcomer = format!("newcomer-{at}");
        let read = as_reader(&home, &newcomer, &["cat", source, "new"]).ends(0);
        assert_eq!(read.out, "new\n");
        crate::support::copy(&home.path("knows-five"), &home.path(&format!("some-{at}")));
        let read = as_reader(&home, &format!("some-{at}"), &["cat", source, "new"]).ends(0);
        assert_eq!(read.out, "new\n");
        as_reader(&home, &newcomer, &["verify", source]).ends(0);
    }
    // A replica over the network has all policies: its own newcomers need no other source.
    as_reader(&home, "puller", &["pull", &sources[1], "replica"]).ends(0);
    as_reader(&home, "puller", &["pull", &sources[2], "by-web"]).ends(0);
    for replica in ["replica", "by-web"] {
        home.run(&["prune", replica, "--keep", "1"]).ends(0);
        let source = home.source(&volume, replica);
        as_reader(&home, replica, &["verify", &source]).ends(0);
        let log = as_reader(&home, replica, &["--json", "log", &source]).ends(0);
        assert!(log.out.contains("\"version\":2"), "{}", log.out);
    }
    // Without one of them only readers that know more are served, and `verify` says so.
    remove(&home.path("replica"), 100);
    let damaged = home.source(&volume, "replica");
    as_reader(&home, "newcomer-9", &["cat", &damaged, "new"]).ends(30);
    as_reader(&home, "newcomer-0", &["cat", &damaged, "new"]).ends(0);
    as_reader(&home, "newcomer-0", &["verify", &damaged]).ends(30);
    let mirror = home.path("by-web").display().to_string();
    let both = ["cat", &damaged, "new", "--mirror", &mirror];
    as_reader(&home, "newcomer-9", &both).ends(0);
    // The next pull that looks at everything brings it back.
    as_reader(&home, "puller", &["pull", &source, "replica", "--paranoid"]).ends(0);
    as_reader(&home, "newcomer-8", &["cat", &damaged, "new"]).ends(0);
}

#[test]
fn version_is_signed_on_another_machine_after_many_rotations() {
    let home = Home::new();
    let volume = home.published();
    rotate(&home, "repo", 20);
    std::fs::write(home.path("tree/new"), b"new\n").unwrap();
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    home.run(&unsigned).ends(0);
    // The policies between those that this machine signed under and those that the request shows are not shown.
    let sign = [
        "--yes", "sign", "request", "--key", "key", "--out", "signed",
    ];
    assert_ne!(home.run(&sign).code, 0);
    let skipping = [&sign[..], &["--accept-skipped-versions"]].concat();
    home.run(&skipping).ends(0);
    home.run(&["publish", "--install", "signed", "repo"])
        .ends(0);
    let source = home.source(&volume, "repo");
    assert_eq!(home.run(&["cat", &source, "new"]).ends(0).out, "new\n");
    // A few rotations later nothing is left out.
    rotate(&home, "repo", 3);
    std::fs::write(home.path("tree/new"), b"newer\n").unwrap();
    home.run(&["publish", "tree", "repo", "--unsigned", "--out", "again"])
        .ends(0);
    home.run(&[
        "--yes",
        "sign",
        "again",
        "--key",
        "key",
        "--out",
        "signed-again",
    ])
    .ends(0);
    home.run(&["publish", "--install", "signed-again", "repo"])
        .ends(0);
    assert_eq!(home.run(&["cat", &source, "new"]).ends(0).out, "newer\n");
}
