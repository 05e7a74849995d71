//! `bulla cat SOURCE PATH`: prints a file of a volume. Each byte is verified before it is written.

use ::share::home::Home;
use reader::{Fetch, Tree};
use serde_json::json;
use trust::inode::Inode;

use crate::args::Cat;
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::session::{Session, about, not_found};
use crate::sharing::places::path_of;
use crate::sharing::reading::Opening;
use crate::{sharing, text};

/// Content held in memory at a time, bytes. A multiple of three, so that the base64 pieces can be
/// concatenated.
const WINDOW_BYTES: usize = 3 << 20;

/// Writes the file out.
pub fn run(args: &Cat, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        return shared(args, home, config, output);
    }
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let volume = session.open_at(
        config,
        &args.reading,
        (args.past.at.as_ref(), &path),
        None,
        output,
    )?;
    let bytes = session.run(async {
        let snapshot = volume.current()?;
        let how = || Fetch::Until(volume.deadline());
        let file = snapshot
            .follow(&path, how())
            .await
            .map_err(about(&path))?
            .ok_or_else(|| not_found(&path))?;
        write(&snapshot, &file, &path, how, output).await
    })?;
    Ok(Done::ok(fields(json!({"bytes": bytes}))))
}

/// Writes a file of a shared volume out.
fn shared(args: &Cat, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let opening = Opening::of(config, home, &args.reading).at(args.past.entry()?);
    let bytes = opening.read(output, async |shared, output| {
        let place = shared.place(&args.path)?;
        let file = shared.find(&place, true).await?;
        let path = path_of(&place);
        write(
            &shared.contents(),
            &file.inode,
            &path,
            || shared.how(),
            output,
        )
        .await
    })?;
    Ok(Done::ok(fields(json!({"bytes": bytes}))))
}

/// Writes content out, piece by piece. Returns its length.
async fn write(
    tree: &Tree,
    file: &Inode,
    path: &[u8],
    how: impl Fn() -> Fetch,
    output: &mut Output,
) -> Outcome<u64> {
    let mut at = 0u64;
    loop {
        let pieces = tree.read(file, at, WINDOW_BYTES, how()).await;
        let pieces = pieces.map_err(about(path))?;
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
