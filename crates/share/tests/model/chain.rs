//! A log as a list that shares its beginning with other branches: pushing a leaf leaves the old prefix as it was.

use std::rc::Rc;

use crate::protocol::{Id, Leaf, Point};

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
        let root = Id::of(&(before.root, leaf.id()));
        let point = Point {
            size: before.size + 1,
            root,
        };
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

    /// Whether a leaf with this id is in it.
    pub fn has(&self, id: Id) -> bool {
        self.times(id) > 0
    }

    /// How often a leaf with this id is in it.
    pub fn times(&self, id: Id) -> usize {
        self.backwards().filter(|(leaf, _)| leaf.id() == id).count()
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
