//! What the driver does over its connection: making it, sending, storing, fetching, and giving it up.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use super::{AGAIN, Done, Driver};
use crate::client::again::Blocks;
use crate::client::connection::{Connected, Connection, Lost, Stored};
use crate::client::core::{Input, Lacks};
use crate::client::error::ClientError;
use crate::client::fetch::{Key, fetch};
use ordering::engine::Request;
use ordering::roster::Product;
use trust::array::ArrayRoot;

impl Driver {
    pub(super) fn send(&mut self, request: Request<Product>) {
        if let Some(line) = &self.line
            && let Err(lost) = line.send(request)
        {
            self.disconnect(lost);
        }
    }

    /// Sends the blocks that calls and the next entry name, and the entry behind them, as far as they wait for nothing.
    pub(super) fn store(&mut self) {
        let Some(line) = self.line.clone() else {
            return;
        };
        while let Some((batch, blocks)) = self.outbox.begin() {
            if let Some(flying) = line.fly(&blocks) {
                self.outbox.flies(batch);
                self.tasks.spawn(async move {
                    let result = flying.await;
                    Done::Stored { batch, result }
                });
                continue;
            }
            let line = Arc::clone(&line);
            self.tasks.spawn(async move {
                let result = line.put(&blocks).await;
                Done::Stored { batch, result }
            });
        }
        if let Some(entry) = self.outbox.ready() {
            self.send(entry);
        }
    }

    /// Blocks of a batch are durable, or not. Calls whose blocks the server refuses are taken back.
    fn stored(&mut self, batch: u64, result: Stored) {
        match result {
            Ok(()) => self.outbox.stored(batch),
            Err((why, error)) => {
                tracing::warn!(%error, "blocks could not be stored");
                let given_up = self.outbox.unstored(batch, why);
                let error = ClientError::from(error);
                if self.outbox.has_lost_the_entry() {
                    self.unfolded = Some(error.clone());
                    self.inputs.push_front(Input::WithdrawFolds);
                }
                let told = given_up.iter().map(|ticket| (*ticket, error.clone()));
                self.given_up.extend(told);
                if !given_up.is_empty() {
                    // Before a new connection, or a pause that is over, sends the entry again.
                    self.inputs.push_front(Input::Withdraw(given_up));
                }
                let at = Instant::now() + AGAIN;
                self.again_at = Some(self.again_at.map_or(at, |other| other.min(at)));
            }
        }
        self.store();
    }

    /// The server has not ordered this entry, because blocks before it were missing: blocks and entry go again.
    pub(super) fn send_again(&mut self, entry: Request<Product>) {
        if self.line.is_none() {
            // The next connection sends it.
            return;
        }
        tracing::debug!("the server missed blocks before an entry; both are sent again");
        let pause = self.outbox.again(entry);
        if pause.is_zero() {
            return self.retry();
        }
        let at = Instant::now() + pause;
        self.again_at = Some(self.again_at.map_or(at, |other| other.min(at)));
    }

    /// Sends what [`Driver::send_again`] kept, its blocks before it.
    pub(super) fn retry(&mut self) {
        self.outbox.retry();
        self.store();
    }

    pub(super) fn fetch(&mut self, lacks: Lacks) {
        let Some(line) = self.line.clone() else {
            // The next connection asks again.
            return;
        };
        let mut new = Lacks::default();
        for (position, hash) in lacks.bodies {
            if self.fetching.insert(Key::Body(position)) {
                new.bodies.push((position, hash));
            }
        }
        for wanted in lacks.blocks {
            if self.fetching.insert(Key::Block(wanted.handle())) {
                new.blocks.push(wanted);
            }
        }
        if new.bodies.is_empty() && new.blocks.is_empty() {
            return;
        }
        let (shelf, hasher) = (Arc::clone(&self.shelf), self.hasher.clone());
        let task = fetch(line, shelf, hasher, new);
        self.tasks.spawn(async move { Done::Fetched(task.await) });
    }

    pub(super) fn done(&mut self, done: Done) {
        match done {
            Done::Dialed(dialed) => self.dialed(dialed),
            Done::Fetched(fetched) => {
                for key in &fetched.asked {
                    self.fetching.remove(key);
                }
                if let Some(lost) = fetched.failed {
                    tracing::debug!(%lost, "something could not be fetched");
                    self.again_at = Some(Instant::now() + AGAIN);
                }
                if fetched.some {
                    self.inputs.push_back(Input::Supplied);
                }
            }
            Done::Stored { batch, result } => self.stored(batch, result),
            Done::Checked(seen, ended) => {
                self.checking = false;
                self.checked.extend(seen);
                match ended {
                    Ok(()) => {
                        let checked = std::mem::take(&mut self.checked).into_iter();
                        let lacking = checked.filter(|(_, is_whole)| !is_whole);
                        let lacking = lacking.map(|(root, _)| root).collect();
                        self.inputs.push_back(Input::Lacking(lacking));
                    }
                    Err(error) => {
                        tracing::debug!(%error, "what would run again cannot be looked at");
                        self.again_at = Some(Instant::now() + AGAIN);
                    }
                }
            }
        }
    }

    /// Looks whether the server has what calls of an earlier run name, if that is not known and not under way.
    pub(super) fn check(&mut self) {
        let roots = self.core().map(|core| core.unchecked().to_vec());
        let roots = roots.unwrap_or_default();
        let Some(line) = self.line.clone().filter(|_| !roots.is_empty()) else {
            return;
        };
        if std::mem::replace(&mut self.checking, true) {
            return;
        }
        let (own, hasher) = (self.own.clone(), self.hasher.clone());
        let blocks = Blocks { line, own, hasher };
        let is_new = |root: &ArrayRoot| !self.checked.iter().any(|(checked, _)| checked == root);
        let roots: Vec<ArrayRoot> = roots.into_iter().filter(is_new).collect();
        self.tasks.spawn(async move {
            let mut seen = Vec::new();
            let ended = blocks.look(&roots, &mut seen).await;
            Done::Checked(seen, ended)
        });
    }

    /// Begins to connect, when it is time.
    pub(super) fn connect(&mut self) {
        let due = self.dial_at.is_some_and(|at| at <= Instant::now());
        if !due || self.dialing || self.line.is_some() || self.stopped.is_some() {
            return;
        }
        self.dialing = true;
        self.dial_at = None;
        let dial = Arc::clone(&self.dial);
        self.tasks
            .spawn(async move { Done::Dialed(dial.dial().await) });
    }

    fn dialed(&mut self, dialed: Result<Connected, Lost>) {
        self.dialing = false;
        let (line, deliveries) = match dialed {
            Ok(connected) => connected,
            Err(lost) => return self.disconnect(lost),
        };
        self.line = Some(Arc::clone(&line));
        self.deliveries = Some(deliveries);
        self.outbox.disconnected();
        self.fetching.clear();
        self.beacons.connected(Instant::now());
        if self.absence.end((Instant::now(), SystemTime::now())) {
            // Before their entries can go.
            self.inputs.push_front(Input::Back);
        }
        self.shown.line.send_replace(Some(line));
        self.check();
        self.inputs.push_back(Input::Connected);
        self.inputs.push_back(Input::Supplied);
    }

    /// The connection is over. Another one is made after a pause.
    pub(super) fn disconnect(&mut self, lost: Lost) {
        tracing::debug!(%lost, "no connection to the server of a shared volume");
        if self.line.take().is_some() {
            self.absence.begin((Instant::now(), SystemTime::now()));
        }
        self.deliveries = None;
        self.beacons.disconnected();
        self.shown.line.send_replace(None);
        self.outbox.disconnected();
        let mut chance = [0; 8];
        // Without randomness all devices wait equally long.
        let _ = getrandom::fill(&mut chance);
        let chance = u64::from_le_bytes(chance);
        self.dial_at = Some(Instant::now() + self.backoff.pause(chance));
        let offline = Connection::Offline(lost);
        self.shown
            .view
            .send_modify(|view| view.connection = offline);
    }
}
