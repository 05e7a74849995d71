//! Arbitrary bytes as what one read of /dev/fuse gives: FUSE_INIT, then requests. They are refused, or taken as a request
//! whose names, ranges and counts are within their bounds.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use mount::fuse::protocol::body::{self, Directory};
use mount::fuse::protocol::init::{NEWEST_MINOR, OLDEST_MINOR, Offer};
use mount::fuse::protocol::parse::Operation;
use mount::fuse::protocol::{Header, Malformed, opcode};
use mount::fuse::request::{Changes, Features, LockRequest};
use mount::fuse::{Errno, FileType, TimeOrNow};

const NANOSECONDS: u32 = 1_000_000_000;

/// A message with a right header.
fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    message.extend((40 + body.len() as u32).to_ne_bytes());
    message.extend(opcode.to_ne_bytes());
    for number in [2_u64, 1] {
        message.extend(number.to_ne_bytes());
    }
    for number in [1000_u32, 1000, 4242, 0] {
        message.extend(number.to_ne_bytes());
    }
    message.extend(body);
    message
}

/// Every request that there is, with a body of numbers and one with names.
fn seeds() -> Vec<Vec<u8>> {
    let numbers: Vec<u8> = (0..13_u64).flat_map(u64::to_ne_bytes).collect();
    let mut bodies = vec![numbers.clone(), b"a\0".to_vec(), b"a\0b\0".to_vec()];
    for head in [8, 12, 16, 40] {
        bodies.push([&numbers[..head], b"a\0b\0"].concat());
    }
    let opcodes = opcode::LOOKUP..=opcode::COPY_FILE_RANGE_64 + 1;
    opcodes
        .flat_map(|opcode| bodies.iter().map(move |body| message(opcode, body)))
        .collect()
}

fn check_name(name: &[u8], data: &[u8]) {
    assert!(!name.is_empty() && name.len() < data.len());
    assert!(name != b"." && name != b"..");
    assert!(!name.contains(&0) && !name.contains(&b'/'));
}

fn check_string(string: &[u8], data: &[u8]) {
    assert!(!string.is_empty() && string.len() < data.len());
    assert!(!string.contains(&0));
}

fn check_lock(lock: &LockRequest) {
    assert!(lock.range.start() <= lock.range.end());
}

fn check_times(changes: &Changes) {
    let set = [changes.atime, changes.mtime].into_iter().flatten();
    let set = set.filter_map(|time| match time {
        TimeOrNow::SpecificTime(time) => Some(time),
        TimeOrNow::Now => None,
    });
    for time in set.chain(changes.ctime) {
        assert!(time.nanoseconds < NANOSECONDS);
    }
}

fn check(operation: &Operation<'_>, data: &[u8]) {
    match operation {
        Operation::Lookup(name) | Operation::Unlink(name) | Operation::RmDir(name) => {
            check_name(name, data);
        }
        Operation::MkNod { new, .. } | Operation::MkDir(new) | Operation::Create { new, .. } => {
            check_name(new.name, data);
        }
        Operation::SymLink { name, target } => {
            check_name(name, data);
            check_string(target, data);
        }
        Operation::Link { new_name, .. } => check_name(new_name, data),
        Operation::Rename(rename) => {
            check_name(rename.name, data);
            check_name(rename.new_name, data);
        }
        Operation::GetXattr { name, .. } | Operation::RemoveXattr(name) => {
            check_string(name, data);
        }
        Operation::SetXattr { name, value, .. } => {
            check_string(name, data);
            assert!(name.len() + value.len() < data.len());
        }
        Operation::Write(write) => assert!(write.data.len() + 80 == data.len()),
        Operation::SetAttr(changes) => check_times(changes),
        Operation::GetLk(lock) | Operation::SetLk { lock, .. } => check_lock(lock),
        Operation::FAllocate { range, .. } => assert!(range.start < range.end),
        Operation::CopyFileRange { copy, .. } => assert!(u32::try_from(copy.len).is_ok()),
        Operation::Forget(forgotten) => {
            let mut count = 0;
            forgotten.each(|_, _| count += 1);
            assert!(count == 1 || 48 + 16 * count == data.len());
        }
        Operation::ReadDir(page) | Operation::ReadDirPlus(page) => {
            let mut directory = Directory::new(page.size as usize);
            // The name is what the fuzzer sent, so that its length varies.
            let is_full = directory.add_name(page.offset, data, page_inode(), FileType::Symlink);
            let body::Body::Entries(bytes) = directory.finish() else {
                panic!("no entries");
            };
            assert!(bytes.len() <= page.size as usize && bytes.len().is_multiple_of(8));
            assert_eq!(bytes.is_empty(), is_full);
        }
        _ => {}
    }
}

fn page_inode() -> mount::fuse::INodeNo {
    mount::fuse::INodeNo(5)
}

fn check_init(body: &[u8]) {
    let Ok(offer) = Offer::parse(body) else {
        assert!(body.len() < 20);
        return;
    };
    if !offer.is_served() {
        return;
    }
    let features = Features::default();
    let (agreed, granted) = offer.agree(&features);
    assert!((OLDEST_MINOR..=NEWEST_MINOR).contains(&agreed.minor));
    assert!(features.flags.contains(granted) && offer.flags.contains(granted));
    assert!(agreed.max_read_ahead <= offer.max_read_ahead);
    assert_eq!(body::init(&agreed).as_slice().len(), 64);
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let (header, body) = match Header::split(data) {
        Ok(split) => split,
        Err(Malformed::Short) => return assert!(data.len() < 40),
        Err(Malformed::Length(_)) => return,
    };
    assert!(body.len() + 40 <= data.len());
    if header.opcode == opcode::INIT {
        return check_init(body);
    }
    match Operation::parse(&header, body) {
        Ok(operation) => check(&operation, &data[..40 + body.len()]),
        Err(errno) => {
            let known = [Errno::ENOSYS, Errno::EIO, Errno::EINVAL, Errno::EOPNOTSUPP];
            assert!(known.contains(&errno));
        }
    }
});
