//! Makes a log on a device, in two steps: [`prepare`] writes zeros everywhere, [`format`] names the volume. Between
//! them a client may fill its area.

use crate::buffer::Buffer;
use crate::device::Device;
use crate::error::LogError;
use crate::key::{Key, VolumeId};
use crate::layout::{Geometry, HEAD_BYTES, Layout};
use crate::position::{Lsn, START};
use crate::record::Client;
use crate::slots;
use crate::superblock::{self, ClientState, MAX_COOKIE_BYTES, Superblock, SuperblockKey};

const STEP_BYTES: usize = 1 << 20;

/// Writes zeros to every byte that the log will use, so that no later write has to allocate space. What was there
/// is no log any more. `progress` is told how many bytes are done.
///
/// # Errors
/// [`LogError::Truncated`]: the device is too short. [`LogError::Invalid`]: see [`Layout::new`]. [`LogError::Io`].
pub fn prepare(
    device: &dyn Device,
    geometry: &Geometry,
    progress: &mut dyn FnMut(u64),
) -> Result<Layout, LogError> {
    let layout = fitting(device, geometry)?;
    let zeros = Buffer::zeroed(STEP_BYTES);
    let mut at = 0;
    while at < layout.device_bytes() {
        let step = (layout.device_bytes() - at).min(STEP_BYTES as u64);
        device
            .write(at, &zeros[..step as usize])
            .map_err(|e| LogError::io("write", at, e))?;
        at += step;
        if at == HEAD_BYTES {
            sync(device)?; // an older log there is gone before its ring is
        }
        progress(at);
    }
    sync(device)?;
    Ok(layout)
}

/// Makes a prepared device a log: key slots, then superblocks, each with `cookies` for the clients. The log is
/// empty at position 0.
///
/// # Errors
/// As [`prepare`]; [`LogError::Invalid`] also for a cookie of an unknown client or with more than
/// [`MAX_COOKIE_BYTES`].
pub fn format(
    device: &dyn Device,
    key: &Key,
    volume: VolumeId,
    geometry: &Geometry,
    cookies: &[(Client, Vec<u8>)],
    slots: &[u8],
) -> Result<(), LogError> {
    let layout = fitting(device, geometry)?;
    let invalid = |why| Err(LogError::Invalid { why });
    if cookies.iter().any(|(client, _)| !layout.knows(*client)) {
        return invalid("a cookie belongs to a client that the log does not have");
    }
    if cookies
        .iter()
        .any(|(_, cookie)| cookie.len() > MAX_COOKIE_BYTES)
    {
        return invalid("a cookie has more than 512 bytes");
    }
    let state = |(client, area): &(Client, std::ops::Range<u64>)| ClientState {
        client: *client,
        area_bytes: area.end - area.start,
        oldest: Lsn(0),
        cookie: cookies
            .iter()
            .find(|(of, _)| of == client)
            .map(|(_, cookie)| cookie.clone())
            .unwrap_or_default(),
    };
    let mut superblock = Superblock {
        volume,
        generation: 0,
        session: [0; 16],
        ring_bytes: layout.ring_bytes,
        epoch: 0,
        cut_epoch: 0,
        tail: START,
        mark: START,
        clients: layout.areas.iter().map(state).collect(),
        gaps: Vec::new(),
    };
    sync(device)?;
    slots::format(device, volume, slots)?;
    let key = SuperblockKey::new(key, volume);
    superblock::store(device, &key, &superblock)?;
    superblock.generation = 1;
    superblock::store(device, &key, &superblock)?;
    sync(device)
}

fn fitting(device: &dyn Device, geometry: &Geometry) -> Result<Layout, LogError> {
    let layout = Layout::new(geometry)?;
    layout.check(device)?;
    Ok(layout)
}

fn sync(device: &dyn Device) -> Result<(), LogError> {
    device.sync().map_err(|e| LogError::io("sync", 0, e))
}
