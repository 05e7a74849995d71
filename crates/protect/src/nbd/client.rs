//! One connection: the negotiation, then a thread that reads requests, and one that sends replies when the client is slow
//! to read them. Each wait for the client has a deadline, but the one for its next request.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use super::Violation;
use super::address::Unsent;
use super::export::Command;
use super::in_flight::InFlight;
use super::negotiation::{Negotiation, Progress};
use super::requests::{Event, Input, Requests};
use super::service::Service;
use super::workers::Job;

/// Serves the client until it goes, breaks the protocol or the server stops. `refusal`: why it does not get the export.
pub(super) fn serve(
    client: &Arc<InFlight>,
    service: &Service,
    refusal: Option<&'static str>,
) -> Result<(), Violation> {
    let served = negotiate(client, service, refusal).and_then(|input| match input {
        Some(input) => transmission(client, service, input),
        None => Ok(()),
    });
    client.close();
    served
}

/// Returns what was read beyond the negotiation, or `None` if the client goes.
fn negotiate(
    client: &InFlight,
    service: &Service,
    refusal: Option<&'static str>,
) -> Result<Option<Input>, Violation> {
    let deadline = Instant::now() + service.limits.negotiation;
    let (mut negotiation, greeting) = Negotiation::new(service.export.clone());
    if let Some(reason) = refusal {
        negotiation.refuse(reason);
    }
    let mut answers = greeting;
    let mut input = Input::default();
    loop {
        let progress = negotiation.step(input.bytes(), &mut answers);
        match client
            .stream()
            .send(&mut [IoSlice::new(&answers)], deadline)
        {
            Ok(()) => answers.clear(),
            // A client need not wait for the answer to its goodbye.
            Err(Unsent::Gone) => return Ok(None),
            Err(Unsent::Late) => return Err(Violation::SlowNegotiation),
        }
        match progress? {
            Progress::More => {}
            Progress::Ended => return Ok(None),
            Progress::Took(bytes) => {
                input.consume(bytes);
                continue;
            }
            Progress::Transmission(bytes) => {
                input.consume(bytes);
                return Ok(Some(input));
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || client.stream().set_read_timeout(left).is_err() {
            return Err(Violation::SlowNegotiation);
        }
        match client.stream().read(input.space()) {
            Ok(0) => return Ok(None),
            Ok(count) => input.filled(count),
            Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return Ok(None),
        }
    }
}

fn transmission(client: &Arc<InFlight>, service: &Service, input: Input) -> Result<(), Violation> {
    let writing = {
        let client = client.clone();
        let patience = service.limits.reply;
        let builder = thread::Builder::new().name("nbd-replies".to_owned());
        builder.spawn(move || client.send_to_slow_reader(patience))
    };
    let writing = match writing {
        Ok(writing) => writing,
        Err(error) => {
            tracing::warn!(%error, "cannot start a thread for an nbd client");
            return Ok(());
        }
    };
    let read = read_requests(client, service, input);
    if read.is_err() {
        client.close();
    }
    client.last();
    let written = writing.join().unwrap_or(Ok(()));
    written.and(read)
}

fn read_requests(client: &Arc<InFlight>, service: &Service, input: Input) -> Result<(), Violation> {
    let patience = service.limits.request;
    // The client may wait as long as it likes before it sends a request, so this is only how often the time is looked at.
    if client.stream().set_read_timeout(patience / 4).is_err() {
        return Ok(());
    }
    let mut requests = Requests::new(service.export.clone(), input);
    // Room for the write whose payload is coming.
    let mut room = None;
    let mut begun = None;
    loop {
        if service.is_stopping() {
            return Ok(());
        }
        match requests.next()? {
            Event::More => {
                match fill(client, &mut requests, &mut begun, patience) {
                    Ok(true) => continue,
                    Ok(false) => return Ok(()),
                    // The server ended the connection, not the client.
                    Err(Violation::Cut) if service.is_stopping() => return Ok(()),
                    Err(violation) => return Err(violation),
                }
            }
            Event::Payload(bytes) => {
                room = client.admit(in_memory(bytes));
                if room.is_none() {
                    return Ok(());
                }
            }
            Event::Refused(cookie, error) => {
                let Some(room) = client.admit(0) else {
                    return Ok(());
                };
                room.of(cookie).answer(Err(error));
            }
            Event::Wants(cookie, command) => {
                let bytes = match command {
                    Command::Read { bytes, .. } => in_memory(bytes),
                    _ => 0,
                };
                let Some(room) = room.take().or_else(|| client.admit(bytes)) else {
                    return Ok(());
                };
                let workers = match command {
                    Command::Read { .. } => &service.readers,
                    _ => &service.writers,
                };
                let room = room.of(cookie);
                workers.push(Job { command, room });
            }
            Event::Disconnect => return Ok(()),
        }
        begun = None;
    }
}

/// Memory for so many bytes of payload.
fn in_memory(bytes: u32) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Waits for bytes of the client. Returns false if it is gone. A request that was begun must become whole in time; `begun`
/// is when the first wait for the rest of it began.
fn fill(
    client: &InFlight,
    requests: &mut Requests,
    begun: &mut Option<Instant>,
    patience: Duration,
) -> Result<bool, Violation> {
    let is_within = requests.is_within_a_request();
    if !is_within {
        *begun = None;
    } else if begun.get_or_insert_with(Instant::now).elapsed() >= patience {
        return Err(Violation::SlowRequest);
    }
    match client.stream().read(requests.space()) {
        Ok(0) if is_within => Err(Violation::Cut),
        Ok(0) => Ok(false),
        Ok(count) => {
            requests.filled(count);
            Ok(true)
        }
        Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(true),
        Err(_) => Ok(false),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    use io::ErrorKind::{TimedOut, WouldBlock};
    matches!(error.kind(), TimedOut | WouldBlock)
}
