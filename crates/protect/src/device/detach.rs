//! The end of a session in order.

use std::time::{Duration, Instant};

use super::{Protected, WAIT, chain, lock};
use crate::block::BlockError;

impl Protected {
    /// Accepts nothing more, writes everything home, and says so in the log. The data device then is what a raw disk
    /// would be after the same writes. Fails at the latest after `deadline` without progress, and can be tried again.
    ///
    /// # Errors
    /// Something could not be written; it is in the log still, and the next attachment has it.
    pub fn detach(&self, deadline: Duration) -> Result<(), BlockError> {
        let shared = &self.shared;
        shared.flush()?;
        {
            let mut signals = lock(&shared.signals);
            signals.detached = true;
            signals.drain = true;
        }
        shared.wake_all();
        // What was accepted between the flush and the end.
        shared.flush()?;
        let mut left = shared.engine.bytes_to_home();
        let mut moved = Instant::now();
        while !shared.engine.is_settled() {
            if let Some(why) = shared.engine.failure() {
                return Err(BlockError::ReadOnly { why });
            }
            let now_left = shared.engine.bytes_to_home();
            if now_left != left {
                left = now_left;
                moved = Instant::now();
            }
            if moved.elapsed() >= deadline {
                return Err(BlockError::Io {
                    device: "the data device",
                    source: std::io::ErrorKind::TimedOut.into(),
                });
            }
            let mut signals = lock(&shared.signals);
            signals.settle_now = true;
            shared.to_home.notify_all();
            shared.to_settle.notify_one();
            drop(shared.progress.wait_timeout(signals, WAIT));
        }
        self.end()
    }

    fn end(&self) -> Result<(), BlockError> {
        let _turn = lock(&self.shared.settling);
        let engine = &self.shared.engine;
        let done = engine.say_detached().and_then(|()| engine.checkpoint());
        done.map_err(|error| {
            let why = chain(&error);
            engine.fail(&why);
            BlockError::ReadOnly { why }
        })?;
        // The device is detached whatever becomes of the claim.
        engine.give_back();
        Ok(())
    }
}
