//! What a client may send, and when: ENTER first, then what a guest or a device may ask for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use share_server::host::Host;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use trust::Reject;
use trust::volume_id::VolumeId;
use wire::refusal::ErrorCode;
use wire::session::Exporter;
use wire::shared::answer::encode_policies;
use wire::shared::enter::{Enter, MAX_ENTER_BYTES, SIGNING_DOMAIN, Welcome};
use wire::shared::request::{Request, max_body_bytes};
use wire::shared::{FORGED, GUEST, NO_VOLUME, PROTOCOL, SESSION_ID, kind};

use crate::net::{self, Opening, Pusher, Responder, Service};
use crate::shared::cost::{self, GuestMeter};
use crate::shared::member::Member;
use crate::shared::refuse::{malformed, told};
use crate::shared::{blocks, deliver, mailbox, reads};

/// Reads from the disk for requests, at a time.
const MAX_READS: usize = 16;
/// Deliveries that are made at a time.
const MAX_DRAWS: usize = 8;

/// Guests at a time. Strangers must leave connections and threads to devices.
const MAX_GUESTS: usize = 256;

/// Hosts as one service: a client's first message names its volume. [`crate::shared::Server`] puts it on addresses;
/// another service may stand in front of it.
pub struct SharedService {
    hosts: HashMap<VolumeId, Arc<Host>>,
    reads: Arc<Semaphore>,
    draws: Arc<Semaphore>,
    guests: Arc<Semaphore>,
}

/// One connection. Its tasks end with it. It belongs to no host before ENTER.
pub struct Session {
    exporter: Option<Exporter>,
    pusher: Pusher,
    client: Client,
    tasks: JoinSet<()>,
}

/// The client of a connection.
enum Client {
    /// It has not said.
    Unknown,
    Guest(Guest),
    Device(Arc<Host>, Arc<Member>),
    /// It was told that it may not go on.
    Refused,
}

/// Somebody who is no device of the volume, or not yet.
struct Guest {
    host: Arc<Host>,
    meter: GuestMeter,
    /// Counts the guest.
    _permit: OwnedSemaphorePermit,
}

impl SharedService {
    /// The service of these hosts.
    pub fn new(hosts: impl IntoIterator<Item = Arc<Host>>) -> SharedService {
        let hosts = hosts.into_iter();
        SharedService {
            hosts: hosts.map(|host| (host.volume(), host)).collect(),
            guests: Arc::new(Semaphore::new(MAX_GUESTS)),
            reads: Arc::new(Semaphore::new(MAX_READS)),
            draws: Arc::new(Semaphore::new(MAX_DRAWS)),
        }
    }

    fn enter(
        &self,
        session: &mut Session,
        request: net::Request<'_>,
        mut responder: Responder<'_>,
    ) -> Result<(), Reject> {
        if request.id != SESSION_ID {
            return Err(malformed("ENTER has another request id"));
        }
        let enter = Enter::decode(request.body)?;
        session.client = Client::Refused;
        let Some(host) = self.hosts.get(&enter.volume) else {
            responder.refuse(NO_VOLUME, "this server does not have that volume");
            return Ok(());
        };
        let Some(claim) = enter.device else {
            self.enter_as_guest(session, host, responder);
            return Ok(());
        };
        let Some(exporter) = session.exporter else {
            // Without TLS nobody can prove a key.
            responder.refuse(FORGED, "no device can enter without TLS");
            return Ok(());
        };
        let device = match claim.verify(SIGNING_DOMAIN, enter.volume, &exporter) {
            Ok(device) => device,
            Err(why) => {
                responder.refuse(FORGED, &why.to_string());
                return Ok(());
            }
        };
        match Member::enter(host, device) {
            Ok(member) => {
                let member = Arc::new(member);
                session.client = Client::Device(Arc::clone(host), Arc::clone(&member));
                welcome(host, &mut responder);
                let account = Arc::clone(responder.account());
                let (pusher, draws) = (session.pusher.clone(), Arc::clone(&self.draws));
                session
                    .tasks
                    .spawn(deliver::run(member, account, pusher, draws));
            }
            Err(error) => {
                let (code, text) = told(&error);
                responder.refuse(code, &text);
            }
        }
        Ok(())
    }

    fn enter_as_guest(
        &self,
        session: &mut Session,
        host: &Arc<Host>,
        mut responder: Responder<'_>,
    ) {
        let Ok(permit) = Arc::clone(&self.guests).try_acquire_owned() else {
            responder.refuse(ErrorCode::BUSY, "too many guests; try again later");
            return;
        };
        session.client = Client::Guest(Guest {
            host: Arc::clone(host),
            meter: GuestMeter::new(),
            _permit: permit,
        });
        welcome(host, &mut responder);
    }

    /// Answers what guests may ask for, too. Gives anything else back.
    fn common<'a>(
        host: &Host,
        member: Option<&Member>,
        request: Request,
        mut responder: Responder<'a>,
    ) -> Option<(Request, Responder<'a>)> {
        match request {
            Request::Policies(from) => {
                let from = usize::try_from(from).unwrap_or(usize::MAX);
                let policies = host.policies().get(from..).unwrap_or_default();
                let body = encode_policies(policies.iter().map(|policy| &policy[..]));
                responder.message(kind::POLICIES_PART, body);
            }
            Request::Post { slot, letter } => mailbox::post(host, slot, letter, responder),
            Request::Take { slot, wait_ms } => {
                mailbox::take(host, member, slot, wait_ms, responder);
            }
            Request::Ping => responder.message(kind::DONE, Bytes::new()),
            other => return Some((other, responder)),
        }
        None
    }

    /// What a device may ask for.
    fn of_member(
        &self,
        host: &Host,
        member: &Arc<Member>,
        tasks: &mut JoinSet<()>,
        request: Request,
        mut responder: Responder<'_>,
    ) -> Result<(), Reject> {
        match request {
            Request::Store(records) => blocks::store(member, records, responder),
            Request::Pstore(records) => blocks::pstore(member, records, responder),
            Request::Retrieve(_)
            | Request::Cstore(_)
            | Request::Decref(_)
            | Request::Leaves { .. }
            | Request::Bodies(_)
            | Request::Checkpoint(_)
            | Request::Checkpoints
            | Request::Usage => {
                let Some(rest) = reads::Rest::of(member, request) else {
                    return Err(malformed("not a request"));
                };
                let account = Arc::clone(responder.account());
                let reads = Arc::clone(&self.reads);
                let completion = responder.later();
                let answer = reads::answer(Arc::clone(member), account, reads, rest, completion);
                tasks.spawn(answer);
            }
            Request::Next => member.next()?,
            Request::Open { heartbeat_ms, .. } => {
                responder.watch(true);
                let wish = (heartbeat_ms, host.options());
                member.open(wish, request, responder, tasks)?;
            }
            message => member.say(message, responder, tasks)?,
        }
        Ok(())
    }
}

/// Answers ENTER.
fn welcome(host: &Host, responder: &mut Responder<'_>) {
    responder.entered();
    let policies = host.policies().len() as u64;
    let welcome = Welcome {
        newest_policy: policies.saturating_sub(1),
    };
    responder.message(kind::WELCOME, welcome.encode().into());
}

impl Service for SharedService {
    const PROTOCOL: u8 = PROTOCOL;
    type Session = Session;

    fn open(&self, mut opening: Opening<'_>) -> Session {
        opening.must_enter();
        Session {
            exporter: opening.exporter(),
            pusher: opening.pusher(),
            client: Client::Unknown,
            tasks: JoinSet::new(),
        }
    }

    fn max_body_bytes(&self, session: &Session, kind: u8) -> Option<usize> {
        let most = match kind {
            kind::ENTER => Some(MAX_ENTER_BYTES),
            kind => max_body_bytes(kind),
        };
        let stranger = !matches!(session.client, Client::Device(..));
        // Who has not proved a device sends nothing long.
        let long = most.is_some_and(|most| most > wire::frame::MAX_REQUEST_BYTES);
        if stranger && long { Some(0) } else { most }
    }

    fn request(
        &self,
        session: &mut Session,
        request: net::Request<'_>,
        mut responder: Responder<'_>,
    ) -> Result<(), Reject> {
        while session.tasks.try_join_next().is_some() {}
        let (host, member, guest) = match (&session.client, request.kind) {
            (Client::Unknown, kind::ENTER) => return self.enter(session, request, responder),
            (Client::Unknown, _) => return Err(malformed("before ENTER")),
            (_, kind::ENTER) => return Err(malformed("ENTER a second time")),
            (Client::Refused, _) => return Err(malformed("after a refusal")),
            (Client::Guest(guest), _) => (&guest.host, None, Some(&guest.meter)),
            (Client::Device(host, member), _) => (host, Some(member), None),
        };
        let of_session = (kind::OPEN..=kind::NEXT).contains(&request.kind);
        if of_session != (request.id == SESSION_ID) {
            return Err(malformed("the request id of another kind of message"));
        }
        let decoded = Request::decode(request.kind, request.body)?;
        let counts = cost::of(&decoded, request.body.len());
        let rest = match (member, guest) {
            (Some(member), _) => member.session().pay(counts),
            (None, Some(guest)) => guest.pay(counts),
            (None, None) => Duration::ZERO,
        };
        if !rest.is_zero() {
            responder.rest(rest);
        }
        let by = member.map(|member| &**member);
        let Some((decoded, responder)) = SharedService::common(host, by, decoded, responder) else {
            return Ok(());
        };
        match member {
            Some(member) => {
                let member = Arc::clone(member);
                let host = Arc::clone(host);
                self.of_member(&host, &member, &mut session.tasks, decoded, responder)
            }
            None => {
                responder.refuse(GUEST, "only a device of the volume may ask for this");
                Ok(())
            }
        }
    }
}
