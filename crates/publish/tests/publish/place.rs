//! A directory with a tree, the repository that it is published into, and a cache of what was published.

use std::fs;
use std::path::PathBuf;

use publish::pipeline::{Input, PublishOptions, publish};
use publish::progress::{Published, Silent};
use publish::publish_error::PublishError;
use sim::time::now;
use state::ManualClock;
use trust::key::SecretKey;

use crate::support::Read;

/// The publisher's key.
pub fn key() -> SecretKey {
    SecretKey::from_seed(&[7; 32])
}

pub struct Place {
    dir: tempfile::TempDir,
    /// The publisher's and the reader's clock. It stands still until a test moves it.
    pub clock: ManualClock,
}

impl Place {
    /// An empty tree.
    pub fn new() -> Place {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("tree")).unwrap();
        let clock = ManualClock::at(now());
        Place { dir, clock }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn tree(&self) -> PathBuf {
        self.path("tree")
    }

    pub fn repo(&self) -> PathBuf {
        self.path("repo")
    }

    /// Writes a file of the tree, and makes the directories above it.
    pub fn write(&self, path: &str, content: &[u8]) {
        let path = self.tree().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Options under which nothing is remembered.
    pub fn options(&self) -> PublishOptions {
        PublishOptions {
            clock: self.clock.clock(),
            ..PublishOptions::default()
        }
    }

    /// Options under which unchanged files are not read again.
    pub fn remembering(&self) -> PublishOptions {
        PublishOptions {
            cache_dir: Some(self.path("cache")),
            ..self.options()
        }
    }

    pub fn publish(&self) -> Published {
        self.publish_with(&self.options())
    }

    pub fn publish_with(&self, options: &PublishOptions) -> Published {
        self.try_publish(options).unwrap()
    }

    pub fn try_publish(&self, options: &PublishOptions) -> Result<Published, PublishError> {
        self.publish_input(&self.tree(), options)
    }

    /// Publishes something else than the tree.
    pub fn publish_input<'a>(
        &self,
        input: impl Into<Input<'a>>,
        options: &PublishOptions,
    ) -> Result<Published, PublishError> {
        publish(input, &self.repo(), &key(), options, &Silent)
    }

    /// The newest version, at the time of the clock.
    pub fn read(&self) -> Read {
        Read::newest(&self.repo(), self.clock.clock().now())
    }
}
