//! Checkpoints of a shared volume: how the state of a log becomes rows, how a device gets them, and what it starts from
//! (docs/formats/shared.md, *Checkpoint*; decision 0058).
//!
//! | file | what it does |
//! |---|---|
//! | `making` | the state of a ledger as a tree of rows, in steps |
//! | `rows` | the rows of a checkpoint from a server |
//! | `trusted` | which of the checkpoints that a server gives a device may start from |
//! | `start` | the file of a home that began with a checkpoint |
//!
//! Relies on [`trust_shared::checkpoint`] for the format. The client, [`crate::client`], does the input and output.

mod making;
mod rows;
mod start;
mod trusted;

use std::sync::Arc;

use trust_shared::checkpoint::Parts;
use trust_shared::genesis::Policies;
use trust_shared::note::SignedNote;

use crate::files::{Files, Shelf};
use ordering::ledger::Ledger;
use ordering::prefixes::Recent;
use ordering::roster::Product;
use ordering::rows::Rows;

pub use making::{Making, Progress};
pub use rows::{Descent, MAX_ROWS, MAX_ROWS_BYTES};
pub use start::{Start, StartError};
pub use trusted::Trusted;

/// A log with its members and files, as a checkpoint gives them. `note` names the log. Nothing is verified here.
pub fn ledger(
    policies: &Policies,
    shelf: Arc<Shelf>,
    parts: Parts,
    note: SignedNote,
) -> Ledger<Product, Files> {
    let log = Recent::begin(&parts.window);
    let mut authors = Rows::default();
    for (device, author) in &parts.authors {
        authors.insert(*device, *author);
    }
    let files = Files::begin(policies, shelf, note.note().log.size, parts);
    Ledger::begin(log, authors, files, note)
}
