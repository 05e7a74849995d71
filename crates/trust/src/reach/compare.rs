//! Compares a directory with the same directory of a complete base. [`crate::tree::map::Diff`] names the
//! nodes that differ; only entries that differ are walked.

use std::collections::HashSet;

use super::need::{Need, Task, Wanted};
use super::walk::{Comparison, Frame, Reach, Refused};
use crate::error::Reject;
use crate::handle::{Handle, MapNode};
use crate::tree::inode::Entry;
use crate::tree::map::{self, Diff, MapRoot};

impl Reach {
    /// Begins to compare an open directory, whose top node has been checked, with its base.
    pub(super) fn begin_comparison(
        &mut self,
        base: &MapRoot,
        map: &MapRoot,
        top: map::Node,
        directory: u64,
        round: u32,
    ) {
        let number = self.number();
        let comparison = Comparison {
            diff: Diff::new(Some(base), Some(map)),
            top: Some((map.handle, top)),
            asked: HashSet::new(),
            directory,
            round,
            weight_bytes: 0,
            waits: true,
        };
        self.comparisons.insert(number, comparison);
        self.wake(number);
    }

    /// Continues without a node. Entries that only this node leads to are not walked.
    pub(super) fn omit(&mut self, number: u64, handle: &Handle<MapNode>) {
        if let Some(comparison) = self.comparisons.get_mut(&number) {
            comparison.asked.remove(handle);
            comparison.diff.omit(handle);
            self.wake(number);
        }
    }

    pub(super) fn take_compared(
        &mut self,
        number: u64,
        handle: &Handle<MapNode>,
        node: &map::Node,
        round: u32,
    ) -> Result<(), Reject> {
        let Some(comparison) = self.comparisons.get_mut(&number) else {
            return Ok(());
        };
        comparison.asked.remove(handle);
        comparison.round = comparison.round.max(round);
        let taken = comparison.diff.supply_node(handle, node);
        if taken.is_err() {
            comparison.diff.omit(handle);
        }
        self.wake(number);
        taken
    }

    /// Puts a comparison that got a block back on the stack.
    fn wake(&mut self, number: u64) {
        if let Some(comparison) = self.comparisons.get_mut(&number) {
            let weight_bytes = comparison.diff.weight_bytes();
            let before = std::mem::replace(&mut comparison.weight_bytes, weight_bytes);
            self.weight_bytes = self
                .weight_bytes
                .saturating_sub(before)
                .saturating_add(weight_bytes);
            if std::mem::take(&mut comparison.waits) {
                self.stack.push(Frame::Comparison(number));
            }
        }
    }

    /// The next change or wanted node of a comparison.
    pub(super) fn compare(&mut self, number: u64) -> Result<(), Refused> {
        let Some(at) = self.comparisons.get_mut(&number) else {
            return Ok(());
        };
        let (directory, round) = (at.directory, at.round);
        if let Some(change) = at.diff.next_change() {
            self.stack.push(Frame::Comparison(number));
            let Some(value) = change.new else {
                return Ok(());
            };
            // The old entry is only used to leave out what the base already has.
            let base = match change.old.map(|old| Entry::decode(&old)) {
                Some(Ok(Entry::Inode(inode))) => Some(inode),
                _ => None,
            };
            return self.entry(directory, &change.key, &value, base, round);
        }
        let wants = at.diff.wants();
        if let Some((handle, node)) = at.top.take_if(|(handle, _)| wants.contains(handle)) {
            // Checked against its root before the comparison began.
            let _ = at.diff.supply_node(&handle, &node);
            at.waits = true;
            self.wake(number);
            return Ok(());
        }
        if let Some(handle) = wants.into_iter().find(|handle| at.asked.insert(*handle)) {
            self.stack.push(Frame::Comparison(number));
            self.stack.push(Frame::Need(Need {
                round,
                wanted: Wanted::Map(handle),
                path: self.path_of(directory),
                task: Task::Compared { comparison: number },
            }));
            return Ok(());
        }
        at.waits = true;
        if at.diff.is_done() {
            self.weight_bytes = self.weight_bytes.saturating_sub(at.weight_bytes);
            self.comparisons.remove(&number);
            self.release(Some(directory));
        }
        Ok(())
    }
}
