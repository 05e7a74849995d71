//! Going over to the log that the owners let stand after a fork, as every command does it: what the owners have signed is
//! authority, so a device follows when its server shows it, and says so.

use std::sync::Arc;
use std::time::{Duration, Instant};

use share::client::{Client, ClientError, GivenBack, Options, OtherPlace, Phase, Stopped};
use share::home::{Followed, Home};
use trust::statement::Signed;
use trust::text::printable;

use crate::error::Error;

/// How long a device that has proof against its server waits for it to show what the owners have signed.
const ASK: Duration = Duration::from_secs(3);

/// What became of a device while it was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// It went over to this epoch.
    pub epoch: Option<u64>,
    /// What came back.
    pub given: Option<GivenBack>,
    /// Why not everything came back yet.
    pub failed: Option<String>,
}

/// Starts the engine of a home, and waits for it. If the owners have begun the log again, the device goes over, and what
/// it alone has comes back, with content of another place if there is one.
pub async fn open(
    home: &Home,
    until: Instant,
    (patience, other): (Duration, Option<&Arc<OtherPlace>>),
    wait: impl AsyncFn(&Client, Instant) -> Result<(), Error>,
) -> Result<(Client, Recovered), Error> {
    let (client, epoch) = enter(home, until, wait).await?;
    let mut recovered = Recovered::default();
    if client.owes() && matches!(client.view().phase, Phase::Running) {
        recovered = Recovered::of(client.give_back(other, patience).await);
    }
    recovered.epoch = epoch;
    Ok((client, recovered))
}

/// Starts the engine of a home, and waits for it, in the log that the server shows. Gives the epoch if the device went over.
/// The caller gives back what the device alone has.
pub async fn enter(
    home: &Home,
    until: Instant,
    wait: impl AsyncFn(&Client, Instant) -> Result<(), Error>,
) -> Result<(Client, Option<u64>), Error> {
    let mut entered = None;
    loop {
        let client = Client::start(home, Options::default(), until).await?;
        let opened = wait(&client, until).await;
        let convicted = matches!(
            client.view().phase,
            Phase::Stopped(Stopped::Convicted { .. })
        );
        let more = match client.offered() {
            None if convicted => share::client::offered(home, ASK).await,
            more => more,
        };
        let Some(more) = more else {
            opened?;
            return Ok((client, entered));
        };
        client.close(until).await?;
        if let Followed::Epoch(epoch) = follow(home, more, until).await? {
            entered = Some(epoch);
        }
        if Instant::now() >= until {
            return Err(ClientError::GoneOver.into());
        }
    }
}

/// Takes policies that the server has shown. Another process may have been faster.
pub async fn follow(home: &Home, more: Vec<Signed>, until: Instant) -> Result<Followed, Error> {
    let home = home.clone();
    let following = tokio::task::spawn_blocking(move || {
        let mut policies = home.signed_policies()?;
        let known: Vec<_> = policies.iter().map(Signed::hash).collect();
        policies.extend(
            more.into_iter()
                .filter(|more| !known.contains(&more.hash())),
        );
        home.follow(&policies, until)
    });
    Ok(following.await.map_err(|_| ClientError::Closed)??)
}

impl Recovered {
    /// The device has gone over to this epoch.
    pub fn at(epoch: u64) -> Recovered {
        Recovered {
            epoch: Some(epoch),
            ..Recovered::default()
        }
    }

    /// What came back, or why not everything did.
    pub fn of(given: Result<GivenBack, ClientError>) -> Recovered {
        let mut recovered = Recovered::default();
        match given {
            Ok(given) => recovered.given = Some(given),
            Err(error) => recovered.failed = Some(error.to_string()),
        }
        recovered
    }

    /// Whether not everything came back because something failed.
    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Logs what came back and what is lost, for a process that stays.
    pub fn log(&self) {
        if let Some(error) = &self.failed {
            tracing::warn!(%error, "what a fork has taken is not back yet");
        }
        let Some(given) = self.given.as_ref().filter(|given| given.is_news()) else {
            return;
        };
        for (path, why) in &given.lacking {
            let path = printable(path);
            tracing::warn!(%path, %why, "a file of this device is not back after the fork: nobody gives its content");
        }
        for copy in &given.copies {
            let name = printable(copy.copy.as_bytes());
            tracing::info!(%name, "a file of this device is here again after the fork");
        }
        tracing::warn!(
            entries = given.entries,
            copies = given.copies.len(),
            lacking = given.lacking.len(),
            others = given.others,
            "the log that stands after the fork does not have all entries of this device; copies are back"
        );
    }
}
