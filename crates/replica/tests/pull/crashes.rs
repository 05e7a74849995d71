//! Crashes and full disks at every step of a pull.

use std::sync::Arc;

use replica::pull::PullError;
use store::{Repository, StoreError};

use crate::world::{Follower, Publisher};

/// A publisher one version ahead of a replica whose disk is about to fail.
struct Scene {
    publisher: Publisher,
    before: Follower,
}

impl Scene {
    async fn new() -> Scene {
        let mut publisher = Publisher::new(8);
        let before = Follower::new();
        before
            .pull(&publisher, &[publisher.source()])
            .await
            .unwrap();
        for _ in 0..10 {
            publisher.edit();
        }
        publisher.publish();
        Scene { publisher, before }
    }

    /// A copy of the replica on a disk of its own.
    fn copy(&self) -> Follower {
        let whole = self.before.disk.outcomes(1).into_iter().next().unwrap();
        self.before.reborn(self.before.disk.reborn(&whole))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_crash_leaves_the_old_version_or_the_new() {
    let scene = Scene::new().await;
    let (mut crashes, mut old, mut new) = (0, 0, 0);
    for operation in 0.. {
        let follower = scene.copy();
        let disk = follower.disk.clone();
        disk.crash_at(disk.operations() + operation);
        let ended = follower
            .pull(&scene.publisher, &[scene.publisher.source()])
            .await;
        if !disk.crashed() {
            assert!(ended.is_ok());
            break;
        }
        for outcome in disk.outcomes(6) {
            let reborn = follower.reborn(disk.reborn(&outcome));
            match reborn.proved(&scene.publisher, "").await {
                1 => old += 1,
                2 => new += 1,
                other => panic!("operation {operation}: version {other}"),
            }
            reborn
                .pull(&scene.publisher, &[scene.publisher.source()])
                .await
                .unwrap();
            assert_eq!(reborn.proved(&scene.publisher, "").await, 2);
            crashes += 1;
        }
    }
    assert!(
        crashes > 30 && old > 5 && new > 5,
        "{crashes}: {old} old, {new} new"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_an_error_and_the_old_version_stays() {
    let scene = Scene::new().await;
    let mut full = 0;
    for operation in 0.. {
        let follower = scene.copy();
        let disk = follower.disk.clone();
        let operations = disk.operations();
        disk.full_from(operations + operation);
        match follower
            .pull(&scene.publisher, &[scene.publisher.source()])
            .await
        {
            Ok(_) => break,
            Err(PullError::Store(StoreError::Io { source, .. })) => {
                assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
            }
            Err(other) => panic!("operation {operation}: {other}"),
        }
        assert_eq!(follower.proved(&scene.publisher, "").await, 1);
        disk.free_space();
        follower
            .pull(&scene.publisher, &[scene.publisher.source()])
            .await
            .unwrap();
        assert_eq!(follower.proved(&scene.publisher, "").await, 2);
        full += 1;
    }
    assert!(full > 5, "{full}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_pull_that_crashes_leaves_nothing_or_the_version() {
    let publisher = Publisher::new(9);
    for operation in (0..).step_by(2) {
        let follower = Follower::new();
        follower.disk.crash_at(operation);
        let ended = follower.pull(&publisher, &[publisher.source()]).await;
        if !follower.disk.crashed() {
            assert!(ended.is_ok());
            break;
        }
        for outcome in follower.disk.outcomes(4) {
            let reborn = follower.reborn(follower.disk.reborn(&outcome));
            if let Ok(repository) = Repository::open_on(Arc::clone(&reborn.disk) as _)
                && !repository.statements().is_empty()
            {
                assert_eq!(reborn.proved(&publisher, "").await, 1);
            }
            reborn
                .pull(&publisher, &[publisher.source()])
                .await
                .unwrap();
            assert_eq!(reborn.proved(&publisher, "").await, 1);
        }
    }
}
