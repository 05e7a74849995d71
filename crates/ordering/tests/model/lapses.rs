//! Locks and time: how long each device has known the last renewal of a lock that it takes over. Recorded from the
//! outside: the world notes the log of a device when it begins to wait, and when its timer rings.

use std::hash::Hash;

use ordering::volume::Roll;

use crate::broken::{Broken, Check};
use crate::chain::Chain;
use crate::protocol::{Change, Device, Key, Leaf, letter};
use crate::state::{DEVICES, State};
use crate::symbolic::Symbolic;
use crate::wide::Wide;

#[derive(Clone, Debug, Default)]
pub struct Lapses {
    /// The log of each device when it began to wait out locks, by what it calls this wait.
    waits: [Option<(u64, Chain)>; DEVICES],
    /// Prefixes that devices have known for the time to live of locks.
    over: Vec<(Device, Chain)>,
}

impl Lapses {
    /// Number of times that the time to live has passed.
    pub fn count(&self) -> usize {
        self.over.len()
    }

    /// After a step of a device.
    pub fn watch(&mut self, device: Device, wait: Option<u64>, log: &Chain) {
        let known = &mut self.waits[usize::from(device)];
        if known.as_ref().map(|(wait, _)| *wait) != wait {
            *known = wait.map(|wait| (wait, log.clone()));
        }
    }

    /// The time to live has passed since the device began to wait.
    pub fn ring(&mut self, device: Device) {
        let (_, log) = self.waits[usize::from(device)]
            .take()
            .expect("a timer rings that is not armed");
        self.over.push((device, log));
    }

    /// Whether the device has known the leaf at a position of a log for the time to live.
    fn known(&self, device: Device, log: &Chain, at: u64) -> bool {
        let mut over = self.over.iter();
        over.any(|(whose, known)| *whose == device && known.shared(log) > at)
    }

    /// No device takes a lock over whose last renewal it has not known for the time to live.
    pub fn check(&self, log: &Chain, genesis: &State) -> Result<(), Broken> {
        let mut state = genesis.clone();
        for (at, (leaf, _)) in log.leaves().into_iter().enumerate() {
            let Leaf::Entry(entry) = leaf else { continue };
            let author = entry.body.device;
            let before = state.clone();
            Roll::<Symbolic>::extend(&mut state, at as u64, entry);
            for change in entry.body.ops.iter().flat_map(|op| &op.changes) {
                let (Change::Lock(file) | Change::Claim(file)) = change else {
                    continue;
                };
                let mine = u128::from(author) + 1;
                let was = before.value(Key::Lock(*file)).is;
                let taken = state.value(Key::Lock(*file)).is == mine && was != mine && was != 0;
                let last = before.value(Key::Renewed(*file)).is as u64;
                // A device that may no longer write the file cannot use its lock.
                let useless = taken && !before.may_write((was - 1) as Device, *file);
                if taken && !useless && !self.known(author, log, last - 1) {
                    return Err(Check::Lapse.finds(format!(
                        "{} takes over at {at} a lock that was renewed at {}",
                        letter(author),
                        last - 1
                    )));
                }
            }
        }
        Ok(())
    }

    pub fn hash(&self, into: &mut Wide) {
        for (device, log) in &self.over {
            (device, log.point()).hash(into);
        }
        for wait in self.waits.iter().flatten() {
            (wait.0, wait.1.point()).hash(into);
        }
    }
}
