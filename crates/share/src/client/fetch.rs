//! Fetches what evaluation misses, verifies it, and puts it on the shelf.

use std::collections::HashMap;
use std::sync::Arc;

use trust::Hasher;
use trust::reach::Wanted;
use trust::{Handle, Record};
use trust_shared::entry::body_hash;

use super::connection::{Line, Lost, Trouble};
use super::core::{Lacks, read_body};
use crate::files::Shelf;

/// What a block of a tree is expected to take, bytes.
const SHORT_BYTES: u64 = 16 << 10;

/// Something that is being fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Body(u64),
    Block(Handle),
}

/// What became of a fetch.
pub(super) struct Fetched {
    /// All that was asked for.
    pub(super) asked: Vec<Key>,
    /// Something came.
    pub(super) some: bool,
    /// Why not everything came.
    pub(super) failed: Option<Lost>,
}

/// Fetches bodies and blocks at the same time.
pub(super) async fn fetch(
    line: Arc<dyn Line>,
    shelf: Arc<Shelf>,
    hasher: Hasher,
    lacks: Lacks,
) -> Fetched {
    let bodies = lacks
        .bodies
        .iter()
        .map(|(position, _)| Key::Body(*position));
    let blocks = lacks
        .blocks
        .iter()
        .map(|wanted| Key::Block(wanted.handle()));
    let asked = bodies.chain(blocks).collect();
    let (has_bodies, has_blocks) = (!lacks.bodies.is_empty(), !lacks.blocks.is_empty());
    let fetched_bodies = fetch_bodies(&*line, &shelf, lacks.bodies);
    let fetched_blocks = fetch_blocks(&*line, &shelf, &hasher, &lacks.blocks);
    let (bodies, blocks) = tokio::join!(fetched_bodies, fetched_blocks);
    let some = (has_bodies && bodies.is_ok()) || (has_blocks && blocks.is_ok());
    Fetched {
        asked,
        some,
        failed: bodies.err().or(blocks.err()),
    }
}

fn lacks(what: &str, count: usize) -> Lost {
    Lost::new(
        Trouble::Unfit,
        format!("the server does not have {count} {what}"),
    )
}

async fn fetch_bodies(
    line: &dyn Line,
    shelf: &Shelf,
    mut wanted: Vec<(u64, [u8; 32])>,
) -> Result<(), Lost> {
    if wanted.is_empty() {
        return Ok(());
    }
    wanted.sort_unstable();
    wanted.dedup();
    let positions = wanted.iter().map(|(position, _)| *position).collect();
    let bodies: HashMap<_, _> = line.bodies(positions).await?.into_iter().collect();
    let mut missing = 0;
    for (position, hash) in wanted {
        match bodies.get(&position) {
            Some(body) if body_hash(body) == hash => shelf.put_body(position, read_body(body)),
            Some(_) => return Err(Lost::new(Trouble::Unfit, "a body is another one's")),
            None => missing += 1,
        }
    }
    match missing {
        0 => Ok(()),
        count => Err(lacks("bodies of entries", count)),
    }
}

async fn fetch_blocks(
    line: &dyn Line,
    shelf: &Shelf,
    hasher: &Hasher,
    wanted: &[Wanted],
) -> Result<(), Lost> {
    if wanted.is_empty() {
        return Ok(());
    }
    let handles: Vec<Handle> = wanted.iter().map(Wanted::handle).collect();
    // Nodes and inodes are mostly short.
    let most_bytes = handles.len() as u64 * SHORT_BYTES;
    let records = line.store().get_within(&handles, 0, most_bytes).await;
    let records = records.map_err(|e| Lost::new(Trouble::Refused, e.to_string()))?;
    let records: HashMap<Handle, Record> = records
        .into_iter()
        .map(|record| (record.handle, record))
        .collect();
    let mut missing = 0;
    for wanted in wanted {
        let Some(record) = records.get(&wanted.handle()) else {
            missing += 1;
            continue;
        };
        match wanted.unpack(hasher, &record.frame) {
            Err(why) if !why.is_publishers_fault() => {
                return Err(Lost::new(Trouble::Unfit, why.to_string()));
            }
            found => shelf.put_block(wanted, found),
        }
    }
    match missing {
        0 => Ok(()),
        count => Err(lacks("blocks", count)),
    }
}
