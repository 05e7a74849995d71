//! How many deliveries a device may have been sent and not taken. Both ends count alike, so that neither needs a queue
//! that grows: few deliveries if they are long, more if they are short. A device that is far from its server then hears
//! of many small commits in one round trip.

use std::collections::VecDeque;

/// The most deliveries.
pub const WINDOW: u32 = 16;
/// So many may have any length.
const ANY: usize = 4;
/// More may follow only while all together have no more bytes.
const SHORT_BYTES: usize = 1 << 20;

/// Deliveries that were sent and not taken.
#[derive(Debug, Default)]
pub struct Window {
    /// Their lengths, in order.
    lengths: VecDeque<usize>,
    bytes: usize,
}

impl Window {
    /// Whether one more may be sent, of any length.
    pub fn has_room(&self) -> bool {
        let count = self.lengths.len();
        count < ANY || count < WINDOW as usize && self.bytes <= SHORT_BYTES
    }

    /// One more was sent. `bytes`: the length of its parts together.
    pub fn sent(&mut self, bytes: usize) {
        self.lengths.push_back(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The first of them was taken: its length. None when there is none.
    pub fn taken(&mut self) -> Option<usize> {
        let bytes = self.lengths.pop_front()?;
        self.bytes = self.bytes.saturating_sub(bytes);
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(bytes: usize) -> u32 {
        let (mut window, mut count) = (Window::default(), 0);
        while window.has_room() {
            window.sent(bytes);
            count += 1;
        }
        count
    }

    #[test]
    fn window_is_wide_for_short_deliveries_and_narrow_for_long_ones() {
        assert_eq!(sent(0), WINDOW);
        assert_eq!(sent(1000), WINDOW);
        assert_eq!(sent(200_000), 6);
        assert_eq!(sent(24 << 20), 4);
    }

    #[test]
    fn delivery_that_is_taken_makes_room_for_its_length() {
        let mut window = Window::default();
        for bytes in [2 << 20, 1, 1, 1] {
            assert!(window.has_room());
            window.sent(bytes);
        }
        assert!(!window.has_room());
        assert_eq!(window.taken(), Some(2 << 20));
        assert!(window.has_room());
        for _ in 0..3 {
            assert!(window.taken().is_some());
        }
        assert_eq!(window.taken(), None);
    }
}
