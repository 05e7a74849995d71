//! Versions that were signed with a clock that was ahead, and the way on: no reader with a right clock believes them, and
//! the next version may begin before them if the publisher says so.

use std::path::PathBuf;
use std::time::Duration;

use publish::NewVolume;
use publish::installing;
use publish::pipeline::{Input, PublishOptions, publish_unsigned, publish_with};
use publish::progress::{Published, Silent};
use publish::publish_error::PublishError;
use publish::renewal::{propose, renew};
use publish::signing::{self, Countersigned};
use sim::time::now;
use store::repository::Repository;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::judge::{Offer, Terms};
use trust::key::SecretKey;
use trust::policy::{NO_END, Roles, Threshold};
use trust::request::Request;
use trust::signatures::Signatures;

const MONTH: u64 = 30 * 24 * 3600;

/// A repository, and one state directory for all that happens.
struct Publisher {
    dir: tempfile::TempDir,
    now: u64,
}

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

fn is_behind<T>(result: &Result<T, PublishError>) -> bool {
    matches!(result, Err(PublishError::ClockBehind { .. }))
}

impl Publisher {
    fn new() -> Publisher {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("tree")).unwrap();
        Publisher { dir, now: now() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// With a clock that is ahead by so many seconds.
    fn ahead(&self, seconds: u64) -> PublishOptions {
        PublishOptions {
            state_dir: Some(self.path("state")),
            clock: state::Clock::fixed(self.now + seconds),
            valid: Duration::from_secs(24 * 3600),
            ..PublishOptions::default()
        }
    }

    /// With the right clock, behind a version that the publisher knows to be from another one.
    fn accepting(&self) -> PublishOptions {
        PublishOptions {
            accept_clock: true,
            ..self.ahead(0)
        }
    }

    fn publish(&self, keys: &[u8], options: &PublishOptions) -> Result<Published, PublishError> {
        let keys: Vec<SecretKey> = keys.iter().map(|number| key(*number)).collect();
        let keys: Vec<&dyn trust::signer::Signer> = keys.iter().map(|key| key as _).collect();
        let (tree, repo) = (self.path("tree"), self.path("repo"));
        publish_with(Input::Directory(&tree), &repo, &keys, options, &Silent)
    }

    fn request(&self, options: &PublishOptions) -> Result<Request, PublishError> {
        let (tree, repo) = (self.path("tree"), self.path("repo"));
        Ok(publish_unsigned(&tree, &repo, options, &Silent)?.1.unwrap())
    }

    fn sign(
        &self,
        request: &Request,
        number: u8,
        options: &PublishOptions,
    ) -> Result<Countersigned, PublishError> {
        signing::write(&self.path("request"), request).unwrap();
        let received = signing::read(&self.path("request")).unwrap();
        signing::sign(&received, &key(number), options)
    }

    fn install(&self, request: &Request, options: &PublishOptions) -> Result<u64, PublishError> {
        signing::write(&self.path("signed"), request).unwrap();
        let paths = [self.path("signed")];
        Ok(installing::install(&paths, &self.path("repo"), &[], options)?.version)
    }

    /// What a reader with the right clock says, who knows nothing else.
    fn read(&self) -> Result<Offer, Reject> {
        let repository = Repository::open(self.path("repo")).unwrap();
        let head = Head::decode(&repository.statements()).unwrap();
        let floor = Floor::new(head.volume().unwrap());
        floor.judge(&head, &Terms::strict(self.now), &mut Signatures::default())
    }
}

#[test]
fn publisher_goes_on_after_a_version_that_begins_in_the_future() {
    let publisher = Publisher::new();
    publisher.publish(&[1], &publisher.ahead(0)).unwrap();
    publisher.publish(&[1], &publisher.ahead(MONTH)).unwrap();
    assert!(matches!(publisher.read(), Err(Reject::NotYetValid { .. })));
    let repo = publisher.path("repo");
    let right = publisher.ahead(0);
    assert!(is_behind(&publisher.publish(&[1], &right)));
    assert!(is_behind(&renew(&repo, &key(1), &right)));
    assert!(is_behind(&propose(&repo, &right)));
    assert!(is_behind(&publisher.request(&right)));
    let accepting = publisher.accepting();
    assert_eq!(publisher.publish(&[1], &accepting).unwrap().version, 3);
    assert_eq!(publisher.read().unwrap().record.version, 3);
    // From now on nothing needs to be accepted.
    assert_eq!(publisher.publish(&[1], &right).unwrap().version, 4);
    publisher.publish(&[1], &publisher.ahead(MONTH)).unwrap();
    assert_eq!(renew(&repo, &key(1), &accepting).unwrap().version, 6);
    assert_eq!(publisher.read().unwrap().record.version, 6);
}

#[test]
fn version_that_was_signed_elsewhere_with_a_fast_clock_is_followed_by_another_one() {
    let publisher = Publisher::new();
    publisher.publish(&[1], &publisher.ahead(0)).unwrap();
    let right = publisher.ahead(0);
    let accepting = publisher.accepting();
    let request = publisher.request(&right).unwrap();
    let signed = publisher
        .sign(&request, 1, &publisher.ahead(MONTH))
        .unwrap();
    let refused = publisher.install(&signed.request, &right);
    assert!(
        matches!(
            refused,
            Err(PublishError::BadRequest {
                why: Reject::NotYetValid { .. },
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(publisher.read().unwrap().record.version, 1);
    // Its key signs no other version 2, so this one goes in.
    assert_eq!(publisher.install(&signed.request, &accepting).unwrap(), 2);
    assert!(matches!(publisher.read(), Err(Reject::NotYetValid { .. })));
    let request = publisher.request(&accepting).unwrap();
    assert!(is_behind(&publisher.sign(&request, 1, &right)));
    let signed = publisher.sign(&request, 1, &accepting).unwrap();
    assert_eq!(publisher.install(&signed.request, &right).unwrap(), 3);
    assert_eq!(publisher.read().unwrap().record.version, 3);
}

#[test]
fn acceptance_of_a_clock_makes_no_ended_version_good() {
    let publisher = Publisher::new();
    publisher.publish(&[1], &publisher.ahead(0)).unwrap();
    let request = publisher.request(&publisher.ahead(0)).unwrap();
    let signed = publisher.sign(&request, 1, &publisher.ahead(0)).unwrap();
    let late = PublishOptions {
        clock: state::Clock::fixed(publisher.now + MONTH),
        ..publisher.accepting()
    };
    let refused = publisher.install(&signed.request, &late);
    assert!(
        matches!(
            refused,
            Err(PublishError::BadRequest {
                why: Reject::Expired { .. },
                ..
            })
        ),
        "{refused:?}"
    );
}

#[test]
fn begin_that_a_request_names_is_judged_by_each_of_its_signers() {
    let publisher = Publisher::new();
    let both = Threshold::new(2, vec![key(1).public(), key(2).public()]).unwrap();
    let new_volume = NewVolume {
        roles: Roles {
            publishers: both,
            ..Roles::single(key(1).public())
        },
        not_after: NO_END,
        is_plain: false,
    };
    let first = PublishOptions {
        new_volume: Some(new_volume),
        ..publisher.ahead(0)
    };
    publisher.publish(&[1, 2], &first).unwrap();
    publisher.publish(&[1, 2], &publisher.ahead(MONTH)).unwrap();
    let (right, accepting) = (publisher.ahead(0), publisher.accepting());
    let request = publisher.request(&accepting).unwrap();
    // Also with a clock that says something else than the request.
    for options in [&right, &publisher.ahead(MONTH)] {
        assert!(is_behind(&publisher.sign(&request, 1, options)));
    }
    let once = publisher.sign(&request, 1, &accepting).unwrap();
    // The second one signs on another machine.
    let elsewhere = |options: PublishOptions| PublishOptions {
        state_dir: Some(publisher.path("elsewhere")),
        ..options
    };
    let refused = publisher.sign(&once.request, 2, &elsewhere(publisher.ahead(0)));
    assert!(is_behind(&refused));
    let consents = elsewhere(publisher.accepting());
    let twice = publisher.sign(&once.request, 2, &consents).unwrap();
    assert_eq!(publisher.install(&twice.request, &right).unwrap(), 3);
    assert_eq!(publisher.read().unwrap().record.version, 3);
}
