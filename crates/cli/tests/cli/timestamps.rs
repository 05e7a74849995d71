//! Timestamps by keys on several machines: requested where the repository is, signed where the keys are.

use std::process::Command;

use crate::separate_roles::People;
use crate::support::Ran;

/// A volume of `p`, whose versions two of the timestamp keys t, u and v must confirm. It has one version, which nobody has
/// confirmed yet.
fn begun() -> (People, String) {
    let people = People::new(&["p", "t", "u", "v", "x"]);
    let [t, u, v] = ["t", "u", "v"].map(|name| people.key(name));
    let publish = ["publish", "tree", "repo", "--key", "p"];
    let keys = ["--timestamp-key", &t, "--timestamp-key", &u];
    let rest = ["--timestamp-key", &v, "--timestamps-needed", "2"];
    let made = people.run(&[&publish[..], &keys, &rest].concat()).ends(0);
    assert_eq!(made.field("waits_for_timestamp"), true);
    let volume = made.field("volume").as_str().unwrap().to_owned();
    (people, volume)
}

/// Signs the request `asked` on the machine of `who`.
fn confirm(people: &People, who: &str, asked: &str) -> Ran {
    let out = format!("{asked}-{who}");
    people.as_one(who, &["--yes", "sign", asked, "--key", who, "--out", &out])
}

/// The next version, signed by `p`, in the file `signed`.
fn signed(people: &People, text: &str, signed: &str) {
    people.write(text);
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    people.run(&unsigned).ends(0);
    let [t, u, v] = ["t", "u", "v"].map(|name| people.key(name));
    let expect = format!("--expect=timestamps=2/{t},{u},{v}");
    let sign = ["--yes", "sign", "request", "--key", "p", "--out", signed];
    people
        .as_one("p", &[&sign[..], &[expect.as_str()]].concat())
        .ends(0);
}

#[test]
fn timestamps_are_gathered_from_machines_of_their_own() {
    let (people, volume) = begun();
    people.read("reader", &volume).ends(20);
    let asked = people.run(&["renew", "repo", "--timestamp-out", "one"]);
    let asked = asked.ends(0);
    assert_eq!(asked.field("missing")[0]["needed"], 2);
    // Somebody at the terminal is asked, and a stranger and the publisher confirm nothing.
    let unasked = ["sign", "one", "--key", "t", "--out", "one-t"];
    people.as_one("t", &unasked).ends(2);
    for stranger in ["x", "p"] {
        confirm(&people, stranger, "one").ends(12);
    }
    let wrong = [
        "--yes", "sign", "one", "--key", "t", "--out", "o", "--valid", "9d",
    ];
    people.as_one("t", &wrong).ends(2);
    let first = confirm(&people, "t", "one").ends(0);
    assert_eq!(first.field("signs_timestamp"), true);
    assert_eq!(first.field("valid_until"), asked.field("valid_until"));
    let few = people
        .run(&["renew", "repo", "--timestamp", "one-t"])
        .ends(12);
    assert!(few.out.contains(&people.key("u")), "{}", few.out);
    confirm(&people, "u", "one").ends(0);
    let both = ["--timestamp", "one-t", "--timestamp", "one-u"];
    let renewed = people.run(&[&["renew", "repo"][..], &both].concat());
    assert_eq!(renewed.ends(0).field("renewed"), "timestamp");
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");

    // A version: one key is elsewhere, one is here.
    signed(&people, "two", "s");
    people.run(&["publish", "--install", "s", "repo"]).ends(12);
    let ask = [
        "publish",
        "--install",
        "s",
        "repo",
        "--timestamp-out",
        "two",
    ];
    // A key would sign nothing: there are no witnesses.
    people.run(&[&ask[..], &["--key", "u"]].concat()).ends(2);
    people.run(&ask).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    confirm(&people, "v", "two").ends(0);
    let install = ["publish", "--install", "s", "repo", "--timestamp", "two-v"];
    people.run(&install).ends(12);
    people
        .run(&[&install[..], &["--key", "u"]].concat())
        .ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    // The request for a version that is installed already asks for its next timestamp.
    let next = people.run(&[&ask[..5], &["two-next"]].concat()).ends(0);
    assert_eq!(next.field("version"), 2);

    // A policy: one after another.
    people
        .run(&["policy", "new", "repo", "--out", "next"])
        .ends(0);
    let sign = [
        "--yes", "policy", "sign", "next", "--key", "p", "--out", "q",
    ];
    people.run(&sign).ends(0);
    people.run(&["policy", "install", "q", "repo"]).ends(12);
    let ask = ["policy", "install", "q", "repo", "--timestamp-out", "three"];
    people.run(&ask).ends(0);
    confirm(&people, "t", "three").ends(0);
    let second = [
        "--yes", "sign", "three-t", "--key", "u", "--out", "three-tu",
    ];
    people.as_one("u", &second).ends(0);
    let install = ["policy", "install", "q", "repo", "--timestamp", "three-tu"];
    people.run(&install).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    assert_eq!(people.read("newcomer", &volume).ends(0).out, "two");
    // A publisher's key makes another version than the one that is confirmed.
    let other = ["renew", "repo", "--key", "p", "--timestamp", "three-tu"];
    people.run(&other).ends(2);
}

fn copy(people: &People, from: &str, to: &str) {
    let mut cp = Command::new("cp");
    cp.arg("-r").arg(people.path(from)).arg(people.path(to));
    assert!(cp.status().unwrap().success());
}

#[test]
fn machine_confirms_no_older_version_and_no_second_record() {
    let (people, _) = begun();
    copy(&people, "repo", "old");
    signed(&people, "two", "s");
    let ask = [
        "publish",
        "--install",
        "s",
        "repo",
        "--timestamp-out",
        "two",
    ];
    people.run(&ask).ends(0);
    confirm(&people, "t", "two").ends(0);
    confirm(&people, "u", "two").ends(0);
    // The machine with the repository is compromised, or it was restored from a backup.
    let back = ["renew", "old", "--timestamp-out", "back"];
    people.as_one("thief", &back).ends(0);
    let refused = confirm(&people, "t", "back").ends(21);
    assert!(refused.out.contains("confirmed a later version"));
    assert!(!people.path("back-t").exists());
    // The publisher's key is stolen. The thief makes another version 2.
    people.write("other");
    let [t, u, v] = ["t", "u", "v"].map(|name| people.key(name));
    let expect = format!("--expect=timestamps=2/{t},{u},{v}");
    let unsigned = ["publish", "tree", "old", "--unsigned", "--out", "r"];
    people.as_one("thief", &unsigned).ends(0);
    let sign = ["--yes", "sign", "r", "--key", "p", "--out", "s-r", &expect];
    people.as_one("thief", &sign).ends(0);
    let ask = [
        "publish",
        "--install",
        "s-r",
        "old",
        "--timestamp-out",
        "fork",
    ];
    people.as_one("thief", &ask).ends(0);
    confirm(&people, "t", "fork").ends(22);
    // The same again is confirmed again.
    confirm(&people, "t", "two").ends(0);
}

#[test]
fn timestamp_of_another_version_is_not_installed() {
    let (people, _) = begun();
    people
        .run(&["renew", "repo", "--timestamp-out", "one"])
        .ends(0);
    confirm(&people, "t", "one").ends(0);
    confirm(&people, "u", "one").ends(0);
    signed(&people, "two", "s");
    let install = ["publish", "--install", "s", "repo"];
    let both = ["--timestamp", "one-t", "--timestamp", "one-u"];
    let refused = people.run(&[&install[..], &both].concat()).ends(20);
    assert!(
        refused.out.contains("not about version 2"),
        "{}",
        refused.out
    );
    // Copies of different requests, and a file that is none.
    people
        .run(&["renew", "repo", "--timestamp-out", "again", "--valid", "2h"])
        .ends(0);
    confirm(&people, "u", "again").ends(0);
    let mixed = ["--timestamp", "one-t", "--timestamp", "again-u"];
    people
        .run(&[&["renew", "repo"][..], &mixed].concat())
        .ends(20);
    people
        .run(&["renew", "repo", "--timestamp", "request"])
        .ends(20);
}

#[test]
fn older_timestamp_does_not_replace_a_newer_one() {
    let (people, volume) = begun();
    for (name, valid) in [("short", "1h"), ("long", "9h")] {
        people
            .run(&["renew", "repo", "--timestamp-out", name, "--valid", valid])
            .ends(0);
        for who in ["t", "u"] {
            confirm(&people, who, name).ends(0);
        }
    }
    let install = |name: &str| {
        let [t, u] = ["t", "u"].map(|who| format!("{name}-{who}"));
        people.run(&["renew", "repo", "--timestamp", &t, "--timestamp", &u])
    };
    install("long").ends(0);
    let refused = install("short").ends(21);
    assert!(refused.out.contains("the repository shows one until"));
    // The same again changes nothing.
    install("long").ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
}

#[test]
fn timer_does_not_make_a_machine_forget_what_it_signed_with_others() {
    let people = People::new(&["p", "q", "t"]);
    let [p, q, t] = ["p", "q", "t"].map(|name| people.key(name));
    let publish = ["publish", "tree", "repo", "--key", "p", "--key", "q"];
    let publishers = ["--publisher-key", &p, "--publisher-key", &q];
    let rest = ["--publishers-needed", "2", "--owner-key", &p];
    let timestamps = ["--timestamp-key", &t, "--key", "t"];
    people
        .run(&[&publish[..], &publishers, &rest, &timestamps].concat())
        .ends(0);
    let roles = [
        format!("--expect=owners={p}"),
        format!("--expect=publishers=2/{p},{q}"),
        format!("--expect=timestamps={t}"),
    ];
    let roles: Vec<&str> = roles.iter().map(String::as_str).collect();
    let sign = |request: &str| {
        let args = ["--yes", "sign", request, "--key", "p", "--out", "s"];
        people.as_one("machine", &[&args[..], &roles].concat())
    };
    let unsigned = |text: &str, out: &str| {
        people.write(text);
        let args = ["publish", "tree", "repo", "--unsigned", "--out", out];
        people.run(&args).ends(0);
    };
    unsigned("two", "two");
    unsigned("three", "three");
    sign("two").ends(0);
    // The same machine confirms version 1 meanwhile.
    let timer = ["renew", "repo", "--key", "t"];
    people.as_one("machine", &timer).ends(0);
    sign("three").ends(22);
    sign("two").ends(0);
}
