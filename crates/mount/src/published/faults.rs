//! Counts failures in a mount, for [`super::report`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use reader::ReadError;
use trust::error::Class;
use volume::VolumeError;

use crate::published::failure::Failure;

/// Failures since the volume was mounted.
#[derive(Debug, Default)]
pub struct Faults {
    unavailable: AtomicU64,
    unsupported: AtomicU64,
    expired: AtomicU64,
    integrity: AtomicU64,
    rollback: AtomicU64,
    fork: AtomicU64,
    other: AtomicU64,
    refreshes: AtomicU64,
    refreshes_failed: AtomicU64,
    last_refresh: Mutex<Option<Refresh>>,
}

impl Faults {
    /// Counts a failed request. Proved absence, or a file of another kind, is an answer and not counted.
    pub(crate) fn count(&self, failure: &Failure) {
        let Failure::Read(error) = failure else {
            return;
        };
        let counter = match (error.class(), error) {
            (Some(Class::Unavailable), _) => &self.unavailable,
            (Some(Class::Unsupported), _) => &self.unsupported,
            (Some(Class::Expired), _) => &self.expired,
            (Some(Class::Integrity), _) => &self.integrity,
            (Some(Class::Rollback), _) => &self.rollback,
            (Some(Class::Fork), _) => &self.fork,
            (None, VolumeError::Read(ReadError::NotFound { .. } | ReadError::WrongKind { .. })) => {
                return;
            }
            (None, _) => &self.other,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes how a refresh (a search for a newer version) ended.
    pub(crate) fn refreshed(&self, error: Option<&VolumeError>) {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
        if error.is_some() {
            self.refreshes_failed.fetch_add(1, Ordering::Relaxed);
        }
        let refresh = Refresh {
            at: std::time::SystemTime::now(),
            error: error.cloned(),
        };
        let last = self.last_refresh.lock();
        *last.unwrap_or_else(PoisonError::into_inner) = Some(refresh);
    }

    /// Failed requests, by the kind of error.
    pub(crate) fn errors(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("unavailable", load(&self.unavailable)),
            ("unsupported", load(&self.unsupported)),
            ("expired", load(&self.expired)),
            ("integrity", load(&self.integrity)),
            ("rollback", load(&self.rollback)),
            ("fork", load(&self.fork)),
            ("other", load(&self.other)),
        ]
    }

    /// How many refreshes ended, and how many of them failed.
    pub(crate) fn refreshes(&self) -> (u64, u64) {
        (load(&self.refreshes), load(&self.refreshes_failed))
    }

    /// The refresh that ended last.
    pub(crate) fn last_refresh(&self) -> Option<Refresh> {
        let last = self.last_refresh.lock();
        last.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// How the last refresh ended.
#[derive(Debug, Clone)]
pub struct Refresh {
    /// When, by the wall clock.
    pub at: std::time::SystemTime,
    /// The error, if it failed.
    pub error: Option<VolumeError>,
}

/// The value of a counter.
pub fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
