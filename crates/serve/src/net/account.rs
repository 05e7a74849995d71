//! The account of bytes in memory: of all connections, of each client and of each connection.
//!
//! Clients that ask for much and read nothing must not cost others their service, so there are three
//! bounds. All connections hold [`Limits::max_held_bytes`](crate::net::Limits). One connection holds
//! `max_held_per_connection`. One client (see `limiter`) holds at most what is still free,
//! divided by the number of clients that hold something and `SPARE_SHARES`: after `n` clients that
//! take all they may and give nothing back, a part of `SPARE_SHARES / (n + SPARE_SHARES)` is free. A
//! client that holds nothing gets `LEAST_BYTES` of it, so some five hundred addresses are needed to
//! fill 256 MiB.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep};

use crate::net::counters::Counter;
use crate::net::limiter::Permit;
use crate::net::resources::Resources;

/// How long a request waits for others' answers to leave memory before it is refused.
const BUSY_WAIT: Duration = Duration::from_secs(2);
/// How often a waiter looks at the account.
pub(crate) const BUSY_STEP: Duration = Duration::from_millis(5);
/// Shares that are kept for clients that hold nothing yet.
const SPARE_SHARES: u64 = 16;
/// Least that a reservation gets, if it asks for so much.
const LEAST_BYTES: u64 = 64 << 10;

/// The account of one connection.
pub struct Account {
    resources: Arc<Resources>,
    /// Bytes that all connections of the client hold.
    client_bytes: Arc<AtomicU64>,
    own: Counter,
    /// Requests of this connection reserve one after the other, so that only one of them looks at the
    /// account again and again.
    turn: Mutex<()>,
    /// Told when this connection holds less.
    freed: Notify,
}

impl Account {
    /// The account of the connection that `permit` admits.
    pub(crate) fn new(resources: Arc<Resources>, permit: &Permit) -> Arc<Account> {
        Arc::new(Account {
            resources,
            client_bytes: Arc::clone(permit.held_bytes()),
            own: Counter::default(),
            turn: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// What all connections of the server share.
    pub fn resources(&self) -> &Arc<Resources> {
        &self.resources
    }

    /// Whether the client may have another answer in memory, for all that it and others hold.
    pub fn has_room(&self) -> bool {
        self.client_room() > 0
    }

    /// Whether the client may have `bytes` more in memory.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.client_room() >= bytes as u64
    }

    /// How many bytes more the client may hold.
    fn client_room(&self) -> u64 {
        let counters = self.resources.counters();
        let most = self.resources.limits().max_held_bytes as u64;
        let free = most.saturating_sub(counters.held_bytes.get());
        let share = free / counters.holders.get().saturating_add(SPARE_SHARES);
        match self.client_bytes.load(Ordering::Relaxed) {
            0 if free > 0 => share.max(LEAST_BYTES),
            held => share.saturating_sub(held),
        }
    }

    /// How many bytes more the connection may hold.
    fn connection_room(&self) -> u64 {
        let most = self.resources.limits().max_held_per_connection as u64;
        match self.own.get() {
            0 => most.max(LEAST_BYTES),
            own => most.saturating_sub(own),
        }
    }

    /// Waits up to two seconds until [`Account::has_room`]; false when too much stays.
    pub async fn wait_for_room(&self) -> bool {
        let until = Instant::now() + BUSY_WAIT;
        while !self.has_room() {
            if Instant::now() >= until {
                return false;
            }
            sleep(BUSY_STEP).await;
        }
        true
    }

    /// Puts bytes on the account before they are read: `most_bytes`, or fewer but at least 64 KiB where
    /// there is less room. Waits while this connection holds its share; `None` when its client, or all
    /// clients together, hold too much for two seconds.
    pub async fn reserve(self: &Arc<Self>, most_bytes: usize) -> Option<Held> {
        let most = most_bytes as u64;
        let least = most.min(LEAST_BYTES);
        let until = Instant::now() + BUSY_WAIT;
        let _turn = self.turn.lock().await;
        loop {
            let (own, client) = (self.connection_room(), self.client_room());
            if own < least {
                self.freed.notified().await;
            } else if client >= least {
                return Some(self.hold(most.min(own).min(client) as usize));
            } else if Instant::now() >= until {
                return None;
            } else {
                sleep(BUSY_STEP).await;
            }
        }
    }

    /// Puts `bytes` on the account, whatever is on it, until the guard is dropped.
    pub fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        let bytes = bytes as u64;
        self.add(bytes);
        let account = Arc::clone(self);
        Held { account, bytes }
    }

    pub(crate) fn add(&self, bytes: u64) {
        let counters = self.resources.counters();
        counters.held_bytes.add(bytes);
        let before = self.client_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 && bytes > 0 {
            counters.holders.add(1);
        }
        self.own.add(bytes);
    }

    pub(crate) fn subtract(&self, bytes: u64) {
        let counters = self.resources.counters();
        counters.held_bytes.subtract(bytes);
        let before = self.client_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before == bytes && bytes > 0 {
            counters.holders.subtract(1);
        }
        self.own.subtract(bytes);
        self.freed.notify_one();
    }
}

/// Bytes on an account, taken off when this is dropped.
pub struct Held {
    account: Arc<Account>,
    bytes: u64,
}

impl Held {
    /// How many bytes these are.
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Changes how many bytes these are.
    pub fn resize(&mut self, bytes: usize) {
        let bytes = bytes as u64;
        if bytes > self.bytes {
            self.account.add(bytes - self.bytes);
        } else if bytes < self.bytes {
            self.account.subtract(self.bytes - bytes);
        }
        self.bytes = bytes;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.account.subtract(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::net::limits::Limits;
    use crate::net::peer::Peer;

    fn account(resources: &Arc<Resources>, client: u8) -> (Permit, Arc<Account>) {
        let address = IpAddr::from(Ipv4Addr::new(192, 0, 2, client));
        let permit = resources.limiter().take(Peer::Ip((address, 7).into()));
        let permit = permit.ok().unwrap();
        let account = Account::new(Arc::clone(resources), &permit);
        (permit, account)
    }

    fn resources(max_held_per_connection: usize) -> Arc<Resources> {
        Resources::new(Limits {
            max_held_bytes: 64 << 20,
            max_held_per_connection,
            ..Limits::default()
        })
    }

    /// Takes all that may be had without waiting.
    async fn greedy(account: &Arc<Account>) -> Vec<Held> {
        let mut all = Vec::new();
        let room = || account.connection_room().min(account.client_room());
        while room() >= LEAST_BYTES {
            all.push(account.reserve(1 << 20).await.unwrap());
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn greedy_clients_leave_room_for_one_more() {
        let resources = resources(4 << 20);
        let (mut permits, mut held) = (Vec::new(), Vec::new());
        for _ in 0..10 {
            for client in 1..=64 {
                let (permit, account) = account(&resources, client);
                held.extend(greedy(&account).await);
                permits.push((permit, account));
            }
        }
        let all = resources.counters().held_bytes.get();
        assert!(all > 40 << 20 && all < 60 << 20, "{all}");
        let (_permit, honest) = account(&resources, 250);
        assert!(honest.reserve(64 << 10).await.is_some());
        drop(held);
        assert_eq!(resources.counters().held_bytes.get(), 0);
        assert_eq!(resources.counters().holders.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn connections_of_one_client_share_its_share() {
        let resources = resources(1 << 20);
        let (mut permits, mut held) = (Vec::new(), Vec::new());
        for _ in 0..100 {
            let (permit, account) = account(&resources, 1);
            held.extend(greedy(&account).await);
            permits.push((permit, account));
        }
        let all = resources.counters().held_bytes.get();
        assert!(all > 3 << 20 && all <= 4 << 20, "{all}");
        let (_permit, own) = account(&resources, 1);
        let began = Instant::now();
        assert!(own.reserve(1 << 20).await.is_none());
        assert!(began.elapsed() >= BUSY_WAIT);
        let (_permit, other) = account(&resources, 2);
        let got: usize = greedy(&other).await.iter().map(Held::bytes).sum();
        assert!(got > (1 << 20) - (64 << 10), "{got}");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_waits_for_its_own_share_and_is_not_refused() {
        let resources = resources(1 << 20);
        let (_permit, account) = account(&resources, 1);
        let mut held = greedy(&account).await;
        let waiting = tokio::time::timeout(10 * BUSY_WAIT, account.reserve(1 << 20));
        assert!(waiting.await.is_err());
        let free = async {
            sleep(BUSY_WAIT).await;
            held.pop();
        };
        let (got, ()) = tokio::join!(account.reserve(1 << 20), free);
        assert!(got.is_some());
    }
}
