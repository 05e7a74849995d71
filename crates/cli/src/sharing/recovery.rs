//! Going over to the log that the owners let stand after a fork, as every command does it: what the owners have signed is
//! authority, so a device follows when its server shows it, and says so.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::share::client::{Client, ClientError, GivenBack, Options, OtherPlace, Phase, Stopped};
use ::share::home::{self, Followed, Home};
use serde_json::{Map, Value, json};
use trust::statement::Signed;

use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Output, fields};
use crate::text;

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
    failed: Option<String>,
}

/// Starts the engine of a home, and waits for it. If the owners have begun the log again, the device goes over, and what
/// it alone has comes back, with content of another place if there is one.
pub async fn open(
    home: &Home,
    until: Instant,
    (patience, other): (Duration, Option<&Arc<OtherPlace>>),
    wait: impl AsyncFn(&Client, Instant) -> Outcome<()>,
) -> Outcome<(Client, Recovered)> {
    let (client, epoch) = enter(home, until, wait).await?;
    let mut recovered = Recovered::default();
    if client.owes() && matches!(client.view().phase, Phase::Running) {
        recovered = Recovered::of(client.give_back(other, patience).await);
    }
    recovered.epoch = epoch;
    Ok((client, recovered))
}

/// Starts the engine of a home, and waits for it, in the log that the server shows. Gives the epoch if the device went over.
/// What it alone has is still to be given back.
pub async fn enter(
    home: &Home,
    until: Instant,
    wait: impl AsyncFn(&Client, Instant) -> Outcome<()>,
) -> Outcome<(Client, Option<u64>)> {
    let mut entered = None;
    loop {
        let client = Client::start(home, Options::default(), until).await?;
        let opened = wait(&client, until).await;
        let convicted = matches!(
            client.view().phase,
            Phase::Stopped(Stopped::Convicted { .. })
        );
        let more = match client.offered() {
            None if convicted => ::share::client::offered(home, ASK).await,
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
pub async fn follow(home: &Home, more: Vec<Signed>, until: Instant) -> Outcome<Followed> {
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
            let path = text::printable(path);
            tracing::warn!(%path, %why, "a file of this device is not back after the fork: nobody gives its content");
        }
        for copy in &given.copies {
            let name = text::printable(copy.copy.as_bytes());
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

    /// Tells people what happened.
    pub fn tell(&self, output: &mut Output) {
        if self.epoch.is_some() {
            output.warn(
                "the owners of this volume have begun its log again after a fork; this device goes on there",
            );
        }
        if let Some(why) = &self.failed {
            output.warn(&format!(
                "what this device alone has did not come back yet: {why}. The next command tries again"
            ));
        }
        let Some(given) = self.given.as_ref().filter(|given| given.is_news()) else {
            return;
        };
        if given.entries > 0 {
            output.warn(&format!(
                "the log that stands does not have {} of this device",
                entries(given.entries)
            ));
        }
        for copy in &given.copies {
            let name = text::printable(copy.copy.as_bytes());
            let place = match copy.in_root {
                true => ", in the root directory, because its own is gone",
                false => "",
            };
            output.warn(&format!("it is here again as `{name}`{place}"));
        }
        for (path, why) in &given.lacking {
            let path = text::printable(path);
            output.warn(&format!(
                "`{path}` is not back: {why}, and this device does not have it either"
            ));
        }
        if !given.lacking.is_empty() {
            output.warn(
                "the next command tries again. If another server or a directory of one has the content, take it from there \
                 with `bulla share follow VOLUME --from LOCATION`; put what is lacking again if you have it as a file; \
                 give the rest up with `bulla share follow VOLUME --give-up`",
            );
        }
        if given.others > 0 {
            output.warn(&format!(
                "{} beside (to files that stand, moves, removals, decisions about members) did not come back: repeat what you still want",
                match given.others {
                    1 => "1 change".to_owned(),
                    count => format!("{count} changes"),
                }
            ));
        }
    }

    /// The same for the result record.
    pub fn fields(&self) -> Map<String, Value> {
        let given = self.given.clone().unwrap_or_default();
        let names = given.lacking.iter();
        let names = names.map(|(path, _)| text::printable(path));
        fields(json!({
            "lacking_names": names.collect::<Vec<String>>(),
            "lost_entries": given.entries,
            "copies": given.copies.len(),
            "lacking": given.lacking.len(),
            "others": given.others,
        }))
    }
}

/// So many entries.
pub fn entries(count: u64) -> String {
    match count {
        1 => "1 entry".to_owned(),
        count => format!("{count} entries"),
    }
}

/// Reads a file of rules: that of `share recover`, or the genesis policy of `share init`.
pub fn read(path: &Path) -> Outcome<Vec<Signed>> {
    let shown = path.display();
    let failed = |e: std::io::Error| Failure::io(format!("cannot read {shown}"), &e);
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(failed)?;
    let limit = home::MAX_RULES_BYTES.saturating_add(1);
    file.take(limit).read_to_end(&mut bytes).map_err(failed)?;
    home::decode_rules(&bytes).map_err(|why| {
        let error = format!("{shown} has no rules of a shared volume");
        Failure::of(Kind::BadGenesis, error, &why)
    })
}
