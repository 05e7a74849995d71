//! Whose turn it is to change a file (decision 0061): the queue of a file's lock in the small volume, and a check that
//! nobody is overtaken, which knows of no queue.

use crate::broken::{Broken, Check};
use crate::chain::Chain;
use crate::protocol::{Change, Device, Key, Leaf, Op, letter};
use crate::rules::Rule;
use crate::state::State;
use crate::symbolic::Symbolic;
use ordering::volume::Roll;

/// The devices that wait for the lock of each file, and the locks that last for one change.
#[derive(Clone, Debug, Default)]
pub struct Turns {
    /// In the order of the log: file, device, and whether it waited when the lock was given up last.
    waiting: Vec<(u8, Device, bool)>,
    /// Files whose holder has the lock for its next change, by a Claim or a Pass, as bits.
    brief: u8,
}

impl State {
    /// What a change does to a file's lock: keys and their new values. With effect, the queue changes too.
    pub(crate) fn turn(
        &mut self,
        change: &Change,
        (author, at): (Device, u64),
        effect: bool,
    ) -> Option<[(Key, u128); 2]> {
        let (file, to, brief) = match change {
            Change::Lock(file) => (*file, Some(author), false),
            Change::Claim(file) => (*file, Some(author), true),
            Change::Pass(file, to) => (*file, Some(*to), true),
            Change::Unlock(file) => (*file, None, false),
            _ => return None,
        };
        if effect {
            let stays = self.rules.has(Rule::PlaceStays);
            let turns = &mut self.turns;
            turns.brief = turns.brief & !(1 << file) | u8::from(brief) << file;
            match to {
                Some(to) => turns.waiting.retain(|it| (it.0, it.1) != (file, to)),
                None => {
                    let leaves = |it: &(u8, Device, bool)| it.0 == file && (it.2 || !stays);
                    turns.waiting.retain(|it| !leaves(it));
                    let here = turns.waiting.iter_mut().filter(|it| it.0 == file);
                    here.for_each(|it| it.2 = true);
                }
            }
        }
        let holder = to.map_or(0, |to| u128::from(to) + 1);
        let last = to.map_or(0, |_| u128::from(at) + 1);
        Some([(Key::Lock(file), holder), (Key::Renewed(file), last)])
    }

    /// The file that an op of this author claims in vain.
    pub(crate) fn claims_in_vain(&self, author: Device, op: &Op) -> Option<u8> {
        let [Change::Claim(file)] = op.changes[..] else {
            return None;
        };
        let holder = self.value(Key::Lock(file)).is;
        let free = holder == 0 || holder == u128::from(author) + 1;
        (!free && op.guards.is_empty()).then_some(file)
    }

    pub(crate) fn join(&mut self, file: u8, device: Device) {
        if !self.waits(file, device) {
            self.turns.waiting.push((file, device, false));
        }
    }

    /// Whether a device waits for the lock of a file.
    pub fn waits(&self, file: u8, device: Device) -> bool {
        let mut waiting = self.turns.waiting.iter();
        waiting.any(|it| (it.0, it.1) == (file, device))
    }

    /// The device that has waited longest, and may write the file.
    pub fn next(&self, file: u8) -> Option<Device> {
        let any = !self.rules.has(Rule::PassToWriters);
        let waiting = self.turns.waiting.iter().map(|it| (it.0, it.1));
        let mut here = waiting.filter(|it| it.0 == file && (any || self.may_write(it.1, file)));
        let next = match self.rules.has(Rule::FirstOfQueue) {
            true => here.next(),
            false => here.next_back(),
        };
        next.map(|(_, device)| device)
    }

    /// The holder of a file's lock has it for its next change. Otherwise a program has it.
    pub fn is_brief(&self, file: u8) -> bool {
        self.turns.brief >> file & 1 == 1
    }

    /// A lock that the device has for one change, and that none of these ops is about.
    pub(crate) fn unused(&self, device: Device, wanted: &[Op]) -> Option<u8> {
        let about = |op: &Op, file: u8| {
            let lock = Key::Lock(file);
            let changes = |change: &Change| matches!(change, Change::Claim(of) | Change::Lock(of) if *of == file);
            op.guards.iter().any(|guard| guard.key == lock) || op.changes.iter().any(changes)
        };
        let mine = |file: &u8| {
            self.is_brief(*file) && self.value(Key::Lock(*file)).is == u128::from(device) + 1
        };
        let unused = |file: &u8| !wanted.iter().any(|op| about(op, *file));
        (0..u8::BITS as u8)
            .filter(mine)
            .filter(unused)
            .find(|_| self.rules.has(Rule::Leftover))
    }
}

/// Other devices get the lock of a file at most so often while one waits that has claimed it: each of those in the queue
/// once, and one that came while the lock was free.
fn allowed(devices: usize, lapses: usize) -> usize {
    devices - 1 + lapses * devices
}

/// No device is overtaken more often than that.
pub fn check(log: &Chain, genesis: &State, devices: usize, lapses: usize) -> Result<(), Broken> {
    let mut state = genesis.clone();
    // File, device, how often it was overtaken.
    let mut waiting: Vec<(u8, Device, usize)> = Vec::new();
    for (at, (leaf, _)) in log.leaves().into_iter().enumerate() {
        let Leaf::Entry(entry) = leaf else { continue };
        let author = entry.body.device;
        let before = state.clone();
        Roll::<Symbolic>::extend(&mut state, at as u64, entry);
        for op in &entry.body.ops {
            let Some(file) = about(op) else { continue };
            let holder = |state: &State| state.value(Key::Lock(file)).is;
            let (had, has) = (holder(&before), holder(&state));
            if has != 0 && has != had {
                let to = (has - 1) as Device;
                waiting.retain(|it| (it.0, it.1) != (file, to));
                let here = waiting.iter_mut().filter(|it| it.0 == file);
                here.for_each(|it| it.2 += 1);
            }
            if matches!(op.changes[..], [Change::Claim(_)])
                && has != u128::from(author) + 1
                && !waiting.iter().any(|it| (it.0, it.1) == (file, author))
            {
                waiting.push((file, author, 0));
            }
        }
        let most = allowed(devices, lapses);
        if let Some((file, device, times)) = waiting.iter().find(|it| it.2 > most) {
            return Err(Check::Overtaken.finds(format!(
                "others got the lock of file {file} {times} times while {} waited for it",
                letter(*device)
            )));
        }
    }
    Ok(())
}

/// The file whose lock an op changes.
fn about(op: &Op) -> Option<u8> {
    op.changes.iter().find_map(|change| match change {
        Change::Lock(file) | Change::Claim(file) | Change::Pass(file, _) => Some(*file),
        Change::Unlock(file) => Some(*file),
        _ => None,
    })
}

/// Whether a program has a lock at the end of a log.
pub fn is_kept(log: &Chain, genesis: &State) -> bool {
    let mut state = genesis.clone();
    for (at, (leaf, _)) in log.leaves().into_iter().enumerate() {
        if let Leaf::Entry(entry) = leaf {
            Roll::<Symbolic>::extend(&mut state, at as u64, entry);
        }
    }
    let files = 0..u8::BITS as u8;
    let mut locked = files.filter(|file| state.value(Key::Lock(*file)).is != 0);
    locked.any(|file| !state.is_brief(file))
}
