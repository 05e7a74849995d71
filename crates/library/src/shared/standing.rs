//! When a program may ask: the engine answers, or it is clear that it does not in time.

use std::time::{Duration, Instant};

use share::client::{Client, ClientError, Connection, Phase, Stopped, Trouble, View};

use crate::error::Error;

/// How long a program that can do without the server waits for its first answer.
const ANSWERS: Duration = Duration::from_secs(5);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(2);

/// Waits until the device has caught up, or until it is clear that it does not: it has stopped, the server was lost or
/// cannot be reached, or time is over.
pub async fn heard(client: &Client, until: Instant) {
    let answers_until = until.min(Instant::now() + ANSWERS);
    loop {
        let view = client.view();
        let is_over = match (&view.phase, &view.connection) {
            (Phase::Running | Phase::Stopped(_), _) | (_, Connection::Offline(_)) => true,
            (_, Connection::Connecting) => Instant::now() >= answers_until,
            (_, Connection::Online) => Instant::now() >= until,
        };
        if is_over {
            return;
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until the server has let this device in, and the device has caught up. A refusal that time does not heal ends
/// the wait at once. Without any answer the calls that follow say so.
pub async fn reached(client: &Client, until: Instant) -> Result<(), Error> {
    loop {
        let view = client.view();
        let hopeless = match (stands(&view), &view.phase) {
            (Stands::Ready, _) => return Ok(()),
            (Stands::Hopeless, Phase::Stopped(why)) => {
                return Err(ClientError::from(why.clone()).into());
            }
            (stands, _) => stands == Stands::Hopeless,
        };
        if hopeless || Instant::now() >= until {
            let connection = view.connection;
            return Err(ClientError::Deadline { connection }.into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether calls can be made.
#[derive(Debug, PartialEq, Eq)]
enum Stands {
    Ready,
    /// Not yet.
    Waits,
    /// Time does not heal it.
    Hopeless,
}

fn stands(view: &View) -> Stands {
    match (&view.phase, &view.connection) {
        (Phase::Stopped(Stopped::Convicted { .. }), _) => Stands::Ready,
        (Phase::Stopped(_), _) => Stands::Hopeless,
        // Nothing is answered in an epoch that is closed, also by an engine that was running. The process that runs it goes
        // over; a call that it had would keep this process in the old epoch when it takes the engine over.
        (_, Connection::Offline(lost)) if lost.trouble == Trouble::Successor => {
            match view.process {
                Some(_) => Stands::Waits,
                None => Stands::Hopeless,
            }
        }
        // Also an engine that was running: it is a member no more, for example.
        (_, Connection::Offline(lost)) if !lost.trouble.may_pass() => Stands::Hopeless,
        (Phase::Running, _) => Stands::Ready,
        _ => Stands::Waits,
    }
}

#[cfg(test)]
mod tests {
    use share::client::Lost;

    use super::*;

    fn view(phase: Phase, trouble: Option<Trouble>, process: Option<u32>) -> View {
        let lost = |trouble| {
            let text = "why".to_owned();
            Connection::Offline(Lost { trouble, text })
        };
        View {
            phase,
            connection: trouble.map_or(Connection::Online, lost),
            size: 7,
            process,
        }
    }

    #[test]
    fn nothing_is_asked_of_an_engine_in_a_closed_epoch() {
        let successor = || Some(Trouble::Successor);
        for (phase, trouble, process, expected) in [
            (Phase::Running, None, None, Stands::Ready),
            (
                Phase::Running,
                Some(Trouble::Unreachable),
                None,
                Stands::Ready,
            ),
            (
                Phase::Resuming,
                Some(Trouble::Unreachable),
                None,
                Stands::Waits,
            ),
            (
                Phase::Resuming,
                Some(Trouble::NotMember),
                None,
                Stands::Hopeless,
            ),
            (
                Phase::Running,
                Some(Trouble::NotMember),
                Some(1),
                Stands::Hopeless,
            ),
            (Phase::Running, successor(), Some(1), Stands::Waits),
            (Phase::Resuming, successor(), Some(1), Stands::Waits),
            (Phase::Running, successor(), None, Stands::Hopeless),
            (
                Phase::Stopped(Stopped::Elsewhere),
                successor(),
                Some(1),
                Stands::Hopeless,
            ),
        ] {
            let view = view(phase, trouble, process);
            assert_eq!(stands(&view), expected, "{view:?}");
        }
    }
}
