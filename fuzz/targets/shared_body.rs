//! Arbitrary bytes as the body of an entry of a shared volume. They are refused, or they are the canonical encoding
//! within the bounds; the outline says what the body does, and evaluation judges every op.
#![no_main]

use std::sync::Arc;

use bulla_fuzz::{hasher, key, plant, shared_bodies};
use libfuzzer_sys::fuzz_target;
use trust::Reject;
use trust::reach::{Found, Wanted};
use trust_shared::decision::Label;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Blocks, Bodies, Replay, State, Stop, Volume};
use trust_shared::members::{FirstMembers, Members};
use trust_shared::ops::{Body, MAX_GUARDS, MAX_OP_GUARDS};
use trust_shared::outcome::Written;
use trust_shared::outline::{MAX_OP_CHANGES, MAX_OPS, Outline};
use trust_shared::principal::{Device, FileId, INumber, Principal};

const VOLUME: Principal = Principal::from_bytes([1; 32]);

/// A log of one entry, without blocks.
struct One(Arc<Body>);

impl Blocks for One {
    fn block(&self, _: &Wanted) -> Result<Option<Found>, Reject> {
        Ok(None)
    }
}

impl Bodies for One {
    fn body(&self, _: u64) -> Result<Option<Arc<Body>>, Reject> {
        Ok(Some(self.0.clone()))
    }
}

fn members() -> Members {
    let label = |text| Label::new(text).expect("a label");
    Members::new(FirstMembers {
        volume: VOLUME,
        volume_label: label("all"),
        user: Principal::from_bytes([10; 32]),
        user_label: label("one"),
        device: key(1).public(),
    })
}

fn evaluate(body: Body) {
    let (device, counter) = (Device(0), 0);
    let volume = Volume {
        hasher: hasher(),
        root: FileId {
            principal: VOLUME,
            number: INumber { device, counter },
        },
    };
    let written = Written {
        position: 1000,
        device,
        seen: 1000,
        kept: 1000,
    };
    let (members, outline, stored) = (members(), body.outline(), One(Arc::new(body)));
    let mut state = State::new(volume.clone());
    let eager = state.apply(&written, &outline, &stored.0, &members, &stored);
    let mut replay = Replay::new(volume);
    replay.push(&written, &outline, &members).expect("an entry");
    let from = Sources {
        members: &members,
        stored: &stored,
    };
    for number in 0..stored.0.ops().len() {
        let lazy = replay.outcome(written.position, number, from);
        match (&eager, lazy) {
            (Ok(outcomes), lazy) => assert_eq!(lazy.as_ref(), Ok(&outcomes[number])),
            (Err(Stop::Missing(_)), Ok(_) | Err(Stop::Missing(_))) => {}
            (eager, lazy) => panic!("{eager:?} {lazy:?}"),
        }
    }
}

fuzz_target!(init: plant(shared_bodies()), |data: &[u8]| {
    let Ok(body) = Body::decode(data) else {
        return;
    };
    assert_eq!(body.encode(), data);
    assert!(body.ops().len() <= MAX_OPS);
    let mut guards = 0;
    for op in body.ops() {
        assert!((1..=MAX_OP_CHANGES).contains(&op.changes.len()));
        guards += op.guards.len();
    }
    assert!(guards <= MAX_GUARDS && MAX_OP_GUARDS <= MAX_GUARDS);
    let outline = body.outline();
    assert!(body.is_outlined_by(&outline));
    assert_eq!(Outline::decode(&outline.encode()), Ok(outline));
    evaluate(body);
});
