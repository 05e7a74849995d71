//! `bulla witness run`: answers `add-checkpoint` until it is asked to end. Its log says what it did.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use keys::elsewhere::Reach;
use serde_json::json;
use serve::net::{Listen, Peer};
use serve::witness::{Answer, Server};
use state::witness::CosignError;
use trust::witness::{Refusal, Submission};

use super::{Cosigner, key};
use crate::activation::Passed;
use crate::address::listen_address;
use crate::args::{Global, WitnessRun};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::{notify, session};

/// Longest wait for a key that lies elsewhere: all volumes wait meanwhile, and publishers no longer than 20 s.
const SIGNING: Duration = Duration::from_secs(10);
/// How long work that has begun may take after the signal to end.
const GRACE: Duration = Duration::from_secs(5);
const DEFAULT_ADDRESS: &str = "127.0.0.1:28554";
const TEXT: &str = "text/plain; charset=utf-8";
const SIZE: &str = "text/x.tlog.size";

/// Serves until SIGTERM or SIGINT.
pub fn run(
    args: &WitnessRun,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let listen = place(args)?;
    let reach = Reach {
        longest: Some(SIGNING),
        ..key::reach()
    };
    let stop = Arc::clone(&reach.stop);
    let cosigner = Arc::new(Cosigner::open(&args.witness, global, config, &reach)?);
    let volumes = cosigner.volumes.len();
    let decider = Arc::clone(&cosigner);
    let decide = move |body: &[u8], peer| decide(&decider, body, peer);
    let server = Server::bind(listen, Arc::new(decide));
    let server = server.map_err(|error| Failure::from_error(Kind::Listen, &error))?;
    let runtime = session::runtime()?;
    let served = runtime.block_on(async {
        let mut ending = session::Ending::listen()?;
        announce(&cosigner, &server, output)?;
        notify::ready(&format!("volumes followed: {volumes}"));
        let until = async {
            ending.comes().await;
            notify::stopping();
            stop.store(true, Ordering::Relaxed);
        };
        let served = server.run(until).await;
        served.map_err(|error| Failure::from_error(Kind::Listen, &error))
    });
    // Threads that wait for a key or a disk would hold the program otherwise.
    runtime.shutdown_timeout(GRACE);
    served?;
    output.note("stopped");
    Ok(Done::ok(fields(json!({}))))
}

/// Where to listen: the socket of a service manager, or the address.
fn place(args: &WitnessRun) -> Outcome<Listen> {
    let passed = Passed::take()?;
    let others = passed.bulla.len() + passed.http.len() + passed.shared.len();
    let mut sockets = passed.witness.into_iter();
    let (socket, further) = (sockets.next(), sockets.next());
    let wrong = |error: &str| {
        let hint =
            "a witness takes one socket: FileDescriptorName=witness, and no --listen beside it";
        Err(Failure::new(Kind::Usage, error).with_hint(hint))
    };
    if others + passed.metrics.len() > 0 || further.is_some() {
        return wrong("the service manager passed other sockets than one `witness`");
    }
    match (socket, &args.listen) {
        (Some(_), Some(_)) => {
            wrong("--listen is given, and the service manager passed a socket for it")
        }
        (Some(socket), None) => Ok(Listen::On(socket)),
        (None, text) => {
            let text = text.as_deref().unwrap_or(DEFAULT_ADDRESS);
            Ok(Listen::At(listen_address(text)?))
        }
    }
}

fn announce(cosigner: &Cosigner, server: &Server, output: &mut Output) -> Outcome<()> {
    let (address, key) = (server.local_addr(), cosigner.key.public());
    let url = format!("http://{address}");
    if output.json() {
        output.record(
            "running",
            fields(json!({
                "name": cosigner.name,
                "key": key.to_string(),
                "address": address.to_string(),
                "url": url,
                "volumes": cosigner.volumes.len(),
            })),
        )?;
    } else {
        output.line(&url)?;
        output.note(&format!(
            "this is the witness {} with the key {key}",
            cosigner.name
        ));
    }
    output.flush()
}

/// The answer to the body of a request, by the order of C2SP `tlog-witness`.
fn decide(cosigner: &Cosigner, body: &[u8], peer: Peer) -> Answer {
    let submission = match Submission::decode(body) {
        Ok(submission) => submission,
        Err(why) => {
            tracing::info!(%peer, %why, "refused: not a request of a log");
            return text(400, &why.to_string());
        }
    };
    let (volume, log) = (submission.note.volume, submission.note.log);
    let (epoch, size) = (log.epoch, log.size);
    match cosigner.cosign(&submission) {
        Ok(cosigned) => {
            let before = cosigned.before.filter(|before| before.epoch == epoch);
            let before = before.map_or(0, |before| before.size);
            tracing::info!(%peer, %volume, epoch, size, before, "cosigned");
            Answer {
                status: 200,
                kind: TEXT,
                body: cosigned.line,
            }
        }
        Err(CosignError::Refused { why, not_kept }) => {
            match (&why, not_kept) {
                (_, Some(error)) => {
                    tracing::error!(%peer, %volume, epoch, size, %why, %error, "refused, not kept as evidence");
                }
                (Refusal::OtherRoot { .. } | Refusal::BadProof { .. }, None) => {
                    tracing::warn!(%peer, %volume, epoch, size, %why, "refused, kept as evidence");
                }
                _ => tracing::info!(%peer, %volume, epoch, size, %why, "refused"),
            }
            refusal(&why)
        }
        Err(error @ (CosignError::State(_) | CosignError::Key(_))) => {
            tracing::error!(%peer, %volume, epoch, size, %error, "not cosigned");
            text(500, "the witness cannot keep or sign this now")
        }
    }
}

fn refusal(why: &Refusal) -> Answer {
    let said = why.to_string();
    match why {
        Refusal::Malformed(_) => text(400, &said),
        Refusal::NotSigned => text(403, &said),
        Refusal::UnknownVolume | Refusal::Ended { .. } => text(404, &said),
        Refusal::BadProof { .. } => text(422, &said),
        Refusal::OtherSize { size } | Refusal::OtherRoot { size } => Answer {
            status: 409,
            kind: SIZE,
            body: format!("{size}\n"),
        },
    }
}

fn text(status: u16, said: &str) -> Answer {
    Answer {
        status,
        kind: TEXT,
        body: format!("{said}\n"),
    }
}
