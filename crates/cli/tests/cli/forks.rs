//! Forks with the real binary: it shows and settles two records of one version and two policies with one number, and a
//! running mount obeys the settlement. Old records and stray policies are no forks and have hints of their own.

use std::convert::Infallible;
use std::fs;
use std::path::Path;

use serde_json::Value;
use store::head::Head as HeadFile;
use trust::head::Head;
use trust::key::SecretKey;
use trust::policy::{Last, Roles, Successor, Threshold};
use trust::root::RootRecord;
use trust::text::{Noun, write};

use crate::support::{Home, Mounted, Ran, at_terminal, copy, skipped, wait_until};

/// A volume in the repository `repo` and a copy of it in `twin`, with everything that its publisher needs.
struct World {
    home: Home,
    volume: String,
}

impl World {
    fn new() -> World {
        let home = Home::new();
        let volume = home.published();
        copy(&home.path("repo"), &home.path("twin"));
        World { home, volume }
    }

    fn source(&self, repo: &str) -> String {
        self.home.source(&self.volume, repo)
    }

    /// Runs a command of the machine that reads the volume, which remembers in `reader` what it has seen.
    fn reader(&self, args: &[&str]) -> Ran {
        let mut command = self.home.command(args);
        let command = command.env("BULLA_STATE_DIR", self.home.path("reader"));
        Ran::of(command.output().unwrap())
    }

    fn show(&self) -> Ran {
        self.reader(&["--json", "fork", "show", &self.volume])
            .ends(0)
    }

    fn settle(&self, how: &str, hash: &str) -> Ran {
        self.reader(&["--json", "--yes", "fork", "settle", &self.volume, how, hash])
    }

    /// Publishes version 2 with `content` into `repo`, on a machine that knows of no other version 2.
    fn publish(&self, repo: &str, content: &str) -> String {
        fs::write(self.home.path("tree/a"), content).unwrap();
        let mut command = self
            .home
            .command(&["--json", "publish", "tree", repo, "--key", "key"]);
        let state = self.home.path(&format!("machine-{repo}"));
        let ran = Ran::of(command.env("BULLA_STATE_DIR", state).output().unwrap());
        text(&ran.ends(0).field("record"))
    }

    /// Both repositories publish a version 2. Returns the records.
    fn publish_twice(&self) -> [String; 2] {
        [self.publish("repo", "one\n"), self.publish("twin", "two\n")]
    }

    /// Reads a file from these repositories.
    fn cat(&self, repos: &[&str]) -> Ran {
        let source = self.source(repos[0]);
        let mirrors: Vec<String> = repos[1..]
            .iter()
            .map(|repo| self.home.path(repo).display().to_string())
            .collect();
        let mut args = vec!["cat", &source, "a"];
        for mirror in &mirrors {
            args.extend(["--mirror", mirror]);
        }
        self.reader(&args)
    }

    /// Adds a policy, signed by the owner, to the head of a repository. Returns its hash.
    fn succeed(&self, repo: &str, change: impl FnOnce(&mut Successor)) -> String {
        let owner = key(&self.home.path("key"));
        let path = self.home.path(repo).join("head");
        let mut file = HeadFile::decode(&fs::read(&path).unwrap()).unwrap();
        let mut head = Head::decode(&file.statements).unwrap();
        let volume = head.volume().unwrap();
        let record: RootRecord = head.record.statement().read(volume).unwrap();
        let mut successor = Successor {
            number: head.policies.len() as u64,
            previous: head.policies.last().unwrap().hash(),
            not_after: u64::MAX,
            log_epoch: 0,
            roles: Roles::single(owner.public()),
            last: Some(Last {
                version: record.version,
                record_hash: head.record.hash(),
                log: head.next_log(volume).unwrap().0,
            }),
            lower: false,
            revoked: None,
            refused: Vec::new(),
        };
        change(&mut successor);
        let signed = successor.statement(volume).sign(&[&owner]);
        let hash = write(Noun::Policy, &signed.hash());
        head.policies.push(signed);
        file.statements = head.encode().unwrap().into();
        fs::write(&path, file.encode()).unwrap();
        hash
    }
}

fn key(path: &Path) -> SecretKey {
    keys::keyfile::load(path, || Ok::<_, Infallible>(Vec::new().into())).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_owned()
}

/// The side of a shown fork with this hash.
fn side<'a>(fork: &'a Value, hash: &str) -> &'a Value {
    let mut sides = fork["sides"].as_array().unwrap().iter();
    sides.find(|side| side["hash"] == hash).expect("the side")
}

#[test]
fn fork_of_records_is_shown_until_the_user_settles_it() {
    let world = World::new();
    let [one, two] = world.publish_twice();
    let forked = world.cat(&["repo", "twin"]).ends(22);
    assert!(forked.err.contains("bulla fork show"), "{}", forked.err);
    let shown = world.show();
    let forks = shown.records("fork");
    assert_eq!((forks.len(), shown.field("forks")), (1, 1.into()));
    assert_eq!(
        (&forks[0]["what"], &forks[0]["version"]),
        (&"records".into(), &2.into())
    );
    let public = key(&world.home.path("key")).public().to_string();
    for hash in [&one, &two] {
        let side = side(&forks[0], hash);
        assert_eq!(side["signers"], serde_json::json!([public]));
        assert_eq!(
            (&side["in_use"], &side["policy_number"]),
            (&false.into(), &0.into())
        );
        assert!(side["kept_since"].is_string(), "{side}");
        let evidence = side["evidence"].as_array().unwrap();
        assert!(!evidence.is_empty());
        assert!(
            evidence
                .iter()
                .all(|path| Path::new(path.as_str().unwrap()).exists())
        );
    }
    let plain = world
        .reader(&["fork", "show", &world.source("repo")])
        .ends(0);
    assert!(
        plain.out.contains(&one) && plain.out.contains(&two),
        "{}",
        plain.out
    );
    assert!(plain.err.contains("bulla fork settle"), "{}", plain.err);
    let findings = world.reader(&["--json", "doctor"]).records("finding");
    let hints = findings.iter().filter(|it| it["level"] == "problem");
    let mut hints = hints.filter_map(|it| it["hint"].as_str());
    assert!(hints.any(|hint| hint.contains("bulla fork show")));
    // Not this: it needs a side of the fork, in so many words.
    let settle = ["fork", "settle", &world.volume];
    let unconfirmed = [&settle[..], &["--keep", &one]].concat();
    let refused = world.reader(&unconfirmed).ends(2);
    assert!(
        refused.err.contains("nothing was settled"),
        "{}",
        refused.err
    );
    world.reader(&settle).ends(2);
    let both = [&settle[..], &["--keep", &one, "--refuse", &two]].concat();
    world.reader(&both).ends(2);
    world.settle("--keep", &one[..one.len() - 1]).ends(2);
    world
        .settle("--keep", &write(Noun::Record, &[7; 32]))
        .ends(10);
    assert_eq!(world.show().field("forks"), 1);
    world.cat(&["repo"]).ends(22);
    // This.
    let settled = world.settle("--refuse", &two).ends(0);
    assert_eq!(
        (settled.field("kept"), settled.field("refused")),
        (one.clone().into(), two.clone().into())
    );
    assert_eq!(world.cat(&["twin", "repo"]).ends(0).out, "one\n");
    let other = world.cat(&["twin"]).ends(30);
    assert!(!other.out.contains("two"), "{}", other.out);
    world.settle("--keep", &two).ends(10);
    let shown = world.show();
    assert_eq!(
        (shown.field("forks"), shown.field("refused")),
        (0.into(), 1.into())
    );
}

#[test]
fn mount_takes_a_settlement_up_without_a_restart() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("mount", "no /dev/fuse");
    }
    let world = World::new();
    let home = &world.home;
    copy(&home.path("repo"), &home.path("mirror"));
    fs::create_dir(home.path("mnt")).unwrap();
    let mirror = world.source("mirror");
    world
        .reader(&["mount", &mirror, "mnt", "--refresh", "200ms"])
        .ends(0);
    let _mounted = Mounted { home, dir: "mnt" };
    let read = || fs::read_to_string(home.path("mnt/a")).unwrap_or_default();
    assert_eq!(read(), "hello\n");
    let [_, two] = world.publish_twice();
    world.cat(&["repo", "twin"]).ends(22);
    // Now the mirror of the mount shows one of the two.
    copy(&home.path("twin/."), &home.path("mirror"));
    let refused = || {
        let status = world.reader(&["--json", "status", "mnt"]).ends(0);
        status.records("mount")[0]["refresh"]["error"]["kind"] == "fork"
    };
    wait_until("the refresh that finds the fork", refused);
    assert_eq!(read(), "hello\n", "the version in use serves on");
    world.settle("--keep", &two).ends(0);
    wait_until("the version that was kept", || read() == "two\n");
}

#[test]
fn replica_with_the_refused_record_follows_the_settlement() {
    let world = World::new();
    let [one, _] = world.publish_twice();
    let (source, other) = (world.source("repo"), world.source("twin"));
    world.reader(&["pull", &other, "replica"]).ends(0);
    world.reader(&["pull", &source, "replica"]).ends(22);
    world.settle("--keep", &one).ends(0);
    let pulled = world
        .reader(&["--json", "pull", &source, "replica"])
        .ends(0);
    assert_eq!(pulled.field("version"), 2);
    assert_eq!(world.cat(&["replica"]).ends(0).out, "one\n");
}

#[test]
fn settling_is_asked_about_at_a_terminal() {
    let world = World::new();
    let [one, two] = world.publish_twice();
    world.cat(&["repo", "twin"]).ends(22);
    for (answer, code, left) in [("no\n", "code 2", 1), ("yes\n", "code 0", 0)] {
        let mut command = world
            .home
            .command(&["fork", "settle", &world.volume, "--keep", &one]);
        command.env("BULLA_STATE_DIR", world.home.path("reader"));
        let Some(screen) = at_terminal(&command, answer) else {
            return skipped("the question about a fork", "no script(1)");
        };
        assert!(screen.contains(code), "{screen}");
        assert!(screen.contains(&one) && screen.contains(&two), "{screen}");
        assert_eq!(world.show().field("forks"), left);
    }
}

#[test]
fn fork_of_policies_is_shown_with_their_roles_and_settled() {
    let world = World::new();
    let thief = SecretKey::from_seed(&[66; 32]).public();
    let stolen = world.succeed("twin", |policy| {
        policy.roles.publishers = Threshold::single(thief);
    });
    let honest = world.succeed("repo", |policy| policy.not_after -= 1);
    // The reader follows the honest policy before it sees the other.
    world.cat(&["repo"]).ends(0);
    world.cat(&["repo", "twin"]).ends(22);
    let forks = world.show().records("fork");
    assert_eq!(
        (&forks[0]["what"], &forks[0]["number"]),
        (&"policies".into(), &1.into())
    );
    let theirs = side(&forks[0], &stolen);
    assert_eq!(
        theirs["roles"]["publishers"]["keys"],
        serde_json::json!([thief.to_string()])
    );
    assert_eq!(theirs["in_use"], false);
    let ours = side(&forks[0], &honest);
    let owner = key(&world.home.path("key")).public().to_string();
    assert_eq!(
        (&ours["in_use"], &ours["signers"]),
        (&true.into(), &serde_json::json!([owner]))
    );
    world.settle("--keep", &honest).ends(0);
    assert_eq!(world.cat(&["twin", "repo"]).ends(0).out, "hello\n");
    let refused = world.cat(&["twin"]).ends(30);
    assert!(
        refused.err.contains("only the side that was refused"),
        "{}",
        refused.err
    );
}

#[test]
fn policy_beside_older_ones_stops_no_reader_and_has_its_own_hint() {
    let world = World::new();
    world.succeed("repo", |_| ());
    world.succeed("repo", |_| ());
    world.succeed("twin", |policy| policy.not_after -= 1);
    world.cat(&["repo"]).ends(0);
    assert_eq!(world.cat(&["repo", "twin"]).ends(0).out, "hello\n");
    let alone = world.cat(&["twin"]).ends(20);
    assert!(
        alone.err.contains("a policy beside those that count"),
        "{}",
        alone.err
    );
    assert!(
        alone.err.contains("keys of earlier owners"),
        "{}",
        alone.err
    );
    assert_eq!(world.show().field("forks"), 0);
}

#[test]
fn record_of_a_removed_publisher_is_old_and_has_its_own_hint() {
    let world = World::new();
    let next = SecretKey::from_seed(&[5; 32]).public();
    world.succeed("twin", |policy| {
        policy.roles.publishers = Threshold::single(next)
    });
    world.cat(&["twin"]).ends(0);
    world.publish("repo", "late\n");
    let old = world.cat(&["repo"]).ends(24);
    assert!(old.err.contains("superseded"), "{}", old.err);
    assert!(old.err.contains("nobody lied"), "{}", old.err);
    assert_eq!(world.cat(&["repo", "twin"]).ends(0).out, "hello\n");
    assert_eq!(
        (world.show().field("forks"), world.show().field("pieces")),
        (0.into(), 0.into())
    );
}

#[test]
fn forks_of_a_volume_that_was_never_read_are_not_known() {
    let world = World::new();
    world.reader(&["fork", "show", &world.volume]).ends(10);
    assert!(!world.home.path("reader").exists(), "nothing is created");
    world.reader(&["fork", "show", "vol1nonsense"]).ends(2);
}
