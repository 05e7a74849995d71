//! States of a world that agree in all that the checks look at. One of them is checked, and not the others.

use std::hash::Hash;

use crate::broken::Broken;
use crate::engine::ClientEngine;
use crate::wide::Wide;
use crate::world::World;

/// Fingerprints that are kept of what was found right: some 128 MiB.
const MOST_RIGHT: usize = 1 << 22;

impl<E: ClientEngine> World<E> {
    /// Checks what has these aspects, unless it was found right before.
    pub fn look_once(
        &self,
        aspects: u128,
        check: impl FnOnce() -> Result<(), Broken>,
    ) -> Result<(), Broken> {
        if self.right.borrow().contains(&aspects) {
            return Ok(());
        }
        check()?;
        let mut right = self.right.borrow_mut();
        if right.len() >= MOST_RIGHT {
            right.clear();
        }
        right.insert(aspects);
        Ok(())
    }

    /// Fingerprint of what the checks look at.
    pub fn aspects(&self) -> u128 {
        let mut into = Wide::default();
        for client in &self.clients {
            let working = client.ready() && client.start().is_some();
            (client.frontier().point(), client.start()).hash(&mut into);
            (client.stopped(), working).hash(&mut into);
        }
        self.entries.len().hash(&mut into);
        for entry in &self.entries {
            entry.id.hash(&mut into);
        }
        for signed in [&self.signed, &self.signed_later] {
            signed.len().hash(&mut into);
            for (device, log) in signed {
                (device, log.point()).hash(&mut into);
            }
        }
        self.alarms.len().hash(&mut into);
        self.history.hash(&mut into);
        self.lapses.hash(&mut into);
        into.finish128()
    }
}
