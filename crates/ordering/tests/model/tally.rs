//! A small volume of counters, for logs of any length. Each answer rests on the newest entries of each device, and on
//! blocks that the device fetches.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ordering::signed::Entry;
use ordering::volume::{Attempt, Basis, Build, Outcome, Roll, Volume};
use trust::device::DeviceKey;

use crate::real::{DEVICES, Real, device as device_of, ops};

/// What a program asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Adds one to a counter; answers with the sum.
    Add(u8),
    Read(u8),
}

/// Adds one to a counter if it has this value.
#[derive(Clone, Copy, Debug)]
pub struct Add {
    pub counter: u8,
    pub from: u64,
}

/// The newest entry of each device.
#[derive(Clone, Debug, Default, Hash)]
pub struct Newest(Vec<(DeviceKey, u64)>);

impl Newest {
    fn add(&mut self, device: DeviceKey, at: u64) {
        self.0.retain(|(other, _)| *other != device);
        self.0.push((device, at));
    }
}

impl Basis<DeviceKey> for Newest {
    fn filter(&self, mut keep: impl FnMut(u64, DeviceKey) -> bool) -> Newest {
        let kept = self.0.iter().filter(|(device, at)| keep(*at, *device));
        Newest(kept.copied().collect())
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Eight sums of a counter, which must be fetched before one of them is known. Who adds the first of them stores the
/// block first.
pub type Block = (u8, u64);

/// The block that an addition names, unless the block was there from the beginning.
pub fn named(op: &Add) -> Option<Block> {
    let sum = op.from + 1;
    sum.is_multiple_of(8).then_some((op.counter, sum / 8))
}

/// Blocks that a device has fetched.
pub type Shelf = Rc<RefCell<BTreeSet<Block>>>;

#[derive(Clone, Debug)]
pub struct Tally {
    counters: BTreeMap<u8, (u64, Newest)>,
    /// What became of the operations of the last entries: the sums, by position.
    sums: BTreeMap<u64, Vec<Option<u64>>>,
    /// None: everything is here.
    shelf: Option<Shelf>,
}

impl Tally {
    pub fn complete() -> Tally {
        Tally {
            counters: BTreeMap::new(),
            sums: BTreeMap::new(),
            shelf: None,
        }
    }

    pub fn with(shelf: Shelf) -> Tally {
        Tally {
            shelf: Some(shelf),
            ..Tally::complete()
        }
    }

    /// The block with this sum, if it is not here.
    fn missing(&self, counter: u8, sum: u64) -> Option<Block> {
        let block = (counter, sum / 8);
        let shelf = self.shelf.as_ref()?;
        (!shelf.borrow().contains(&block)).then_some(block)
    }

    pub fn sum(&self, counter: u8) -> u64 {
        self.counters.get(&counter).map_or(0, |(sum, _)| *sum)
    }

    fn basis(&self, counter: u8) -> Newest {
        let found = self.counters.get(&counter);
        found.map_or_else(Newest::default, |(_, basis)| basis.clone())
    }
}

impl Roll<Real> for Tally {
    fn active(&self, device: DeviceKey) -> bool {
        (0..DEVICES).any(|number| device_of(number) == device)
    }

    fn admitted(&self, _: DeviceKey) -> u64 {
        0
    }

    fn malformed(&self, entry: &Entry) -> Option<&'static str> {
        (ops(entry).len() > 8).then_some("too many operations")
    }

    /// Eight additions to one counter, which no honest device makes, need something else beside them.
    fn lacks(&self, entry: &Entry) -> Option<&'static str> {
        let ops = ops(entry);
        let same = ops.iter().all(|op| op.counter == ops[0].counter);
        (ops.len() == 8 && same).then_some("eight additions came without their body")
    }

    fn extend(&mut self, at: u64, entry: &Entry) {
        let mut sums = Vec::new();
        for op in ops(entry) {
            let (sum, basis) = self.counters.entry(op.counter).or_default();
            // That an operation had no effect is something that readers must know.
            basis.add(entry.signed().entry().device, at);
            if *sum == op.from {
                *sum += 1;
                sums.push(Some(*sum));
            } else {
                sums.push(None);
            }
        }
        self.sums.insert(at, sums);
        if self.sums.len() > 200 {
            self.sums.pop_first();
        }
    }
}

impl Volume<Real> for Tally {
    type Call = Call;
    /// The sum, or who is silent.
    type Answer = Result<u64, Vec<DeviceKey>>;
    type Basis = Newest;
    type Missing = Block;
    type Block = Block;

    fn accepted(&self, _: DeviceKey) -> u64 {
        0
    }

    fn build(&self, call: &Call, _: &Attempt<DeviceKey>) -> Build<Real, Tally> {
        let (Call::Add(counter) | Call::Read(counter)) = call;
        if let Some(block) = self.missing(*counter, self.sum(*counter)) {
            return Build::Missing(block);
        }
        match call {
            Call::Read(counter) => Build::Says(Ok(self.sum(*counter)), self.basis(*counter)),
            Call::Add(counter) => {
                let add = Add {
                    counter: *counter,
                    from: self.sum(*counter),
                };
                Build::Op(add, named(&add).into_iter().collect())
            }
        }
    }

    fn outcome(&self, at: u64, op: usize, call: &Call) -> Outcome<Real, Tally> {
        let Call::Add(counter) = call else {
            panic!("a read in an entry");
        };
        match self.sums[&at][op] {
            Some(sum) => match self.missing(*counter, sum) {
                Some(block) => Outcome::Missing(block),
                None => Outcome::Done(Ok(sum), self.basis(*counter)),
            },
            None => Outcome::Again,
        }
    }

    fn has_room(&self, ops: &[Add], next: &Add) -> bool {
        ops.len() < 8 && ops.iter().all(|op| op.counter != next.counter)
    }

    fn silent(unattested: &Newest) -> Result<u64, Vec<DeviceKey>> {
        Err(unattested.0.iter().map(|(device, _)| *device).collect())
    }
}
