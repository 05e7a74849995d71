//! Fetches in flight: concurrent readers of one block share one fetch.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use trust::Handle;

/// The fetches in flight, by the blocks that they fetch.
pub(super) type InFlight = Mutex<HashMap<Handle, watch::Receiver<()>>>;

/// A fetch in flight. Other readers of its blocks wait until it is dropped, then look again.
pub(super) struct FetchGuard<'a> {
    in_flight: &'a InFlight,
    pub(super) names: Vec<Handle>,
    _end: watch::Sender<()>,
}

impl<'a> FetchGuard<'a> {
    /// Starts a fetch of the blocks that no other fetch brings. Also gives a receiver for each other
    /// fetch, which fails when that fetch ends.
    pub(super) fn begin<K>(
        in_flight: &'a InFlight,
        handles: &[Handle<K>],
    ) -> (Self, Vec<watch::Receiver<()>>) {
        let (end, waiter) = watch::channel(());
        let mut names = Vec::with_capacity(handles.len());
        let mut others = Vec::new();
        let mut map = in_flight.lock().unwrap_or_else(PoisonError::into_inner);
        for name in handles.iter().map(Handle::any) {
            match map.get(&name) {
                Some(other) => others.push(other.clone()),
                None => {
                    map.insert(name, waiter.clone());
                    names.push(name);
                }
            }
        }
        drop(map);
        (
            FetchGuard {
                in_flight,
                names,
                _end: end,
            },
            others,
        )
    }
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        let mut map = self
            .in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            map.remove(name);
        }
    }
}
