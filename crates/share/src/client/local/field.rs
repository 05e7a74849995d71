//! Fields that several messages have in common.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use trust::device::DeviceKey;
use trust::encode::{Decoder, Encoder};
use trust::error::Reject;
use trust::tree::inode::MAX_NAME_BYTES;
use trust_shared::principal::{Device, FileId, INumber, Name, Principal};

pub(super) type Read<T> = Result<T, Reject>;

/// Longest text for people, bytes.
const MAX_TEXT_BYTES: usize = 4096;
/// Longest path, bytes.
const MAX_PATH_BYTES: usize = 1 << 16;

pub(super) fn flag(e: &mut Encoder, value: bool) {
    e.u8(u8::from(value));
}

pub(super) fn read_flag(d: &mut Decoder<'_>) -> Read<bool> {
    match d.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(d.bad("a flag is 0 or 1")),
    }
}

pub(super) fn option<T>(e: &mut Encoder, value: Option<T>, encode: impl FnOnce(&mut Encoder, T)) {
    flag(e, value.is_some());
    if let Some(value) = value {
        encode(e, value);
    }
}

pub(super) fn read_option<'a, T>(
    d: &mut Decoder<'a>,
    decode: impl FnOnce(&mut Decoder<'a>) -> Read<T>,
) -> Read<Option<T>> {
    match read_flag(d)? {
        true => decode(d).map(Some),
        false => Ok(None),
    }
}

/// A text for people. What is too long is cut.
pub(super) fn text(e: &mut Encoder, text: &str) {
    let cut = text.floor_char_boundary(MAX_TEXT_BYTES);
    e.bytes(text.get(..cut).unwrap_or_default().as_bytes());
}

pub(super) fn read_text(d: &mut Decoder<'_>) -> Read<String> {
    let bytes = d.bytes(MAX_TEXT_BYTES)?;
    let text = std::str::from_utf8(bytes).map_err(|_| d.bad("a text is not UTF-8"))?;
    Ok(text.to_owned())
}

pub(super) fn path(e: &mut Encoder, path: &Path) {
    e.bytes(path.as_os_str().as_bytes());
}

pub(super) fn read_path(d: &mut Decoder<'_>) -> Read<PathBuf> {
    let bytes = d.bytes(MAX_PATH_BYTES)?.to_vec();
    Ok(std::ffi::OsString::from_vec(bytes).into())
}

pub(super) fn device(e: &mut Encoder, device: &DeviceKey) {
    e.raw(device.as_bytes());
}

pub(super) fn read_device(d: &mut Decoder<'_>) -> Read<DeviceKey> {
    Ok(DeviceKey::from_bytes(d.array()?))
}

pub(super) fn file(e: &mut Encoder, file: &FileId) {
    e.raw(file.principal.as_bytes());
    e.varint(file.number.device.0.into());
    e.varint(file.number.counter);
}

pub(super) fn read_file(d: &mut Decoder<'_>) -> Read<FileId> {
    let principal = Principal::from_bytes(d.array()?);
    let device = d.bounded(u32::MAX.into(), "a device over 32 bits")?;
    let number = INumber {
        device: Device(u32::try_from(device).unwrap_or(u32::MAX)),
        counter: d.varint()?,
    };
    Ok(FileId { principal, number })
}

pub(super) fn read_name(d: &mut Decoder<'_>) -> Read<Name> {
    Name::new(d.bytes(MAX_NAME_BYTES)?)
}

/// A list with its length before it.
pub(super) fn list<T>(e: &mut Encoder, items: &[T], mut encode: impl FnMut(&mut Encoder, &T)) {
    e.varint(items.len() as u64);
    items.iter().for_each(|item| encode(e, item));
}

/// Memory is taken as items are read, whatever the length claims.
pub(super) fn read_list<'a, T>(
    d: &mut Decoder<'a>,
    most: u64,
    mut decode: impl FnMut(&mut Decoder<'a>) -> Read<T>,
) -> Read<Vec<T>> {
    let count = d.bounded(most, "a list that is too long")?;
    let mut items = Vec::new();
    for _ in 0..count {
        items.push(decode(d)?);
    }
    Ok(items)
}
