//! A version that witnesses have cosigned, and that could not be shown: it waits, and the next command goes on.

use std::path::PathBuf;

use publish::NewVolume;
use publish::cosigning::{Answer, Cosigning, Question, Witnesses};
use publish::pipeline::{PublishOptions, publish};
use publish::progress::{Published, Silent};
use publish::publish_error::PublishError;
use trust::checkpoint::{cosignature_line, cosigned_message};
use trust::key::SecretKey;
use trust::policy::{NO_END, Roles, Threshold};

fn key(number: u8) -> SecretKey {
    SecretKey::from_seed(&[number; 32])
}

/// A witness in this process, which does something before it answers.
struct Witness<F>(F);

impl<F> std::fmt::Debug for Witness<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Witness")
    }
}

impl<F: Fn() + Send + Sync> Witnesses for Witness<F> {
    fn ask(&self, question: &Question<'_>) -> Vec<Answer> {
        (self.0)();
        let key = key(9);
        let message = cosigned_message(&question.note.text(), 7);
        let signature = key.sign(message.as_bytes());
        let line = cosignature_line("w", &key.public(), 7, &signature);
        vec![Answer {
            place: "here".to_owned(),
            lines: Ok(line.into_bytes()),
            contradicts: false,
        }]
    }
}

struct Place(tempfile::TempDir);

impl Place {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Publishes with a witness that does `before` when it is asked.
    fn publish(
        &self,
        before: impl Fn() + Send + Sync + 'static,
    ) -> Result<Published, PublishError> {
        let options = PublishOptions {
            state_dir: Some(self.path("state")),
            cosigning: Cosigning {
                witnesses: Some(Box::new(Witness(before))),
                ..Cosigning::default()
            },
            new_volume: (!self.path("repo/head").exists()).then(|| NewVolume {
                roles: Roles {
                    witnesses: Threshold::single(key(9).public()),
                    ..Roles::single(key(1).public())
                },
                not_after: NO_END,
                is_plain: false,
            }),
            ..PublishOptions::default()
        };
        let (tree, repo) = (self.path("tree"), self.path("repo"));
        publish(&tree, &repo, &key(1), &options, &Silent)
    }

    /// Whether a version waits.
    fn waits(&self) -> bool {
        let mut volumes = std::fs::read_dir(self.path("state/volumes")).unwrap();
        volumes
            .next()
            .unwrap()
            .unwrap()
            .path()
            .join("pending")
            .exists()
    }
}

#[test]
fn head_that_could_not_be_shown_stays_pending() {
    let place = Place(tempfile::tempdir().unwrap());
    std::fs::create_dir(place.path("tree")).unwrap();
    assert_eq!(place.publish(|| ()).unwrap().version, 1);
    assert!(!place.waits());
    // The head cannot be written: a directory with a file in it has its name.
    let (head, kept) = (place.path("repo/head"), place.path("kept"));
    let spoil = {
        let (head, kept) = (head.clone(), kept.clone());
        move || {
            std::fs::rename(&head, &kept).unwrap();
            std::fs::create_dir_all(head.join("within")).unwrap();
        }
    };
    let refused = place.publish(spoil);
    assert!(
        matches!(refused, Err(PublishError::Store(_))),
        "{refused:?}"
    );
    assert!(place.waits());
    std::fs::remove_dir_all(&head).unwrap();
    std::fs::rename(&kept, &head).unwrap();
    // The log goes on after the version that the witness has cosigned.
    assert_eq!(place.publish(|| ()).unwrap().version, 3);
    assert!(!place.waits());
}
