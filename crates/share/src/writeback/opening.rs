//! OPEN of a file by the name that led to it, which may lead elsewhere meanwhile.
//!
//! The kernel gives OPEN a file that it looked up some time ago. If the name, or one above it, leads elsewhere after the mark
//! of this OPEN, the answer is ESTALE: Linux looks every component up again and opens again, and the program notices nothing.
//! A second ESTALE in a row would reach the program. So the second OPEN is answered by what the look-ups after the first one
//! found, whatever has happened meanwhile. Otherwise a file that was replaced by rename would be read in its old form.

use std::sync::Arc;

use trust::inode::Inode;
use trust_shared::principal::FileId;

use super::effect::Kinds;
use super::nodes::{Node, Nodes, lock};
use crate::files::{File, Place};

/// Most threads of which it is remembered that they open again.
const MAX_STALE: usize = 1 << 12;

/// An OPEN that asks where its file is.
#[derive(Debug)]
pub struct Opening {
    /// What to look up, with a mark.
    pub place: Place,
    was_told: bool,
}

/// What an OPEN comes to.
#[derive(Debug, PartialEq, Eq)]
pub enum Opens {
    /// The file has this inode. Local changes move onto it.
    Newest(Arc<Inode>),
    /// It has no name any more. It opens as it is known.
    Known,
    /// ESTALE.
    Stale,
}

impl<K: Kinds> Nodes<K> {
    /// A thread opens a file below a root directory.
    pub fn opening(&self, node: &Node<K>, thread: u32, root: FileId) -> Opening {
        let told = lock(&self.stale).remove(&thread);
        // A program that opens a descriptor of `/proc` again looks up no name.
        let was_told = told
            .is_some_and(|(lookups, number)| node.found_at() > lookups || node.number() == number);
        let place = match node.path().filter(|_| !was_told) {
            Some(path) => Place { start: root, path },
            None => Place {
                start: node.id(),
                path: Vec::new(),
            },
        };
        Opening { place, was_told }
    }

    /// What the file at the place is now; None if there is none.
    pub fn opened(
        &self,
        opening: &Opening,
        (node, thread): (&Node<K>, u32),
        found: Option<&File>,
    ) -> Opens {
        match found {
            Some(found) if found.id == node.id() => Opens::Newest(found.inode.clone()),
            None if opening.was_told => Opens::Known,
            _ => {
                self.tell_stale(thread, node);
                Opens::Stale
            }
        }
    }

    fn tell_stale(&self, thread: u32, node: &Node<K>) {
        let mut stale = lock(&self.stale);
        if stale.len() >= MAX_STALE {
            stale.clear();
        }
        stale.insert(thread, (self.lookups(), node.number()));
    }
}
