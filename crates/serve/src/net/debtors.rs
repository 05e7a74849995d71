//! Connections that do not take what they asked for, and which of them make room for others.
//!
//! A connection owes from when the server waits for it: so long as its client would have needed at
//! [`Limits::min_bytes_per_second`](crate::net::Limits) for what it has not taken. What it takes makes the
//! debt shorter; time in which the server does not wait does not count (see `pace`). When a request finds no
//! room in memory, connections that have owed for [`Limits::room_timeout`](crate::net::Limits::room_timeout)
//! are cut off, the longest debt first, until enough is free: those of the same client, or of any client if this
//! one holds nothing itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Shortest time between two looks at the same debtors, so that many who wait cost no more than one.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One connection as its debtors' list sees it.
#[derive(Default)]
pub(crate) struct Debtor {
    /// Bytes that the connection holds in memory.
    pub(super) held_bytes: AtomicU64,
    /// Since when it owes, in milliseconds after the start of the server; 0 when the server does not wait for it.
    since_ms: AtomicU64,
    is_cut: AtomicBool,
    cut: Notify,
}

impl Debtor {
    fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn owes_since_ms(&self, since_ms: u64) {
        self.since_ms.store(since_ms, Ordering::Relaxed);
    }

    /// Waits until the connection must make room. Cancel-safe.
    pub(super) async fn is_cut(&self) {
        // A permit is stored for who comes later.
        while !self.is_cut.load(Ordering::Relaxed) {
            self.cut.notified().await;
        }
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
        self.cut.notify_one();
    }
}

/// Connections for which the server has waited, of one client or of all.
#[derive(Default)]
pub(crate) struct Debtors(Mutex<State>);

#[derive(Default)]
struct State {
    all: HashMap<u64, Arc<Debtor>>,
    looked: Option<Instant>,
}

impl Debtors {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add(&self, id: u64, debtor: &Arc<Debtor>) {
        self.with(|state| state.all.insert(id, Arc::clone(debtor)));
    }

    pub(super) fn remove(&self, id: u64) {
        self.with(|state| state.all.remove(&id));
    }

    /// Cuts off connections that have owed since `latest_ms` after the start of the server, the longest debts first,
    /// until `wanted_bytes` come free.
    pub(super) fn make_room(&self, wanted_bytes: u64, latest_ms: u64) {
        let now = Instant::now();
        self.with(|state| {
            if state.looked.is_some_and(|at| now < at + LOOK_EVERY) {
                return;
            }
            state.looked = Some(now);
            let mut freed_bytes = 0;
            let mut owing = Vec::new();
            for debtor in state.all.values() {
                let since_ms = debtor.since_ms.load(Ordering::Relaxed);
                if debtor.is_cut.load(Ordering::Relaxed) {
                    // It is about to leave.
                    freed_bytes += debtor.held_bytes();
                } else if (1..=latest_ms).contains(&since_ms) && debtor.held_bytes() > 0 {
                    owing.push((since_ms, debtor));
                }
            }
            owing.sort_unstable_by_key(|(since_ms, _)| *since_ms);
            for (_, debtor) in owing {
                if freed_bytes >= wanted_bytes {
                    break;
                }
                freed_bytes += debtor.held_bytes();
                debtor.cut();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn debtor(debtors: &Debtors, id: u64, since_ms: u64, bytes: u64) -> Arc<Debtor> {
        let debtor = Arc::new(Debtor::default());
        debtor.held_bytes.store(bytes, Ordering::Relaxed);
        debtor.owes_since_ms(since_ms);
        debtors.add(id, &debtor);
        debtor
    }

    #[tokio::test(start_paused = true)]
    async fn longest_debts_make_room_first_and_no_more_than_are_needed() {
        let debtors = Debtors::default();
        let all = [
            (0, 1000, "nobody waits for it"),
            (5000, 1000, "owes for a second"),
            (2000, 0, "holds nothing"),
            (3000, 1000, "owes for three seconds"),
            (5001, 1000, "owes for less than a second"),
            (4000, 1000, "owes for two seconds"),
        ]
        .map(|(since, bytes, what)| {
            let id = since + bytes;
            (what, debtor(&debtors, id, since, bytes))
        });
        let cut = || {
            let cut = all
                .iter()
                .filter(|(_, one)| one.is_cut.load(Ordering::Relaxed));
            cut.map(|(what, _)| *what).collect::<Vec<_>>()
        };
        debtors.make_room(900, 5000);
        assert_eq!(cut(), ["owes for three seconds"]);
        // The one that is about to leave counts.
        tokio::time::advance(LOOK_EVERY).await;
        debtors.make_room(1000, 5000);
        assert_eq!(cut().len(), 1);
        // Two looks one after the other are one.
        debtors.make_room(2000, 5000);
        assert_eq!(cut().len(), 1);
        tokio::time::advance(LOOK_EVERY).await;
        debtors.make_room(2000, 5000);
        assert_eq!(cut(), ["owes for three seconds", "owes for two seconds"]);
        tokio::time::advance(LOOK_EVERY).await;
        debtors.make_room(u64::MAX, 5000);
        assert_eq!(cut().len(), 3, "{:?}", cut());
        all[3].1.is_cut().await;
    }
}
