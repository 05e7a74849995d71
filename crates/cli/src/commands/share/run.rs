//! `bulla share run`: the engine of this device stays, for all programs of this user on this machine (decision 0053).
//!
//! It stays connected, so it confirms what others wrote, folds and forgets; other commands use it over the socket in the
//! home. As a beacon it writes a small file again and again.

use std::ffi::OsStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ::share::client::{Client, ClientError, Connection, Kept, Phase, Stopped, View};
use ::share::files::{Answer, Call, FileRef, Refused};
use ::share::home::Home;
use bytes::Bytes;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};
use trust::inode::{Content, FileContent, Inode};

use super::metrics::{Seen, write};
use crate::args::ShareRun;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::metrics::Listening;
use crate::notify;
use crate::output::{Done, Output, fields};
use crate::session;
use bulla::shared::recovery::{self, Recovered};
use bulla::shared::{now, places};

/// How often the state is looked at, for the service manager and for metrics.
const LOOK: Duration = Duration::from_secs(1);
/// The mode of a beacon's file.
const MODE: u16 = 0o644;

/// Runs until SIGTERM or SIGINT, or until every volume has stopped.
pub fn run(args: &ShareRun, config: &Config, output: &mut Output) -> Outcome<Done> {
    let deadline = match args.waiting.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let homes = args
        .volume
        .iter()
        .map(|name| crate::sharing::home(config, name));
    let homes: Vec<Home> = homes.collect::<Outcome<_>>()?;
    if args.beacon.is_some() && homes.len() != 1 {
        let error = "a beacon writes one file, and several volumes are named";
        let hint = "run one process for each volume of which this device is a beacon";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    let metrics = args.metrics.as_deref().map(Listening::on).transpose()?;
    let runtime = session::runtime()?;
    runtime.block_on(async {
        let mut running = Vec::new();
        for home in homes {
            running.push(Running::start(home, deadline).await?);
        }
        serve(args, running, metrics, deadline, output).await
    })?;
    output.note("stopped");
    Ok(Done::ok(fields(json!({}))))
}

/// A volume and its engine.
struct Running {
    home: Home,
    deadline: Duration,
    /// Another one after the owners have begun the log again.
    client: Mutex<Client>,
}

async fn serve(
    args: &ShareRun,
    running: Vec<Running>,
    metrics: Option<Listening>,
    deadline: Duration,
    output: &mut Output,
) -> Outcome<()> {
    let failed = |e| Failure::io("cannot listen for signals", &e);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let seen: Arc<Mutex<Vec<Seen>>> = Arc::default();
    let answering = metrics.map(|metrics| {
        crate::commands::serve::announce_metrics(output, metrics.local)?;
        let seen = Arc::clone(&seen);
        metrics.answer(move |page| {
            write(page, &seen.lock().unwrap_or_else(PoisonError::into_inner));
        })
    });
    let answering = answering.transpose()?;
    for volume in &running {
        announce(output, &volume.home)?;
    }
    output.flush()?;
    notify::ready(&told(&running));
    let beacon = beacon(args, &running, deadline);
    let watch = watch(&running, &seen);
    let ended = tokio::select! {
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        why = beacon => Err(why),
        why = watch => Err(why),
    };
    notify::stopping();
    drop(answering);
    let mut closed = Ok(());
    for volume in running {
        let until = Instant::now() + deadline;
        closed = closed.and(volume.client().close(until).await);
    }
    ended?;
    Ok(closed?)
}

fn announce(output: &mut Output, home: &Home) -> Outcome<()> {
    if output.json() {
        let record = json!({"volume": home.volume().to_string(), "name": home.name()});
        return output.record("running", fields(record));
    }
    output.line(&format!("running {}", home.name()))
}

/// Looks at the engines until all of them have stopped. Gives why the first one did.
async fn watch(running: &[Running], seen: &Mutex<Vec<Seen>>) -> Failure {
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut before = String::new();
    let mut contact: Vec<Instant> = running.iter().map(|_| Instant::now()).collect();
    loop {
        ticks.tick().await;
        let mut now = Vec::new();
        for (volume, contact) in running.iter().zip(&mut contact) {
            volume.go_over().await;
            let client = volume.client();
            let view = client.view();
            if matches!(view.connection, Connection::Online) {
                *contact = Instant::now();
            }
            let until = Instant::now() + LOOK;
            if let Ok(status) = client.status(until).await {
                let owed = client.owed(until).await.unwrap_or_default();
                let kept = Kept::of(&volume.home).ok();
                let volume = volume.home.volume().to_string();
                let contact = contact.elapsed();
                now.push(Seen {
                    volume,
                    contact,
                    status,
                    kept,
                    owed,
                });
            }
        }
        *seen.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let status = told(running);
        if status != before {
            notify::status(&status);
            match running
                .iter()
                .all(|volume| is_well(&volume.client().view()))
            {
                true => tracing::info!(%status, "shared volumes"),
                false => tracing::warn!(%status, "shared volumes"),
            }
            before = status;
        }
        let stopped: Option<Vec<Stopped>> = running.iter().map(Running::stopped).collect();
        if let Some(why) = stopped.and_then(|all| all.into_iter().next()) {
            return ClientError::from(why).into();
        }
    }
}

impl Running {
    async fn start(home: Home, deadline: Duration) -> Outcome<Running> {
        let until = Instant::now() + deadline;
        let (client, epoch) = open(&home, until).await?;
        if epoch.is_some() {
            log_new_epoch();
        }
        Ok(Running {
            home,
            deadline,
            client: Mutex::new(client),
        })
    }

    fn client(&self) -> Client {
        let client = self.client.lock();
        client.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Goes over if the owners have begun the log again. Once it is there, gives back what this device alone has, and logs
    /// what is lost.
    async fn go_over(&self) {
        let client = self.client();
        let until = Instant::now() + self.deadline;
        let Some(more) = client.offered() else {
            if client.owes() && matches!(client.view().phase, Phase::Running) {
                Recovered::of(client.give_back(None, self.deadline).await).log();
            }
            return;
        };
        let gone = async {
            client.close(until).await?;
            recovery::follow(&self.home, more, until).await?;
            let (client, _) = open(&self.home, until).await?;
            *self.client.lock().unwrap_or_else(PoisonError::into_inner) = client;
            Ok::<(), Failure>(())
        };
        match gone.await {
            Ok(()) => log_new_epoch(),
            Err(error) => {
                tracing::warn!(%error, "the owners have begun the log again; this device is not there yet")
            }
        }
    }

    fn stopped(&self) -> Option<Stopped> {
        match self.client().view().phase {
            Phase::Stopped(why) => Some(why),
            _ => None,
        }
    }
}

/// Starts the engine of a home, without its server too: that may come later. If the device has proof against its server, and
/// the owners have begun the log again, it goes over to that epoch.
async fn open(home: &Home, until: Instant) -> Outcome<(Client, Option<u64>)> {
    Ok(recovery::enter(home, until, async |_, _| Ok(())).await?)
}

fn log_new_epoch() {
    tracing::warn!("the owners have begun the log again after a fork; this device goes on there");
}

/// The states of the volumes in one line.
fn told(running: &[Running]) -> String {
    let each = running.iter().map(|volume| {
        let state = state(&volume.client().view());
        format!("{}: {state}", volume.home.name())
    });
    each.collect::<Vec<String>>().join("; ")
}

/// Whether there is nothing that a person should look at.
fn is_well(view: &View) -> bool {
    !matches!(view.phase, Phase::Stopped(_)) && !matches!(view.connection, Connection::Offline(_))
}

fn state(view: &View) -> String {
    match (&view.phase, &view.connection) {
        (Phase::Stopped(why), _) => format!("stopped: {why}"),
        (_, Connection::Offline(lost)) => format!("no connection: {lost}"),
        (_, Connection::Connecting) => "connecting".to_owned(),
        (Phase::Outside, Connection::Online) => "this device is no member".to_owned(),
        (Phase::Resuming, Connection::Online) => "catching up".to_owned(),
        (Phase::Running, Connection::Online) => "connected".to_owned(),
    }
}

/// Writes the beacon's file again and again. Ends when the volume refuses it; a silent server does not end it.
async fn beacon(args: &ShareRun, running: &[Running], deadline: Duration) -> Failure {
    let (Some(every), Some(path), [volume]) = (args.beacon, &args.write, running) else {
        return std::future::pending().await;
    };
    let mut ticks = interval(every.max(Duration::from_millis(100)));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = 0u64;
    loop {
        ticks.tick().await;
        count = count.saturating_add(1);
        let time = now().seconds;
        let text = format!("{count} {time}\n");
        match sign(&volume.client(), path, text, deadline).await {
            Ok(None) => {}
            Ok(Some(why)) => {
                let about = crate::text::printable(path.as_encoded_bytes());
                return bulla::Error::Refused { about, why }.into();
            }
            Err(error) if error.exit() == Kind::Usage.exit() => return error,
            Err(error) => tracing::warn!(%error, "the beacon's entry was not confirmed"),
        }
    }
}

/// Writes the file. Gives why the volume refuses it.
async fn sign(
    client: &Client,
    path: &OsStr,
    text: String,
    deadline: Duration,
) -> Outcome<Option<Refused>> {
    let place = places::place(client.root(), path.as_encoded_bytes())?;
    if place.path.is_empty() {
        let error = "--write needs the path of a file in the volume";
        return Err(Failure::new(Kind::Usage, error));
    }
    let content = Content::Regular(FileContent::Inline(Bytes::from(text)));
    let change = Call::SetContent {
        file: FileRef::Place(place.clone()),
        content: content.clone(),
        mtime: now(),
        expect: None,
    };
    let create = Call::Create {
        place,
        number: client.new_number()?,
        inode: Box::new(Inode::new(MODE, now(), content)),
        owner: None,
        replace: false.into(),
    };
    for call in [change, create] {
        let answered = client.call(call, Instant::now() + deadline).await?;
        match answered.answer {
            Answer::Refused(Refused::NotFound) => {}
            Answer::Refused(why) => return Ok(Some(why)),
            _ => return Ok(None),
        }
    }
    Ok(Some(Refused::NotFound))
}
