//! The state machine alone, where the explorer would need luck to get.

use bytes::Bytes;
use wal::{Digest, Lsn, Piece};

use super::*;

fn piece(content: u8) -> Piece {
    Piece {
        digest: Digest([content; 16]),
        page: Bytes::from(vec![content; BLOCK_BYTES]),
    }
}

fn core() -> Core {
    let limits = Limits {
        hash_run_blocks: 4,
        ..Limits::default()
    };
    Core::new(limits, Lsn(0))
}

fn content(core: &Core, block: u64) -> Option<u8> {
    match core.source(block) {
        Source::Page(page) => Some(page[0]),
        Source::Zero => Some(0),
        Source::Log(_, digest) => Some(digest.0[0]),
        Source::Settled => None,
    }
}

/// Commits everything: all of it as Redo, or what may be as Hash.
fn commit(core: &mut Core, hashes: bool, lsn: u64) {
    let batch = core.commit_begin(None).expect("something is staged");
    let runs = if hashes {
        batch.candidates().to_vec()
    } else {
        Vec::new()
    };
    let mut logged: Vec<Logged> = batch.trims().map(|_| Logged::Trim).collect();
    logged.extend(runs.iter().cloned().map(Logged::Hash));
    for (block, _) in batch
        .pages()
        .filter(|(block, _)| !runs.iter().any(|r| r.contains(block)))
    {
        let range = block..block + 1;
        let payload = Lsn(lsn + 4096);
        logged.push(Logged::Redo { range, payload });
    }
    core.commit_end(&batch, &logged, Lsn(lsn), Lsn(lsn + 8192));
}

fn home_all(core: &mut Core) -> Vec<HomeJob> {
    let mut jobs = Vec::new();
    while let Some(job) = core.home_begin(Redos::All) {
        core.home_end(&job, |_| Outcome::Written);
        jobs.push(job);
    }
    jobs
}

fn settle(core: &mut Core) -> Settled {
    let written = core.settle_begin();
    let settled = core.settled(&written);
    core.settle_end(&settled);
    settled
}

#[test]
fn page_of_an_aborted_frame_does_not_come_after_a_newer_trim() {
    let mut core = core();
    core.stage(3, piece(1));
    let batch = core.commit_begin(None).unwrap();
    core.stage_trim(0..100);
    core.commit_abort(&batch);
    assert_eq!(content(&core, 3), Some(0));
    assert!(
        !core.is_durable(1),
        "the flush of the page waits for the trim"
    );
    let batch = core.commit_begin(None).unwrap();
    assert_eq!(batch.pages().count(), 0);
    assert_eq!(batch.trims().count(), 1);
}

#[test]
fn flush_waits_for_the_version_that_replaced_the_one_it_waits_for() {
    let mut core = core();
    core.stage(3, piece(1));
    let flush = core.newest();
    core.stage(4, piece(2));
    core.stage(3, piece(3));
    assert!(!core.is_durable(flush));
    commit(&mut core, false, 0);
    assert!(core.is_durable(flush));
    assert_eq!(content(&core, 3), Some(3));
}

#[test]
fn newer_version_is_not_written_beside_an_older_one() {
    let mut core = core();
    core.stage(3, piece(1));
    commit(&mut core, false, 0);
    let older = core.home_begin(Redos::All).unwrap();
    core.stage(3, piece(2));
    commit(&mut core, false, 8192);
    assert!(core.home_begin(Redos::All).is_none());
    core.home_end(&older, |_| Outcome::Written);
    assert!(
        settle(&mut core).versions.is_empty(),
        "the older one is not the newest"
    );
    assert_eq!(home_all(&mut core).len(), 1);
    assert_eq!(core.oldest(), Lsn(8192));
    assert_eq!(settle(&mut core).versions.len(), 1);
    assert!(core.is_settled());
}

#[test]
fn version_of_before_a_trim_is_neither_written_nor_settled_after_it() {
    let mut core = core();
    core.stage(3, piece(1));
    commit(&mut core, false, 0);
    let in_flight = core.home_begin(Redos::All).unwrap();
    core.stage_trim(0..100);
    commit(&mut core, false, 8192);
    assert!(
        core.home_begin(Redos::All).is_none(),
        "zeros wait for the write in flight"
    );
    core.home_end(&in_flight, |_| Outcome::Written);
    core.stage(5, piece(2));
    commit(&mut core, false, 16384);
    let zeros = core.home_begin(Redos::All).unwrap();
    assert!(matches!(zeros, HomeJob::Zero { .. }));
    assert!(
        core.home_begin(Redos::All).is_none(),
        "the newer block waits for the zeros"
    );
    core.home_end(&zeros, |_| Outcome::Written);
    assert!(
        core.home_begin(Redos::All).is_none(),
        "until they are settled"
    );
    let settled = settle(&mut core);
    assert_eq!((settled.versions.len(), settled.trims.len()), (0, 1));
    assert_eq!(home_all(&mut core).len(), 1);
    settle(&mut core);
    assert!(core.is_settled() && core.homes.is_empty());
}

#[test]
fn hash_that_a_flush_waits_for_is_logged_with_its_content() {
    let mut core = core();
    (0..8).for_each(|block| core.stage(block, piece(block as u8 + 1)));
    commit(&mut core, true, 0);
    let flush = core.newest();
    assert!(!core.is_durable(flush));
    let batch = core.commit_begin(Some(flush)).unwrap();
    assert_eq!(batch.pages().count(), 8);
    let payload = Lsn(12288);
    let redo = [Logged::Redo {
        range: 0..8,
        payload,
    }];
    core.commit_end(&batch, &redo, Lsn(8192), Lsn(49152));
    assert!(core.is_durable(flush));
    assert_eq!(core.oldest(), Lsn(8192), "the Hash is superseded");
}

#[test]
fn hash_settles_only_in_the_order_of_the_log() {
    let mut core = core();
    (0..4).for_each(|block| core.stage(block, piece(1)));
    commit(&mut core, true, 0);
    (10..14).for_each(|block| core.stage(block, piece(2)));
    commit(&mut core, true, 8192);
    let first = core.home_begin(Redos::None).unwrap();
    let second = core.home_begin(Redos::None).unwrap();
    core.home_end(&second, |_| Outcome::Written);
    let settled = settle(&mut core);
    assert_eq!((settled.versions.len(), settled.through), (0, None));
    core.home_end(&first, |_| Outcome::Written);
    let settled = settle(&mut core);
    assert_eq!(
        (settled.versions.len(), settled.through),
        (8, Some(Lsn(16384)))
    );
    assert!(core.is_settled());
}

#[test]
fn block_with_an_unsettled_hash_gets_no_second_one() {
    let mut core = core();
    (0..4).for_each(|block| core.stage(block, piece(1)));
    commit(&mut core, true, 0);
    (0..8).for_each(|block| core.stage(block, piece(2)));
    let batch = core.commit_begin(None).unwrap();
    let candidates: Vec<u64> = batch.candidates().iter().cloned().flatten().collect();
    assert_eq!(candidates, [4, 5, 6, 7]);
}

#[test]
fn failed_write_is_tried_again() {
    let mut core = core();
    core.stage(3, piece(1));
    commit(&mut core, false, 0);
    let job = core.home_begin(Redos::All).unwrap();
    core.home_end(&job, |_| Outcome::Failed);
    assert!(settle(&mut core).versions.is_empty());
    assert_eq!(home_all(&mut core).len(), 1);
}

#[test]
fn oldest_pages_of_the_log_go_home_first_and_in_the_order_of_the_device() {
    let limits = Limits {
        home_bytes: 3 * BLOCK_BYTES,
        ..Limits::default()
    };
    let mut core = Core::new(limits, Lsn(0));
    for (lsn, blocks) in [(0, [90, 80]), (100_000, [10, 91]), (200_000, [20, 80])] {
        blocks.iter().for_each(|block| core.stage(*block, piece(1)));
        commit(&mut core, false, lsn);
    }
    let blocks = |job: &HomeJob| match job {
        HomeJob::Write(pages) => pages.iter().map(|page| page.block).collect(),
        HomeJob::Zero { .. } => Vec::new(),
    };
    let jobs: Vec<Vec<u64>> = home_all(&mut core).iter().map(blocks).collect();
    assert_eq!(jobs, [vec![10, 90, 91], vec![20, 80]]);
    settle(&mut core);
    assert!(core.is_settled());
}

#[test]
fn page_leaves_memory_when_the_data_device_has_it() {
    let limits = Limits {
        cached_bytes: 2 * BLOCK_BYTES,
        ..Limits::default()
    };
    let mut core = Core::new(limits, Lsn(0));
    for block in 0..3 {
        core.stage(block, piece(1));
        commit(&mut core, false, 8192 * block);
    }
    assert!(matches!(core.source(1), Source::Page(_)));
    let Some(HomeJob::Write(pages)) = core.home_begin(Redos::Cached) else {
        panic!("two pages are in memory");
    };
    let places: Vec<_> = pages.iter().map(|page| (page.block, &page.place)).collect();
    assert!(matches!(
        places[..],
        [(0, Place::Page(_)), (1, Place::Page(_))]
    ));
    assert!(core.home_begin(Redos::Cached).is_none());
    core.home_end(&HomeJob::Write(pages), |block| match block {
        0 => Outcome::Written,
        _ => Outcome::Failed,
    });
    assert!(matches!(core.source(0), Source::Log(..)), "not settled yet");
    core.stage(4, piece(1));
    commit(&mut core, false, 32768);
    assert!(matches!(core.source(4), Source::Page(_)), "there is room");
    // What failed is tried again, and is in memory still.
    let Some(HomeJob::Write(pages)) = core.home_begin(Redos::Cached) else {
        panic!("two pages are in memory");
    };
    let blocks: Vec<u64> = pages.iter().map(|page| page.block).collect();
    assert_eq!(blocks, [1, 4]);
    core.home_end(&HomeJob::Write(pages), |_| Outcome::Written);
    home_all(&mut core);
    settle(&mut core);
    assert!(core.is_settled());
    assert_eq!(core.cached_bytes, 0);
}

#[test]
fn block_that_is_written_again_and_again_needs_no_memory_for_its_old_versions() {
    let limits = Limits {
        cached_bytes: 4 * BLOCK_BYTES,
        ..Limits::default()
    };
    let mut core = Core::new(limits, Lsn(0));
    for n in 0..1000 {
        core.stage(3, piece(1));
        commit(&mut core, false, 8192 * n);
        assert!(core.cached.len() <= 8);
        assert!(core.has_home_work(Redos::Cached));
        assert_eq!(core.cached.back().map(|(block, _)| *block), Some(3));
    }
    assert_eq!(core.cached_bytes, BLOCK_BYTES);
    assert_eq!(home_all(&mut core).len(), 1);
}
