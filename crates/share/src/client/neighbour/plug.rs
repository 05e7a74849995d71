//! The channels between a client and the engine that serves it.

use std::sync::Arc;

use tokio::sync::mpsc;
use trust::Hasher;

use crate::client::driver::{Command, Shown};
use crate::client::link::Offered;
use crate::client::near::Near;
use crate::client::owed::Before;
use crate::client::own::Own;

/// The ends.
pub(in crate::client) struct Plug {
    pub(in crate::client) commands: mpsc::UnboundedReceiver<Command>,
    /// Puts commands back.
    pub(in crate::client) queue: mpsc::WeakUnboundedSender<Command>,
    pub(in crate::client) shown: Shown,
    pub(in crate::client) hasher: Hasher,
    /// Policies that the server has shown.
    pub(in crate::client) offered: Offered,
    /// What this device keeps of its own content.
    pub(in crate::client) own: Option<Arc<Own>>,
    /// The engine of this process.
    pub(in crate::client) near: Arc<Near>,
    /// Memories of which this process is to give something back.
    pub(in crate::client) before: Before,
}
