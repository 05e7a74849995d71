//! The state of a volume is locked by a process that is stopped: reads go on, other volumes are not
//! affected, and operations that need the floor fail at the deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sim::holder::StoppedHolder;
use sim::liar::Lie;
use sim::model::Model;
use state::StateError;
use store::{MemoryStore, Replica};
use volume::{Refreshed, Volume, VolumeError, VolumeOptions};

use crate::world::{World, noise, now, read, tree};

const DEADLINE: Duration = Duration::from_secs(5);

fn is_locked(error: &VolumeError, holder: &StoppedHolder) {
    let VolumeError::State(StateError::Locked { holder: named, .. }) = error else {
        panic!("{error}");
    };
    assert!(named.contains(&holder.pid().to_string()), "{named}");
    assert!(named.contains("stopped"), "{named}");
}

/// One thread runs everything here: reads would stand still if the wait for the lock blocked it.
#[tokio::test]
async fn stopped_lock_holder_stops_neither_reads_nor_other_volumes() {
    let world = World::new();
    let options = || VolumeOptions {
        deadline: DEADLINE,
        ..world.options()
    };
    let id = world.model.id();
    let liar = world.liar(Lie::None);
    let place: Vec<Arc<dyn Replica>> = vec![liar.clone()];
    let volume = Volume::open(id, place.clone(), options()).await.unwrap();
    let lock = world.state.path().join(format!("volumes/{id}/lock"));
    let holder = StoppedHolder::of(&lock).unwrap();

    let mut other = Model::new(8).unwrap();
    let root = tree(&mut other);
    let head = other.publish(&root, now(), 3600).unwrap();
    let store = MemoryStore::new("other");
    for record in &other.records {
        store.insert(record.clone());
    }
    store.set_head(head);

    let began = Instant::now();
    let refresh = async {
        let error = volume.refresh().await.unwrap_err();
        (error, began.elapsed())
    };
    let beside = async {
        for name in ["big", "small", "tiny"] {
            read(&volume, name).await.unwrap();
        }
        let places: Vec<Arc<dyn Replica>> = vec![Arc::new(store)];
        let other = Volume::open(other.id(), places, options()).await.unwrap();
        assert_eq!(read(&other, "small").await.unwrap(), noise(2, 1000));
        began.elapsed()
    };
    let ((error, took), beside) = tokio::join!(refresh, beside);
    is_locked(&error, &holder);
    assert!(took >= DEADLINE - Duration::from_millis(100), "{took:?}");
    assert!(took < 4 * DEADLINE, "{took:?}");
    assert!(beside < took, "{beside:?} {took:?}");
    // A second reader gets the same error.
    let error = Volume::open(id, place.clone(), options())
        .await
        .unwrap_err();
    is_locked(&error, &holder);
    drop(holder);
    assert!(matches!(
        volume.refresh().await.unwrap(),
        Refreshed::Unchanged
    ));
    Volume::open(id, place, options()).await.unwrap();
}
