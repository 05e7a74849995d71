//! A log as a list that shares its beginning with other branches: pushing a leaf leaves the old prefix as it was.

use std::rc::Rc;

use ordering::scheme::Log;

use crate::protocol::{Id, Leaf, Mark, Point, leaf_id};
use crate::symbolic::Symbolic;

#[derive(Debug)]
struct Node {
    before: Chain,
    leaf: Leaf,
    point: Point,
}

#[derive(Clone, Debug, Default)]
pub struct Chain(Option<Rc<Node>>);

impl Chain {
    pub fn point(&self) -> Point {
        let root = Id(0);
        self.0
            .as_ref()
            .map_or(Point { size: 0, root }, |node| node.point)
    }

    pub fn size(&self) -> u64 {
        self.point().size
    }

    pub fn push(&self, leaf: Leaf) -> Chain {
        let before = self.point();
        let point = after(before, &leaf);
        Chain(Some(Rc::new(Node {
            before: self.clone(),
            leaf,
            point,
        })))
    }

    /// The prefix of this size. None: there is no such prefix.
    pub fn prefix(&self, size: u64) -> Option<&Chain> {
        let mut chain = self;
        while chain.size() > size {
            chain = &chain.0.as_ref()?.before;
        }
        (chain.size() == size).then_some(chain)
    }

    pub fn root_at(&self, size: u64) -> Option<Id> {
        self.prefix(size).map(|prefix| prefix.point().root)
    }

    pub fn contains(&self, point: Point) -> bool {
        self.root_at(point.size) == Some(point.root)
    }

    /// Size of the longest prefix that both have.
    pub fn shared(&self, other: &Chain) -> u64 {
        let size = self.size().min(other.size());
        let (mut one, mut two) = (self.prefix(size), other.prefix(size));
        while let (Some(left), Some(right)) = (one, two) {
            if left.point() == right.point() {
                return left.size();
            }
            one = left.0.as_ref().map(|node| &node.before);
            two = right.0.as_ref().map(|node| &node.before);
        }
        0
    }

    /// Leaves from the last to the first, each with the prefix that it ends.
    pub fn backwards(&self) -> impl Iterator<Item = (&Leaf, Point)> {
        let mut chain = self;
        std::iter::from_fn(move || {
            let node = chain.0.as_ref()?;
            chain = &node.before;
            Some((&node.leaf, node.point))
        })
    }

    /// Leaves from the first to the last, each with the prefix that it ends.
    pub fn leaves(&self) -> Vec<(&Leaf, Point)> {
        let mut leaves: Vec<_> = self.backwards().collect();
        leaves.reverse();
        leaves
    }

    /// Whether a mark is in it.
    pub fn has_mark(&self, mark: Mark) -> bool {
        self.backwards().any(|(leaf, _)| match leaf {
            Leaf::Marks(marks) => marks.contains(&mark),
            Leaf::Entry(_) => false,
        })
    }

    /// How often a leaf with this id is in it.
    pub fn times(&self, id: Id) -> usize {
        self.backwards()
            .filter(|(leaf, _)| leaf_id(leaf) == id)
            .count()
    }

    pub fn since(&self, size: u64) -> Vec<Leaf> {
        let mut leaves: Vec<_> = self
            .backwards()
            .take_while(|(_, point)| point.size > size)
            .map(|(leaf, _)| leaf.clone())
            .collect();
        leaves.reverse();
        leaves
    }
}

/// A prefix with one more leaf.
fn after(before: Point, leaf: &Leaf) -> Point {
    Point {
        size: before.size + 1,
        root: Id::of(&(before.root, leaf_id(leaf))),
    }
}

impl Log<Symbolic> for Chain {
    fn size(&self) -> u64 {
        self.point().size
    }

    fn root(&self) -> Id {
        self.point().root
    }

    fn root_at(&self, size: u64) -> Option<Id> {
        self.prefix(size).map(|prefix| prefix.point().root)
    }

    fn is_at(&self, at: u64, leaf: &Leaf) -> Option<bool> {
        let node = self.prefix(at + 1)?.0.as_ref()?;
        Some(leaf_id(&node.leaf) == leaf_id(leaf))
    }

    fn root_with(&self, from: u64, leaves: &[Leaf]) -> Option<Id> {
        let from = self.prefix(from)?.point();
        Some(leaves.iter().fold(from, after).root)
    }

    fn push(&mut self, leaf: &Leaf) {
        *self = Chain::push(self, leaf.clone());
    }

    fn page(&self, _: u64, to: u64) -> Option<Point> {
        self.prefix(to).map(Chain::point)
    }
}
