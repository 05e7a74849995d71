//! The account of bytes in memory: of all connections, of each client and of each connection.
//!
//! Clients that ask for much and read nothing must not cost others their service, so there are three
//! bounds. All connections hold [`Limits::max_held_bytes`](crate::net::Limits). One client (see `limiter`)
//! holds at most what is still free, divided by the number of clients that hold something and
//! `SPARE_SHARES`: after `n` clients that take all they may and give nothing back, a part of
//! `SPARE_SHARES / (n + SPARE_SHARES)` is free. A client that holds nothing gets `LEAST_BYTES` of it, so
//! some five hundred addresses are needed to fill 256 MiB. One connection holds at most
//! `max_held_per_connection`, and of what its client may still hold a part by the same rule, with
//! `SPARE_CONNECTIONS`: people behind one router are one client, and some of them may be hostile. Some two
//! hundred and fifty connections are needed to fill the share of a client.
//!
//! Where so many come, those that do not take what they asked for make room (see `debtors`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, sleep};

use crate::net::debtors::Debtor;
use crate::net::limiter::Permit;
use crate::net::resources::Resources;
use crate::net::share::Share;

/// How long a request waits for others' answers to leave memory before it is refused.
const BUSY_WAIT: Duration = Duration::from_secs(2);
/// How often a waiter looks at the account.
pub(crate) const BUSY_STEP: Duration = Duration::from_millis(5);
/// Shares that are kept for clients that hold nothing yet.
const SPARE_SHARES: u64 = 16;
/// Shares of a client's room that are kept for its connections that hold nothing yet.
const SPARE_CONNECTIONS: u64 = 4;
/// Least that a reservation gets, if it asks for so much.
const LEAST_BYTES: u64 = 64 << 10;

/// The account of one connection.
pub struct Account {
    resources: Arc<Resources>,
    client: Arc<Share>,
    own: Arc<Debtor>,
    /// Number of the connection among the debtors.
    id: u64,
    /// Whether it is among the debtors.
    is_known: AtomicBool,
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
            id: resources.next_account(),
            resources,
            client: Arc::clone(permit.share()),
            own: Arc::default(),
            is_known: AtomicBool::new(false),
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

    /// Whether the connection may have `bytes` more in memory.
    pub fn has_room_for(&self, bytes: usize) -> bool {
        self.client_room().min(self.connection_room()) >= bytes as u64
    }

    /// How many bytes more the client may hold.
    fn client_room(&self) -> u64 {
        let counters = self.resources.counters();
        let most = self.resources.limits().max_held_bytes as u64;
        let free = most.saturating_sub(counters.held_bytes.get());
        let share = free / counters.holders.get().saturating_add(SPARE_SHARES);
        match self.client.held_bytes.load(Ordering::Relaxed) {
            0 if free > 0 => share.max(LEAST_BYTES),
            held => share.saturating_sub(held),
        }
    }

    /// How many bytes more the connection may hold, if its client may.
    fn connection_room(&self) -> u64 {
        let most = self.resources.limits().max_held_per_connection as u64;
        let holders = self.client.holders.get();
        let share = self.client_room() / holders.saturating_add(SPARE_CONNECTIONS);
        match self.own.held_bytes.load(Ordering::Relaxed) {
            0 => most.min(share).max(LEAST_BYTES),
            own => most.min(share).saturating_sub(own),
        }
    }

    /// Waits up to two seconds until [`Account::has_room`]; false when too much stays.
    pub async fn wait_for_room(&self) -> bool {
        let until = Instant::now() + BUSY_WAIT;
        let waiting = Waiting::begin(self);
        while !self.has_room() {
            if Instant::now() >= until {
                return false;
            }
            waiting.make_room();
            sleep(BUSY_STEP).await;
        }
        true
    }

    /// Lets connections that do not take what they asked for make room for `requests` of this one.
    fn make_room_for(&self, requests: u64) {
        let debtors = match self.client.held_bytes.load(Ordering::Relaxed) {
            0 => self.resources.debtors(),
            _ => &self.client.debtors,
        };
        let owing = self.resources.limits().room_timeout.as_millis() as u64;
        let latest_ms = self
            .resources
            .clock_ms(Instant::now())
            .saturating_sub(owing);
        debtors.make_room(requests.saturating_mul(LEAST_BYTES), latest_ms);
    }

    /// Lets connections that do not take what they asked for make room for this one, if there is none.
    pub(crate) fn make_room(&self) {
        self.make_room_for(1);
    }

    /// Notes since when the server waits for the client to take what this connection holds; `None` when it does
    /// not wait.
    pub(crate) fn owes(&self, since: Option<Instant>) {
        let since_ms = since.map_or(0, |since| self.resources.clock_ms(since).max(1));
        self.own.owes_since_ms(since_ms);
        if since_ms > 0 && !self.is_known.swap(true, Ordering::Relaxed) {
            self.client.debtors.add(self.id, &self.own);
            self.resources.debtors().add(self.id, &self.own);
        }
    }

    /// Waits until this connection must end, to make room for others. Cancel-safe.
    pub(crate) async fn must_end(&self) {
        self.own.is_cut().await;
    }

    /// Puts bytes on the account before they are read: `most_bytes`, or fewer but at least 64 KiB where
    /// there is less room. Waits while this connection holds its share; `None` when its client, or all
    /// clients together, hold too much for two seconds.
    pub async fn reserve(self: &Arc<Self>, most_bytes: usize) -> Option<Held> {
        let most = most_bytes as u64;
        let least = most.min(LEAST_BYTES);
        let until = Instant::now() + BUSY_WAIT;
        let _turn = self.turn.lock().await;
        let mut waiting = None;
        loop {
            let (own, client) = (self.connection_room(), self.client_room());
            if own < least {
                self.freed.notified().await;
            } else if client >= least {
                return Some(self.hold(most.min(own).min(client) as usize));
            } else if Instant::now() >= until {
                return None;
            } else {
                waiting
                    .get_or_insert_with(|| Waiting::begin(self))
                    .make_room();
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
        let before = self.client.held_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before == 0 && bytes > 0 {
            counters.holders.add(1);
        }
        if self.own.held_bytes.fetch_add(bytes, Ordering::Relaxed) == 0 && bytes > 0 {
            self.client.holders.add(1);
        }
    }

    pub(crate) fn subtract(&self, bytes: u64) {
        let counters = self.resources.counters();
        counters.held_bytes.subtract(bytes);
        let before = self.client.held_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if before == bytes && bytes > 0 {
            counters.holders.subtract(1);
        }
        if self.own.held_bytes.fetch_sub(bytes, Ordering::Relaxed) == bytes && bytes > 0 {
            self.client.holders.subtract(1);
        }
        self.freed.notify_one();
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if *self.is_known.get_mut() {
            self.client.debtors.remove(self.id);
            self.resources.debtors().remove(self.id);
        }
    }
}

/// A request that waits for room.
struct Waiting<'a>(&'a Account);

impl Waiting<'_> {
    fn begin(account: &Account) -> Waiting<'_> {
        account.client.waiting.add(1);
        Waiting(account)
    }

    fn make_room(&self) {
        self.0.make_room_for(self.0.client.waiting.get());
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.client.waiting.subtract(1);
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
        assert!(all > 20 << 20 && all < 60 << 20, "{all}");
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
        assert!(got > 512 << 10, "{got}");
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

    #[tokio::test(start_paused = true)]
    async fn greedy_connections_leave_room_for_one_more_of_their_client() {
        let resources = resources(4 << 20);
        let (mut permits, mut held) = (Vec::new(), Vec::new());
        for _ in 0..20 {
            let (permit, account) = account(&resources, 1);
            held.extend(greedy(&account).await);
            permits.push((permit, account));
        }
        let (_permit, honest) = account(&resources, 1);
        let began = Instant::now();
        let one_more = honest.reserve(64 << 10).await;
        assert!(one_more.is_some());
        assert_eq!(began.elapsed(), Duration::ZERO, "it waited");
        assert_eq!(honest.client.holders.get(), 21);
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn connection_that_owes_makes_room_for_its_client_only_unless_that_holds_nothing() {
        let resources = resources(4 << 20);
        let (mut permits, mut held) = (Vec::new(), Vec::new());
        for client in 1..=2 {
            for _ in 0..100 {
                let (permit, account) = account(&resources, client);
                held.extend(greedy(&account).await);
                account.owes(Some(Instant::now()));
                permits.push((permit, account));
            }
        }
        sleep(Duration::from_secs(5)).await;
        let cut = |from: usize| {
            let some = permits.iter().skip(from).take(100);
            some.filter(|(_, account)| is_cut(account)).count()
        };
        let (_permit, one) = account(&resources, 1);
        one.make_room();
        assert_eq!((cut(0), cut(100)), (1, 0));
        let (_permit, stranger) = account(&resources, 3);
        stranger.make_room();
        assert_eq!(cut(0) + cut(100), 1, "one that is about to leave is enough");
        drop(held);
    }

    fn is_cut(account: &Account) -> bool {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        std::pin::pin!(account.must_end())
            .poll(&mut context)
            .is_ready()
    }
}
