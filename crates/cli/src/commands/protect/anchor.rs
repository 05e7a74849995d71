//! `bulla protect anchor set`: the newest state of a log goes into an anchor.

use std::sync::Arc;

use protect::anchor::{AnchorError, FileAnchor};
use serde_json::json;
use wal::{Key, OpenOptions};

use super::{devices, unlock};
use crate::args::{Global, ProtectAnchorSet};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};

/// Sets the anchor, forward or backward.
pub fn set(args: &ProtectAnchorSet, global: &Global, output: &mut Output) -> Outcome<Done> {
    let device = devices::exclusive(&args.log, "log")?;
    let (volume, slots) = devices::slots_on(&device, &args.log)?;
    let before = match FileAnchor::show(&args.anchor) {
        Ok((other, _)) if other != volume => {
            let path = args.anchor.clone();
            return Err(AnchorError::OtherVolume {
                path,
                volume: other,
            }
            .into());
        }
        Ok((_, mark)) => Some(mark),
        Err(AnchorError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {
            None
        }
        // Whatever it is: a file that is no anchor is not replaced.
        Err(AnchorError::Malformed { path, .. }) => return Err(AnchorError::Exists { path }.into()),
        Err(error) => return Err(error.into()),
    };
    let (_, key) = unlock::open(&args.log, &slots, &args.unlock, global.no_input)?;
    let options = OpenOptions {
        volume: Some(volume),
        ..OpenOptions::default()
    };
    let opened = wal::open(Arc::new(device), &Key::new(*key), None, options);
    let mark = opened
        .map_err(|error| devices::of_log(error, &args.log))?
        .end();
    let goes_back = before.is_some_and(|before| !protect::anchor::follows(&before, &mark));
    if goes_back && !global.yes {
        let what = format!(
            "the anchor {} holds a later state than the log",
            args.anchor.display()
        );
        let hint = "the log was put back, or its end was cut off. If you did that yourself and accept that what was \
                    written since is lost, give --yes";
        return Err(Failure::new(Kind::LogRollback, what).with_hint(hint));
    }
    drop(FileAnchor::set(&args.anchor, volume, mark)?);
    output.note(&format!(
        "{} holds the newest state of the log; name it with --anchor at each `attach`",
        args.anchor.display()
    ));
    Ok(Done::ok(fields(json!({
        "volume": volume.to_string(),
        "anchor": args.anchor.display().to_string(),
        "epoch": mark.epoch, "lsn": mark.lsn.0, "went_back": goes_back}))))
}
