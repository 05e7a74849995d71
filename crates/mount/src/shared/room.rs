//! What `df` shows: the room that the server says this device has. A server may say anything, so nothing is refused because
//! of it.

use std::time::{Duration, Instant};

use share::writeback::lock;

use super::core::Core;
use crate::attributes::STATFS_UNIT_BYTES;

/// Size and free space before the first answer of the server, in units of [`STATFS_UNIT_BYTES`].
const UNKNOWN_UNITS: (u64, u64) = (1 << 38, 1 << 38);
/// An answer is used so long.
const AGE: Duration = Duration::from_secs(5);
/// How long `df` waits for the server.
const PATIENCE: Duration = Duration::from_secs(1);

impl Core {
    /// All units and free ones. Those of the last answer if the server says nothing.
    pub async fn room(&self) -> (u64, u64) {
        let known = *lock(&self.room);
        if let Some((asked, units)) = known
            && asked.elapsed() < AGE
        {
            return units;
        }
        let asked = Instant::now();
        let usage = self.volume.client().usage(asked + PATIENCE).await;
        let units = match usage {
            Ok(usage) => usage.blocks(STATFS_UNIT_BYTES),
            Err(_) => known.map_or(UNKNOWN_UNITS, |(_, units)| units),
        };
        // A silent server is not waited for each time.
        *lock(&self.room) = Some((asked, units));
        units
    }
}
