//! `bulla pull SOURCE REPO`: creates or updates a replica of a volume.

use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reader::Tally;
use replica::note::{MAX_PATHS, Scope};
use replica::pull::{self, PullOptions, Pulled};
use serde_json::json;
use store::disk::{Disk, Local};

use super::prune;
use crate::args::Pull;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::session::{self, Session};
use crate::{lock_wait, units};

/// Pulls.
pub fn run(args: &Pull, config: &Config, output: &mut Output) -> Outcome<Done> {
    let session = Session::start(config, &args.reading)?;
    let (volume, replicas) = session.places(config, &args.reading)?;
    let paths: Vec<Vec<u8>> = args.path.iter().map(|p| p.as_bytes().to_vec()).collect();
    if paths.len() > MAX_PATHS {
        let error = format!("a replica can be limited to at most {MAX_PATHS} paths");
        return Err(Failure::new(Kind::Usage, error));
    }
    let options = PullOptions {
        state_directory: config.path("state-dir").unwrap_or_default(),
        deadline: session.deadline(),
        policy_pin: session.policy_pin(),
        bytes_per_second: args.bwlimit,
        scope: Scope::new(paths),
        keep: args.keep,
        paranoid: args.paranoid,
        ..PullOptions::default()
    };
    let stop = options.stop.clone();
    let is_stopped = Arc::new(AtomicBool::new(false));
    let told = is_stopped.clone();
    // Ctrl-C ends the pull; the blocks that arrived are kept for the next one.
    session::on_interrupt(move || {
        told.store(true, Ordering::Relaxed);
        stop.notify_one();
    })?;
    let disk: Arc<dyn Disk> = Arc::new(Local::new(&args.repo));
    let tally = Arc::new(Tally::default());
    let bar = Progress::start(output, "pulling").counting("block", "blocks");
    let is_stopped = || is_stopped.load(Ordering::Relaxed);
    let pulled = lock_wait::until_free(&args.lock_wait, &is_stopped, output, || {
        session.serve(async {
            let work = pull::pull(volume, &replicas, disk.clone(), &options, tally.clone());
            Ok(bar.during(&tally, work).await?)
        })
    });
    bar.end();
    tell(&pulled?, args, &volume.to_string(), &options, output)
}

fn tell(
    pulled: &Pulled,
    args: &Pull,
    volume: &str,
    options: &PullOptions,
    output: &mut Output,
) -> Outcome<Done> {
    let unchanged = pulled.previous == Some(pulled.version) && pulled.blocks == 0;
    let mut record = fields(json!({
        "volume": volume,
        "version": pulled.version,
        "previous": pulled.previous,
        "valid_until": units::time(pulled.valid_until),
        "unchanged": unchanged,
        "blocks": pulled.blocks,
        "block_bytes": pulled.block_bytes,
        "received_bytes": pulled.received_bytes,
        "written_bytes": pulled.written_bytes,
        "healed": pulled.healed,
        "waves": pulled.waves,
        "log_whole": pulled.log_whole,
    }));
    if let Some(pruned) = &pulled.pruned {
        record.extend(prune::told(pruned));
    }
    if !options.scope.is_everything() {
        record.insert("paths".to_owned(), options.scope.to_string().into());
    }
    if !pulled.log_whole {
        output.warn(
            "the log of the volume is incomplete in the replica; the volume itself is complete",
        );
    }
    if !output.json() {
        let from = match pulled.previous {
            Some(previous) if previous != pulled.version => format!(" (was {previous})"),
            Some(_) if unchanged => " (nothing new)".to_owned(),
            _ => String::new(),
        };
        output.line(&format!("version  {}{from}", pulled.version))?;
        output.line(&format!("valid to {}", units::time(pulled.valid_until)))?;
        output.line(&format!(
            "new      {}, {}; {} received",
            units::count(pulled.blocks, "block", "blocks"),
            units::size(pulled.block_bytes),
            units::size(pulled.received_bytes)
        ))?;
        if let Some(pruned) = &pulled.pruned {
            let freed = units::size(pruned.collected.freed_bytes);
            output.line(&format!("freed    {freed}"))?;
        }
        if pulled.healed > 0 {
            let healed = units::count(pulled.healed, "block", "blocks");
            output.line(&format!("healed   {healed}"))?;
        }
        if !options.scope.is_everything() {
            let (repo, scope) = (args.repo.display(), &options.scope);
            output.note(&format!(
                "{repo} holds only {scope}; readers need another location for the rest"
            ));
        }
    }
    Ok(Done::ok(record))
}
