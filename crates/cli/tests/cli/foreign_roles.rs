//! A compromised machine asks for signatures under policies that give the volume to its own key too. Nothing is
//! signed unless the signer has seen and named those keys.

use trust::head::{Head, first_log};
use trust::key::{PublicKey, SecretKey};
use trust::policy::{Genesis, Roles, Threshold};
use trust::request::{Base, Request};
use trust::root::RootRecord;
use trust::signatures::Signatures;

use crate::support::{Home, Ran, at_terminal, skipped};

/// The attacker's key.
fn attacker() -> SecretKey {
    SecretKey::from_seed(&[66; 32])
}

/// The victim's machine, with its key.
struct Victim {
    home: Home,
    public: PublicKey,
    /// An honest request: its record is what the attacker bends.
    honest: Request,
}

impl Victim {
    fn new() -> Victim {
        let home = Home::new();
        let made = home.run(&["--json", "key", "new", "--out", "key", "--no-passphrase"]);
        let public = made.ends(0).field("key").as_str().unwrap().to_owned();
        std::fs::create_dir(home.path("tree")).unwrap();
        let unsigned = ["publish", "tree", "repo", "--unsigned", "--out", "honest"];
        home.run(&[&unsigned[..], &["--publisher", &public]].concat())
            .ends(0);
        let honest = std::fs::read(home.path("honest")).unwrap();
        Victim {
            home,
            public: public.parse().unwrap(),
            honest: Request::decode(&honest).unwrap(),
        }
    }

    /// The attacker and the victim, either of whom suffices.
    fn either(&self) -> Threshold {
        Threshold::new(1, vec![self.public, attacker().public()]).unwrap()
    }

    /// The request for a new volume with these roles, signed by the attacker as far as may be.
    fn genesis(&self, roles: Roles) -> Request {
        let genesis = Genesis::new("new", [1; 32], [2; 32], roles).unwrap();
        let policy = genesis.statement().sign(&[&attacker()]);
        let honest = self
            .honest
            .examine(&mut Signatures::default())
            .unwrap()
            .record;
        let record = RootRecord {
            policy_hash: policy.hash(),
            log: first_log(&policy).unwrap().0,
            ..honest
        };
        Request {
            record: record.statement(genesis.volume_id()).sign(&[]),
            base: Base::Genesis(policy),
        }
    }

    fn save(&self, request: &Request, name: &str) {
        std::fs::write(self.home.path(name), request.encode().unwrap()).unwrap();
    }

    fn sign(&self, request: &str, more: &[&str]) -> Ran {
        let args = ["--json", "--yes", "sign", request, "--key", "key"];
        self.home
            .run(&[&args[..], &["--out", "signed"], more].concat())
    }

    /// The attacker's key stands on the screen, and there is no signature.
    #[track_caller]
    fn was_refused(&self, ran: &Ran) {
        let key = attacker().public().to_string();
        assert!(ran.err.contains(&key), "{}", ran.err);
        assert!(!self.home.path("signed").exists());
    }
}

/// The request for the version after a signed one, of the same tree.
fn next(signed: &Request) -> Request {
    let examined = signed.examine(&mut Signatures::default()).unwrap();
    let head: Head = signed.head(&examined);
    let record = RootRecord {
        version: examined.record.version + 1,
        log: head.next_log(examined.volume).unwrap().0,
        ..examined.record
    };
    Request {
        base: Base::Head(Box::new(head)),
        record: record.statement(examined.volume).sign(&[]),
    }
}

#[test]
fn policy_with_keys_of_others_is_not_signed_without_a_look() {
    let victim = Victim::new();
    let single = Roles::single(victim.public);
    let hostile = [
        Roles {
            owners: victim.either(),
            ..single.clone()
        },
        Roles {
            publishers: victim.either(),
            ..single.clone()
        },
        Roles {
            owners: Threshold::single(attacker().public()),
            ..single.clone()
        },
        Roles {
            timestamps: Threshold::single(attacker().public()),
            timestamp_max: 3600,
            ..single.clone()
        },
        Roles {
            log: Threshold::single(attacker().public()),
            ..single.clone()
        },
        Roles {
            witnesses: Threshold::single(attacker().public()),
            ..single
        },
    ];
    for roles in hostile {
        victim.save(&victim.genesis(roles), "request");
        let refused = victim.sign("request", &[]).ends(2);
        victim.was_refused(&refused);
        assert!(refused.err.contains("--expect"), "{}", refused.err);
        // Quiet, and told what to expect: the same.
        victim.was_refused(&victim.sign("request", &["-q"]).ends(2));
        let own = format!("owners={}", victim.public);
        victim.was_refused(&victim.sign("request", &["--expect", &own]).ends(20));
    }
    // The honest request, with nothing but the signer's own key, takes no more than `--yes`.
    victim.sign("honest", &[]).ends(0);
}

#[test]
fn expected_keys_are_signed_and_asked_about_once() {
    let victim = Victim::new();
    let roles = Roles {
        owners: victim.either(),
        ..Roles::single(victim.public)
    };
    victim.save(&victim.genesis(roles), "request");
    let keys = format!("{},{}", victim.public, attacker().public());
    let fewer = format!("owners=2/{keys}");
    victim.was_refused(&victim.sign("request", &["--expect", &fewer]).ends(20));
    let exact = format!("owners=1/{keys}");
    let signed = victim.sign("request", &["--expect", &exact]).ends(0);
    assert_eq!(signed.field("roles")["owners"]["needed"], 1);
    let bytes = std::fs::read(victim.home.path("signed")).unwrap();
    let second = next(&Request::decode(&bytes).unwrap());
    victim.save(&second, "second");
    victim.sign("second", &[]).ends(0);
}

#[test]
fn later_version_of_a_volume_that_this_machine_never_signed_is_looked_at_too() {
    let victim = Victim::new();
    let roles = Roles {
        owners: victim.either(),
        publishers: victim.either(),
        ..Roles::single(victim.public)
    };
    let mut first = victim.genesis(roles);
    let examined = first.examine(&mut Signatures::default()).unwrap();
    let start = examined.record.start;
    first.sign(&examined, start, 3600, &attacker()).unwrap();
    victim.save(&next(&first), "request");
    victim.was_refused(&victim.sign("request", &[]).ends(2));
}

#[test]
fn question_about_keys_of_others_is_asked_at_a_terminal_whatever_yes_says() {
    let victim = Victim::new();
    let roles = Roles {
        owners: victim.either(),
        ..Roles::single(victim.public)
    };
    victim.save(&victim.genesis(roles), "request");
    for (answer, code) in [("no\n", "code 2"), ("yes\n", "code 0")] {
        let args = [
            "-q", "--yes", "sign", "request", "--key", "key", "--out", "signed",
        ];
        let Some(shown) = at_terminal(&victim.home.command(&args), answer) else {
            return skipped("the question about keys", "no script(1)");
        };
        assert!(shown.contains(code), "{shown}");
        let key = attacker().public().to_string();
        assert!(shown.contains(&key), "shown even with -q: {shown}");
        assert_eq!(victim.home.path("signed").exists(), answer == "yes\n");
    }
}
