//! A new map from all values in order.

use std::ops::Range;
use std::sync::Arc;

use wal::{Device, Key, VolumeId};

use super::error::MapError;
use super::value::Value;
use super::{Map, Root};

/// Leaves in memory while a map is built: they come in order, and none is read.
const CACHE_BYTES: usize = 4 << 20;

impl Map {
    /// Writes a new map. Blocks that `values` leaves out are [`Value::Zero`]. Nothing is durable before the caller
    /// syncs the device.
    ///
    /// # Errors
    /// As for [`open`](Map::open) and [`set`](Map::set).
    pub fn build(
        device: Arc<dyn Device>,
        area: Range<u64>,
        key: &Key,
        volume: VolumeId,
        blocks: u64,
        values: impl IntoIterator<Item = (u64, Value)>,
    ) -> Result<Root, MapError> {
        let map = Map::open(device, area, key, volume, blocks, Root::ZERO, CACHE_BYTES)?;
        for (block, value) in values {
            map.set(block, value)?;
        }
        map.write_back()
    }
}
