//! What `verify` and `prefetch` have in common: both read a tree whole, and tell what of it is damaged.

use std::fmt::Display;
use std::sync::Arc;

use reader::Fetch;
use serde_json::Map;
use volume::verify::{self, Report, Tally};
use volume::{Snapshot, Volume};

use crate::failure::Outcome;
use crate::output::Output;
use crate::progress::Progress;
use crate::session::{about, not_found};
use crate::text;

/// Reads and verifies the tree below `path`, and shows how far it is.
pub(super) async fn read(
    volume: &Arc<Volume>,
    snapshot: &Arc<Snapshot>,
    path: &[u8],
    tally: &Arc<Tally>,
    bar: &mut Progress,
) -> Outcome<Report> {
    let top = snapshot
        .resolve(path, Fetch::Until(volume.deadline()))
        .await
        .map_err(about(path))?
        .ok_or_else(|| not_found(path))?;
    if path.is_empty() {
        bar.signed(&snapshot.record().totals);
    }
    let work = verify::verify(volume, snapshot, path, &top, tally);
    Ok(bar.during(tally, work).await?)
}

/// Tells of damaged files: a record `damage` for each, or a line.
pub(super) fn tell<'a, W: Display>(
    damages: impl IntoIterator<Item = (&'a [u8], W)>,
    output: &mut Output,
) -> Outcome<()> {
    for (path, why) in damages {
        if output.json() {
            let mut one = Map::new();
            text::put_name(&mut one, "path", path);
            one.insert("why".to_owned(), why.to_string().into());
            output.record("damage", one)?;
        } else {
            output.warn(&format!("{}: {why}", text::printable(path)));
        }
    }
    Ok(())
}
