//! `bulla cat SOURCE PATH`: prints a file of a volume. Each byte is verified before it is written.

use bulla::{Entry, Tree};
use serde_json::json;

use crate::args::Cat;
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::session::not_found;
use crate::states::State;
use crate::text;

/// Content held in memory at a time, bytes. A multiple of three, so that the base64 pieces can be
/// concatenated.
const WINDOW_BYTES: usize = 3 << 20;

/// Writes the file out.
pub fn run(args: &Cat, config: &Config, output: &mut Output) -> Outcome<Done> {
    let path = entry::clean(&args.path);
    let state = State::of(&args.reading, &args.past, &path);
    let bytes = state.read(config, output, async |tree, output| {
        let file = tree.follow(&path).await?;
        let file = file.ok_or_else(|| not_found(&path))?;
        write(tree, &file, output).await
    })?;
    Ok(Done::ok(fields(json!({"bytes": bytes}))))
}

/// Writes content out, piece by piece. Returns its length.
async fn write(tree: &Tree<'_>, file: &Entry, output: &mut Output) -> Outcome<u64> {
    let mut at = 0u64;
    loop {
        let pieces = tree.read(file, at, WINDOW_BYTES).await?;
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        if len == 0 {
            return Ok(at);
        }
        if output.json() {
            let content = text::base64(&pieces.concat());
            let record = json!({"offset": at, "bytes": len, "content_base64": content});
            output.record("content", fields(record))?;
        } else {
            for piece in &pieces {
                output.raw(piece)?;
            }
        }
        at += len as u64;
    }
}
