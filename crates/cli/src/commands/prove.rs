//! `bulla prove SOURCE PATH --out FILE`: writes a file that proves to anybody with the volume id that the path is in the
//! volume, or that it is not. `bulla check FILE` checks it.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use reader::Reads;
use serde_json::json;
use trust::reach::Lookup;

use crate::args::Prove;
use crate::commands::check::{describe, print};
use crate::config::Config;
use crate::entry;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::session::Session;
use crate::{text, units};

/// Makes the proof.
pub fn run(args: &Prove, config: &Config, output: &mut Output) -> Outcome<Done> {
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    if args.out.exists() {
        let error = format!("{} exists already", args.out.display());
        return Err(Failure::new(Kind::Exists, error));
    }
    let reads = Some(Reads::Directory);
    let volume = session.open_toward(config, &args.reading, &path, reads, output)?;
    if volume.snapshot().end().is_none() {
        let error = "a pinned version proves nothing to others, because it may have expired";
        let hint = "leave `--freshness pinned` out: the newest version is proved";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    if volume.is_stale() {
        let ended = units::time(volume.snapshot().fresh_until());
        let error = format!("the version expired at {ended}, so nobody would accept a proof of it");
        return Err(Failure::new(Kind::Expired, error));
    }
    let root = volume.snapshot().record().root;
    Lookup::new(root, &path).map_err(|why| {
        let shown = text::printable(&path);
        Failure::of(Kind::Usage, format!("{shown} is not a path"), &why)
            .with_hint("a path has at most 256 names, and none of them is `..`")
    })?;
    let (proof, shown) = session.run(async { Ok(volume.prove(&path).await?) })?;
    let malformed = |why| Failure::of(Kind::Malformed, "the proof is too long", &why);
    let bytes = proof.encode().map_err(malformed)?;
    write(&args.out, &bytes)?;
    let mut record = describe(volume.id(), &path, &shown);
    record.extend(fields(json!({
        "file": args.out.display().to_string(),
        "proof_bytes": bytes.len(),
    })));
    if !output.json() {
        print(&path, &record, output)?;
        let size = units::size(bytes.len() as u64);
        output.line(&format!("proof    {} ({size})", args.out.display()))?;
        output.note(&format!(
            "anybody checks it with `bulla check FILE --volume {}`, without a network",
            volume.id()
        ));
    }
    Ok(Done::ok(record))
}

/// Writes a new file.
fn write(path: &Path, bytes: &[u8]) -> Outcome<()> {
    let failed = |e: std::io::Error| Failure::io(format!("cannot write {}", path.display()), &e);
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = file.map_err(failed)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_all());
    written.map_err(|e| {
        // A part of a proof is of no use.
        let _ = std::fs::remove_file(path);
        failed(e)
    })
}
