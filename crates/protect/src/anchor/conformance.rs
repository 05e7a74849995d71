//! What every anchor must do, as library code that the tests of each one call. A broken rule panics with its name.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a suite fails by panicking

use wal::{Lsn, Mark};

use super::{Anchor, AnchorError, follows};

/// The mark that an anchor under test is made with.
pub fn first() -> Mark {
    mark(1, 4096, 1)
}

fn mark(epoch: u64, lsn: u64, tag: u8) -> Mark {
    Mark {
        epoch,
        lsn: Lsn(lsn),
        tag: [tag; 32],
    }
}

/// Tests an anchor. `open` opens the same one each time, with one open at once; at first it holds [`first`].
pub fn suite(open: &dyn Fn() -> Box<dyn Anchor>) {
    forward_only(open);
    many_threads(open);
}

fn forward_only(open: &dyn Fn() -> Box<dyn Anchor>) {
    let anchor = open();
    assert_eq!(
        anchor.mark().unwrap(),
        first(),
        "a new anchor holds its mark"
    );
    anchor.advance(first()).unwrap();
    let mut held = first();
    for next in [mark(1, 8192, 2), mark(2, 12288, 3), mark(7, 16384, 4)] {
        anchor.advance(next).unwrap();
        assert_eq!(
            anchor.mark().unwrap(),
            next,
            "an anchor holds what it moved to"
        );
        held = next;
    }
    for wrong in [
        first(),
        mark(7, 16383, 4),
        mark(7, 16384, 5),
        mark(6, 20480, 5),
        mark(8, 16384, 5),
        mark(8, 4096, 5),
        mark(u64::MAX, 0, 5),
    ] {
        let refused = anchor.advance(wrong);
        assert!(
            matches!(refused, Err(AnchorError::Backwards { held: h, offered: o }) if h == held && o == wrong),
            "an anchor goes forward only: {wrong:?}"
        );
        assert_eq!(
            anchor.mark().unwrap(),
            held,
            "a refused mark changes nothing"
        );
    }
    drop(anchor);
    let anchor = open();
    assert_eq!(
        anchor.mark().unwrap(),
        held,
        "an anchor outlives its process"
    );
    let refused = anchor.advance(first());
    assert!(
        refused.is_err(),
        "an anchor that was opened again goes forward only"
    );
}

fn many_threads(open: &dyn Fn() -> Box<dyn Anchor>) {
    let anchor = open();
    let start = anchor.mark().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let anchor = &anchor;
            scope.spawn(move || {
                for step in 1..20_u64 {
                    let at = start.lsn.0 + (step * 4 + thread) * 4096;
                    // Another thread may be further already.
                    let moved = anchor.advance(mark(start.epoch, at, 9));
                    let behind = anchor.mark().unwrap().lsn.0 < at;
                    assert!(moved.is_err() || !behind, "an anchor lost a movement");
                }
            });
        }
        scope.spawn(|| {
            let mut seen = start;
            for _ in 0..200 {
                let now = anchor.mark().unwrap();
                assert!(follows(&seen, &now), "an anchor was seen to go back");
                seen = now;
            }
        });
    });
    let last = start.lsn.0 + (19 * 4 + 3) * 4096;
    drop(anchor);
    let end = open().mark().unwrap();
    assert_eq!(end, mark(start.epoch, last, 9), "the furthest mark stays");
}
