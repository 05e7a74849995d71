//! A block device in memory, for tests of front ends: it fails and stalls when it is told to, and remembers what was
//! asked of it and what a flush has made durable.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protect::{Block, BlockError};

const PAGE_BYTES: u64 = 4096;

/// A stalled call goes on after this time, so that a failed test ends.
const STALL_AT_MOST: Duration = Duration::from_secs(120);

/// What is asked of a [`Block`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// [`Block::read`].
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// [`Block::write`].
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// [`Block::zero`].
    Zero {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// [`Block::flush`].
    Flush,
}

type Chosen = Box<dyn Fn(Call) -> bool + Send + Sync>;
type Failure = Box<dyn Fn() -> BlockError + Send + Sync>;
type Pages = BTreeMap<u64, Arc<[u8; PAGE_BYTES as usize]>>;

/// A [`Block`] in memory.
pub struct MemoryBlock {
    bytes: u64,
    sector_bytes: u32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    pages: Pages,
    flushed: Pages,
    calls: Vec<Call>,
    failures: Vec<(Chosen, u64, Failure)>,
    stall: Option<Chosen>,
    stalled: usize,
}

impl MemoryBlock {
    /// A device of `bytes` zeros, a multiple of `sector_bytes`, which is 512 or 4096.
    pub fn new(bytes: u64, sector_bytes: u32) -> Arc<MemoryBlock> {
        assert!(
            matches!(sector_bytes, 512 | 4096) && bytes.is_multiple_of(u64::from(sector_bytes)),
            "{bytes} bytes in sectors of {sector_bytes}"
        );
        Arc::new(MemoryBlock {
            bytes,
            sector_bytes,
            state: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next `times` calls for which `chosen` is true fail with what `failure` makes, and change nothing.
    pub fn fail(
        &self,
        chosen: impl Fn(Call) -> bool + Send + Sync + 'static,
        times: u64,
        failure: impl Fn() -> BlockError + Send + Sync + 'static,
    ) {
        let failures = &mut self.state().failures;
        failures.push((Box::new(chosen), times, Box::new(failure)));
    }

    /// Calls for which `chosen` is true wait until [`release`](MemoryBlock::release), at most two minutes.
    pub fn stall(&self, chosen: impl Fn(Call) -> bool + Send + Sync + 'static) {
        self.state().stall = Some(Box::new(chosen));
    }

    /// Lets stalled calls go on.
    pub fn release(&self) {
        self.state().stall = None;
        self.changed.notify_all();
    }

    /// How many calls wait now.
    pub fn stalled(&self) -> usize {
        self.state().stalled
    }

    /// Waits until so many calls are stalled. False: there were fewer after `timeout`.
    pub fn wait_stalled(&self, calls: usize, timeout: Duration) -> bool {
        let fewer = |state: &mut State| state.stalled < calls;
        let waited = self
            .changed
            .wait_timeout_while(self.state(), timeout, fewer);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// All calls so far, in the order in which they came, also those that failed.
    pub fn calls(&self) -> Vec<Call> {
        self.state().calls.clone()
    }

    /// What a read sees now, without a call.
    pub fn content(&self, range: Range<u64>) -> Vec<u8> {
        copy(&self.state().pages, range)
    }

    /// What the last flush that succeeded has made durable.
    pub fn flushed(&self, range: Range<u64>) -> Vec<u8> {
        copy(&self.state().flushed, range)
    }

    /// Counts the call, stalls and fails as told, and checks the range.
    fn admit(&self, call: Call) -> Result<MutexGuard<'_, State>, BlockError> {
        let mut state = self.state();
        state.calls.push(call);
        let stalls = |state: &mut State| state.stall.as_ref().is_some_and(|chosen| chosen(call));
        if stalls(&mut state) {
            state.stalled += 1;
            self.changed.notify_all();
            let waited = self
                .changed
                .wait_timeout_while(state, STALL_AT_MOST, stalls);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.stalled -= 1;
        }
        let due = |(chosen, times, _): &&mut (Chosen, u64, Failure)| *times > 0 && chosen(call);
        if let Some((_, times, failure)) = state.failures.iter_mut().find(due) {
            *times -= 1;
            return Err(failure());
        }
        if let Call::Read { offset, bytes }
        | Call::Write { offset, bytes }
        | Call::Zero { offset, bytes } = call
        {
            self.check(offset, bytes)?;
        }
        Ok(state)
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let sector = u64::from(self.sector_bytes);
        let whole = offset.is_multiple_of(sector) && bytes.is_multiple_of(sector);
        let inside = offset
            .checked_add(bytes)
            .is_some_and(|end| end <= self.bytes);
        if whole && inside {
            Ok(())
        } else {
            Err(BlockError::Range { offset, bytes })
        }
    }
}

impl Block for MemoryBlock {
    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), BlockError> {
        let bytes = into.len() as u64;
        let state = self.admit(Call::Read { offset, bytes })?;
        into.copy_from_slice(&copy(&state.pages, offset..offset + bytes));
        Ok(())
    }

    fn write(&self, offset: u64, from: &[u8]) -> Result<(), BlockError> {
        let bytes = from.len() as u64;
        let mut state = self.admit(Call::Write { offset, bytes })?;
        for (page, inside, part) in pieces(offset..offset + bytes) {
            let page = state.pages.entry(page).or_insert_with(zero_page);
            Arc::make_mut(page)[inside].copy_from_slice(&from[part]);
        }
        Ok(())
    }

    fn zero(&self, offset: u64, bytes: u64) -> Result<(), BlockError> {
        let mut state = self.admit(Call::Zero { offset, bytes })?;
        for (page, inside, _) in pieces(offset..offset + bytes) {
            if inside.len() as u64 == PAGE_BYTES {
                state.pages.remove(&page);
            } else if let Some(page) = state.pages.get_mut(&page) {
                Arc::make_mut(page)[inside].fill(0);
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), BlockError> {
        let mut state = self.admit(Call::Flush)?;
        state.flushed = state.pages.clone();
        Ok(())
    }
}

fn zero_page() -> Arc<[u8; PAGE_BYTES as usize]> {
    Arc::new([0; PAGE_BYTES as usize])
}

/// The pages that a range touches: the page, the bytes inside it, and which bytes of the range these are.
fn pieces(range: Range<u64>) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let pages = range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES);
    pages.map(move |page| {
        let start = range.start.max(page * PAGE_BYTES);
        let end = range.end.min((page + 1) * PAGE_BYTES);
        let inside = (start - page * PAGE_BYTES) as usize..(end - page * PAGE_BYTES) as usize;
        (
            page,
            inside,
            (start - range.start) as usize..(end - range.start) as usize,
        )
    })
}

fn copy(pages: &Pages, range: Range<u64>) -> Vec<u8> {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    for (page, inside, part) in pieces(range) {
        if let Some(page) = pages.get(&page) {
            bytes[part].copy_from_slice(&page[inside]);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::thread;

    use super::*;

    #[test]
    fn block_reads_what_was_written_and_zeroed_across_pages() {
        let block = MemoryBlock::new(1 << 40, 512);
        block.write(3584, &[7; 5120]).unwrap();
        block.zero(4096, 4096).unwrap();
        block.zero(8192, 512).unwrap();
        let mut bytes = [9; 6144];
        block.read(3072, &mut bytes).unwrap();
        let expected = [
            vec![0; 512],
            vec![7; 512],
            vec![0; 4096 + 512],
            vec![0; 512],
        ]
        .concat();
        assert_eq!(bytes[..expected.len()], expected);
        assert_eq!(block.content(3584..4096), [7; 512]);
        assert_eq!(block.flushed(3584..4096), [0; 512]);
        block.flush().unwrap();
        assert_eq!(block.flushed(3584..4096), [7; 512]);
        assert_eq!(
            block.calls()[0],
            Call::Write {
                offset: 3584,
                bytes: 5120
            }
        );
    }

    #[test]
    fn range_outside_the_device_or_off_its_sectors_is_refused() {
        let block = MemoryBlock::new(8192, 4096);
        for (offset, bytes) in [(512, 4096), (0, 512), (8192, 4096), (u64::MAX - 4095, 4096)] {
            let error = block.zero(offset, bytes).unwrap_err();
            assert!(
                matches!(error, BlockError::Range { .. }),
                "{offset} {bytes}"
            );
        }
    }

    #[test]
    fn chosen_calls_fail_as_often_as_told_and_change_nothing() {
        let block = MemoryBlock::new(8192, 512);
        block.fail(
            |call| matches!(call, Call::Write { offset: 0, .. }),
            1,
            || BlockError::Io {
                device: "log",
                source: io::ErrorKind::StorageFull.into(),
            },
        );
        block.write(512, &[1; 512]).unwrap();
        block.write(0, &[1; 512]).unwrap_err();
        assert_eq!(block.content(0..512), [0; 512]);
        block.write(0, &[1; 512]).unwrap();
    }

    #[test]
    fn stalled_call_waits_until_it_is_released_and_others_go_on() {
        let block = MemoryBlock::new(8192, 512);
        block.stall(|call| call == Call::Flush);
        let flush = thread::spawn({
            let block = block.clone();
            move || block.flush()
        });
        assert!(block.wait_stalled(1, Duration::from_secs(30)));
        block.write(0, &[1; 512]).unwrap();
        assert_eq!(block.stalled(), 1);
        block.release();
        flush.join().unwrap().unwrap();
        assert_eq!(block.flushed(0..512), [1; 512]);
        assert_eq!(block.stalled(), 0);
    }
}
