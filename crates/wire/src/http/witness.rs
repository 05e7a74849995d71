//! Asks witnesses for cosignatures (C2SP `tlog-witness`, `add-checkpoint`): all at once, each within the deadline.
//!
//! A witness may be hostile: its answer is bounded in bytes and time, and no redirect is followed. What it answers is
//! verified by the caller, who counts good cosignatures and nothing else.

use std::pin::pin;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::stream::{FuturesUnordered, StreamExt};
use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use tokio::time::{sleep, timeout};
use trust::checkpoint::MAX_CHECKPOINT_BYTES;
use trust::witness::{Note, Submission};

use super::proxy::Proxies;
use super::web::describe;
use super::{HttpAddress, Tls, tls};

/// The path of the call below the address of a witness.
const CALL: &str = "add-checkpoint";
/// The type of an answer that states a size.
const SIZE_TYPE: &str = "text/x.tlog.size";
/// Longest answer, bytes.
const MAX_ANSWER_BYTES: usize = MAX_CHECKPOINT_BYTES;
/// Most characters of a refusal that are shown to the user.
const MAX_TEXT_CHARS: usize = 200;
/// Longest pause that a busy witness may ask for, once.
const MAX_PAUSE_SECONDS: u64 = 5;
/// Requests to one witness: another client may ask it for the same log meanwhile, so its size may change again.
const MAX_REQUESTS: usize = 4;

/// Witnesses, by their addresses.
#[derive(Debug)]
pub struct Witnesses {
    client: Client,
    proxies: Proxies,
    places: Vec<HttpAddress>,
    deadline: Duration,
    grace: Duration,
}

/// What witnesses are asked.
pub struct Question<'a> {
    /// The checkpoint, signed by the log's key.
    pub note: &'a Note,
    /// The size of the log that they have probably cosigned last.
    pub likely: u64,
    /// The proof that the log continues its first leaves, of which there are so many.
    pub proof: &'a (dyn Fn(u64) -> Option<Vec<[u8; 32]>> + Sync),
}

/// Why a witness gave no cosignature.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoCosignature {
    /// It does not answer as a witness does.
    #[error("{0}")]
    Unavailable(String),
    /// It refuses, in its own words.
    #[error("it refuses (HTTP status {status}): {text}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// The first line of its answer.
        text: String,
    },
    /// The witness follows other volumes, or a later log of this one. Its text says which of the two.
    #[error("it does not follow this log (HTTP status 404): {text}")]
    UnknownLog {
        /// The first line of its answer.
        text: String,
    },
    /// It claims to have cosigned a longer log. Nothing proves this claim, nor those below.
    #[error("it says that it has cosigned a log of {size} entries already, and this one has {own}")]
    Longer {
        /// What it has cosigned.
        size: u64,
        /// What it was shown.
        own: u64,
    },
    /// It claims to have cosigned another log.
    #[error("it says that it has cosigned another log of {size} entries")]
    Other {
        /// The size of both.
        size: u64,
    },
    /// This machine cannot prove that the log continues what the witness has cosigned.
    #[error(
        "it says that it has cosigned the log of {size} entries, and the repository lacks the proof that this one continues it"
    )]
    NoProof {
        /// What it has cosigned.
        size: u64,
    },
}

impl Witnesses {
    /// Witnesses that are to answer within `deadline`. Once enough have answered, the others have `grace`.
    ///
    /// # Errors
    /// A message that says what is wrong with the file of authorities.
    pub fn new(
        places: Vec<HttpAddress>,
        tls: &Tls,
        deadline: Duration,
        grace: Duration,
    ) -> Result<Witnesses, String> {
        let proxies = Proxies::of_environment();
        let client = proxies
            .give(Client::builder())
            .tls_backend_preconfigured(tls::client(tls)?)
            .redirect(Policy::none())
            .referer(false)
            .user_agent(concat!("bulla/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(deadline)
            .build()
            .map_err(|e| describe(&e))?;
        Ok(Witnesses {
            client,
            proxies,
            places,
            deadline,
            grace,
        })
    }

    /// The addresses.
    pub fn places(&self) -> &[HttpAddress] {
        &self.places
    }

    /// Asks all witnesses side by side. `is_enough` is told the answers so far. Gives one answer for each address, in their
    /// order.
    pub async fn ask(
        &self,
        question: &Question<'_>,
        is_enough: impl Fn(&[Result<Bytes, NoCosignature>]) -> bool,
    ) -> Vec<Result<Bytes, NoCosignature>> {
        let silent = || NoCosignature::Unavailable("it does not answer".to_owned());
        let mut answers: Vec<Result<Bytes, NoCosignature>> =
            self.places.iter().map(|_| Err(silent())).collect();
        let ask = |(at, place)| async move {
            let asked = timeout(self.deadline, self.ask_one(place, question)).await;
            (at, asked.unwrap_or_else(|_| Err(silent())))
        };
        let mut asked: FuturesUnordered<_> = self.places.iter().enumerate().map(ask).collect();
        while let Some((at, answer)) = asked.next().await {
            put(&mut answers, at, answer);
            if is_enough(&answers) {
                break;
            }
        }
        let mut grace = pin!(sleep(self.grace));
        loop {
            tokio::select! {
                biased;
                next = asked.next() => match next {
                    Some((at, answer)) => put(&mut answers, at, answer),
                    None => return answers,
                },
                () = grace.as_mut() => return answers,
            }
        }
    }

    /// Asks one witness, again if it has cosigned another size than was thought.
    async fn ask_one(
        &self,
        place: &HttpAddress,
        question: &Question<'_>,
    ) -> Result<Bytes, NoCosignature> {
        let down = NoCosignature::Unavailable;
        let url = place.join(CALL);
        let url = url.ok_or_else(|| down("its address is not one".to_owned()))?;
        self.proxies.check(&url).map_err(down)?;
        let failed = |e| down(self.proxies.blame(&url, describe(&e)));
        let own = question.note.log.size;
        let mut has_waited = false;
        let mut old = question.likely.min(own);
        // Without a proof from there the witness is asked which size it has.
        if (question.proof)(old).is_none() {
            old = 0;
        }
        for _ in 0..MAX_REQUESTS {
            let proof = (question.proof)(old).ok_or(NoCosignature::NoProof { size: old })?;
            let submission = Submission {
                old,
                proof,
                note: question.note.clone(),
            };
            let request = self.client.post(url.clone()).body(submission.encode());
            let response = request.send().await.map_err(failed)?;
            let status = response.status();
            let is_size = says_size(&response);
            let pause = pause(&response);
            let body = body(response).await?;
            if status == StatusCode::OK {
                return Ok(body);
            }
            if let Some(pause) = pause.filter(|_| !has_waited) {
                has_waited = true;
                sleep(pause).await;
                continue;
            }
            match size(&body).filter(|_| status == StatusCode::CONFLICT && is_size) {
                Some(size) if size > own => return Err(NoCosignature::Longer { size, own }),
                Some(size) if size == old => return Err(NoCosignature::Other { size }),
                Some(size) => old = size,
                None if status == StatusCode::CONFLICT && old == own => {
                    return Err(NoCosignature::Other { size: own });
                }
                // The proof fits this log, so an honest witness has cosigned another one.
                None if status == StatusCode::UNPROCESSABLE_ENTITY && old > 0 => {
                    return Err(NoCosignature::Other { size: old });
                }
                None => return Err(refusal(status, &body)),
            }
        }
        Err(down("its size changes with each request".to_owned()))
    }
}

fn put(
    answers: &mut [Result<Bytes, NoCosignature>],
    at: usize,
    answer: Result<Bytes, NoCosignature>,
) {
    if let Some(place) = answers.get_mut(at) {
        *place = answer;
    }
}

/// Whether the answer is the size that the witness has cosigned.
fn says_size(response: &Response) -> bool {
    let kind = response.headers().get(CONTENT_TYPE);
    let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().map(str::trim) == Some(SIZE_TYPE)
}

/// How long a busy witness wants its clients to wait, if that is not too long.
fn pause(response: &Response) -> Option<Duration> {
    let after = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    let seconds = after.parse().ok().filter(|s| *s <= MAX_PAUSE_SECONDS)?;
    let is_busy = response.status() == StatusCode::SERVICE_UNAVAILABLE;
    is_busy.then_some(Duration::from_secs(seconds))
}

/// A size in decimal, with a newline.
fn size(body: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(body).ok()?;
    let text = text.strip_suffix('\n').unwrap_or(text);
    let size: u64 = text.parse().ok()?;
    (size.to_string() == text).then_some(size)
}

fn refusal(status: StatusCode, body: &[u8]) -> NoCosignature {
    let text = String::from_utf8_lossy(body);
    let line = text.lines().next().unwrap_or_default();
    let plain = line.chars().filter(|c| !c.is_control());
    let text = plain.take(MAX_TEXT_CHARS).collect();
    match status {
        StatusCode::NOT_FOUND => NoCosignature::UnknownLog { text },
        _ => NoCosignature::Refused {
            status: status.as_u16(),
            text,
        },
    }
}

/// The body, up to its bound.
async fn body(mut response: Response) -> Result<Bytes, NoCosignature> {
    let mut all = BytesMut::new();
    let down = |e: reqwest::Error| NoCosignature::Unavailable(describe(&e));
    while let Some(chunk) = response.chunk().await.map_err(down)? {
        if all.len().saturating_add(chunk.len()) > MAX_ANSWER_BYTES {
            let long = "its answer is longer than any witness sends";
            return Err(NoCosignature::Unavailable(long.to_owned()));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}

#[cfg(test)]
mod tests;
