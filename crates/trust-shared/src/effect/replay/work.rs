//! Evaluates what values depend on: a list of tasks instead of recursion, so that no chain of entries can exhaust the
//! stack. What a task depends on lies before it in the log, so there are no circles.

use std::collections::HashSet;

use super::view::View;
use super::{Last, Made, Replay, Sources, Task, Version};
use crate::change::Change;
use crate::effect::judge::{Placed, judge};
use crate::effect::{Blocks, Bodies, Missing, Stop};
use crate::key::Key;
use crate::outcome::{NoEffect, Outcome};
use crate::principal::FileId;
use trust::error::Reject;

/// Versions of a key that are judged at a time, and bodies of a directory's steps.
const STAGE: usize = 64;

/// Steps of a directory that are judged at a time.
const MOST_STEPS: usize = 4096;

/// The tasks that wait for something that is missing. A question with many parts keeps them from one part to the next,
/// so that each of them is tried once, and what it misses is named once.
#[derive(Default)]
pub(super) struct Waiting(HashSet<Task>);

/// What a step came to.
enum Progress {
    Done,
    /// These come first. Empty: something is missing.
    After(Vec<Task>),
}

impl Replay {
    /// Carries out a task, and first what it depends on. Each task is done once: its result is kept.
    ///
    /// # Errors
    /// [`Stop::Missing`] with nothing in it if all that is missing was named before to the same question.
    pub(super) fn work<S: Blocks + Bodies>(
        &mut self,
        task: Task,
        waiting: &mut Waiting,
        from: Sources<'_, S>,
    ) -> Result<(), Stop> {
        let Waiting(waiting) = waiting;
        let mut missing = Missing::default();
        if waiting.contains(&task) {
            return Err(Stop::Missing(missing));
        }
        let mut tasks = vec![task.clone()];
        while let Some(task) = tasks.last() {
            let task = task.clone();
            self.steps = self.steps.saturating_add(1);
            match self.step(&task, from, &mut missing)? {
                Progress::Done => {
                    tasks.pop();
                }
                Progress::After(mut first) => {
                    first.retain(|task| !waiting.contains(task));
                    if first.is_empty() {
                        waiting.insert(task);
                        tasks.pop();
                    }
                    tasks.extend(first);
                }
            }
            if missing.is_long() {
                break;
            }
        }
        match missing.is_empty() && !waiting.contains(&task) {
            true => Ok(()),
            false => Err(Stop::Missing(missing)),
        }
    }

    fn step<S: Blocks + Bodies>(
        &mut self,
        task: &Task,
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) -> Result<Progress, Stop> {
        match task {
            Task::Op(op) => self.judge_op(*op, from, missing),
            Task::Last(key, index, floor) => {
                let span = (*index as usize, *floor as usize);
                self.find_last(key, span, from, missing)
            }
            Task::Sum(directory, index) => self.add_up(directory, *index as usize, from, missing),
        }
    }

    fn outcome_of(&self, op: u32) -> Option<Outcome> {
        self.rows.outcome(op)
    }

    fn judge_op<S: Blocks + Bodies>(
        &mut self,
        op: u32,
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) -> Result<Progress, Stop> {
        let Some(row) = self.row(op) else {
            return Ok(Progress::Done);
        };
        if self.outcome_of(op).is_some() {
            return Ok(Progress::Done);
        }
        let body = match from.stored.body(row.written.position) {
            Ok(Some(body)) => Some(body),
            Ok(None) => {
                missing.add_body(row.written.position);
                return Ok(Progress::After(Vec::new()));
            }
            Err(why @ Reject::Unsupported { .. }) => return Err(why.into()),
            Err(_) => None,
        };
        let number = op.saturating_sub(row.first_op) as usize;
        let Some(of_body) = body.as_ref().and_then(|body| body.ops().get(number)) else {
            self.set_outcome(op, Outcome::None(NoEffect::Misformed));
            return Ok(Progress::Done);
        };
        let listed = |key: &Key| self.version_of(key, op).is_some();
        let placed = Placed {
            written: &row.written,
            op: of_body,
            listed: &listed,
        };
        let mut view = View::new(self, op, from);
        let Some(outcome) = judge(&self.volume, from.members, &placed, &mut view) else {
            if let Some(why) = view.tables.unsupported {
                return Err(why.into());
            }
            missing.blocks.append(&mut view.tables.missing);
            view.bodies.drain(..).for_each(|at| missing.add_body(at));
            return Ok(Progress::After(view.tasks));
        };
        let made: Vec<Change> = match outcome {
            Outcome::Effect => placed.changes().cloned().collect(),
            _ => Vec::new(),
        };
        let added: Vec<(FileId, i64)> = made
            .iter()
            .filter_map(|change| placed.added(change))
            .collect();
        self.record(op, &made, &added);
        self.set_outcome(op, outcome);
        Ok(Progress::Done)
    }

    fn set_outcome(&mut self, op: u32, outcome: Outcome) {
        self.rows.set_outcome(op, outcome);
    }

    fn version_of(&self, key: &Key, op: u32) -> Option<usize> {
        let versions = self.keys.get(key)?;
        versions
            .binary_search_by_key(&op, |version| version.op)
            .ok()
    }

    /// Notes what an op with effect changed.
    fn record(&mut self, op: u32, changes: &[Change], added: &[(FileId, i64)]) {
        for change in changes {
            let key = change.key();
            let made = match change {
                Change::Remove { .. }
                | Change::Unlink { .. }
                | Change::Unlock { .. }
                | Change::Release { .. } => Made::Gone,
                Change::Pass { .. } => Made::Passed,
                _ => Made::Put,
            };
            let index = self.version_of(&key, op);
            let versions = self.keys.get_mut(&key);
            if let Some(version) = versions.zip(index).and_then(|(v, index)| v.get_mut(index)) {
                version.set_made(made);
            }
            if let Change::Fold { fold, .. } = change {
                self.folds.insert(op, *fold);
            }
        }
        for (directory, added) in added {
            let steps = self.directories.get_mut(directory);
            let steps = steps.map(Vec::as_mut_slice).unwrap_or_default();
            if let Ok(index) = steps.binary_search_by_key(&op, |step| step.op)
                && let Some(step) = steps.get_mut(index)
            {
                step.added = step.added.saturating_add(*added);
            }
        }
    }

    fn find_last<S: Blocks + Bodies>(
        &mut self,
        key: &Key,
        (index, floor): (usize, usize),
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) -> Result<Progress, Stop> {
        let versions = self.keys.get(key).map(Vec::as_slice).unwrap_or_default();
        let Some(version) = versions.get(index).copied() else {
            return Ok(Progress::Done);
        };
        let (op, made) = (version.op, version.made());
        if version.last() != Last::UNKNOWN {
            return Ok(Progress::Done);
        }
        // A long row of versions is judged from its beginning, some at a time. From its end, the bodies of all would
        // have to be here at once.
        let stage = index.saturating_sub(STAGE);
        let unknown = |version: &Version| version.last() == Last::UNKNOWN;
        if stage > floor && versions.get(stage).is_some_and(unknown) {
            let task = Task::Last(key.clone(), stage as u32, floor as u32);
            return Ok(Progress::After(vec![task]));
        }
        if self.outcome_of(op).is_none() {
            let stage = versions.get(stage.max(floor)..index).unwrap_or_default();
            self.miss_bodies(stage, from, missing)?;
            return Ok(Progress::After(vec![Task::Op(op)]));
        }
        let before = index.checked_sub(1).and_then(|index| versions.get(index));
        let found = match (made, before.map(|before| before.last())) {
            (Made::Put | Made::Gone | Made::Passed, _) => Last(index as u32),
            (Made::Nothing, None) => Last::NONE,
            (Made::Nothing, Some(Last::UNKNOWN)) => {
                let index = index.saturating_sub(1) as u32;
                let task = Task::Last(key.clone(), index, floor as u32);
                return Ok(Progress::After(vec![task]));
            }
            (Made::Nothing, Some(before)) => before,
        };
        if let Some(version) = self.keys.get_mut(key).and_then(|v| v.get_mut(index)) {
            version.set_last(found);
        }
        Ok(Progress::Done)
    }

    /// Names the bodies that will be needed next, so that they are fetched together and not one after the other.
    fn miss_bodies<S: Bodies>(
        &self,
        versions: &[Version],
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) -> Result<(), Stop> {
        for version in versions {
            let Some(row) = self.row(version.op) else {
                continue;
            };
            let position = row.written.position;
            let known = self.outcome_of(version.op).is_some();
            if known || missing.is_long() {
                continue;
            }
            match from.stored.body(position) {
                Ok(None) => missing.add_body(position),
                Err(why @ Reject::Unsupported { .. }) => return Err(why.into()),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        Ok(())
    }

    /// Adds up the steps of a directory from the first one whose sum is not known. Their ops are judged from the
    /// beginning, some at a time: however long the row is, the bodies of few are needed at once. Those are named
    /// together.
    fn add_up<S: Bodies>(
        &mut self,
        directory: &FileId,
        index: usize,
        from: Sources<'_, S>,
        missing: &mut Missing,
    ) -> Result<Progress, Stop> {
        let rows = &self.rows;
        let steps = self.directories.get_mut(directory);
        let steps = steps.map(Vec::as_mut_slice).unwrap_or_default();
        let known = steps.partition_point(|step| step.sum.is_some());
        let before = known.checked_sub(1).and_then(|last| steps.get(last)?.sum);
        let mut sum = before.unwrap_or(0);
        let wanted = steps.len().min(index.saturating_add(1));
        let wanted = steps.get_mut(known..wanted).unwrap_or_default();
        let unknown = wanted
            .iter()
            .position(|step| rows.outcome(step.op).is_none());
        let (ready, rest) = wanted.split_at_mut(unknown.unwrap_or(wanted.len()));
        for step in ready {
            sum = sum.saturating_add(step.added);
            step.sum = Some(sum);
        }
        if rest.is_empty() {
            return Ok(Progress::Done);
        }
        let unknown: Vec<u32> = rest
            .iter()
            .map(|step| step.op)
            .filter(|op| rows.outcome(*op).is_none())
            .take(MOST_STEPS)
            .collect();
        let (mut first, mut bodies) = (Vec::new(), 0);
        let (mut last, mut is_here) = (None, false);
        for op in unknown {
            let Some(row) = self.row(op) else {
                continue;
            };
            let position = row.written.position;
            if last.replace(position) != Some(position) {
                bodies += 1;
                if bodies > STAGE {
                    break;
                }
                is_here = match from.stored.body(position) {
                    Ok(found) => found.is_some(),
                    Err(why @ Reject::Unsupported { .. }) => return Err(why.into()),
                    Err(_) => true,
                };
                if !is_here {
                    missing.add_body(position);
                }
            }
            if is_here {
                first.push(Task::Op(op));
            }
        }
        // The last one is the next one.
        first.reverse();
        Ok(Progress::After(first))
    }
}
