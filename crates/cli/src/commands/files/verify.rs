//! `bulla verify VOLUME [PATH]` on a shared volume: reads every file and verifies every block of it, and goes on after
//! damage.

use ::share::files::{File, Place};
use ::share::home::Home;
use reader::Tree;
use serde_json::json;
use trust::inode::{Content, FileKind};

use crate::args::Verify;
use crate::commands::damage_report;
use crate::config::Config;
use crate::failure::{Failure, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::places::path_of;
use crate::sharing::reading::Opening;
use crate::sharing::session::SharedVolume;
use crate::sharing::walk::Walk;
use crate::units;

/// Content held in memory at a time, bytes.
const WINDOW_BYTES: u64 = 4 << 20;
/// Damages that are reported one by one.
const MAX_DAMAGES: usize = 1000;

/// What was read.
#[derive(Debug, Default)]
struct Tally {
    files: u64,
    directories: u64,
    other: u64,
    bytes: u64,
    damage_count: u64,
    damages: Vec<(Vec<u8>, Failure)>,
}

/// Verifies.
pub fn run(args: &Verify, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let volume = home.volume().to_string();
    let opening = Opening::of(config, home, &args.reading).at(args.past.entry()?);
    let bar = Progress::start(output, "verifying");
    let verified = opening.read(output, async |shared, _| {
        let mut tally = Tally::default();
        let top = shared.place(&args.path)?;
        let file = shared.find(&top, false).await?;
        let is_directory = file.inode.kind() == FileKind::Directory;
        let contents = shared.contents();
        one((shared, &contents), &mut tally, &top, &file, &bar).await;
        if !is_directory {
            return Ok(tally);
        }
        let (mut walk, contents) = Walk::with_contents(shared, top, &file.inode);
        while let Some((place, file)) = walk.next().await? {
            one((shared, &contents), &mut tally, &place, &file, &bar).await;
        }
        Ok(tally)
    });
    bar.end();
    tell(verified?, &volume, output)
}

/// Reads one file.
async fn one(
    from: (&SharedVolume, &Tree),
    tally: &mut Tally,
    place: &Place,
    file: &File,
    bar: &Progress,
) {
    match &file.inode.content {
        Content::Regular(_) => tally.files += 1,
        Content::Directory { .. } => tally.directories += 1,
        _ => tally.other += 1,
    }
    let read = content(from, file, |at| {
        bar.at(tally.bytes.saturating_add(at), tally.files);
    });
    match read.await {
        Ok(bytes) => tally.bytes = tally.bytes.saturating_add(bytes),
        Err(why) => {
            tally.damage_count += 1;
            if tally.damages.len() < MAX_DAMAGES {
                tally.damages.push((path_of(place), Failure::from(why)));
            }
        }
    }
}

/// Reads attributes and content of a file. Returns the length of the content.
async fn content(
    (shared, tree): (&SharedVolume, &Tree),
    file: &File,
    told: impl Fn(u64),
) -> Result<u64, reader::ReadError> {
    tree.xattrs(&file.inode, shared.how()).await?;
    if !matches!(file.inode.content, Content::Regular(_)) {
        return Ok(0);
    }
    let len = file.inode.content.size();
    let mut at = 0;
    while at < len {
        let until = at.saturating_add(WINDOW_BYTES);
        // A hole has no blocks, and a member can make it as long as it likes.
        let runs = tree.data_runs(&file.inode, at, until, shared.how()).await?;
        for run in runs.data {
            let bytes = (run.end - run.start) as usize;
            tree.read(&file.inode, run.start, bytes, shared.how())
                .await?;
        }
        at = runs.until;
        told(at);
    }
    Ok(len)
}

fn tell(tally: Tally, volume: &str, output: &mut Output) -> Outcome<Done> {
    let record = fields(json!({
        "volume": volume,
        "files": tally.files,
        "directories": tally.directories,
        "other": tally.other,
        "bytes": tally.bytes,
        "damages": tally.damage_count,
    }));
    if let Some(mut failure) = damage_report::tell(tally.damages, tally.damage_count, output)? {
        failure.fields = record;
        return Err(failure);
    }
    if !output.json() {
        let files = units::count(tally.files, "file", "files");
        let directories = units::count(tally.directories, "directory", "directories");
        let size = units::size(tally.bytes);
        output.line(&format!("complete: {files}, {directories}, {size}"))?;
    }
    Ok(Done::ok(record))
}
