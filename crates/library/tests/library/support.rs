//! The library on a published version.

use std::path::Path;
use std::sync::Arc;

use bulla::extract::{ExtractError, ExtractOptions, Extracted};
use bulla::verify::Report;
use bulla::{Error, Tree};
use reader::Tally;
use trust::change::Change;
use volume::{Snapshot, Volume};

/// Extracts what is at a path.
pub async fn extract(
    volume: &Arc<Volume>,
    snapshot: &Arc<Snapshot>,
    path: &[u8],
    target: &Path,
    options: &ExtractOptions,
    tally: &Arc<Tally>,
) -> Result<Extracted, ExtractError> {
    let tree = Tree::published(volume, Arc::clone(snapshot));
    let top = tree.find(path).await.unwrap();
    bulla::extract::extract(&tree, &top, target, options, tally).await
}

/// Verifies what is at a path.
pub async fn verify(
    volume: &Arc<Volume>,
    snapshot: &Arc<Snapshot>,
    path: &[u8],
    tally: &Arc<Tally>,
) -> Result<Report, Error> {
    let tree = Tree::published(volume, Arc::clone(snapshot));
    let top = tree.find(path).await.unwrap();
    bulla::verify::verify(&tree, &top, tally).await
}

/// Compares two versions.
pub async fn difference(
    volume: &Arc<Volume>,
    old: &Snapshot,
    new: &Snapshot,
    tell: impl FnMut(Change) -> Result<(), Error>,
) -> Result<(), Error> {
    let old = Tree::published(volume, Arc::new(old.clone()));
    let new = Tree::published(volume, Arc::new(new.clone()));
    bulla::diff::diff(&old, &new, tell).await
}
