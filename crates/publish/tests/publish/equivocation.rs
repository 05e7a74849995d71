//! One publisher, several copies of a repository, several processes: no two records of one version are ever
//! signed, and a copy that shows a contradiction is not built upon.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

use publish::installing;
use publish::pipeline::{PublishOptions, publish, publish_unsigned};
use publish::progress::{Observer, Published, Silent};
use publish::publish_error::PublishError;
use publish::renewal::{Renewed, renew};
use publish::signing;
use store::repository::Repository;
use trust::Reject;
use trust::head::Head;
use trust::key::SecretKey;
use trust::root::RootRecord;
use trust::statement::VolumeId;

struct World {
    dir: tempfile::TempDir,
}

/// Renews a copy of the repository while the publication of another copy is under way.
struct RenewsMeanwhile<'a> {
    world: &'a World,
    copy: &'a str,
    renewed: Mutex<Option<Renewed>>,
}

impl Observer for RenewsMeanwhile<'_> {
    fn finished(&self, _files: u64, _bytes: u64) {
        let mut renewed = self.renewed.lock().unwrap();
        if renewed.is_none() {
            *renewed = Some(self.world.renew(self.copy, "state").unwrap());
        }
    }
}

fn key() -> SecretKey {
    SecretKey::from_seed(&[3; 32])
}

impl World {
    /// A tree and version 1 of it.
    fn new() -> World {
        let world = World {
            dir: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(world.path("tree")).unwrap();
        world.write("1");
        assert_eq!(world.publish("repo", "state", &Silent).unwrap().version, 1);
        world
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, content: &str) {
        std::fs::write(self.path("tree/file"), content.repeat(5000)).unwrap();
    }

    fn copy(&self, from: &str, to: &str) {
        let paths = [self.path(from), self.path(to)];
        let done = Command::new("cp").arg("-a").args(paths).status();
        assert!(done.unwrap().success());
    }

    fn options(&self, state: &str) -> PublishOptions {
        PublishOptions {
            state_dir: Some(self.path(state)),
            ..PublishOptions::default()
        }
    }

    fn publish(
        &self,
        repo: &str,
        state: &str,
        observer: &dyn Observer,
    ) -> Result<Published, PublishError> {
        let (tree, repo) = (self.path("tree"), self.path(repo));
        publish(&tree, &repo, &key(), &self.options(state), observer)
    }

    fn renew(&self, repo: &str, state: &str) -> Result<Renewed, PublishError> {
        renew(&self.path(repo), &key(), &self.options(state))
    }

    fn record(&self, repo: &str) -> RootRecord {
        record(&self.path(repo))
    }
}

fn record(repo: &Path) -> RootRecord {
    let head = Head::decode(&Repository::open(repo).unwrap().statements()).unwrap();
    let volume = VolumeId::from_bytes(head.policies[0].hash());
    head.record.statement().read(volume).unwrap()
}

#[test]
fn publishing_one_copy_and_renewing_another_sign_two_versions() {
    let world = World::new();
    world.copy("repo", "copy");
    world.write("2");
    let meanwhile = RenewsMeanwhile {
        world: &world,
        copy: "copy",
        renewed: Mutex::default(),
    };
    let published = world.publish("repo", "state", &meanwhile).unwrap();
    let renewed = meanwhile.renewed.into_inner().unwrap().unwrap();
    assert_eq!((renewed.version, published.version), (2, 3));
    assert_eq!(world.record("copy").version, 2);
    assert_eq!(world.record("repo").version, 3);
    // The log of version 3 has version 2, so a reader of that one follows.
    let log = Repository::open(world.path("repo")).unwrap();
    let leaf = log.log_leaf(0, 2).unwrap().unwrap();
    let leaf = trust::statement::Signed::from_bytes(&leaf).unwrap();
    assert_eq!(leaf.hash(), renewed.record_hash);
    assert!(log.log_tile(0, "0.0.4".parse().unwrap()).unwrap().is_some());
}

#[test]
fn publishing_two_copies_at_once_signs_two_versions() {
    struct PublishesMeanwhile<'a>(&'a World, Mutex<Option<u64>>);
    impl Observer for PublishesMeanwhile<'_> {
        fn finished(&self, _files: u64, _bytes: u64) {
            let mut version = self.1.lock().unwrap();
            if version.is_none() {
                let published = self.0.publish("copy", "state", &Silent);
                *version = Some(published.unwrap().version);
            }
        }
    }
    let world = World::new();
    world.copy("repo", "copy");
    world.write("2");
    let meanwhile = PublishesMeanwhile(&world, Mutex::default());
    let published = world.publish("repo", "state", &meanwhile).unwrap();
    assert_eq!(meanwhile.1.into_inner().unwrap(), Some(2));
    assert_eq!(published.version, 3);
}

#[test]
fn copy_with_another_record_of_the_version_signed_last_is_refused() {
    let world = World::new();
    world.copy("repo", "copy");
    world.copy("state", "other state");
    world.write("2");
    world.publish("repo", "state", &Silent).unwrap();
    // The same key on a machine that does not know of it.
    world.write("3");
    world.publish("copy", "other state", &Silent).unwrap();
    assert_eq!(world.record("copy").version, 2);
    let refused = world.publish("copy", "state", &Silent);
    assert!(
        matches!(refused, Err(PublishError::Forked { version: 2, .. })),
        "{refused:?}"
    );
    let refused = world.renew("copy", "state");
    assert!(
        matches!(refused, Err(PublishError::Forked { version: 2, .. })),
        "{refused:?}"
    );
    assert_eq!(world.record("copy").version, 2);
    // In its own repository the machine goes on.
    assert_eq!(world.renew("repo", "state").unwrap().version, 3);
}

#[test]
fn copy_with_another_record_of_an_earlier_version_is_refused() {
    let world = World::new();
    world.copy("repo", "copy");
    world.copy("state", "other state");
    for content in ["2", "3", "4"] {
        world.write(content);
        world.publish("repo", "state", &Silent).unwrap();
    }
    world.write("another 2");
    world.publish("copy", "other state", &Silent).unwrap();
    for refused in [
        world.publish("copy", "state", &Silent).map(|it| it.version),
        world.renew("copy", "state").map(|it| it.version),
    ] {
        assert!(
            matches!(refused, Err(PublishError::Forked { version: 2, .. })),
            "{refused:?}"
        );
    }
    assert_eq!(world.record("copy").version, 2);
    assert_eq!(world.renew("repo", "state").unwrap().version, 5);
}

#[test]
fn installing_a_contradiction_of_what_this_machine_signed_is_refused() {
    let world = World::new();
    world.copy("repo", "copy");
    // Another machine signs version 2 for the copy.
    world.write("2");
    let (tree, copy) = (world.path("tree"), world.path("copy"));
    let elsewhere = PublishOptions {
        state_dir: None,
        ..PublishOptions::default()
    };
    let unsigned = publish_unsigned(&tree, &copy, &elsewhere, &Silent);
    let request = unsigned.unwrap().1.unwrap();
    signing::write(&world.path("request"), &request).unwrap();
    let received = signing::read(&world.path("request")).unwrap();
    let signed = signing::sign(&received, &key(), &elsewhere).unwrap();
    signing::write(&world.path("signed"), &signed.request).unwrap();
    // This one signs its own.
    assert_eq!(world.renew("repo", "state").unwrap().version, 2);
    let refused = installing::install(&[world.path("signed")], &copy, &[], &world.options("state"));
    assert!(
        matches!(
            refused,
            Err(PublishError::Contradiction {
                version: 2,
                why: Reject::Fork(_)
            })
        ),
        "{refused:?}"
    );
    assert_eq!(record(&copy).version, 1);
    // What was signed here is remembered as before.
    assert_eq!(world.renew("repo", "state").unwrap().version, 3);
}

#[test]
fn link_in_place_of_a_temporary_file_is_not_followed() {
    let world = World::new();
    let (tree, repo) = (world.path("tree"), world.path("repo"));
    let options = world.options("state");
    let unsigned = publish_unsigned(&tree, &repo, &options, &Silent);
    let request = unsigned.unwrap().1.unwrap();
    std::fs::write(world.path("private"), "private").unwrap();
    std::os::unix::fs::symlink(world.path("private"), world.path("request.tmp")).unwrap();
    signing::write(&world.path("request"), &request).unwrap();
    let private = std::fs::read_to_string(world.path("private")).unwrap();
    assert_eq!(private, "private");
    assert_eq!(
        signing::read(&world.path("request")).unwrap().request,
        request
    );
}
