//! Elects the process that runs the engine, again whenever the one before ends.
//!
//! The process that holds the home's lock opens the home, runs the engine and listens. The others connect to it, and try
//! again while neither works: the next one opens the home.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout_at};

use super::guest::{self, Alone, End, Joined};
use super::host::{Hosting, host};
use super::plug::Plug;
use crate::client::beacons::Beacons;
use crate::client::connection::Dial;
use crate::client::core::Core;
use crate::client::driver::{Command, Driver};
use crate::client::link::Offered;
use crate::client::owed::Before;
use crate::client::start::{Parts, seen, server};
use crate::client::status::Phase;
use crate::client::{ClientError, Inner, Options, Stopped};
use crate::disk::DiskError;
use crate::files::Shelf;
use crate::home::Home;

/// Pauses between attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(25);
/// How long one attempt to take the seat again may take, before this looks whether anybody still wants it.
const TURN: Duration = Duration::from_secs(1);

/// An engine that this process has opened, or one of another process.
pub(in crate::client) enum Seat {
    Own {
        core: Box<Core>,
        shelf: Arc<Shelf>,
        dial: Arc<dyn Dial>,
    },
    Guest(Box<Joined>),
}

impl Seat {
    /// The process that has the engine gives back what a fork has taken. That may change as long as the client lives.
    pub(in crate::client) fn owes(&self, before: &Before) {
        before.set(match self {
            Seat::Own { core, .. } => core.before(),
            Seat::Guest(_) => &[],
        });
    }

    /// Lets other programs use the engine, if this process has it.
    pub(in crate::client) fn lend(
        &self,
        home: &Home,
        client: &Weak<Inner>,
        hosting: &Arc<Hosting>,
    ) {
        if let Seat::Guest(_) = self {
            return;
        }
        let (directory, client) = (home.directory().to_owned(), Weak::clone(client));
        if let Err(error) = host(directory, client, hosting) {
            tracing::warn!(%error, "other programs cannot use this volume while this process runs");
        }
    }
}

/// Takes a seat: connects to the process that has the engine, or opens the home. Waits for a process that has the home
/// open and does not listen, until the deadline.
///
/// # Errors
/// [`ClientError::Home`], [`ClientError::Disk`], [`ClientError::Unsupported`], [`ClientError::OtherBuild`].
pub(in crate::client) async fn take(
    home: &Home,
    options: &Options,
    offered: &Offered,
    deadline: Instant,
) -> Result<Seat, ClientError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let joining = timeout_at(deadline.into(), guest::join(home.directory()));
        match joining.await.unwrap_or(Err(Alone::Nobody)) {
            Ok(joined) => return Ok(Seat::Guest(Box::new(joined))),
            Err(Alone::OtherBuild { build, process }) => {
                return Err(ClientError::OtherBuild { build, process });
            }
            Err(Alone::Foreign(why)) => return Err(ClientError::Home(why)),
            Err(Alone::Nobody) => {}
        }
        let locked = match open(home, options, offered).await {
            Err(ClientError::Disk(DiskError::State(error))) if error.is_locked() => error,
            Err(ClientError::GoneOver) => continue,
            opened => return opened,
        };
        if Instant::now() >= deadline {
            return Err(ClientError::Disk(DiskError::State(locked)));
        }
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

/// Opens the home, if its lock is free.
async fn open(home: &Home, options: &Options, offered: &Offered) -> Result<Seat, ClientError> {
    let parts = Parts::of(home, options)?;
    let dial = Arc::new(server(home, &parts.policies, options, offered)?);
    let shelf = Arc::clone(&parts.shelf);
    let home = home.clone();
    let opening = tokio::task::spawn_blocking(move || parts.open(&home, Instant::now()));
    let core = opening.await.map_err(|_| ClientError::Closed)??;
    Ok(Seat::Own {
        core: Box::new(core),
        shelf,
        dial,
    })
}

/// Serves a client until it is closed or nobody has it any more.
pub(in crate::client) async fn keep(
    mut seat: Seat,
    mut plug: Plug,
    home: Home,
    options: Options,
    client: Weak<Inner>,
    hosting: Arc<Hosting>,
) {
    loop {
        match seat {
            Seat::Own { core, shelf, dial } => {
                plug.shown.view.send_replace(seen(&core));
                let shared = (plug.hasher, plug.near);
                let driver = Driver::new(*core, plug.commands, dial, plug.shown, shelf, shared);
                let driver = driver.with_beacons(Beacons::of(&home));
                let driver = driver.with_own(plug.own).with_absence(options.away);
                return driver.run().await;
            }
            Seat::Guest(joined) => match guest::run(*joined, &mut plug).await {
                End::Closed => return,
                End::Lost => {}
            },
        }
        let next = loop {
            let taken = take(&home, &options, &plug.offered, Instant::now() + TURN).await;
            match taken {
                Ok(seat) => break seat,
                Err(_) if plug.commands.is_closed() => return,
                // Another process may open the home, or the one of another build end.
                Err(ClientError::Disk(DiskError::State(error))) if error.is_locked() => {}
                Err(ClientError::OtherBuild { .. }) => sleep(LONGEST_PAUSE).await,
                Err(error) => return refuse(plug, error).await,
            }
        };
        seat = next;
        seat.owes(&plug.before);
        seat.lend(&home, &client, &hosting);
    }
}

/// Answers everything with the error that keeps this process from the volume.
async fn refuse(mut plug: Plug, error: ClientError) {
    tracing::error!(%error, "a shared volume cannot be opened any more");
    if let ClientError::Disk(error) = &error {
        let phase = Phase::Stopped(Stopped::Disk(error.clone()));
        plug.shown.view.send_modify(|view| view.phase = phase);
    }
    while let Some(command) = plug.commands.recv().await {
        match command {
            Command::Call(it) => {
                // The caller may have gone.
                let _ = it.answer.send(Err(error.clone()));
            }
            Command::Close(done) => {
                let _ = done.send(());
                return;
            }
            Command::Cancel(_)
            | Command::Query(..)
            | Command::Lost(_)
            | Command::Leaves { .. }
            | Command::Line(_)
            | Command::Ask => {}
        }
    }
}
