//! The engine of this process, for questions that need no step of it: they are answered on the thread that asks, as long as
//! the engine is not busy.

use std::sync::{Arc, Mutex, PoisonError};

use super::Answered;
use super::core::Core;
use crate::files::Call;

/// The engine, while this process has it.
#[derive(Default)]
pub(super) struct Near(Mutex<Option<Arc<Mutex<Core>>>>);

impl Near {
    /// This process has the engine, or has it no more.
    pub(super) fn set(&self, core: Option<Arc<Mutex<Core>>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = core;
    }

    /// Whether this process has the engine.
    pub(super) fn is_here(&self) -> bool {
        let near = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        near.is_some()
    }

    /// What the engine has verified says to a call that reads. None: the engine is busy or elsewhere, or must do something
    /// first.
    pub(super) fn look(&self, call: &Call) -> Option<Answered> {
        let near = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let core = near.as_ref()?.clone();
        drop(near);
        let core = core.try_lock().ok()?;
        let (answer, marked) = core.look_now(call)?;
        let at = core.engine().ledger().size();
        Some(Answered { answer, at, marked })
    }
}
