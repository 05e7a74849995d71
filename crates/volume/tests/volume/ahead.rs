//! Readahead: only for sequential readers, bounded, and without delay for other reads.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use reader::ReadError;
use reader::now as at_once;
use sim::liar::{Liar, Lie};
use store::memory::MemoryStore;
use trust::inode::Inode;
use volume::{Fetch, Snapshot, Volume, VolumeError};

use crate::world::{World, eventually, noise, now, settle, soon, within};

const BLOCK: usize = 64 << 10;
const MIB: usize = 1 << 20;
const LEN: usize = 10 * MIB;

/// One long file, opened over a replica that does not lie yet.
struct Long {
    liar: Arc<Liar<MemoryStore>>,
    volume: Arc<Volume>,
    file: Arc<Inode>,
    content: Vec<u8>,
    _world: World,
}

impl Long {
    async fn open() -> Long {
        let mut world = World::new();
        let content = noise(9, LEN);
        let file = world.model.file(&content, BLOCK).unwrap();
        let root = world.model.directory(vec![(b"long".to_vec(), file)]);
        world.head = world.model.publish(&root.unwrap(), now(), 3600).unwrap();
        let liar = world.liar(Lie::None);
        let volume = world.open(vec![liar.clone()]).await.unwrap();
        let file = volume.snapshot().resolve(b"long", soon()).await.unwrap();
        Long {
            liar,
            volume,
            file: file.unwrap(),
            content,
            _world: world,
        }
    }

    fn snapshot(&self) -> Arc<Snapshot> {
        self.volume.snapshot()
    }

    async fn read(&self, offset: usize, len: usize) -> Result<(), VolumeError> {
        self.read_with(offset, len, soon()).await
    }

    async fn read_with(&self, offset: usize, len: usize, how: Fetch) -> Result<(), VolumeError> {
        let snapshot = self.snapshot();
        let got = snapshot.read(&self.file, offset as u64, len, how).await?;
        assert_eq!(got.concat(), self.content[offset..offset + len]);
        Ok(())
    }

    fn read_cached(&self, offset: usize, len: usize) -> Result<(), VolumeError> {
        let snapshot = self.snapshot();
        let got = at_once(snapshot.read(&self.file, offset as u64, len, Fetch::Cached))?;
        assert_eq!(got.concat(), self.content[offset..offset + len]);
        Ok(())
    }

    fn fetched_bytes(&self) -> usize {
        let snapshot = self.snapshot();
        let blocks = snapshot.blocks().counters().fetched.load(Ordering::Relaxed);
        blocks as usize * BLOCK
    }

    /// Reads the first half megabyte into memory, then stops at a quarter of it, one read before
    /// readahead begins.
    async fn poised() -> Long {
        let long = Long::open().await;
        for part in (0..4).rev() {
            long.read(part * 2 * BLOCK, 2 * BLOCK).await.unwrap();
        }
        long
    }
}

#[tokio::test]
async fn readahead_of_a_sequential_reader_is_bounded() {
    let long = Long::open().await;
    long.read(0, MIB).await.unwrap();
    settle().await;
    long.read_cached(MIB, MIB).unwrap();
    settle().await;
    // The cache is 16 MiB, so at most 2 MiB may be fetched ahead. Nodes count as blocks here.
    let most = 4 * MIB + 16 * BLOCK;
    let fetched = long.fetched_bytes();
    assert!(fetched <= most, "{fetched} bytes for two megabytes read");
}

#[tokio::test]
async fn a_random_reader_fetches_only_the_blocks_it_reads() {
    let long = Long::open().await;
    long.read(0, 8192).await.unwrap();
    let before = long.fetched_bytes();
    let mut touched = std::collections::HashSet::from([0]);
    let mut at = 1;
    for _ in 0..60 {
        at = (at * 211 + 17) % (LEN / 8192);
        touched.insert(at * 8192 / BLOCK);
        long.read(at * 8192, 8192).await.unwrap();
    }
    settle().await;
    assert_eq!(long.fetched_bytes() - before, (touched.len() - 1) * BLOCK);
}

#[tokio::test]
async fn blocks_behind_a_sequential_reader_leave_memory() {
    let long = Long::open().await;
    for step in 0..LEN / MIB {
        long.read(step * MIB, MIB).await.unwrap();
    }
    settle().await;
    let gone = long.read_cached(5 * MIB, MIB);
    assert!(
        matches!(gone, Err(VolumeError::Read(ReadError::NotCached))),
        "{gone:?}"
    );
    long.read_cached(LEN - MIB, MIB).unwrap();
    long.read(5 * MIB, MIB).await.unwrap();
}

#[tokio::test]
async fn a_stalled_readahead_does_not_delay_reads_from_memory() {
    let long = Long::poised().await;
    long.liar.tell(Lie::Stall);
    let asked = long.liar.asked();
    long.read(2 * BLOCK, 2 * BLOCK).await.unwrap();
    eventually("a fetch ahead", || long.liar.asked() > asked).await;
    long.read_cached(4 * BLOCK, 4 * BLOCK).unwrap();
    long.read(0, 8 * BLOCK).await.unwrap();
    // A read of other blocks waits until its own deadline, and no longer.
    let began = Instant::now();
    let how = within(Duration::from_millis(400));
    let missing = long.read_with(8 * BLOCK, BLOCK, how).await;
    assert!(matches!(
        missing,
        Err(VolumeError::Read(ReadError::Unavailable { .. }))
    ));
    assert!(began.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn a_wrong_block_fetched_ahead_is_not_kept() {
    let long = Long::poised().await;
    long.liar.tell(Lie::WrongPlaintext);
    let asked = long.liar.asked();
    long.read(2 * BLOCK, 2 * BLOCK).await.unwrap();
    settle().await;
    assert!(long.liar.asked() > asked, "nothing was fetched ahead");
    for block in 8..LEN / BLOCK {
        let kept = long.read_cached(block * BLOCK, BLOCK);
        assert!(
            matches!(kept, Err(VolumeError::Read(ReadError::NotCached))),
            "block {block}"
        );
    }
    long.liar.tell(Lie::None);
    long.read(8 * BLOCK, 4 * BLOCK).await.unwrap();
}
