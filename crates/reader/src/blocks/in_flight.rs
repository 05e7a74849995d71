//! Concurrent equal fetches are one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use trust::Handle;

/// The fetches under way, by what they fetch.
pub(super) type InFlight = Mutex<HashMap<Handle, watch::Receiver<()>>>;

/// A fetch under way: others who want the same wait for its end, however it ends.
pub(super) struct FetchGuard<'a> {
    flights: &'a InFlight,
    pub(super) names: Vec<Handle>,
    _end: watch::Sender<()>,
}

impl<'a> FetchGuard<'a> {
    /// Takes what nobody fetches yet; gives back the flights of the rest.
    pub(super) fn begin<K>(
        flights: &'a InFlight,
        handles: &[Handle<K>],
    ) -> (Self, Vec<watch::Receiver<()>>) {
        let (end, waiter) = watch::channel(());
        let mut names = Vec::with_capacity(handles.len());
        let mut others = Vec::new();
        let mut map = flights.lock().unwrap_or_else(PoisonError::into_inner);
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
                flights,
                names,
                _end: end,
            },
            others,
        )
    }
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        let mut map = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            map.remove(name);
        }
    }
}
