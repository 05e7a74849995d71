//! The answer to USAGE: what a device has used at the server, and what is left. For people and for `df`. The server may say
//! anything, so a client shows it and warns, and never refuses to write because of it: whether there is room, a STORE says.

use trust::Reject;
use trust::encode::{Decoder, Encoder};

/// There is no such limit, or the server does not know the number.
pub const UNKNOWN: u64 = u64::MAX;
/// Length of the body.
pub const USAGE_BYTES: usize = 6 * 8;
/// More than any file system has: what is shown is cut to this, so that no program computes beyond 64 bits.
const MOST_BYTES: u64 = 1 << 62;

/// The body of a USED. Each number may be anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Bytes of blocks that the device has stored today. A day counts from the server's start.
    pub today_bytes: u64,
    /// Bytes that it may store in a day, or [`UNKNOWN`].
    pub daily_bytes: u64,
    /// Bytes of its blocks in the temporary log.
    pub temporary_bytes: u64,
    /// Bytes that it may have there, or [`UNKNOWN`].
    pub temporary_most_bytes: u64,
    /// Bytes of the file system with the blocks, or [`UNKNOWN`].
    pub disk_bytes: u64,
    /// Bytes that are free there, or [`UNKNOWN`].
    pub disk_free_bytes: u64,
}

impl Usage {
    /// The body.
    pub fn encode(&self) -> Vec<u8> {
        let mut e = Encoder::new();
        for number in [
            self.today_bytes,
            self.daily_bytes,
            self.temporary_bytes,
            self.temporary_most_bytes,
            self.disk_bytes,
            self.disk_free_bytes,
        ] {
            e.u64(number);
        }
        e.finish()
    }

    /// Decodes the body.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for another length.
    pub fn decode(body: &[u8]) -> Result<Usage, Reject> {
        let mut d = Decoder::new(body, "usage");
        let usage = Usage {
            today_bytes: d.u64()?,
            daily_bytes: d.u64()?,
            temporary_bytes: d.u64()?,
            temporary_most_bytes: d.u64()?,
            disk_bytes: d.u64()?,
            disk_free_bytes: d.u64()?,
        };
        d.finish()?;
        Ok(usage)
    }

    /// Bytes that the device may probably store now: the least of what the disk and the quota of the day leave. None:
    /// the server names no limit.
    pub fn free_bytes(&self) -> Option<u64> {
        let known = |number: u64| (number != UNKNOWN).then_some(number);
        let today = known(self.daily_bytes).map(|most| most.saturating_sub(self.today_bytes));
        let least = known(self.disk_free_bytes).into_iter().chain(today).min();
        least.map(|bytes| bytes.min(MOST_BYTES))
    }

    /// For statfs: blocks of this length in all, and free ones. Whatever the server says, no more are free than there
    /// are, and their bytes fit into 63 bits.
    pub fn blocks(&self, block_bytes: u32) -> (u64, u64) {
        let each = u64::from(block_bytes.max(1));
        let free = self.free_bytes().unwrap_or(MOST_BYTES);
        let total = match self.disk_bytes {
            UNKNOWN => MOST_BYTES,
            bytes => bytes.clamp(free, MOST_BYTES),
        };
        (total / each, free / each)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn usage(numbers: [u64; 6]) -> Usage {
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        Usage::decode(&bytes).unwrap()
    }

    #[test]
    fn least_of_what_is_left_counts() {
        assert_eq!(usage([10, 100, 0, 0, 1000, 500]).free_bytes(), Some(90));
        assert_eq!(usage([10, 100, 0, 0, 1000, 50]).free_bytes(), Some(50));
        assert_eq!(usage([10, UNKNOWN, 0, 0, 1000, 50]).free_bytes(), Some(50));
        assert_eq!(
            usage([10, 100, 0, 0, UNKNOWN, UNKNOWN]).free_bytes(),
            Some(90)
        );
        assert_eq!(usage([200, 100, 0, 0, 1000, 500]).free_bytes(), Some(0));
        assert_eq!(usage([0, UNKNOWN, 0, 0, 0, UNKNOWN]).free_bytes(), None);
        assert_eq!(usage([10, 100, 0, 0, 4096, 8192]).blocks(10), (409, 9));
    }

    #[test]
    fn zero_and_the_largest_number_are_shown_and_overflow_nothing() {
        assert_eq!(usage([0; 6]).blocks(4096), (0, 0));
        let (total, free) = usage([UNKNOWN; 6]).blocks(4096);
        assert_eq!((total, free), (MOST_BYTES / 4096, MOST_BYTES / 4096));
        let (total, free) = usage([UNKNOWN, 5, UNKNOWN, 0, 0, u64::MAX - 1]).blocks(0);
        assert_eq!((total, free), (0, 0));
        let (total, free) = usage([0, UNKNOWN, 0, 0, 7, u64::MAX - 1]).blocks(1);
        assert_eq!((total, free), (MOST_BYTES, MOST_BYTES));
    }

    proptest! {
        #[test]
        fn any_numbers_come_back_and_are_safe(numbers in any::<[u64; 6]>(), block in any::<u32>()) {
            let it = usage(numbers);
            prop_assert_eq!(it.encode().len(), USAGE_BYTES);
            prop_assert_eq!(Usage::decode(&it.encode()), Ok(it));
            let (total, free) = it.blocks(block);
            prop_assert!(free <= total);
            prop_assert!(total.checked_mul(block.into()).is_some_and(|bytes| bytes <= MOST_BYTES));
            prop_assert!(Usage::decode(&it.encode()[1..]).is_err());
            prop_assert!(Usage::decode(&[&it.encode()[..], &[0]].concat()).is_err());
        }
    }
}
