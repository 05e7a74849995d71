//! Policies that follow the first one, with the real binary: proposed where the repository is, signed by owners on machines
//! of their own, installed, and followed by readers and mirrors.

use crate::separate_roles::People;
use crate::support::Ran;

/// A volume with owners a, b, c (two must sign), publisher p; its id.
pub fn begun(people: &People) -> String {
    let [a, b, c] = ["a", "b", "c"].map(|name| people.key(name));
    let keys = ["--key", "p", "--key", "a", "--key", "b"];
    let owners = ["--owner-key", &a, "--owner-key", &b, "--owner-key", &c];
    let made = people.run(&[&["publish", "tree", "repo"], &keys[..], &owners].concat());
    let volume = made.ends(0).field("volume");
    volume.as_str().unwrap().to_owned()
}

pub fn propose(people: &People, out: &str, changes: &[&str]) -> Ran {
    people.run(&[&["policy", "new", "repo", "--out", out], changes].concat())
}

pub fn sign(people: &People, who: &str, file: &str, out: &str, more: &[&str]) -> Ran {
    let args = ["--yes", "policy", "sign", file, "--key", who, "--out", out];
    people.as_one(who, &[&args[..], more].concat())
}

/// The owners a and b sign the proposal, and it is installed.
pub fn install(people: &People, file: &str, more: &[&str]) -> Ran {
    let [first, second] = ["a", "b"].map(|who| format!("{file}-{who}"));
    sign(people, "a", file, &first, more).ends(0);
    sign(people, "b", file, &second, more).ends(0);
    people.run(&["policy", "install", &first, &second, "repo"])
}

#[test]
fn publisher_is_replaced_and_readers_and_mirrors_follow() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    assert_eq!(people.read("old", &volume).ends(0).out, "one");
    let source = people.home.source(&volume, "repo");
    people
        .as_one("mirror", &["pull", &source, "replica"])
        .ends(0);
    let [p, q] = ["p", "q"].map(|name| people.key(name));
    let rotate = format!("{p}={q}");
    let proposed = propose(&people, "next", &["--replace-key", &rotate]).ends(0);
    assert_eq!(proposed.field("number"), 1);
    assert_eq!(proposed.field("roles")["publishers"]["keys"][0], q.as_str());
    assert_eq!(
        proposed.field("before")["roles"]["publishers"]["keys"][0],
        p.as_str()
    );
    let shown = people.run(&["policy", "show", "next"]).ends(0);
    assert_eq!(shown.field("policy"), proposed.field("policy"));
    let named = format!("--expect=publishers={q}");
    // The last version counts, whoever signed it.
    sign(&people, "c", "next", "x", &[&named]).ends(2);
    let other = sign(&people, "c", "next", "x", &[&named, "--expect-last=2"]);
    other.ends(20);
    assert!(!people.path("x").exists());
    let named = [named.as_str(), "--expect-last=1"];
    // One of two owners, and a key that is none.
    let half = sign(&people, "c", "next", "next-c", &named).ends(0);
    assert_eq!(
        half.field("missing")[0]["signed"].as_array().unwrap().len(),
        1
    );
    people
        .run(&["policy", "install", "next-c", "repo"])
        .ends(20);
    sign(&people, "p", "next", "x", &named).ends(12);
    let installed = install(&people, "next", &named).ends(0);
    assert_eq!(
        (installed.field("again"), installed.field("number")),
        (false.into(), 1.into())
    );
    let again = people.run(&["policy", "install", "next-a", "next-b", "repo"]);
    assert_eq!(again.ends(0).field("again"), true);
    // The version needs no new signature. The old key signs no other one.
    for reader in ["old", "new"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "one");
    }
    people.write("two");
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(12);
    people
        .run(&["publish", "tree", "repo", "--key", "q"])
        .ends(0);
    people
        .as_one("mirror", &["pull", &source, "replica"])
        .ends(0);
    for reader in ["old", "new", "newer"] {
        assert_eq!(
            people.read_at(reader, &volume, "replica").ends(0).out,
            "two"
        );
    }
    let shown = people.run(&["policy", "show", "repo"]).ends(0);
    assert_eq!(
        (shown.field("number"), shown.field("last_version")),
        (1.into(), 1.into())
    );
    assert_eq!(people.run(&["verify", &source]).ends(0).code, 0);
}

#[test]
fn nothing_is_signed_that_the_owner_did_not_name() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    begun(&people);
    let [p, q] = ["p", "q"].map(|name| people.key(name));
    let add = format!("publishers={q}");
    propose(&people, "next", &["--add", &add]).ends(0);
    let refused = sign(&people, "a", "next", "x", &[]).ends(2);
    assert!(refused.err.contains(&format!("+ {q}")), "{}", refused.err);
    assert!(refused.err.contains("--expect"), "{}", refused.err);
    // Named otherwise: a threshold, or a key too few.
    for wrong in [format!("publishers={q}"), format!("publishers=2/{p},{q}")] {
        let wrong = format!("--expect={wrong}");
        sign(&people, "a", "next", "x", &[&wrong]).ends(20);
    }
    let owners = format!("--expect=owners={}", people.key("a"));
    sign(&people, "a", "next", "x", &[&owners]).ends(20);
    for drastic in [
        &["--lower"][..],
        &["--revoke"],
        &["--refuse", &policy_text()],
        &["--policy-valid", "29d"],
        &["--policy-valid", "none"],
    ] {
        propose(&people, "drastic", drastic).ends(0);
        sign(&people, "a", "drastic", "x", &[]).ends(2);
    }
    assert!(!people.path("x").exists());
    // A longer validity is power for the publishers, so their role must be named.
    propose(&people, "longer", &["--record-max", "9y"]).ends(0);
    sign(&people, "a", "longer", "x", &[]).ends(2);
    let named = format!("--expect=publishers={p}");
    sign(&people, "a", "longer", "longer-a", &[&named]).ends(0);
    // A renewal changes no keys: it takes no more than `--yes`.
    propose(&people, "renewal", &["--policy-valid", "9y"]).ends(0);
    sign(&people, "b", "renewal", "x", &[]).ends(0);
}

fn policy_text() -> String {
    trust::text::write(trust::text::Noun::Policy, &[7; 32])
}

#[test]
fn owner_signs_one_policy_of_a_number() {
    let people = People::new(&["a", "b", "c", "p"]);
    begun(&people);
    propose(&people, "one", &["--policy-valid", "1y"]).ends(0);
    propose(&people, "two", &["--policy-valid", "3y"]).ends(0);
    sign(&people, "a", "one", "one-a", &[]).ends(0);
    sign(&people, "a", "one", "again", &[]).ends(0);
    let refused = sign(&people, "a", "two", "two-a", &[]).ends(22);
    assert!(refused.err.contains("--replace"), "{}", refused.err);
    assert!(!people.path("two-a").exists());
    sign(&people, "b", "two", "two-b", &[]).ends(0);
    // Copies of different policies are not merged.
    people
        .run(&["policy", "install", "one-a", "two-b", "repo"])
        .ends(20);
    sign(&people, "a", "two", "two-a", &["--replace"]).ends(0);
    people
        .run(&["policy", "install", "two-a", "two-b", "repo"])
        .ends(0);
    // The other one comes too late, and an older one is not signed.
    sign(&people, "b", "one", "one-b", &["--replace"]).ends(0);
    people
        .run(&["policy", "install", "one-a", "one-b", "repo"])
        .ends(22);
    propose(&people, "three", &[]).ends(0);
    sign(&people, "a", "three", "three-a", &[]).ends(0);
    sign(&people, "a", "two", "x", &[]).ends(21);
}

#[test]
fn policy_waits_for_the_owners_while_versions_go_on() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    let [p, q] = ["p", "q"].map(|name| people.key(name));
    let add = format!("publishers={q}");
    propose(&people, "adds", &["--add", &add]).ends(0);
    let rotate = format!("{p}={q}");
    people.write("two");
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(0);
    let both = format!("--expect=publishers=1/{p},{q}");
    install(&people, "adds", &[&both]).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "two");
    // A version of a publisher who goes does not outlive the policy, unless the policy names it.
    let removes = ["--remove", p.as_str()];
    propose(&people, "removes", &removes).ends(0);
    people.write("three");
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(0);
    let only = format!("--expect=publishers={q}");
    install(&people, "removes", &[&only, "--expect-last=2"]).ends(22);
    propose(&people, "anew", &removes).ends(0);
    for who in ["a", "b"] {
        let signed = format!("anew-{who}");
        let named = [only.as_str(), "--expect-last=3"];
        sign(&people, who, "anew", &signed, &named).ends(22);
        sign(
            &people,
            who,
            "anew",
            &signed,
            &[&named[..], &["--replace"]].concat(),
        )
        .ends(0);
    }
    people
        .run(&["policy", "install", "anew-a", "anew-b", "repo"])
        .ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "three");
    // A key that is not there, and roles that nobody could fill.
    for wrong in [
        vec!["--replace-key", &rotate],
        vec!["--remove", &p],
        vec!["--remove", &q],
        vec!["--needed", "owners=4"],
        vec!["--needed", "publishers=0"],
    ] {
        propose(&people, "wrong", &wrong).ends(2);
    }
}

#[test]
fn stolen_publisher_key_loses_its_versions() {
    let people = People::new(&["a", "b", "c", "p", "q"]);
    let volume = begun(&people);
    crate::support::copy(&people.path("repo"), &people.path("thief"));
    // The thief's version reaches a reader.
    people.write("stolen");
    let thief = people.as_one("thief", &["publish", "tree", "thief", "--key", "p"]);
    thief.ends(0);
    people
        .as_one("thief", &["renew", "thief", "--key", "p"])
        .ends(0);
    let deceived = people.read_at("deceived", &volume, "thief").ends(0);
    assert_eq!(deceived.out, "stolen");
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
    for reader in ["deceived", "other"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "one");
        // The thief's mirror deceives nobody who knows the policy.
        let refused = people.read_at(reader, &volume, "thief");
        assert_ne!(refused.code, 0, "{}", refused.out);
    }
    people.write("two");
    people
        .run(&["publish", "tree", "repo", "--key", "q"])
        .ends(0);
    assert_eq!(people.read("deceived", &volume).ends(0).out, "two");
}

#[test]
fn volume_that_ends_names_its_successor_and_is_not_followed() {
    let people = People::new(&["a", "b", "c", "p"]);
    let volume = begun(&people);
    people
        .run(&["publish", "tree", "next", "--key", "p"])
        .ends(0);
    let next = people
        .run(&["policy", "show", "next"])
        .ends(0)
        .field("volume");
    let next = next.as_str().unwrap();
    propose(&people, "end", &["--revoke", "--successor-volume", next]).ends(0);
    install(&people, "end", &["--expect-drastic"]).ends(0);
    let refused = people.read("reader", &volume).ends(24);
    assert!(refused.err.contains(next), "{}", refused.err);
    people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(24);
    propose(&people, "after", &[]).ends(24);
}

#[test]
fn timestamp_key_comes_and_goes_with_a_policy() {
    let people = People::new(&["a", "b", "c", "p", "t", "u"]);
    let volume = begun(&people);
    let [t, u] = ["t", "u"].map(|name| people.key(name));
    let add = format!("timestamps={t}");
    propose(&people, "adds", &["--add", &add]).ends(0);
    let named = format!("--expect=timestamps={t}");
    // Readers would believe nothing without its first timestamp.
    install(&people, "adds", &[&named]).ends(12);
    let installed = [
        "policy", "install", "adds-a", "adds-b", "repo", "--key", "t",
    ];
    people.run(&installed).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    // Stolen: another one takes its place.
    let rotate = format!("{t}={u}");
    propose(&people, "rotates", &["--replace-key", &rotate]).ends(0);
    install(&people, "rotates", &[&format!("--expect=timestamps={u}")]).ends(12);
    let installed = [
        "policy",
        "install",
        "rotates-a",
        "rotates-b",
        "repo",
        "--key",
        "u",
    ];
    people.run(&installed).ends(0);
    people.run(&["renew", "repo", "--key", "t"]).ends(12);
    people.run(&["renew", "repo", "--key", "u"]).ends(0);
    propose(&people, "removes", &["--remove", &u]).ends(0);
    install(&people, "removes", &["--expect=timestamps=none"]).ends(0);
    for reader in ["reader", "new"] {
        assert_eq!(people.read(reader, &volume).ends(0).out, "one");
    }
}

#[test]
fn end_of_a_policy_is_told_long_before_and_moves_with_the_next_one() {
    let people = People::new(&["a", "b", "c", "p"]);
    let volume = begun(&people);
    let renew = ["renew", "repo", "--key", "p"];
    assert!(!people.run(&renew).ends(0).err.contains("ends at"));
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
    assert_eq!(
        doctor_about_state(&people),
        ("ok".to_owned(), String::new())
    );
    propose(&people, "short", &["--policy-valid", "80d"]).ends(0);
    install(&people, "short", &[]).ends(0);
    people.read("reader", &volume).ends(0);
    let (level, hint) = doctor_about_state(&people);
    assert_eq!(level, "note");
    assert!(hint.contains("bulla policy new"), "{hint}");
    let warned = people.run(&renew).ends(0);
    assert!(warned.err.contains("bulla policy new"), "{}", warned.err);
    let published = people
        .run(&["publish", "tree", "repo", "--key", "p"])
        .ends(0);
    assert!(
        published.err.contains("bulla policy new"),
        "{}",
        published.err
    );
    propose(&people, "long", &[]).ends(0);
    install(&people, "long", &[]).ends(0);
    assert!(!people.run(&renew).ends(0).err.contains("ends at"));
    // Nothing is believed after the end.
    propose(&people, "over", &["--policy-valid", "1s"]).ends(0);
    install(&people, "over", &["--expect-drastic"]).ends(0);
    let end = sim::time::now() + 1;
    crate::support::wait_until("the policy is over", || sim::time::now() > end);
    people.read("reader", &volume).ends(24);
    assert_eq!(doctor_about_state(&people).0, "problem");
    people.run(&renew).ends(24);
    // An expired policy has a successor.
    propose(&people, "after", &["--policy-valid", "1y"]).ends(0);
    install(&people, "after", &[]).ends(0);
    assert_eq!(people.read("reader", &volume).ends(0).out, "one");
}

/// Level and hint of what `bulla doctor` finds in the reader's state.
fn doctor_about_state(people: &People) -> (String, String) {
    let mut command = people.home.command(&["--json", "doctor"]);
    command.env("BULLA_STATE_DIR", people.path("state-reader"));
    let told = Ran::of(command.output().unwrap());
    let found = told.records("finding");
    let state = found.iter().find(|finding| finding["check"] == "state");
    let text = |name: &str| state.unwrap()[name].as_str().unwrap_or_default().to_owned();
    (text("level"), text("hint"))
}

#[test]
fn damaged_proposals_and_those_of_other_volumes_are_refused() {
    let people = People::new(&["a", "b", "c", "p"]);
    begun(&people);
    propose(&people, "next", &[]).ends(0);
    let bytes = std::fs::read(people.path("next")).unwrap();
    for at in (0..bytes.len()).step_by(61) {
        let mut bent = bytes.clone();
        bent[at] ^= 1;
        std::fs::write(people.path("bent"), &bent).unwrap();
        people.run(&["policy", "show", "bent"]).ends(20);
    }
    people.run(&["policy", "show", "nothing"]).ends(10);
    people
        .run(&["publish", "tree", "other", "--key", "p"])
        .ends(0);
    sign(&people, "a", "next", "next-a", &[]).ends(0);
    sign(&people, "b", "next-a", "next-ab", &[]).ends(0);
    people
        .run(&["policy", "install", "next-ab", "other"])
        .ends(20);
    people
        .run(&["policy", "new", "empty", "--out", "x"])
        .ends(10);
}

/// A stranger who has the machine with the repository could make up the policies in between, and a huge number: a machine that
/// remembered it would sign nothing of the volume any more.
#[test]
fn owner_who_has_signed_nothing_signs_no_policy_after_hidden_ones() {
    let people = People::new(&["a", "b", "c", "p"]);
    begun(&people);
    for number in 1..=8 {
        propose(&people, "next", &[]).ends(0);
        // All policies are in the file until then.
        let installed = install(&people, "next", &[]).ends(0);
        assert_eq!(installed.field("number"), number);
    }
    propose(&people, "next", &[]).ends(0);
    let refused = sign(&people, "c", "next", "next-c", &[]).ends(1);
    assert!(
        refused.err.contains("--accept-skipped-policies"),
        "{}",
        refused.err
    );
    assert!(!people.path("next-c").exists());
    sign(&people, "a", "next", "next-a", &[]).ends(0);
    let accept = ["--accept-skipped-policies"];
    sign(&people, "c", "next", "next-c", &accept).ends(0);
    let install = ["policy", "install", "next-a", "next-c", "repo"];
    assert_eq!(people.run(&install).ends(0).field("number"), 9);
}
