//! Asks witnesses for the cosignatures of a new version or policy: what `--witness` and its companions mean.

use std::path::Path;
use std::time::Duration;

use publish::cosigning::{self, Answer, Cosigning};
use serde_json::{Map, Value};
use tokio::runtime::Runtime;
use wire::http::witness::{NoCosignature, Question, Witnesses};

use crate::args::{Asking, ByFile};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::{session, text};

/// Longest wait for one witness, whatever the setting `deadline` says: other commands that sign wait meanwhile.
const LONGEST: Duration = Duration::from_secs(20);
/// How long the others may take once enough have cosigned.
const GRACE: Duration = Duration::from_secs(1);

/// How cosignatures come, as the flags say.
pub fn cosigning(asking: &Asking, by_file: Option<&ByFile>, config: &Config) -> Outcome<Cosigning> {
    let mut cosigning = Cosigning::default();
    if !asking.witness.is_empty() {
        let deadline = config.duration("deadline")?.min(LONGEST);
        let places = asking.witness.clone();
        let witnesses = Witnesses::new(places, &config.tls(), deadline, GRACE);
        let witnesses = witnesses.map_err(|why| Failure::new(Kind::Config, why))?;
        let runtime = session::runtime()?;
        cosigning.witnesses = Some(Box::new(Reached { runtime, witnesses }));
    }
    if let Some(by_file) = by_file {
        cosigning.cosigned = by_file.cosigned.clone();
        cosigning.checkpoint_out = by_file.checkpoint_out.clone();
        cosigning.checkpoint_from = by_file.checkpoint_from;
    }
    Ok(cosigning)
}

/// Tells that the file for witnesses was written. `command` takes it back.
pub fn written(
    out: &Path,
    command: &str,
    fields: &mut Map<String, Value>,
    output: &mut Output,
) -> Outcome<()> {
    if !output.json() {
        output.line(&format!("file     {}", out.display()))?;
        output.note(&format!(
            "Nothing is shown to readers yet. Have the witnesses cosign this file (`bulla witness sign`), one after another or \
             each a copy; then run the same `{command}` with --cosigned FILE in the place of --checkpoint-out."
        ));
    }
    text::put_name(fields, "checkpoint", out.as_os_str().as_encoded_bytes());
    Ok(())
}

/// Witnesses over the network.
#[derive(Debug)]
struct Reached {
    runtime: Runtime,
    witnesses: Witnesses,
}

impl cosigning::Witnesses for Reached {
    fn ask(&self, question: &cosigning::Question<'_>) -> Vec<Answer> {
        let asked = Question {
            note: question.note,
            likely: question.likely,
            proof: question.proof,
        };
        let answers = self.witnesses.ask(&asked, |answers| {
            let lines = answers.iter().filter_map(|answer| answer.as_deref().ok());
            (question.is_enough)(&lines.collect::<Vec<&[u8]>>())
        });
        let answers = self.runtime.block_on(answers);
        let told = |(place, answer): (&wire::HttpAddress, Result<bytes::Bytes, NoCosignature>)| {
            let contradicts = matches!(answer, Err(NoCosignature::Other { .. }));
            Answer {
                place: place.to_string(),
                lines: answer.map(Vec::from).map_err(|why| why.to_string()),
                contradicts,
            }
        };
        self.witnesses
            .places()
            .iter()
            .zip(answers)
            .map(told)
            .collect()
    }
}
