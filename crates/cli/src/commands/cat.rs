//! `bulla cat SOURCE PATH`: prints a file of a volume. Each byte is verified before it is written.

use reader::Fetch;
use serde_json::json;

use crate::args::Cat;
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::session::{Session, about, not_found};
use crate::text;

/// Content held in memory at a time, bytes. A multiple of three, so that the base64 pieces can be
/// concatenated.
const WINDOW_BYTES: usize = 3 << 20;

/// Writes the file out.
pub fn run(args: &Cat, config: &Config, output: &mut Output) -> Outcome<Done> {
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let volume = session.open_toward(config, &args.reading, &path, output)?;
    let bytes = session.run(async {
        let snapshot = volume.current()?;
        let how = || Fetch::Until(volume.deadline());
        let file = snapshot
            .follow(&path, how())
            .await
            .map_err(about(&path))?
            .ok_or_else(|| not_found(&path))?;
        let mut at = 0u64;
        loop {
            let pieces = snapshot
                .read(&file, at, WINDOW_BYTES, how())
                .await
                .map_err(about(&path))?;
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
    })?;
    Ok(Done::ok(fields(json!({"bytes": bytes}))))
}
