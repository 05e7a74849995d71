//! What machines have signed, shown or read before, beside policies that come later, with the real binary.

use crate::policies::{begun, install, propose, sign};
use crate::separate_roles::People;

/// A thief of all owner keys that a policy has replaced makes a policy of his own in its place.
#[test]
fn proof_by_replaced_owners_is_refused_where_their_successors_are_known() {
    let people = People::new(&["a", "b", "c", "d", "p"]);
    let volume = begun(&people);
    people.copy("repo", "stolen");
    let change = |out: &str, changes: &[String]| {
        let changes: Vec<&str> = changes.iter().map(String::as_str).collect();
        propose(&people, out, &changes).ends(0);
    };
    let [a, d] = ["a", "d"].map(|name| people.key(name));
    let (b, c) = (people.key("b"), people.key("c"));
    change("next", &[format!("--replace-key={a}={d}")]);
    let owners = format!("--expect=owners=2/{d},{b},{c}");
    for (who, from, to) in [
        ("a", "next", "one"),
        ("b", "one", "two"),
        ("d", "two", "three"),
    ] {
        sign(&people, who, from, to, &[&owners]).ends(0);
    }
    people.run(&["policy", "install", "three", "repo"]).ends(0);
    people.read("reader", &volume).ends(0);
    let forge = |args: &[&str]| people.as_one("thief", args).ends(0);
    forge(&["policy", "new", "stolen", "--out", "f"]);
    for who in ["a", "b"] {
        let sign = ["--yes", "policy", "sign", "f", "--out"];
        let out = format!("f-{who}");
        forge(&[&sign[..], &[&out, "--key", who]].concat());
    }
    forge(&["policy", "install", "f-a", "f-b", "stolen"]);
    forge(&["publish", "tree", "stolen", "--key", "p"]);
    let source = people.home.source(&volume, "stolen");
    forge(&["prove", &source, "a", "--out", "forged"]);
    let check = |who, more: &[&str]| {
        let check = ["check", "forged", "--volume", &volume];
        people.as_one(who, &[&check[..], more].concat())
    };
    let refused = check("reader", &[]).ends(22);
    assert!(refused.err.contains("another policy"), "{}", refused.err);
    // A machine that has not seen the successors accepts the proof.
    check("newcomer", &[]).ends(0);
}

/// Puts a copy of the repository in its place, as an administrator restores a backup.
fn restore(people: &People, copy: &str) {
    std::fs::remove_dir_all(people.path("repo")).unwrap();
    people.copy(copy, "repo");
}

/// A request to publish `text`, signed by p on a machine of `who`.
fn signed_by(people: &People, who: &str, text: &str, out: &str) {
    people.write(text);
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    people.run(&unsigned).ends(0);
    let [a, b, c, p] = ["a", "b", "c", "p"].map(|name| people.key(name));
    let owners = format!("--expect=owners=2/{a},{b},{c}");
    let publishers = format!("--expect=publishers={p}");
    let sign = ["--yes", "sign", "request", "--key", "p", "--out", out];
    people
        .as_one(who, &[&sign[..], &[&owners, &publishers]].concat())
        .ends(0);
}

/// The machine with the repository has installed what a thief of the publisher's key signed.
#[test]
fn machine_that_showed_a_stolen_version_goes_back_with_its_readers() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    people.copy("repo", "good");
    signed_by(&people, "thief", "stolen", "signed");
    people
        .run(&["publish", "--install", "signed", "repo"])
        .ends(0);
    assert_eq!(people.read("deceived", &volume).ends(0).out, "stolen");
    restore(&people, "good");
    let q = people.key("q");
    let rotate = format!("{}={q}", people.key("p"));
    propose(&people, "back", &["--replace-key", &rotate, "--lower"]).ends(0);
    let named = format!("--expect=publishers={q}");
    install(
        &people,
        "back",
        &[&named, "--expect-drastic", "--expect-last=1"],
    )
    .ends(0);
    assert_eq!(people.read("deceived", &volume).ends(0).out, "one");
    people.write("two");
    let next = people.run(&["publish", "tree", "repo", "--key", "q"]);
    assert_eq!(next.ends(0).field("version"), 2);
    people.run(&["renew", "repo", "--key", "q"]).ends(0);
    assert_eq!(people.read("deceived", &volume).ends(0).out, "two");
}

/// As above; the policy was installed on another machine, or with another state directory.
#[test]
fn publisher_goes_on_after_owners_took_its_version_back() {
    let people = People::new(&["a", "b", "c", "p"]);
    let volume = begun(&people);
    people.copy("repo", "good");
    signed_by(&people, "p", "unwanted", "signed");
    people
        .run(&["publish", "--install", "signed", "repo"])
        .ends(0);
    restore(&people, "good");
    people
        .as_one(
            "operator",
            &["policy", "new", "repo", "--out", "back", "--lower"],
        )
        .ends(0);
    for who in ["a", "b"] {
        let out = format!("back-{who}");
        let named = ["--expect-drastic", "--expect-last=1"];
        sign(&people, who, "back", &out, &named).ends(0);
    }
    people
        .as_one(
            "operator",
            &["policy", "install", "back-a", "back-b", "repo"],
        )
        .ends(0);
    // The same machines sign and show version 2 once more.
    signed_by(&people, "p", "two", "again");
    people
        .run(&["publish", "--install", "again", "repo"])
        .ends(0);
    people.run(&["renew", "repo", "--key", "p"]).ends(0);
    people.write("three");
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "three");
}

#[test]
fn request_made_before_a_policy_does_not_take_the_policy_back() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    signed_by(&people, "p", "late", "signed");
    let q = people.key("q");
    let rotate = format!("{}={q}", people.key("p"));
    propose(&people, "next", &["--replace-key", &rotate]).ends(0);
    let named = format!("--expect=publishers={q}");
    for who in ["a", "b"] {
        let out = format!("next-{who}");
        sign(&people, who, "next", &out, &[&named, "--expect-last=1"]).ends(0);
    }
    people
        .as_one(
            "operator",
            &["policy", "install", "next-a", "next-b", "repo"],
        )
        .ends(0);
    let refused = people
        .run(&["publish", "--install", "signed", "repo"])
        .ends(22);
    assert!(
        refused.err.contains("a policy was installed"),
        "{}",
        refused.err
    );
    let shown = people.run(&["policy", "show", "repo"]).ends(0);
    assert_eq!(shown.field("number"), 1);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
}

#[test]
fn restored_repository_gets_the_policy_back_that_its_machine_has_shown() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    people.copy("repo", "backup");
    let [p, q] = ["p", "q"].map(|name| people.key(name));
    propose(&people, "next", &["--add", &format!("publishers={q}")]).ends(0);
    install(
        &people,
        "next",
        &[&format!("--expect=publishers=1/{p},{q}")],
    )
    .ends(0);
    restore(&people, "backup");
    people.write("two");
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(0);
    let shown = people.run(&["policy", "show", "repo"]).ends(0);
    assert_eq!(shown.field("number"), 1);
    let source = people.home.source(&volume, "repo");
    people.run(&["verify", &source]).ends(0);
    // A reader of version 1 follows over the log's proof.
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    people.run(&["log", &source]).ends(0);
}

/// A thief of the publisher's key shows a history of his own after the owners have replaced the key.
#[test]
fn history_by_a_removed_key_is_told_from_a_fork_by_the_publisher() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    people.copy("repo", "stolen");
    let [p, q] = ["p", "q"].map(|name| people.key(name));
    propose(&people, "next", &["--replace-key", &format!("{p}={q}")]).ends(0);
    let named = [&format!("--expect=publishers={q}"), "--expect-last=1"];
    install(&people, "next", &named).ends(0);
    people.write("two");
    people
        .run(&["publish", "tree", "repo", "--key", "q"])
        .ends(0);
    people
        .as_one("thief", &["publish", "tree", "stolen", "--key", "p"])
        .ends(0);
    let source = people.home.source(&volume, "stolen");
    let seen = people.as_one("victim", &["log", &source, "--seen"]).ends(0);
    let text = seen.field("seen").as_str().unwrap().to_owned();
    std::fs::write(people.path("seen"), text).unwrap();
    let source = people.home.source(&volume, "repo");
    let compare = ["log", &source, "--compare", "seen"];
    let split = people.as_one("reader", &compare).ends(22);
    assert_eq!(split.field("removed")[0], p.as_str());
    let told = format!("{p} has signed one of them, and is no publisher under policy 1");
    assert!(split.err.contains(&told), "{}", split.err);
    assert!(split.err.contains("from another LOCATION"), "{}", split.err);
    let file = split.field("evidence").as_str().unwrap().to_owned();
    let judged = people.home.run(&["check", &file]).ends(0);
    assert!(judged.out.contains(&told), "{}", judged.out);
    // Evidence about another volume is refused before anything in it is verified.
    let other = people
        .run(&["publish", "tree", "other", "--key", "q"])
        .ends(0);
    let other = other.field("volume").as_str().unwrap().to_owned();
    let refused = people
        .home
        .run(&["check", &file, "--volume", &other])
        .ends(2);
    assert!(
        refused.err.contains("is about the volume"),
        "{}",
        refused.err
    );
}

#[test]
fn damaged_memory_of_a_signer_is_named_and_nothing_is_signed() {
    let people = People::new(&["a", "b", "c", "p"]);
    let volume = begun(&people);
    let memory = people
        .path("state-repository/volumes")
        .join(&volume)
        .join("signed");
    let good = std::fs::read(&memory).unwrap();
    std::fs::write(&memory, &good[..good.len() / 2]).unwrap();
    let commands: [&[&str]; 3] = [
        &["publish", "tree", "repo", "--key", "p"],
        &["renew", "repo", "--key", "p"],
        &["renew", "repo", "--unsigned", "--out", "request"],
    ];
    for command in commands {
        let refused = people.run(command).ends(20);
        let told = "the memory of what this machine has signed is damaged";
        assert!(refused.err.contains(told), "{}", refused.err);
        assert!(
            refused.err.contains("nothing was signed"),
            "{}",
            refused.err
        );
    }
    std::fs::write(&memory, good).unwrap();
    let renewed = people.run(&["renew", "repo", "--key", "p"]).ends(0);
    assert_eq!(renewed.field("version"), 2);
}
