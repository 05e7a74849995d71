//! Asking without a key whether another host uses a log.

use std::io;

use super::Host;
use super::page;
use super::taking::{POLL, WATCH};
use crate::buffer::{Buffer, PAGE_BYTES};
use crate::device::Device;

/// Whether a host that uses the log on this device answers. Writes a page that is no claim to the area of claims, watches
/// the other pages for [`WATCH`], and puts back what the page was. An area of zeros is of a log that nobody uses.
///
/// For those who overwrite a log: they may have no key for it, so they cannot claim it.
///
/// # Errors
/// The device cannot be read or written, or the system has no randomness.
pub fn is_answered(device: &dyn Device, host: &dyn Host) -> io::Result<bool> {
    let before = page::read_raw(device)?;
    let pages = || before.chunks(PAGE_BYTES);
    if pages().all(page::is_free) {
        return Ok(false);
    }
    // The claim of a host that is alive is written anew if it is damaged. That is an answer too.
    let slot = pages().position(page::is_free).unwrap_or_default();
    let own = slot * PAGE_BYTES..(slot + 1) * PAGE_BYTES;
    let mut asked = Buffer::copy(&before);
    getrandom::fill(&mut asked[own.clone()][..16]).map_err(io::Error::other)?;
    page::write_raw(device, slot, &asked[own.clone()])?;
    device.sync()?;
    let until = host.now() + WATCH;
    let mut found = page::read_raw(device)?;
    while found[..] == asked[..] && host.now() < until {
        host.wait(POLL);
        found = page::read_raw(device)?;
    }
    if found[own.clone()] == asked[own.clone()] {
        page::write_raw(device, slot, &before[own])?;
        device.sync()?;
    }
    Ok(found[..] != asked[..])
}
