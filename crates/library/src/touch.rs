//! Asks the server of a shared volume to keep content that is about to be named again, and that nobody else may need: an
//! earlier version of a file, or the base of a conflict copy. Without it the server may collect the blocks in between.

use reader::{Fetch, ReadError, Tree};
use store::{BlockSink, StoreError};
use trust::Handle;
use trust::array::{ArrayRoot, Child, Extent};

/// Why it is not known whether the server has the content.
#[derive(Debug, thiserror::Error)]
pub enum TouchError {
    /// A node of the tree cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The server does not say what it has.
    #[error(transparent)]
    Sink(#[from] StoreError),
}

/// Asks for all blocks of an array tree, from the top. Gives whether the server has all of them, and keeps them then. Memory
/// grows with the height of the tree.
///
/// # Errors
/// [`TouchError`].
pub async fn touch(
    contents: &Tree,
    sink: &dyn BlockSink,
    root: &ArrayRoot,
    how: impl Fn() -> Fetch,
) -> Result<bool, TouchError> {
    let (mut level, mut nodes) = (vec![root.top()], Vec::new());
    loop {
        let named: Vec<Handle> = level.iter().filter_map(named).collect();
        if !named.is_empty() && !sink.touch(&named).await?.is_empty() {
            return Ok(false);
        }
        nodes.extend(level.iter().filter_map(|child| match child {
            Child::Node { handle, .. } => Some(*handle),
            Child::Extent(_) => None,
        }));
        let Some(next) = nodes.pop() else {
            return Ok(true);
        };
        let node = contents.blocks().get_many(&[next], how()).await?;
        level = node.iter().flat_map(|node| node.children()).collect();
    }
}

fn named(child: &Child) -> Option<Handle> {
    match child {
        Child::Extent(Extent::Hole { .. }) => None,
        Child::Extent(Extent::Data { handle, .. }) => Some(handle.any()),
        Child::Node { handle, .. } => Some(handle.any()),
    }
}
