//! Scrubbing: every settled block is read and checked, at a bounded rate, so that damage is found while a copy may still
//! exist. It can end anywhere and go on there.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use wal::Buffer;

use crate::block::{Block, BlockError};
use crate::core::BLOCK_BYTES;

/// Blocks of one step, if the rate allows it: 1 MiB.
const STEP_BLOCKS: u64 = 256;
/// Steps in a second, at least, while the rate allows one block for each.
const STEPS_PER_SECOND: u64 = 4;
/// How often a pause looks whether it shall end.
const LOOK: Duration = Duration::from_millis(100);

/// A device whose blocks can be checked.
pub trait Verify {
    /// Number of blocks.
    fn blocks(&self) -> u64;

    /// Reads the blocks of the range that are settled, compares them with what was written, and shows each
    /// defect to `found`. Returns how many blocks were right.
    ///
    /// # Errors
    /// The device cannot go on. A defect of a block is not an error.
    fn verify(
        &self,
        blocks: Range<u64>,
        found: &mut dyn FnMut(u64, Defect),
    ) -> Result<u64, BlockError>;
}

/// What is wrong with a block.
#[derive(Debug)]
pub enum Defect {
    /// The device does not have what was written.
    Bad,
    /// It cannot be read.
    Unreadable(io::Error),
    /// It reads as zeros, and the device had something else there.
    NotZero {
        /// Whether zeros are written. If not, the device takes no writes.
        is_repaired: bool,
    },
}

/// Checks blocks by reading them. What is not settled is read where it is: in memory or in the log.
pub struct Reads<'a>(pub &'a dyn Block);

impl Verify for Reads<'_> {
    fn blocks(&self) -> u64 {
        self.0.bytes().div_ceil(BLOCK_BYTES as u64)
    }

    fn verify(
        &self,
        blocks: Range<u64>,
        found: &mut dyn FnMut(u64, Defect),
    ) -> Result<u64, BlockError> {
        let count = blocks.end.saturating_sub(blocks.start);
        let mut memory = Buffer::zeroed(count as usize * BLOCK_BYTES);
        let start = blocks.start * BLOCK_BYTES as u64;
        let real = (self.0.bytes().saturating_sub(start) as usize).min(memory.len());
        let memory = memory.get_mut(..real).unwrap_or_default();
        if self.0.read(start, memory).is_ok() {
            return Ok(count);
        }
        let mut right = 0;
        for (block, page) in blocks.zip(memory.chunks_mut(BLOCK_BYTES)) {
            match self.0.read(block * BLOCK_BYTES as u64, page) {
                Ok(()) => right += 1,
                Err(BlockError::Integrity { .. }) => found(block, Defect::Bad),
                Err(BlockError::Io { source, .. }) => found(block, Defect::Unreadable(source)),
                Err(error) => return Err(error),
            }
        }
        Ok(right)
    }
}

/// What a scrub tells while it runs.
#[derive(Debug)]
pub enum News<'a> {
    /// A block is defective.
    Defect {
        /// Its number.
        block: u64,
        /// Where it begins on the data device, in bytes.
        offset: u64,
        /// What is wrong.
        defect: &'a Defect,
    },
    /// All blocks before this one are checked. A later scrub may begin here.
    Position(u64),
}

/// What a scrub has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Blocks that were right.
    pub right: u64,
    /// Blocks that are not what was written.
    pub bad: u64,
    /// Blocks that cannot be read.
    pub unreadable: u64,
    /// Blocks of zeros that were not zeros on the device, and are written again.
    pub repaired: u64,
    /// The first block that was not looked at: the number of blocks, if the scrub came to the end.
    pub next: u64,
}

/// A scrub.
#[derive(Debug)]
pub struct Scrub {
    rate: Option<u64>,
    report: Report,
}

impl Scrub {
    /// A scrub from the block `first` on, that reads at most `rate` bytes in a second.
    pub fn new(first: u64, rate: Option<u64>) -> Scrub {
        let report = Report {
            next: first,
            ..Report::default()
        };
        Scrub { rate, report }
    }

    /// What it has found so far.
    pub fn report(&self) -> Report {
        self.report
    }

    /// Checks all blocks to the end, unless `stop` is set before.
    ///
    /// # Errors
    /// The device cannot go on; [`report`](Scrub::report) says how far the scrub came.
    pub fn run(
        &mut self,
        device: &dyn Verify,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(News<'_>),
    ) -> Result<Report, BlockError> {
        while !stop.load(Ordering::Relaxed) {
            let began = Instant::now();
            let Some(blocks) = self.step(device, tell)? else {
                break;
            };
            let pause = self.pause(blocks, began.elapsed());
            let end = Instant::now() + pause;
            while !stop.load(Ordering::Relaxed) && Instant::now() < end {
                std::thread::sleep(LOOK.min(end.saturating_duration_since(Instant::now())));
            }
        }
        Ok(self.report)
    }

    /// Checks the next blocks. Returns how many, or nothing at the end of the device.
    ///
    /// # Errors
    /// As for [`run`](Scrub::run).
    pub fn step(
        &mut self,
        device: &dyn Verify,
        tell: &mut dyn FnMut(News<'_>),
    ) -> Result<Option<u64>, BlockError> {
        let start = self.report.next;
        let end = device
            .blocks()
            .min(start.saturating_add(self.step_blocks()));
        if start >= end {
            return Ok(None);
        }
        let (mut bad, mut unreadable, mut repaired) = (0, 0, 0);
        let right = device.verify(start..end, &mut |block, defect| {
            match defect {
                Defect::Bad | Defect::NotZero { is_repaired: false } => bad += 1,
                Defect::Unreadable(_) => unreadable += 1,
                Defect::NotZero { is_repaired: true } => repaired += 1,
            }
            tell(News::Defect {
                block,
                offset: block * BLOCK_BYTES as u64,
                defect: &defect,
            });
        })?;
        self.report.right += right;
        self.report.bad += bad;
        self.report.unreadable += unreadable;
        self.report.repaired += repaired;
        self.report.next = end;
        tell(News::Position(end));
        Ok(Some(end - start))
    }

    fn step_blocks(&self) -> u64 {
        let in_rate = |rate| rate / BLOCK_BYTES as u64 / STEPS_PER_SECOND;
        self.rate.map_or(STEP_BLOCKS, in_rate).clamp(1, STEP_BLOCKS)
    }

    /// Bytes of a step at this rate.
    pub fn step_bytes(&self) -> u64 {
        self.step_blocks() * BLOCK_BYTES as u64
    }

    /// How long to wait after a step of so many blocks that took so long.
    pub fn pause(&self, blocks: u64, took: Duration) -> Duration {
        self.pause_after(blocks.saturating_mul(BLOCK_BYTES as u64), took)
    }

    /// How long to wait after a step of so many bytes that took so long.
    pub fn pause_after(&self, bytes: u64, took: Duration) -> Duration {
        let Some(rate) = self.rate else {
            return Duration::ZERO;
        };
        let micros = u128::from(bytes) * 1_000_000 / u128::from(rate.max(1));
        let micros = u64::try_from(micros).unwrap_or(u64::MAX);
        Duration::from_micros(micros).saturating_sub(took)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use super::*;

    /// A device with defects, which remembers what was asked for.
    #[derive(Default)]
    struct Device {
        blocks: u64,
        unreadable: BTreeMap<u64, bool>,
        asked: Mutex<Vec<Range<u64>>>,
        detached_at: Option<u64>,
    }

    impl Block for Device {
        fn bytes(&self) -> u64 {
            self.blocks * 4096 - 512
        }

        fn sector_bytes(&self) -> u32 {
            512
        }

        fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
            let blocks = offset / 4096..(offset + into.len() as u64).div_ceil(4096);
            assert!(offset + into.len() as u64 <= self.bytes());
            self.asked.lock().unwrap().push(blocks.clone());
            if self
                .detached_at
                .is_some_and(|block| blocks.contains(&block))
            {
                return Err(BlockError::Detached);
            }
            match self.unreadable.range(blocks).next() {
                None => Ok(()),
                Some((block, false)) => Err(BlockError::Integrity {
                    block: *block,
                    offset: block * 4096,
                }),
                Some((_, true)) => Err(BlockError::Io {
                    device: "the data device",
                    source: io::Error::from_raw_os_error(5),
                }),
            }
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), BlockError> {
            panic!("a scrub writes nothing");
        }

        fn zero(&self, _: u64, _: u64) -> Result<(), BlockError> {
            panic!("a scrub writes nothing");
        }

        fn flush(&self) -> Result<(), BlockError> {
            panic!("a scrub writes nothing");
        }
    }

    fn scrub(device: &Device, scrub: &mut Scrub) -> (Vec<(u64, u64, bool)>, Vec<u64>) {
        let (mut defects, mut positions) = (Vec::new(), Vec::new());
        let run = scrub.run(
            &Reads(device),
            &AtomicBool::new(false),
            &mut |news| match news {
                News::Defect {
                    block,
                    offset,
                    defect,
                } => {
                    defects.push((block, offset, matches!(defect, Defect::Unreadable(_))));
                }
                News::Position(next) => positions.push(next),
            },
        );
        assert!(run.is_ok() || device.detached_at.is_some(), "{run:?}");
        (defects, positions)
    }

    #[test]
    fn scrub_names_each_defect_and_counts_the_rest() {
        let device = Device {
            blocks: 1000,
            unreadable: BTreeMap::from([(0, false), (300, true), (301, false), (999, false)]),
            ..Device::default()
        };
        let mut all = Scrub::new(0, None);
        let (defects, positions) = scrub(&device, &mut all);
        let expected = [(0, false), (300, true), (301, false), (999, false)];
        assert_eq!(
            defects,
            expected.map(|(block, kind)| (block, block * 4096, kind))
        );
        assert_eq!(positions, [256, 512, 768, 1000]);
        let report = Report {
            right: 996,
            bad: 3,
            unreadable: 1,
            repaired: 0,
            next: 1000,
        };
        assert_eq!(all.report(), report);
    }

    #[test]
    fn scrub_goes_on_where_it_ended() {
        let device = Device {
            blocks: 600,
            detached_at: Some(400),
            ..Device::default()
        };
        let mut first = Scrub::new(0, None);
        scrub(&device, &mut first);
        assert_eq!(first.report().next, 256);
        let device = Device {
            blocks: 600,
            ..Device::default()
        };
        let mut second = Scrub::new(first.report().next, None);
        scrub(&device, &mut second);
        assert_eq!((second.report().right, second.report().next), (344, 600));
        assert_eq!(*device.asked.lock().unwrap(), [256..512, 512..600]);
        // A position from a longer device.
        assert_eq!(scrub(&device, &mut Scrub::new(1 << 40, None)).1, [0; 0]);
    }

    #[test]
    fn scrub_that_is_stopped_ends_before_the_next_step() {
        let device = Device {
            blocks: 10_000,
            ..Device::default()
        };
        let stop = AtomicBool::new(false);
        let mut slow = Scrub::new(0, Some(4096));
        let began = Instant::now();
        let run = slow.run(&Reads(&device), &stop, &mut |_| {
            stop.store(true, Ordering::Relaxed)
        });
        assert_eq!(run.unwrap().next, 1, "a step of one block at this rate");
        assert!(
            began.elapsed() < Duration::from_millis(900),
            "it did not pause for a second"
        );
    }

    #[test]
    fn pause_keeps_the_rate() {
        let second = Duration::from_secs(1);
        let scrub = Scrub::new(0, Some(1 << 20));
        assert_eq!(scrub.step_blocks(), 64);
        assert_eq!(scrub.pause(256, Duration::ZERO), second);
        assert_eq!(
            scrub.pause(64, Duration::from_millis(50)),
            Duration::from_millis(200)
        );
        assert_eq!(
            scrub.pause(64, second),
            Duration::ZERO,
            "the device is slower"
        );
        assert_eq!(
            Scrub::new(0, None).pause(256, Duration::ZERO),
            Duration::ZERO
        );
        assert_eq!(Scrub::new(0, Some(1)).step_blocks(), 1);
        assert_eq!(Scrub::new(0, Some(1 << 40)).step_blocks(), 256);
    }
}
