//! Edited content against a vector of bytes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use content::source::Stream;
use content::upload::Upload;
use reader::{Prefetcher, Spawner};
use sim::random::{Random, noise};
use store::memory::MemoryStore;
use store::mirrors::Mirrors;
use trust::inode::Time;

use super::*;

struct World {
    hasher: Hasher,
    store: Arc<MemoryStore>,
    tree: Tree,
}

impl World {
    fn new() -> World {
        let hasher = Hasher::new(&[7; 32]);
        let store = Arc::new(MemoryStore::new("server"));
        let mirrors = Arc::new(Mirrors::new(vec![store.clone()]));
        let blocks = reader::Blocks::new(hasher.clone(), mirrors, 64 << 20, None);
        let tree = Tree::of_contents(Prefetcher::new(Arc::new(blocks), Spawner::none()));
        World {
            hasher,
            store,
            tree,
        }
    }

    async fn put(&self, content: &[u8]) -> Inode {
        let mut upload = Upload::new(&self.hasher, self.store.as_ref());
        let content = upload.content(Stream(content), |_| {}).await.unwrap();
        file(content)
    }

    fn how() -> Fetch {
        Fetch::Until(Instant::now() + Duration::from_secs(30))
    }

    async fn edit(&self, base: &Inode, overlay: &Overlay, local: &[u8]) -> Inode {
        let read = |offset: u64, into: &mut [u8]| {
            let offset = offset as usize;
            into.copy_from_slice(&local[offset..offset + into.len()]);
            Ok(())
        };
        let edit = Edit {
            tree: &self.tree,
            base,
            overlay,
            local: &read,
            how: World::how(),
        };
        let content = edit.content(&self.hasher, self.store.as_ref());
        file(content.await.unwrap())
    }

    async fn read(&self, inode: &Inode) -> Vec<u8> {
        let len = inode.size as usize;
        let read = self.tree.read(inode, 0, len + 1, World::how());
        read.await.unwrap().concat()
    }
}

fn file(content: FileContent) -> Inode {
    Inode::new(0o644, Time::default(), Content::Regular(content))
}

/// Some random changes, to the overlay, to the local bytes and to a vector.
fn change(random: &mut Random, overlay: &mut Overlay, local: &mut Vec<u8>, now: &mut Vec<u8>) {
    let most = (now.len() as u64 * 5 / 4).max(600);
    let start = random.below(most) as usize;
    let len = match random.below(3) {
        0 => random.below(300),
        1 => random.below(70_000),
        _ => random.below(300_000),
    } as usize;
    let at = match random.below(5) {
        0..=2 => {
            overlay.write(start as u64..(start + len) as u64);
            start
        }
        3 => overlay.append(len as u64) as usize,
        _ => {
            overlay.truncate(start as u64);
            now.resize(start, 0);
            return;
        }
    };
    if len == 0 {
        return;
    }
    let bytes = match random.below(4) {
        0 => vec![0; len],
        _ => noise(random.below(1 << 30), len),
    };
    let end = at + len;
    now.resize(now.len().max(end), 0);
    local.resize(local.len().max(end), 0);
    now[at..end].copy_from_slice(&bytes);
    local[at..end].copy_from_slice(&bytes);
}

#[tokio::test]
async fn edited_content_equals_a_vector_under_random_changes() {
    let mut random = Random::new(11);
    for round in 0..60 {
        let world = World::new();
        let len = match round % 4 {
            0 => random.below(500),
            1 => random.below(200_000),
            _ => random.below(3 << 20),
        };
        let mut now = noise(round, len as usize);
        let mut base = world.put(&now).await;
        for step in 0..5 {
            let mut overlay = Overlay::over(base.size);
            let mut local = Vec::new();
            for _ in 0..1 + random.below(4) {
                change(&mut random, &mut overlay, &mut local, &mut now);
            }
            base = world.edit(&base, &overlay, &local).await;
            assert_eq!(base.size, now.len() as u64, "round {round} step {step}");
            assert!(world.read(&base).await == now, "round {round} step {step}");
        }
    }
}

#[tokio::test]
async fn small_changes_of_a_long_file_put_little() {
    let world = World::new();
    let mut now = noise(1, 32 << 20);
    let mut overlay = Overlay::over(0);
    overlay.write(0..now.len() as u64);
    let base = world.edit(&file(FileContent::Empty), &overlay, &now).await;
    let before = world.store.len();
    let mut overlay = Overlay::over(base.size);
    for at in [5_000_000, 25_000_000] {
        overlay.write(at..at + 4096);
        now[at as usize..][..4096].fill(3);
    }
    let base = world.edit(&base, &overlay, &now).await;
    assert!(world.read(&base).await == now);
    // A piece and a node for each of the two, and the root above.
    assert_eq!(world.store.len() - before, 5);
}

#[tokio::test]
async fn hole_of_any_length_costs_nothing() {
    let world = World::new();
    let base = world.put(&noise(1, 100_000)).await;
    let mut overlay = Overlay::over(base.size);
    overlay.truncate(1 << 40);
    let base = world.edit(&base, &overlay, &[]).await;
    assert_eq!(base.size, 1 << 40);
    let read = world.tree.read(&base, (1 << 40) - 5, 10, World::how());
    assert_eq!(read.await.unwrap().concat(), [0; 5]);
}
