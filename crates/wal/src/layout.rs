//! Where things lie on the log's device: superblocks and key slots in the first MiB, then the clients' areas, then
//! the ring.

use std::ops::Range;

use crate::buffer::PAGE;
use crate::device::Device;
use crate::error::LogError;
use crate::frame::MAX_FRAME_BYTES;
use crate::position::Lsn;
use crate::record::Client;

/// Superblocks and key slots lie below this offset.
pub(crate) const HEAD_BYTES: u64 = 1 << 20;
/// Areas and the ring begin at multiples of this.
const PART_ALIGN: u64 = 64 << 10;
/// The shortest ring.
pub const MIN_RING_BYTES: u64 = 16 * PAGE;
/// The longest ring.
pub const MAX_RING_BYTES: u64 = 1 << 44;
/// The most clients that one log serves.
pub const MAX_CLIENTS: usize = 6;
/// At most so much of a log is not durable, in rings of 128 MiB and more.
const MAX_WINDOW_BYTES: u64 = 32 << 20;
/// The part of the reserve for short frames, in long rings.
const MAX_SHORT_BYTES: u64 = 1 << 20;
const MAX_AREA_BYTES: u64 = 1 << 60;

/// What a log is made of, chosen at format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the ring, rounded down to whole pages: [`MIN_RING_BYTES`] to [`MAX_RING_BYTES`].
    pub ring_bytes: u64,
    /// The clients, and how many bytes of the device each needs for itself beside the ring.
    pub areas: Vec<(Client, u64)>,
}

/// Offsets on the device that follow from a [`Geometry`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Each client's own region.
    pub(crate) areas: Vec<(Client, Range<u64>)>,
    pub(crate) ring_start: u64,
    pub(crate) ring_bytes: u64,
}

impl Layout {
    /// The layout of a log with this geometry.
    ///
    /// # Errors
    /// [`LogError::Invalid`]: the ring is too short or too long, there are too many clients, or one appears twice.
    pub fn new(geometry: &Geometry) -> Result<Layout, LogError> {
        let invalid = |why| Err(LogError::Invalid { why });
        let ring_bytes = geometry.ring_bytes / PAGE * PAGE;
        if !(MIN_RING_BYTES..=MAX_RING_BYTES).contains(&ring_bytes) {
            return invalid("a log's ring has 64 KiB to 16 TiB");
        }
        if geometry.areas.is_empty() || geometry.areas.len() > MAX_CLIENTS {
            return invalid("a log has 1 to 6 clients");
        }
        let mut at = HEAD_BYTES;
        let mut areas: Vec<(Client, Range<u64>)> = Vec::new();
        for (client, bytes) in &geometry.areas {
            if areas.iter().any(|(other, _)| other == client) {
                return invalid("a client of the log appears twice");
            }
            if *bytes > MAX_AREA_BYTES {
                return invalid("a client's area is too large");
            }
            areas.push((*client, at..at + bytes));
            at = (at + bytes).next_multiple_of(PART_ALIGN);
        }
        Ok(Layout {
            areas,
            ring_start: at,
            ring_bytes,
        })
    }

    /// Whether the log can lie on a device.
    pub(crate) fn check(&self, device: &dyn Device) -> Result<(), LogError> {
        if u64::from(device.align()) > PAGE {
            let why = "the log's device has blocks of more than 4096 bytes";
            return Err(LogError::Invalid { why });
        }
        let (expected, found) = (self.device_bytes(), device.bytes());
        if found < expected {
            return Err(LogError::Truncated { expected, found });
        }
        Ok(())
    }

    /// Bytes that the device must have.
    pub fn device_bytes(&self) -> u64 {
        self.ring_start + self.ring_bytes
    }

    /// A client's own region of the device. Empty for a client that the log does not know.
    pub fn area(&self, client: Client) -> Range<u64> {
        let mut areas = self.areas.iter();
        areas
            .find(|(of, _)| *of == client)
            .map_or(0..0, |(_, area)| area.clone())
    }

    pub(crate) fn knows(&self, client: Client) -> bool {
        self.areas.iter().any(|(of, _)| *of == client)
    }

    /// Offset on the device of a position in the log.
    pub(crate) fn offset(&self, lsn: Lsn) -> u64 {
        self.ring_start + lsn.0 % self.ring_bytes
    }

    /// Bytes from a position to the ring's end: 1 page to the whole ring.
    pub(crate) fn rest_of_lap(&self, lsn: Lsn) -> u64 {
        self.ring_bytes - lsn.0 % self.ring_bytes
    }

    /// W: at most so many bytes of the log are not durable.
    pub(crate) fn window_bytes(&self) -> u64 {
        (self.ring_bytes / 4 / PAGE * PAGE).min(MAX_WINDOW_BYTES)
    }

    /// The longest frame: 9 MiB, or an eighth of a shorter ring.
    pub(crate) fn max_frame_bytes(&self) -> u64 {
        (self.window_bytes() / 2 / PAGE * PAGE).min(MAX_FRAME_BYTES)
    }

    /// What `append` leaves free for `append_reserved`: a frame of any length with the padding before it, and short
    /// ones.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.window_bytes() + (self.ring_bytes / 16 / PAGE * PAGE).min(MAX_SHORT_BYTES)
    }
}
