//! How an attached device answers other commands.

use std::io;
use std::sync::mpsc;
use std::time::Duration;

use ::protect::BLOCK_BYTES;
use serde_json::{Map, Value, json};

use super::attached::{Attached, Event};
use super::scrub;
use crate::control::{Answerer, Ask};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::fields;

/// How often a client that waits is told that the work goes on.
const SIGN_OF_LIFE: Duration = Duration::from_secs(2);

impl Answerer for Attached {
    fn answer(
        &self,
        ask: Ask,
        record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
    ) -> Outcome<Map<String, Value>> {
        match ask {
            Ask::Status {} => Ok(self.record()),
            Ask::Detach { force } => detach(self, force, record),
            Ask::Scrub { bwlimit, restart } => scrub::run(self, bwlimit, restart, record),
        }
    }
}

/// Hands the question to the thread that holds the front end, and waits for it.
fn detach(
    attached: &Attached,
    force: bool,
    record: &mut dyn FnMut(Map<String, Value>) -> io::Result<()>,
) -> Outcome<Map<String, Value>> {
    let gone = || Failure::new(Kind::NotAttached, "the device is being detached already");
    let (reply, answer) = mpsc::channel();
    let sent = attached.events.send(Event::Detach { force, reply });
    sent.map_err(|_| gone())?;
    loop {
        match answer.recv_timeout(SIGN_OF_LIFE) {
            Ok(outcome) => return outcome,
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(gone()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                let left = attached.device.engine().counts();
                let left = left.redo_blocks + left.staged_blocks + left.hash_blocks;
                let one = json!({"type": "progress", "left_bytes": left * BLOCK_BYTES});
                // The device is detached even if the client goes away.
                let _ = record(fields(one));
            }
        }
    }
}
