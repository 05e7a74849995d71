//! How a device is admitted, over a link: the two sides of [`trust_shared::invitation`]. Relies on the mailbox of the
//! server, which sees the messages and learns nothing from them.
//!
//! ```text
//! inviter                      mailbox                       joiner
//!                                  ◀── request ── begin, policies, request
//! answer ── challenge ──▶                    ──▶ open: six words, which a person reads to the inviter
//!        ◀── opening ──            ◀── opening ──
//! Answered::device(words) → the key that an administrator admits
//! ```
//!
//! An inviter answers one request of an invitation. [`Answered`] has bytes, because the person with the words may come
//! after the inviter's program has ended.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use trust::Reject;
use trust::device::DeviceKey;
use trust::encode::{Decoder, Encoder};
use trust::key::{PublicKey, SecretKey};
use trust::statement::signatures::Signatures;
use trust::statement::{Job, Signed};
use trust::words::Words;
use trust_shared::genesis::Policies;
use trust_shared::invitation::{BadLine, Challenge, Invitation, Joiner, Opening, Pending, Request};
use wire::refusal::ErrorCode;
use wire::shared::request::{Slot, Step};
use wire::shared::{
    Link, LinkError, LinkOptions, NO_MAILBOX, NOT_MEMBER, OCCUPIED, REPLACED, ServerAddress,
};

/// Most policies that a joiner takes.
const MAX_POLICIES: usize = 1 << 12;
/// How often a joiner looks whether it is a member.
const LOOK: Duration = Duration::from_secs(1);
/// How long after its time the server's last answer may come.
const MARGIN: Duration = Duration::from_secs(1);
/// Shortest time between two questions for one letter.
const PAUSE: Duration = Duration::from_millis(200);
/// How long an inviter leaves the server to another program of its device.
const AGAIN: Duration = Duration::from_secs(2);
const WHAT: &str = "invitation that was answered";

/// Why an admission does not go on.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The server was not reached, or refused.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Nobody answered in time.
    #[error("no answer from {0} in time")]
    Late(&'static str),
    /// A message is not that of the other side.
    #[error("{0} did not come from who has the invitation: {1}")]
    Forged(&'static str, Reject),
    /// The policies are not those that the inviter knows.
    #[error("the server shows other policies than the inviter knows: {0}")]
    Policies(Reject),
    /// Another device has asked with the invitation before.
    #[error("another device has used this invitation")]
    Used,
    /// The invitation has no valid server address.
    #[error("the invitation names no server: {0}")]
    Server(String),
}

/// What an inviter keeps until a person says the words.
#[derive(Debug, Clone)]
pub struct Answered {
    invitation: Invitation,
    random: [u8; 32],
    request: Request,
    opening: Opening,
}

impl Answered {
    /// The bytes to keep. They hold the secret of the invitation.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for an invitation whose server cannot be written.
    pub fn encode(&self) -> Result<Vec<u8>, Reject> {
        let mut e = Encoder::new();
        e.bytes(self.invitation.to_line()?.as_bytes())
            .raw(&self.random)
            .bytes(&self.request.encode())
            .bytes(&self.opening.encode());
        Ok(e.finish())
    }

    /// Reads what [`Answered::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject`].
    pub fn decode(bytes: &[u8]) -> Result<Answered, Reject> {
        let mut d = Decoder::new(bytes, WHAT);
        let line = std::str::from_utf8(d.bytes(2048)?);
        let line = line.map_err(|_| d.bad("a line that is not text"))?;
        let invitation = Invitation::from_line(line).map_err(|why| match why {
            BadLine::Content(why) => why,
            BadLine::Text(_) => d.bad("a mistyped line"),
        })?;
        let answered = Answered {
            invitation,
            random: d.array()?,
            request: Request::decode(d.bytes(256)?)?,
            opening: Opening::decode(d.bytes(256)?)?,
        };
        d.finish()?;
        Ok(answered)
    }

    /// A name of the invitation that tells nothing about its secret.
    pub fn id(&self) -> [u8; 16] {
        self.invitation.id()
    }

    /// The device that shows these words; `None` if they are others.
    ///
    /// # Errors
    /// [`Reject::NotSigned`] for messages that do not fit together.
    pub fn device(&self, said: &Words) -> Result<Option<DeviceKey>, Reject> {
        let pending = self.request.challenge(&self.invitation, self.random)?;
        pending.device(&self.opening, said)
    }
}

fn slot(invitation: &Invitation, step: Step) -> Slot {
    Slot {
        invitation: invitation.id(),
        step,
    }
}

/// Does something over a connection, until the time is over: a server that takes the question and never answers must not
/// hold up who asks.
async fn in_time<T>(
    until: Instant,
    work: impl Future<Output = Result<T, LinkError>>,
) -> Result<T, LinkError> {
    match tokio::time::timeout_at(until + MARGIN, work).await {
        Ok(done) => done,
        Err(_) => Err(LinkError::Unavailable {
            place: "the server".into(),
            cause: "no answer in time".to_owned(),
        }),
    }
}

/// Waits for a letter.
async fn letter(
    link: &Link,
    slot: Slot,
    from: &'static str,
    until: Instant,
) -> Result<Bytes, AdmissionError> {
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AdmissionError::Late(from));
        }
        let began = Instant::now();
        match in_time(until, link.take(slot, left)).await {
            Ok(Some(letter)) => return Ok(letter),
            Ok(None) => {}
            // The inviter is on its way.
            Err(error) if error.code() == Some(NO_MAILBOX) => {}
            Err(error) => return Err(error.into()),
        }
        // A server that does not wait must not be asked without end.
        tokio::time::sleep_until(until.min(began + PAUSE)).await;
    }
}

/// An inviter's connection to the server. It waits for minutes, so the connection may end meanwhile: the server starts
/// again, or another program of the same device connects. Then there is a new one.
struct Inviting<C> {
    connect: C,
    link: Option<Link>,
    until: Instant,
}

impl<C: AsyncFn() -> Result<Link, LinkError>> Inviting<C> {
    /// Does something over the connection; again if the connection ends before it is done.
    async fn over<T>(
        &mut self,
        act: impl AsyncFn(&Link) -> Result<T, AdmissionError>,
    ) -> Result<T, AdmissionError> {
        loop {
            let done = match self.link.take() {
                Some(link) => {
                    let done = act(&link).await;
                    self.link = done.is_ok().then_some(link);
                    done.map(Some)
                }
                None => in_time(self.until, (self.connect)())
                    .await
                    .map_err(AdmissionError::from)
                    .map(|link| {
                        self.link = Some(link);
                        None
                    }),
            };
            match done {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(AdmissionError::Link(why)) if has_ended(&why) => self.pause(why).await?,
                Err(why) => return Err(why),
            }
        }
    }

    /// Waits before there is a new connection, if there is time.
    async fn pause(&self, why: LinkError) -> Result<(), AdmissionError> {
        let at = Instant::now() + AGAIN;
        if at >= self.until {
            return Err(why.into());
        }
        tokio::time::sleep_until(at).await;
        Ok(())
    }
}

/// Whether another connection may do better.
fn has_ended(why: &LinkError) -> bool {
    match why {
        LinkError::Unavailable { .. } => true,
        why => matches!(why.code(), Some(REPLACED | ErrorCode::STOPPING)),
    }
}

/// Answers the first request for an invitation: challenges it, and waits until it is opened. `connect` makes a connection
/// of the inviter's device; when it ends, another one. `random` is new random bytes.
///
/// # Errors
/// [`AdmissionError`].
pub async fn answer(
    connect: impl AsyncFn() -> Result<Link, LinkError>,
    invitation: &Invitation,
    random: [u8; 32],
    until: Instant,
) -> Result<Answered, AdmissionError> {
    let from = "the invited device";
    let forged = |why| AdmissionError::Forged("the request", why);
    let link = Some(in_time(until, connect()).await?);
    let mut inviting = Inviting {
        connect,
        link,
        until,
    };
    let request = slot(invitation, Step::Request);
    let taken = inviting.over(async |link| letter(link, request, from, until).await);
    let request = Request::decode(&taken.await?).map_err(forged)?;
    let pending: Pending = request.challenge(invitation, random).map_err(forged)?;
    let challenge = Bytes::from(pending.challenge().encode());
    let place = slot(invitation, Step::Challenge);
    let posted = inviting.over(async |link| {
        match in_time(until, link.post(place, challenge.clone())).await {
            // It came, and the connection ended before the server said so. If it is somebody else's, the opening will not fit.
            Err(error) if error.code() == Some(OCCUPIED) => Ok(()),
            posted => Ok(posted?),
        }
    });
    posted.await?;
    let opening = slot(invitation, Step::Opening);
    let taken = inviting.over(async |link| letter(link, opening, from, until).await);
    let forged = |why| AdmissionError::Forged("the answer to the challenge", why);
    let opening = Opening::decode(&taken.await?).map_err(forged)?;
    pending.fits(&opening).map_err(forged)?;
    Ok(Answered {
        invitation: invitation.clone(),
        random,
        request,
        opening,
    })
}

/// A device on its way into a volume.
pub struct Joining {
    link: Link,
    to: ServerAddress,
    options: LinkOptions,
    joiner: Joiner,
    invitation: Invitation,
    orderer: PublicKey,
    policies: Vec<Signed>,
    name: String,
}

impl Joining {
    /// Connects to the server that the invitation names, and takes the policies of the volume. They must have the one
    /// that the inviter knows, and name the key that the server has. `random` is new random bytes for this request. All
    /// of it has time until `until`.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub async fn begin(
        invitation: Invitation,
        device: &PublicKey,
        random: [u8; 32],
        options: LinkOptions,
        until: Instant,
    ) -> Result<Joining, AdmissionError> {
        let to: ServerAddress = invitation
            .server
            .parse()
            .map_err(|e| AdmissionError::Server(format!("{e}")))?;
        let volume = invitation.volume;
        let connected = in_time(until, Link::connect_as_guest(&to, volume, &options));
        let (link, key) = connected.await?;
        let fetch = async |from| in_time(until, link.policies(from)).await;
        let (policies, verified) = policies(&invitation, fetch).await?;
        let orderer = verified.newest_epoch().orderer;
        if orderer != key {
            return Err(LinkError::OtherServer {
                place: link.place().into(),
            }
            .into());
        }
        let device = DeviceKey::from(device);
        Ok(Joining {
            joiner: Joiner::new(invitation.clone(), device, random),
            link,
            to,
            options,
            invitation,
            orderer,
            policies,
            name: verified.chain().genesis().name.clone(),
        })
    }

    /// The name that the volume's founder gave it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The policies of the volume, from the genesis on. Verified.
    pub fn policies(&self) -> &[Signed] {
        &self.policies
    }

    /// Asks for admission, and opens the inviter's challenge. A person reads the words to the inviter.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub async fn ask(&self, until: Instant) -> Result<Words, AdmissionError> {
        let request = self.joiner.request().encode();
        let asked = self.post(Step::Request, request, until).await;
        asked.map_err(|error| match error {
            AdmissionError::Link(error) if error.code() == Some(OCCUPIED) => AdmissionError::Used,
            error => error,
        })?;
        let challenge = slot(&self.invitation, Step::Challenge);
        let bytes = letter(&self.link, challenge, "the inviter", until).await?;
        let forged = |why| AdmissionError::Forged("the challenge", why);
        let challenge = Challenge::decode(&bytes).map_err(forged)?;
        let (opening, words) = self.joiner.open(&challenge).map_err(forged)?;
        self.post(Step::Opening, opening.encode(), until).await?;
        Ok(words)
    }

    /// Puts a letter into the mailbox, which is there when the inviter waits for it.
    async fn post(
        &self,
        step: Step,
        letter: Vec<u8>,
        until: Instant,
    ) -> Result<(), AdmissionError> {
        let (slot, letter) = (slot(&self.invitation, step), Bytes::from(letter));
        loop {
            match in_time(until, self.link.post(slot, letter.clone())).await {
                Ok(()) => return Ok(()),
                Err(error) if error.code() == Some(NO_MAILBOX) => {}
                Err(error) => return Err(error.into()),
            }
            if Instant::now() >= until {
                return Err(AdmissionError::Late("the inviter"));
            }
            tokio::time::sleep_until(until.min(Instant::now() + PAUSE)).await;
        }
    }

    /// Waits until the server takes the device for a member. Whether it is one, its log says.
    ///
    /// # Errors
    /// [`AdmissionError`].
    pub async fn admitted(&self, key: &SecretKey, until: Instant) -> Result<(), AdmissionError> {
        loop {
            let volume = self.invitation.volume;
            let (to, options) = (&self.to, &self.options);
            let connect = Link::connect(to, volume, &self.orderer, Some(key), options);
            match in_time(until, connect).await {
                Ok(_) => return Ok(()),
                Err(error) if error.code() == Some(NOT_MEMBER) => {}
                // The server may be starting again.
                Err(LinkError::Unavailable { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            if Instant::now() >= until {
                return Err(AdmissionError::Late("an administrator"));
            }
            tokio::time::sleep_until(until.min(Instant::now() + LOOK)).await;
        }
    }
}

/// The policies that the server has, if they are those of the invitation. Each is verified before more are asked for: a
/// server without the owners' keys keeps a joiner neither waiting nor holding what it sends.
async fn policies(
    invitation: &Invitation,
    fetch: impl AsyncFn(u64) -> Result<Vec<Bytes>, LinkError>,
) -> Result<(Vec<Signed>, Policies), AdmissionError> {
    let mut signatures = Signatures::default();
    let (mut policies, mut verified) = (Vec::new(), None);
    loop {
        let more = fetch(policies.len() as u64).await?;
        if more.is_empty() {
            break;
        }
        for bytes in more {
            let added = add(invitation, verified.take(), &bytes, &mut signatures);
            let (signed, chain) = added.map_err(AdmissionError::Policies)?;
            verified = Some(chain);
            policies.push(signed);
        }
        if policies.len() > MAX_POLICIES {
            return Err(AdmissionError::Policies(bad("too many")));
        }
    }
    let policies_of = |chain: Policies| known_to(invitation, chain);
    let verified = verified.ok_or(bad("none")).and_then(policies_of);
    Ok((policies, verified.map_err(AdmissionError::Policies)?))
}

fn bad(why: &'static str) -> Reject {
    let what = "policies";
    Reject::Malformed { what, why }
}

/// The next policy, and the chain with it.
fn add(
    invitation: &Invitation,
    before: Option<Policies>,
    bytes: &[u8],
    signatures: &mut Signatures,
) -> Result<(Signed, Policies), Reject> {
    let signed = Signed::from_bytes_of(Job::Shared, bytes)?;
    let chain = match before {
        None => Policies::begin(invitation.volume, &signed, signatures)?,
        Some(mut chain) => {
            chain.extend(&signed, signatures)?;
            chain
        }
    };
    Ok((signed, chain))
}

/// The policies, if they have the one that the inviter knows.
fn known_to(invitation: &Invitation, policies: Policies) -> Result<Policies, Reject> {
    if policies.chain().find(&invitation.policy).is_none() {
        return Err(Reject::NotSigned(
            "the policy that the inviter knows is not among them",
        ));
    }
    Ok(policies)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use trust::policy::Genesis;
    use trust::roles::{Roles, Threshold};
    use trust::volume_id::VolumeId;
    use trust_shared::entry::Prefix;
    use trust_shared::genesis::{Founder, SharedRoles, Silence, genesis};
    use trust_shared::invitation::Secret;

    use super::*;

    fn founded() -> (Invitation, Signed) {
        let key = |number| SecretKey::from_seed(&[number; 32]);
        let owner = Roles::single(key(1).public());
        let terms = Genesis::new("lab", [1; 32], [2; 32], owner).unwrap();
        let roles = SharedRoles {
            orderer: key(2).public(),
            checkpointers: Threshold::none(),
            silence: Silence::Strict,
            patience_ms: 1000,
            founder: Some(Founder {
                user: [7; 32],
                name: "ada".to_owned(),
                device: key(3).public(),
            }),
        };
        let signed = genesis(&terms, &roles).sign(&[&key(1)]);
        let invitation = Invitation {
            volume: VolumeId::from_bytes(signed.hash()),
            policy: signed.hash(),
            epoch: 0,
            prefix: Prefix {
                size: 0,
                root: [0; 32],
            },
            server: "bulla://localhost".to_owned(),
            secret: Secret::from_bytes([5; 16]),
        };
        (invitation, signed)
    }

    #[tokio::test]
    async fn server_that_sends_policies_without_end_is_asked_no_more() {
        let (invitation, genesis) = founded();
        let asked = AtomicU64::new(0);
        let fetch = async |from| {
            let last = asked.fetch_add(1, Ordering::Relaxed);
            assert_eq!(last, from, "each time once");
            Ok(vec![Bytes::from(genesis.to_bytes())])
        };
        let refused = policies(&invitation, fetch).await.unwrap_err();
        assert!(matches!(refused, AdmissionError::Policies(_)), "{refused}");
        assert_eq!(asked.into_inner(), 2);
        let fetch = async |from| match from {
            0 => Ok(vec![Bytes::from(genesis.to_bytes())]),
            _ => Ok(Vec::new()),
        };
        let (taken, _) = policies(&invitation, fetch).await.unwrap();
        assert_eq!(taken, std::slice::from_ref(&genesis));
    }
}
