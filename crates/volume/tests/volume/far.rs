//! A tree far away: directories in directories, and a replica each of whose answers takes a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sim::liar::{Liar, Lie};
use store::memory::MemoryStore;
use tokio::time::Instant;
use volume::Volume;

use crate::world::{World, noise, now};

/// Each answer takes this long. The tests' time stands still while anybody works, so elapsed time counts the answers that
/// were waited for.
pub const ROUND_TRIP: Duration = Duration::from_millis(15);
pub const TOPS: u64 = 12;
pub const BELOW: u64 = 12;

/// Directories in directories, each of the inner ones with two files.
pub fn world() -> World {
    let mut world = World::new();
    publish(&mut world, 0);
    world
}

/// Publishes a version in which one file of each directory differs below the first `changed` directories.
pub fn publish(world: &mut World, changed: u64) {
    let model = &mut world.model;
    let mut tops = Vec::new();
    for top in 0..TOPS {
        let mut below = Vec::new();
        for number in 0..BELOW {
            let files = (0..2).map(|file| {
                let differs = top < changed && file == 1;
                let seed = if differs { 9000 } else { 1000 };
                let content = noise(seed + (top * BELOW + number) * 2 + file, 3000);
                let file_name = format!("f{file}").into_bytes();
                (file_name, model.file(&content, 2048).unwrap())
            });
            let files = files.collect();
            let name = format!("b{number:02}").into_bytes();
            below.push((name, model.directory(files).unwrap()));
        }
        let name = format!("t{top:02}").into_bytes();
        tops.push((name, model.directory(below).unwrap()));
    }
    let root = model.directory(tops).unwrap();
    world.head = model.publish(&root, now(), 3600).unwrap();
}

/// Round trips since a moment.
pub fn waits_since(began: Instant) -> u32 {
    (began.elapsed().as_millis() / ROUND_TRIP.as_millis()) as u32
}

/// Opens it. Gives the replica, too, and what keeps the reader's state.
pub async fn open() -> (Arc<Liar<MemoryStore>>, Arc<Volume>, World) {
    let world = world();
    let liar = world.liar(Lie::None);
    let volume = world.open(vec![liar.clone()]).await.unwrap();
    liar.tell(Lie::Slow(ROUND_TRIP));
    (liar, volume, world)
}

/// Blocks that came so far.
pub fn fetched(volume: &Volume) -> u64 {
    let snapshot = volume.snapshot();
    let counters = snapshot.blocks().counters();
    counters.fetched.load(Ordering::Relaxed) + counters.around.load(Ordering::Relaxed)
}
