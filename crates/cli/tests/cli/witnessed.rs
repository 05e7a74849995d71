//! What goes on while a version waits for witnesses: timestamps of the shown version, policies that replace witnesses, and
//! commands that are run again after a power failure.

use crate::separate_roles::People;
use crate::support::{Ran, copy};
use crate::witnesses::{PUBLISH, Witness, asking, cosigned, quorum, signed_policy, size};

/// A volume of `p` whose versions `t` must confirm and two of three running witnesses cosign. It has version 1.
struct Volume {
    people: People,
    id: String,
    witnesses: [Witness; 3],
}

impl Volume {
    fn new() -> Volume {
        let people = People::new(&["p", "t", "w1", "w2", "w3", "w4"]);
        let t = people.key("t");
        let made = [&PUBLISH[..], &["--key", "t", "--timestamp-key", &t]].concat();
        let made = people.run(&made).ends(0);
        let id = made.field("volume").as_str().unwrap().to_owned();
        let witnesses = ["w1", "w2", "w3"].map(|name| Witness::start(&people, name, &id));
        quorum(&people, &["w1", "w2", "w3"]);
        let volume = Volume {
            people,
            id,
            witnesses,
        };
        let install = asking(&INSTALL_POLICY, &volume.urls());
        volume.people.run(&[&install[..], &KEYS].concat()).ends(0);
        volume
    }

    fn urls(&self) -> [&str; 3] {
        [0, 1, 2].map(|at: usize| self.witnesses[at].url.as_str())
    }

    /// Only `w1` is left.
    fn lose_two(&mut self) {
        self.witnesses[1].kill();
        self.witnesses[2].kill();
    }

    /// Version 2, signed on the machine of `who`, in the file `signed`.
    fn signed(&self, who: &str) {
        let people = &self.people;
        people.write("two");
        let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
        people.run(&unsigned).ends(0);
        let keys = ["w1", "w2", "w3"].map(|name| people.key(name)).join(",");
        let roles = [
            format!("--expect=timestamps={}", people.key("t")),
            format!("--expect=witnesses=2/{keys}"),
        ];
        let sign = ["--yes", "sign", "request", "--key", "p", "--out", "signed"];
        let roles = roles.iter().map(String::as_str);
        let args: Vec<&str> = sign.into_iter().chain(roles).collect();
        people.as_one(who, &args).ends(0);
    }

    /// Proposes and signs a policy in which `w4` is in the place of `w2`, and `w3` is gone.
    fn replace_two(&self) {
        let [w1, w2, w3, w4] = ["w1", "w2", "w3", "w4"].map(|name| self.people.key(name));
        let replace = format!("{w2}={w4}");
        let removed = format!("witnesses={w3}");
        let changes = ["--replace-key", &replace, "--remove", &removed];
        let changes = [&changes[..], &["--needed", "witnesses=2"]].concat();
        signed_policy(&self.people, &changes, &format!("witnesses=2/{w1},{w4}"));
    }

    fn reads(&self, text: &str) {
        for reader in ["reader", text] {
            assert_eq!(self.people.read(reader, &self.id).ends(0).out, text);
        }
    }

    /// The hourly timestamp of the version that is shown.
    fn confirm(&self, version: u64) {
        let renewed = self.people.run(&["renew", "repo", "--key", "t"]).ends(0);
        let renewed = (renewed.field("renewed"), renewed.field("version"));
        assert_eq!(renewed, ("timestamp".into(), version.into()));
    }
}

const KEYS: [&str; 4] = ["--key", "p", "--key", "t"];
const INSTALL: [&str; 4] = ["publish", "--install", "signed", "repo"];
const INSTALL_POLICY: [&str; 4] = ["policy", "install", "next-p", "repo"];

#[test]
fn version_that_was_signed_on_the_same_machine_waits_like_any_other() {
    let mut volume = Volume::new();
    volume.lose_two();
    // `bulla sign` and `publish --install` remember in one state directory.
    volume.signed("repository");
    let install = [&asking(&INSTALL, &volume.urls())[..], &KEYS].concat();
    volume.people.run(&install).ends(30);
    volume.reads("one");
    volume.confirm(1);
    volume.people.run(&install).ends(30);
    // The owners replace the witnesses that are gone, and the version becomes visible with their policy.
    let fourth = Witness::start(&volume.people, "w4", &volume.id);
    let [first, ..] = volume.urls();
    volume.replace_two();
    let install = asking(&INSTALL_POLICY, &[first, &fourth.url]);
    volume.people.run(&[&install[..], &KEYS].concat()).ends(0);
    volume.reads("two");
    volume.confirm(2);
    volume.people.write("three");
    let publish = [&PUBLISH[..], &["--key", "t"]].concat();
    let publish = asking(&publish, &[first, &fourth.url]);
    assert_eq!(volume.people.run(&publish).ends(0).field("version"), 3);
    volume.reads("three");
}

/// Puts back what a power failure leaves that comes after the head was remembered and before it was shown.
fn lose_the_head(people: &People, volume: &str) {
    std::fs::remove_dir_all(people.path("repo")).unwrap();
    copy(&people.path("before"), &people.path("repo"));
    let state = people.path("state-repository/volumes").join(volume);
    std::fs::copy(people.path("pending"), state.join("pending")).unwrap();
}

#[test]
fn power_failure_before_the_head_is_shown_costs_nothing() {
    let mut volume = Volume::new();
    let people = &volume.people;
    people.write("two");
    volume.witnesses[1].kill();
    volume.witnesses[2].kill();
    let publish = [&PUBLISH[..], &["--key", "t"]].concat();
    people.run(&asking(&publish, &volume.urls())).ends(30);
    let state = people.path("state-repository/volumes").join(&volume.id);
    std::fs::copy(state.join("pending"), people.path("pending")).unwrap();
    copy(&people.path("repo"), &people.path("before"));
    volume.replace_two();
    let fourth = Witness::start(people, "w4", &volume.id);
    let install = asking(&INSTALL_POLICY, &[&volume.witnesses[0].url, &fourth.url]);
    let install = [&install[..], &KEYS].concat();
    people.run(&install).ends(0);
    // The same command again.
    lose_the_head(people, &volume.id);
    volume.reads_before("one");
    volume.confirm(1);
    assert_eq!(people.run(&install).ends(0).field("again"), false);
    volume.reads("two");
    // Another command goes on under the policy, which readers may have seen.
    lose_the_head(people, &volume.id);
    let renew = asking(
        &["renew", "repo", "--key", "p", "--key", "t"],
        &[&volume.witnesses[0].url, &fourth.url],
    );
    assert_eq!(people.run(&renew).ends(0).field("version"), 3);
    volume.reads("two");
}

/// The process ended between the head and the removal of what was pending.
#[test]
fn power_failure_after_the_head_is_shown_is_forgotten() {
    let mut volume = Volume::new();
    volume.people.write("two");
    volume.lose_two();
    let publish = [&PUBLISH[..], &["--key", "t"]].concat();
    volume
        .people
        .run(&asking(&publish, &volume.urls()))
        .ends(30);
    let people = &volume.people;
    let state = people.path("state-repository/volumes").join(&volume.id);
    std::fs::copy(state.join("pending"), people.path("pending")).unwrap();
    copy(&people.path("repo"), &people.path("before"));
    volume.replace_two();
    let fourth = Witness::start(people, "w4", &volume.id);
    let install = asking(&INSTALL_POLICY, &[&volume.witnesses[0].url, &fourth.url]);
    people.run(&[&install[..], &KEYS].concat()).ends(0);
    std::fs::copy(people.path("pending"), state.join("pending")).unwrap();
    volume.confirm(2);
    assert!(!state.join("pending").exists());
    // The repository is set back: the version before is not confirmed again.
    std::fs::remove_dir_all(people.path("repo")).unwrap();
    copy(&people.path("before"), &people.path("repo"));
    people.run(&["renew", "repo", "--key", "t"]).ends(1);
}

/// The owners take readers back on another machine, and versions start again at a lower number.
#[test]
fn versions_start_again_lower_and_none_is_signed_twice() {
    let mut volume = Volume::new();
    let publish = [&PUBLISH[..], &["--key", "t"]].concat();
    copy(&volume.people.path("repo"), &volume.people.path("good"));
    for text in ["bad", "worse"] {
        volume.people.write(text);
        let ask = asking(&publish, &volume.urls());
        volume.people.run(&ask).ends(0);
    }
    let people = &volume.people;
    let operator = |args: &[&str]| people.as_one("operator", args).ends(0);
    operator(&["policy", "new", "good", "--lower", "--out", "back"]);
    let sign = ["--yes", "policy", "sign", "back", "--key", "p"];
    let named = ["--out", "back-p", "--expect-drastic", "--expect-last=1"];
    people.as_one("p", &[&sign[..], &named].concat()).ends(0);
    let install = asking(&["policy", "install", "back-p", "good"], &volume.urls());
    operator(&[&install[..], &KEYS].concat());
    std::fs::remove_dir_all(people.path("repo")).unwrap();
    copy(&people.path("good"), &people.path("repo"));
    people.write("two");
    volume.lose_two();
    let people = &volume.people;
    for _ in 0..2 {
        people.run(&asking(&publish, &volume.urls())).ends(30);
    }
    // The witness that answers has seen one log, which grew.
    assert!(cosigned(people, "w1").records("evidence").is_empty());
    let second = Witness::start(people, "w2", &volume.id);
    let ask = asking(&publish, &[&volume.witnesses[0].url, &second.url]);
    assert_eq!(people.run(&ask).ends(0).field("version"), 4);
    volume.reads("two");
}

/// A version waits for witnesses, and the next one for another publisher.
#[test]
fn policy_goes_onto_the_version_that_witnesses_have_cosigned() {
    let people = People::new(&["p", "q", "w1", "w2", "w3", "w4"]);
    let [p, q] = ["p", "q"].map(|name| people.key(name));
    let publish = [&PUBLISH[..], &["--key", "q"]].concat();
    let publishers = ["--publisher-key", &p, "--publisher-key", &q];
    let rest = ["--publishers-needed", "2", "--owner-key", &p];
    let made = people.run(&[&publish[..], &publishers, &rest].concat());
    let id = made.ends(0).field("volume").as_str().unwrap().to_owned();
    let witnesses = ["w1", "w2", "w3"].map(|name| Witness::start(&people, name, &id));
    quorum(&people, &["w1", "w2", "w3"]);
    let mut volume = Volume {
        people,
        id,
        witnesses,
    };
    let install = asking(&INSTALL_POLICY, &volume.urls());
    let install = [&install[..], &["--key", "p"]].concat();
    volume.people.run(&install).ends(0);
    volume.people.write("two");
    volume.lose_two();
    volume
        .people
        .run(&asking(&publish, &volume.urls()))
        .ends(30);
    volume.people.write("three");
    let people = &volume.people;
    let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "request"];
    people.run(&unsigned).ends(0);
    let keys = ["w1", "w2", "w3"].map(|name| people.key(name)).join(",");
    let witnesses = format!("--expect=witnesses=2/{keys}");
    let publishers = format!("--expect=publishers=2/{p},{q}");
    let sign = ["--yes", "sign", "request", "--key", "p", "--out", "half"];
    let half = people.run(&[&sign[..], &[&witnesses, &publishers]].concat());
    assert_eq!(half.ends(0).field("version"), 3);
    volume.replace_two();
    let fourth = Witness::start(people, "w4", &volume.id);
    let install = asking(&INSTALL_POLICY, &[&volume.witnesses[0].url, &fourth.url]);
    people
        .run(&[&install[..], &["--key", "p"]].concat())
        .ends(0);
    volume.reads("two");
    assert!(cosigned(people, "w1").records("evidence").is_empty());
}

/// Two machines publish. The versions of the first wait, and readers are shown those of the second.
#[test]
fn policy_does_not_go_onto_a_version_beside_the_one_that_is_shown() {
    let volume = Volume::new();
    let people = &volume.people;
    let publish = [&PUBLISH[..], &["--key", "t"]].concat();
    let [one, two, three] = volume.urls();
    for text in ["two", "three"] {
        people.write(text);
        people.run(&asking(&publish, &[one])).ends(30);
    }
    people.write("another two");
    let second = asking(&publish, &[two, three]);
    people.as_one("second", &second).ends(0);
    assert_eq!(people.read("reader", &volume.id).ends(0).out, "another two");
    volume.replace_two();
    let fourth = Witness::start(people, "w4", &volume.id);
    let install = asking(&INSTALL_POLICY, &[one, &fourth.url]);
    let refused = people.run(&[&install[..], &KEYS].concat()).ends(22);
    assert!(refused.err.contains("another version 2"), "{}", refused.err);
    assert_eq!(people.read("reader", &volume.id).ends(0).out, "another two");
}

impl Volume {
    /// A reader that has seen nothing newer.
    fn reads_before(&self, text: &str) {
        assert_eq!(self.people.read("early", &self.id).ends(0).out, text);
    }

    /// `t` confirms what a request asks, on a machine of its own.
    fn confirm_elsewhere(&self, asked: &str) -> Ran {
        let out = format!("{asked}-t");
        let sign = ["--yes", "sign", asked, "--key", "t", "--out", &out];
        self.people.as_one("t", &sign)
    }
}

#[test]
fn timestamp_key_on_another_machine_confirms_what_is_cosigned() {
    let mut volume = Volume::new();
    volume.signed("p");
    let people = &volume.people;
    let ask = |out, urls: &[&str]| {
        let ask = [&INSTALL[..], &["--timestamp-out", out, "--key", "p"]].concat();
        people.run(&asking(&ask, urls))
    };
    let before = size(people, "w1");
    // Without a timestamp no witness hears of the version, and without witnesses nothing is asked.
    let install = [&asking(&INSTALL, &volume.urls())[..], &["--key", "p"]].concat();
    people.run(&install).ends(12);
    let refused = people.run(&[&INSTALL[..], &["--timestamp-out", "x"]].concat());
    refused.ends(2);
    assert_eq!(size(people, "w1"), before);
    let [one, two, three] = volume.urls().map(str::to_owned);
    volume.witnesses[1].kill();
    volume.witnesses[2].kill();
    ask("x", &[&one, &two, &three]).ends(30);
    assert!(!people.path("x").exists());
    // Meanwhile the shown version is confirmed, here and elsewhere.
    volume.confirm(1);
    people
        .run(&["renew", "repo", "--timestamp-out", "hourly"])
        .ends(0);
    volume.confirm_elsewhere("hourly").ends(0);
    people
        .run(&["renew", "repo", "--timestamp", "hourly-t"])
        .ends(0);
    volume.reads("one");
    volume.witnesses[1] = Witness::start(people, "w2", &volume.id);
    ask("asked", &[&one, &volume.witnesses[1].url]).ends(0);
    volume.confirm_elsewhere("asked").ends(0);
    // The file has the cosignatures, so nobody is asked again.
    volume.witnesses[1].kill();
    people
        .run(&[&INSTALL[..], &["--timestamp", "asked-t"]].concat())
        .ends(0);
    volume.reads("two");
    // A policy with other witnesses.
    volume.replace_two();
    let fourth = Witness::start(people, "w4", &volume.id);
    let next = [&INSTALL_POLICY[..], &["--timestamp-out", "next-asked"]].concat();
    let next = asking(&[&next[..], &["--key", "p"]].concat(), &[&one, &fourth.url]);
    people.run(&next).ends(0);
    volume.confirm_elsewhere("next-asked").ends(0);
    people
        .run(&[&INSTALL_POLICY[..], &["--timestamp", "next-asked-t"]].concat())
        .ends(0);
    volume.reads("two");
}
