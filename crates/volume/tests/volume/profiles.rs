//! Parts of a tree that a profile names: they come at once and nothing else does, whatever the profile says.

use reader::{Ahead, ReadError};
use sim::liar::Lie;
use tokio::time::Instant;
use volume::profile::{MAX_PROFILE_BYTES, Profile, ProfileError};
use volume::{Fetch, Snapshot, Volume, VolumeOptions};

use crate::far::{ROUND_TRIP, fetched, open, waits_since};
use crate::world::{World, noise, now, settle, soon};

/// Begins to fetch what a profile names.
fn begin(snapshot: &Snapshot, profile: &str) -> Ahead {
    let profile = Profile::parse(profile.as_bytes()).unwrap();
    snapshot.parts_ahead(profile.selection())
}

/// The length of a file of which everything is in memory.
async fn held(snapshot: &Snapshot, path: &str) -> Result<usize, ReadError> {
    let inode = snapshot.follow(path.as_bytes(), Fetch::Cached).await?;
    let inode = inode.unwrap();
    let bytes = snapshot.read(&inode, 0, usize::MAX, Fetch::Cached).await?;
    Ok(bytes.iter().map(|part| part.len()).sum())
}

#[tokio::test(start_paused = true)]
async fn parts_come_in_few_round_trips_and_nothing_else_does() {
    let (_liar, volume, _world) = open().await;
    let snapshot = volume.snapshot();
    let paths = (0..12).map(|top| format!("t{top:02}/b{:02}/f1", (top * 5) % 12));
    let paths: Vec<String> = paths.collect();
    let before = fetched(&volume);
    let ahead = begin(&snapshot, &paths.join("\n"));
    let began = Instant::now();
    while held(&snapshot, &paths[11]).await.is_err() || held(&snapshot, &paths[0]).await.is_err() {
        tokio::time::sleep(ROUND_TRIP / 5).await;
        assert!(began.elapsed() < 20 * ROUND_TRIP);
    }
    // Three levels of directories, then the node and the data of each file.
    let waits = waits_since(began);
    assert!(waits <= 7, "{waits}");
    settle().await;
    for path in &paths {
        assert_eq!(held(&snapshot, path).await.unwrap(), 3000, "{path}");
    }
    // The root, and two directories, a node and two blocks for each file.
    let brought = fetched(&volume) - before;
    assert!(brought <= 1 + 12 * 5, "{brought}");
    assert!(held(&snapshot, "t00/b01/f1").await.is_err());
    drop(ahead);
}

#[tokio::test(start_paused = true)]
async fn names_that_are_not_there_cost_no_more_than_their_directories() {
    let (_liar, volume, _world) = open().await;
    let snapshot = volume.snapshot();
    let before = fetched(&volume);
    // What is not there, what is below a file, and what is below what is not there.
    let mut profile = String::from("t00/b00/f0/below\nno/way\n");
    for number in 0..5000 {
        profile += &format!("t00/b00/x{number}\n");
    }
    let ahead = begin(&snapshot, &profile);
    settle().await;
    let brought = fetched(&volume) - before;
    assert!(brought <= 3, "{brought}");
    assert!(held(&snapshot, "t00/b00/f0").await.is_err());
    drop(ahead);
}

#[tokio::test(start_paused = true)]
async fn ranges_of_a_file_come_without_the_rest() {
    let mut world = World::new();
    let content = noise(77, 4 << 20);
    let file = world.model.file(&content, 8192).unwrap();
    let root = world.model.directory(vec![(b"f".to_vec(), file)]).unwrap();
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    let volume = world.open(vec![world.liar(Lie::None)]).await.unwrap();
    let snapshot = volume.snapshot();
    let ahead = begin(&snapshot, "f\t1000000-1099999,3000000-3000000");
    settle().await;
    let inode = snapshot.follow(b"f", Fetch::Cached).await.unwrap().unwrap();
    let read = |from: u64, len| snapshot.read(&inode, from, len, Fetch::Cached);
    let parts = read(1_000_000, 100_000).await.unwrap();
    assert!(parts.concat() == content[1_000_000..1_100_000]);
    assert!(read(3_000_000, 1).await.is_ok());
    assert!(read(0, 1).await.is_err() && read(2_000_000, 1).await.is_err());
    drop(ahead);
}

#[tokio::test(start_paused = true)]
async fn profile_of_everything_stays_within_a_quarter_of_the_memory() {
    let mut world = World::new();
    let mut names = String::new();
    let files = (0..400u64).map(|number| {
        let name = format!("f{number:03}");
        names += &format!("{name}\n");
        let file = world.model.file(&noise(5000 + number, 50_000), 8192);
        (name.into_bytes(), file.unwrap())
    });
    let files = files.collect();
    let root = world.model.directory(files).unwrap();
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    let options = VolumeOptions {
        cache_bytes: 8 << 20,
        ..world.options()
    };
    let volume = Volume::open(world.model.id(), vec![world.liar(Lie::None)], options);
    let snapshot = volume.await.unwrap().snapshot();
    let ahead = begin(&snapshot, &names);
    settle().await;
    // Of the 20 MB that the profile names.
    let (used, most) = snapshot.blocks().memory_bytes();
    assert_eq!(most, 8 << 20);
    assert!((1 << 20..5 << 19).contains(&used), "{used}");
    drop(ahead);
}

#[tokio::test]
async fn profile_in_the_tree_is_found_or_its_fault_is_said() {
    let mut world = World::new();
    let long = vec![b'\n'; MAX_PROFILE_BYTES + 1];
    let texts: [&[u8]; 4] = [b"a\nb/c\t-\n", b"../out\n", &long, b""];
    let mut found = Vec::new();
    for text in texts {
        let file = world.model.file(text, 64 << 10).unwrap();
        let inside = world.model.directory(vec![(b"profile".to_vec(), file)]);
        let top = vec![(b".bulla".to_vec(), inside.unwrap())];
        let root = world.model.directory(top).unwrap();
        world.head = world.model.publish(&root, now(), 3600).unwrap();
        let volume = world.open(vec![world.liar(Lie::None)]).await.unwrap();
        found.push(Profile::attached(volume.snapshot().tree(), soon()).await);
    }
    assert!(matches!(&found[0], Ok(Some(profile)) if profile.len() == 2));
    assert!(matches!(&found[1], Err(ProfileError::Line { line: 1, .. })));
    assert!(matches!(&found[2], Err(ProfileError::TooLong)));
    assert!(matches!(&found[3], Ok(Some(profile)) if profile.is_empty()));
    let (_liar, volume, _world) = open().await;
    let snapshot = volume.snapshot();
    let before = fetched(&volume);
    let none = Profile::attached(snapshot.tree(), soon()).await;
    assert!(matches!(none, Ok(None)));
    assert!(fetched(&volume) <= before + 1, "only the root's node");
}
