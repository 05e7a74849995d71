//! Marks that wait for the next commit, each once, in the order in which they came.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};

/// So few marks are searched one by one.
const FEW: usize = 16;

/// A set of marks. Only its list decides what an orderer does next; the table finds a mark among many.
#[derive(Clone, Debug)]
pub(super) struct Marks<M> {
    list: Vec<M>,
    /// All of `list` when that has more than [`FEW`].
    table: HashSet<M>,
}

impl<M> Default for Marks<M> {
    fn default() -> Self {
        Marks {
            list: Vec::new(),
            table: HashSet::new(),
        }
    }
}

impl<M: Hash> Hash for Marks<M> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.list.hash(state);
    }
}

impl<M: Copy + Eq + Hash> Marks<M> {
    /// Adds a mark, unless it is there.
    pub fn insert(&mut self, mark: M) {
        if self.contains(&mark) {
            return;
        }
        self.list.push(mark);
        if !self.table.is_empty() {
            self.table.insert(mark);
        } else if self.list.len() > FEW {
            self.table.extend(self.list.iter().copied());
        }
    }

    pub fn contains(&self, mark: &M) -> bool {
        match self.table.is_empty() {
            true => self.list.contains(mark),
            false => self.table.contains(mark),
        }
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// All of them; none are left.
    pub fn take(&mut self) -> Vec<M> {
        self.table.clear();
        std::mem::take(&mut self.list)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mark_is_kept_once_in_its_order() {
        let mut marks = Marks::default();
        for mark in (0..100u32).chain(50..150).chain(0..10) {
            marks.insert(mark);
            assert!(marks.contains(&mark));
        }
        assert!(!marks.contains(&150));
        assert_eq!(marks.len(), 150);
        assert_eq!(marks.take(), (0..150).collect::<Vec<_>>());
        assert!(marks.is_empty() && !marks.contains(&3));
        marks.insert(3);
        assert_eq!(marks.take(), [3]);
    }
}
