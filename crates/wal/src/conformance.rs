//! What every [`Device`] must do, as library code that the tests of each implementation call. When a rule is broken,
//! the suite panics with its name.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a suite fails by panicking

use std::io;
use std::sync::Arc;

use crate::buffer::Buffer;
use crate::device::Device;

/// Runs the whole suite on a device of 1 MiB or more, whose content is lost. `reopen` closes the device and opens it
/// again.
pub fn suite<D: Device + 'static>(device: D, reopen: impl Fn(D) -> D) {
    let align = usize::try_from(device.align()).unwrap();
    let power = device.align().is_power_of_two() && device.align() >= 512;
    assert!(
        power,
        "the physical block is a power of two from 512: {align}"
    );
    assert!(device.bytes() >= 1 << 20, "the suite needs 1 MiB");
    let written_and_read = round_trips(&device, align);
    zeroes(&device, align);
    reaches_the_end(&device, align);
    refuses_what_is_outside(&device, align);
    reads_into_any_memory(&device, align);
    device.write(0, &written_and_read).unwrap();
    device.sync().unwrap();
    let bytes = device.bytes();
    let device = reopen(device);
    assert_eq!(device.bytes(), bytes, "the length stays");
    assert_eq!(read(&device, 0, written_and_read.len()), written_and_read);
    writes_from_several_threads(Arc::new(device), align);
}

fn pattern(seed: u8, bytes: usize) -> Vec<u8> {
    let mut pattern = vec![0; bytes];
    let mut noise = blake3::Hasher::new();
    noise.update(&[seed]).finalize_xof().fill(&mut pattern);
    pattern
}

fn read(device: &dyn Device, offset: u64, bytes: usize) -> Vec<u8> {
    let mut into = Buffer::zeroed(bytes);
    device.read(offset, &mut into).unwrap();
    into.to_vec()
}

/// A read returns what was written last, in any mixture of lengths, up to the last block.
fn round_trips(device: &dyn Device, align: usize) -> Vec<u8> {
    let long = pattern(1, 64 * align);
    device.write(0, &Buffer::copy(&long)).unwrap();
    assert_eq!(read(device, 0, long.len()), long, "a write can be read");
    let short = pattern(2, align);
    device
        .write(3 * align as u64, &Buffer::copy(&short))
        .unwrap();
    let mut mixed = long;
    mixed[3 * align..4 * align].copy_from_slice(&short);
    assert_eq!(
        read(device, 0, mixed.len()),
        mixed,
        "a write changes its range only"
    );
    let last = device.bytes() / align as u64 * align as u64 - align as u64;
    device.write(last, &Buffer::copy(&short)).unwrap();
    assert_eq!(
        read(device, last, align),
        short,
        "the last block is like others"
    );
    mixed
}

/// A zeroed range reads as zeros, and nothing beside it changes.
fn zeroes(device: &dyn Device, align: usize) {
    let full = pattern(3, 32 * align);
    device.write(0, &Buffer::copy(&full)).unwrap();
    device.zero(5 * align as u64, 9 * align as u64).unwrap();
    let mut expected = full;
    expected[5 * align..14 * align].fill(0);
    assert_eq!(
        read(device, 0, expected.len()),
        expected,
        "zeros and nothing else"
    );
    device.zero(0, 0).expect("an empty range can be zeroed");
    device.sync().unwrap();
    assert_eq!(
        read(device, 0, expected.len()),
        expected,
        "zeros are durable"
    );
}

/// The last request may be shorter than a block and end at the end of the device.
fn reaches_the_end(device: &dyn Device, align: usize) {
    let rest = (device.bytes() % align as u64) as usize;
    let content = pattern(6, align + rest);
    let at = device.bytes() - content.len() as u64;
    for seed in [7, 8] {
        let content = [&content[..align], &pattern(seed, rest)].concat();
        device.write(at, &Buffer::copy(&content)).unwrap();
        assert_eq!(
            read(device, at, content.len()),
            content,
            "up to the last byte"
        );
        device.sync().unwrap();
        assert_eq!(
            read(device, at, content.len()),
            content,
            "the end is durable"
        );
    }
    device.zero(at, content.len() as u64).unwrap();
    device.sync().unwrap();
    assert_eq!(
        read(device, at, content.len()),
        vec![0; content.len()],
        "zeros up to the last byte"
    );
}

/// A request beyond the end transfers nothing.
fn refuses_what_is_outside(device: &dyn Device, align: usize) {
    let block = Buffer::copy(&pattern(4, 2 * align));
    let end = device.bytes() / align as u64 * align as u64;
    let before = read(device, end - align as u64, align);
    let far = u64::MAX / align as u64 * align as u64;
    for offset in [end - align as u64, end, far] {
        let outside = |result: io::Result<()>| {
            assert!(result.is_err(), "a request at {offset} leaves the device");
        };
        outside(device.read(offset, &mut Buffer::zeroed(2 * align)));
        outside(device.write(offset, &block));
        outside(device.zero(offset, 2 * align as u64));
    }
    let mut past = Buffer::zeroed(align);
    let error = device.read(end + align as u64, &mut past).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    assert_eq!(
        read(device, end - align as u64, align),
        before,
        "nothing was written"
    );
}

/// Memory need not be aligned, only offsets and lengths.
fn reads_into_any_memory(device: &dyn Device, align: usize) {
    let content = pattern(5, 8 * align);
    let mut memory = vec![0; content.len() + 1];
    memory[1..].copy_from_slice(&content);
    device.write(0, &memory[1..]).unwrap();
    memory.fill(0);
    device.read(0, &mut memory[1..]).unwrap();
    assert_eq!(memory[1..], content[..], "memory at an odd address");
}

/// Calls on different ranges may come from several threads.
fn writes_from_several_threads<D: Device + 'static>(device: Arc<D>, align: usize) {
    let threads: Vec<_> = (0..8u8)
        .map(|number| {
            let device = Arc::clone(&device);
            std::thread::spawn(move || {
                let at = u64::from(number) * 4 * align as u64;
                for round in 0..8 {
                    let content = pattern(number * 8 + round, 4 * align);
                    device.write(at, &Buffer::copy(&content)).unwrap();
                    device.sync().unwrap();
                    assert_eq!(read(&*device, at, content.len()), content);
                }
            })
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
