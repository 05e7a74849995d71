//! A ring that is smaller than what may be staged.

use std::sync::atomic::Ordering;

use protect::{Block, Limits};
use sim::random::noise;

use super::attached::{attach_within, machine};

#[test]
fn full_frames_fit_into_a_small_ring() {
    // The frames of these rings are limited by the ring, not by the staging area.
    for ring_bytes in [1 << 20, 8 << 20] {
        let bytes = 4 << 20;
        let machine = machine(bytes, ring_bytes);
        let limits = Limits {
            // Every write is logged whole.
            hash_run_blocks: u64::MAX,
            ..Limits::default()
        };
        let (device, _, alarms) = attach_within(&machine, limits).unwrap();
        let content = noise(ring_bytes, bytes as usize);
        for _ in 0..2 {
            device.write(0, &content).unwrap();
            device.flush().unwrap();
        }
        let mut found = vec![0; content.len()];
        device.read(0, &mut found).unwrap();
        assert!(found == content);
        assert_eq!(alarms.0.load(Ordering::Relaxed), 0);
    }
}
