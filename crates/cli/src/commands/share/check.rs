//! `bulla share check EVIDENCE`: judges a file of evidence. It needs the file alone: no volume, no server, no key.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::json;
use trust::Reject;
use trust::statement::VolumeId;
use trust_shared::evidence::{self, Convicted, MAX_EVIDENCE_BYTES, Verdict};

use crate::args::ShareCheck;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};

/// Judges the file and says whom it convicts.
pub fn run(args: &ShareCheck, output: &mut Output) -> Outcome<Done> {
    let bytes = read(&args.evidence)?;
    judge(&args.evidence, &bytes, args.volume, output)
}

/// Judges bytes that were read from `path`. They must be about `volume`, if it is given.
pub fn judge(
    path: &Path,
    bytes: &[u8],
    volume: Option<VolumeId>,
    output: &mut Output,
) -> Outcome<Done> {
    let shown = path.display();
    let verdict = evidence::verify(bytes).map_err(|why| {
        let kind = match why {
            Reject::Unsupported { .. } => Kind::Newer,
            _ => Kind::NoEvidence,
        };
        Failure::of(kind, format!("{shown} convicts nobody"), &why)
    })?;
    if volume.is_some_and(|volume| volume != verdict.volume) {
        let error = format!("{shown} is about the volume {}", verdict.volume);
        return Err(Failure::new(Kind::OtherEvidence, error));
    }
    tell(&verdict, output)
}

/// Reads at most what evidence may be long, and a byte more.
fn read(path: &Path) -> Outcome<Vec<u8>> {
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {}", path.display()), &e);
    let file = File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let limit = MAX_EVIDENCE_BYTES as u64 + 1;
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

fn tell(verdict: &Verdict, output: &mut Output) -> Outcome<Done> {
    let (convicted, key) = match &verdict.convicted {
        Convicted::Orderer(key) => ("orderer", key.to_string()),
        Convicted::Device(key) => ("device", key.to_string()),
    };
    let volume = verdict.volume.to_string();
    if !output.json() {
        output.line(&format!("volume     {volume}"))?;
        output.line(&format!("epoch      {}", verdict.epoch))?;
        output.line(&format!("convicted  {convicted} {key}"))?;
        output.line(&format!("offence    it {}", verdict.what))?;
    }
    Ok(Done::ok(fields(json!({
        "volume": volume,
        "epoch": verdict.epoch,
        "convicted": convicted,
        "key": key,
        "offence": verdict.what,
    }))))
}
