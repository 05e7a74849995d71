//! Volumes whose owners, publishers and timestamp keys are different keys on different machines, with the real binary.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::{self, Home, Ran};

/// One directory for all files, and a state directory for each machine.
pub struct People {
    pub home: Home,
}

impl People {
    /// Creates a key for each name.
    pub fn new(names: &[&str]) -> People {
        let people = People { home: Home::new() };
        for name in names {
            people.new_key(name);
        }
        std::fs::create_dir(people.home.path("tree")).unwrap();
        people.write("one");
        people
    }

    pub fn new_key(&self, name: &str) {
        let new = ["key", "new", "--out", name, "--no-passphrase"];
        self.home.run(&new).ends(0);
    }

    pub fn write(&self, text: &str) {
        std::fs::write(self.path("tree/a"), text).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path(name)
    }

    /// Copies a repository.
    pub fn copy(&self, from: &str, to: &str) {
        support::copy(&self.path(from), &self.path(to));
    }

    pub fn key(&self, name: &str) -> String {
        let shown = self.home.run(&["--json", "key", "show", name]).ends(0);
        shown.field("key").as_str().unwrap().to_owned()
    }

    /// Runs on the machine of `who`.
    pub fn as_one(&self, who: &str, args: &[&str]) -> Ran {
        let mut command = self.home.command(&[&["--json"], args].concat());
        command.env("BULLA_STATE_DIR", self.path(&format!("state-{who}")));
        Ran::of(command.output().unwrap())
    }

    /// Signs on the machine of `who`, who expects the roles that the request has.
    pub fn sign(&self, who: &str, request: &str, out: &str) -> Ran {
        self.as_one(who, &["--yes", "sign", request, "--key", who, "--out", out])
    }

    /// Runs where the repository is.
    pub fn run(&self, args: &[&str]) -> Ran {
        self.as_one("repository", args)
    }

    /// Reads as a reader with a state of its own.
    pub fn read(&self, reader: &str, volume: &str) -> Ran {
        self.read_at(reader, volume, "repo")
    }

    pub fn read_at(&self, reader: &str, volume: &str, place: &str) -> Ran {
        let source = self.home.source(volume, place);
        let mut command = self.home.command(&["cat", &source, "a"]);
        command.env("BULLA_STATE_DIR", self.path(&format!("state-{reader}")));
        Ran::of(command.output().unwrap())
    }
}

/// Owners a, b, c (two must sign), publishers p and q, timestamp key t.
fn requested(people: &People, publishers_needed: &str) -> Ran {
    let key = |name| people.key(name);
    let [a, b, c, p, q, t] = ["a", "b", "c", "p", "q", "t"].map(key);
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    let owners = ["--owner-key", &a, "--owner-key", &b, "--owner-key", &c];
    let publishers = ["--publisher-key", &p, "--publisher-key", &q];
    let rest = [
        "--timestamp-key",
        &t,
        "--publishers-needed",
        publishers_needed,
    ];
    people.run(&[&unsigned[..], &owners, &publishers, &rest].concat())
}

fn expectations(people: &People, publishers_needed: &str) -> Vec<String> {
    let key = |name| people.key(name);
    let [a, b, c, p, q, t] = ["a", "b", "c", "p", "q", "t"].map(key);
    vec![
        format!("--expect=owners=2/{a},{b},{c}"),
        format!("--expect=publishers={publishers_needed}/{p},{q}"),
        format!("--expect=timestamps={t}"),
    ]
}

/// The files below a directory, and their lengths.
fn files(directory: &Path) -> String {
    let find = ["-type", "f", "-printf", "%P %s\\n"];
    let found = Command::new("find").arg(directory).args(find).output();
    let found = String::from_utf8(found.unwrap().stdout).unwrap();
    let mut lines: Vec<&str> = found.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

fn waiting(told: &Value) -> Vec<(String, usize)> {
    let all = told.as_array().unwrap().iter();
    all.map(|tally| {
        let role = tally["role"].as_str().unwrap().to_owned();
        (role, tally["waiting"].as_array().unwrap().len())
    })
    .collect()
}

#[test]
fn owners_and_publishers_sign_copies_on_machines_of_their_own() {
    let people = People::new(&["a", "b", "c", "p", "q", "t", "x"]);
    let made = requested(&people, "2").ends(0);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    // Nobody signs keys of others unseen, and a stranger signs nothing.
    people.sign("a", "request", "s-a").ends(2);
    people.sign("x", "request", "s-x").ends(12);
    let expected = expectations(&people, "2");
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let sign = |who: &str, request: &str, out: &str| {
        let args = ["--yes", "sign", request, "--key", who, "--out", out];
        people.as_one(who, &[&args[..], &expected].concat())
    };
    let signed = sign("a", "request", "s-a").ends(0);
    assert_eq!(signed.field("signs_version"), false);
    assert_eq!(
        waiting(&signed.field("missing")),
        [("owners".to_owned(), 2), ("publishers".to_owned(), 2)]
    );
    // One after another, and beside one another.
    sign("c", "s-a", "s-ac").ends(0);
    sign("p", "request", "s-p").ends(0);
    let refused = people.run(&["publish", "--install", "s-ac", "--install", "s-p", "repo"]);
    let refused = refused.ends(20);
    let (p, q) = (people.key("p"), people.key("q"));
    assert!(
        refused.out.contains(&q) && !refused.out.contains(&p),
        "{}",
        refused.out
    );
    let other = sign("q", "request", "s-q").ends(0);
    assert_eq!(other.field("signs_version"), true);
    let all = ["--install", "s-ac", "--install", "s-p", "--install", "s-q"];
    let installed = people.run(&[&["publish"], &all[..], &["repo"]].concat());
    assert_eq!(installed.ends(0).field("waits_for_timestamp"), true);
    // The new volume is readable from its first timestamp on.
    people.read("early", &volume).ends(20);
    let renewed = people.run(&["renew", "repo", "--key", "t"]).ends(0);
    assert_eq!(renewed.field("renewed"), "timestamp");
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");

    // Directly, where all keys are; never with too few, and never without a timestamp.
    people.write("two");
    let publish = ["publish", "tree", "repo", "--key", "p"];
    let few = people.run(&publish).ends(12);
    assert!(few.out.contains(&q), "{}", few.out);
    let both = [&publish[..], &["--key", "q"]].concat();
    // Nothing is stored for it.
    let before = files(&people.path("repo"));
    people.run(&both).ends(12);
    assert_eq!(files(&people.path("repo")), before);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    let with = [&both[..], &["--key", "t"]].concat();
    assert_eq!(people.run(&with).ends(0).field("version"), 2);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    // Neither an owner's key nor a stranger's signs a later version.
    for other in ["a", "x"] {
        let wrong = [&with[..], &["--key", other]].concat();
        people.run(&wrong).ends(12);
    }
    // Renewed elsewhere, installed with the timestamp key.
    let request = [
        "renew",
        "repo",
        "--unsigned",
        "--out",
        "longer",
        "--valid",
        "60d",
    ];
    assert_eq!(people.run(&request).ends(0).field("version"), 3);
    sign("p", "longer", "l-p").ends(0);
    sign("q", "l-p", "l-pq").ends(0);
    people
        .run(&["publish", "--install", "l-pq", "repo"])
        .ends(12);
    let install = ["publish", "--install", "l-pq", "repo", "--key", "t"];
    assert_eq!(people.run(&install).ends(0).field("version"), 3);
    // A version that is published already needs no timestamp key.
    let again = people.run(&install[..4]).ends(0);
    assert_eq!(
        (again.field("again"), again.field("version")),
        (true.into(), 3.into())
    );
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
}

#[test]
fn where_one_publisher_suffices_it_sets_the_validity() {
    let people = People::new(&["a", "b", "c", "p", "q", "t"]);
    requested(&people, "1").ends(0);
    let expected = expectations(&people, "1");
    let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
    let sign = |who: &str, out: &str, more: &[&str]| {
        let args = ["--yes", "sign", "request", "--key", who, "--out", out];
        people.as_one(who, &[&args[..], &expected, more].concat())
    };
    let p = sign("p", "s-p", &["--valid", "2d"]).ends(0);
    let q = sign("q", "s-q", &["--valid", "3d"]).ends(0);
    assert_ne!(p.field("record"), q.field("record"));
    for owner in ["a", "b"] {
        sign(owner, &format!("s-{owner}"), &[]).ends(0);
    }
    let owners = ["publish", "--install", "s-a", "--install", "s-b"];
    // Two records of one version are no copies of one request.
    let two = ["--install", "s-p", "--install", "s-q", "repo"];
    people.run(&[&owners[..], &two].concat()).ends(20);
    let one = ["--install", "s-p", "repo"];
    let installed = people.run(&[&owners[..], &one].concat()).ends(0);
    assert_eq!(installed.field("record"), p.field("record"));
}

#[test]
fn machine_that_signed_a_version_with_others_signs_no_other_one_alone() {
    let people = People::new(&["a", "p", "q", "t"]);
    let [p, q, t] = ["p", "q", "t"].map(|name| people.key(name));
    let keys = ["--key", "p", "--key", "q", "--key", "t"];
    let publish = ["publish", "tree", "repo"];
    let roles = [
        "--publisher-key",
        &p,
        "--publisher-key",
        &q,
        "--publishers-needed",
        "2",
        "--timestamp-key",
        &t,
    ];
    let owner = people.key("p");
    let new = [&publish[..], &keys, &roles, &["--owner-key", &owner]].concat();
    let made = people.run(&new).ends(0);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    // This machine signs version 2 with one key; the other key has not signed it yet.
    people.write("two");
    let unsigned = [&publish[..], &["--unsigned", "--out", "request"]].concat();
    people.run(&unsigned).ends(0);
    let sign = ["--yes", "sign", "request", "--key", "p", "--out", "half"];
    people.run(&sign).ends(0);
    // A timestamp for version 1 is no reason to forget it.
    people.run(&["renew", "repo", "--key", "t"]).ends(0);
    people.write("other");
    people.run(&[&publish[..], &keys].concat()).ends(22);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    // The version that was signed first goes on.
    people.sign("q", "half", "whole").ends(2);
    let expected = format!("--expect=publishers=2/{p},{q}");
    let owners = format!("--expect=owners={p}");
    let timestamps = format!("--expect=timestamps={t}");
    let sign = ["sign", "half", "--key", "q", "--out", "whole", "--yes"];
    let roles = [&expected, &owners, &timestamps].map(String::as_str);
    people.as_one("q", &[&sign[..], &roles].concat()).ends(0);
    people
        .run(&["publish", "--install", "whole", "repo", "--key", "t"])
        .ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    assert_eq!(
        people
            .run(&[&publish[..], &keys].concat())
            .ends(0)
            .field("version"),
        3
    );
}

#[test]
fn file_of_another_kind_is_not_replaced() {
    let people = People::new(&["p"]);
    let p = people.key("p");
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--publisher", &p];
    people
        .run(&[&unsigned[..], &["--out", "request"]].concat())
        .ends(0);
    let kept = std::fs::read(people.path("p")).unwrap();
    let refused = people.sign("p", "request", "p").ends(1);
    assert!(
        refused.err.contains("does not overwrite"),
        "{}",
        refused.err
    );
    people
        .run(&[&unsigned[..], &["--out", "tree/a"]].concat())
        .ends(1);
    assert_eq!(std::fs::read(people.path("p")).unwrap(), kept);
    // A request replaces a request.
    people.sign("p", "request", "request").ends(0);
}

#[test]
fn roles_are_for_new_volumes_and_need_keys() {
    let people = People::new(&["a", "p"]);
    let [a, p] = ["a", "p"].map(|name| people.key(name));
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    people
        .run(&[&unsigned[..], &["--owner-key", &a]].concat())
        .ends(2);
    let too_many = [
        "--owner-key",
        &a,
        "--publisher-key",
        &p,
        "--owners-needed",
        "2",
    ];
    people.run(&[&unsigned[..], &too_many].concat()).ends(2);
    assert!(!people.path("repo").exists());
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(0);
    let refused =
        people.run(&[&unsigned[..], &["--owner-key", &a, "--publisher-key", &p]].concat());
    assert!(refused.ends(2).out.contains("bulla policy new"));
    // Also what is no key is not ignored.
    for flag in [["--record-max", "1d"], ["--policy-valid", "30d"]] {
        let again = ["publish", "tree", "repo", "--key", "p"];
        let refused = people.run(&[&again[..], &flag].concat()).ends(2);
        assert!(refused.out.contains("bulla policy new"), "{}", refused.out);
    }
    // The key of --owner-key must sign a new volume too.
    let direct = ["publish", "tree", "new", "--key", "p", "--owner-key", &a];
    assert!(people.run(&direct).ends(12).out.contains(&a));
    assert!(!people.path("new").exists());
    let both = [&direct[..], &["--key", "a"]].concat();
    people.run(&both).ends(0);
}
