//! The file of a device's mount, over a block device in memory: what it shows, what it refuses, what waits for what.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mount::MountError;
use mount::device::{DeviceOptions, Served, serve};
use protect::BlockError;
use rustix::fs::FallocateFlags;
use sim::block::{Call, MemoryBlock};
use sim::guarded::GuardedDir;
use wal::{Buffer, PAGE_BYTES};

use crate::fixture::{Watchdog, assert_unmounted, errno, noise, wait_until};

const MIB: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(30);

/// A device in memory that is mounted; unmounted when this is dropped, also by a panic.
struct Shown {
    block: Arc<MemoryBlock>,
    served: Option<Served>,
    directory: GuardedDir,
    _watchdog: Watchdog,
}

impl Shown {
    async fn new(bytes: u64, change: impl FnOnce(&mut DeviceOptions)) -> Shown {
        let directory = GuardedDir::new().unwrap();
        let block = MemoryBlock::new(bytes, 512);
        let mut options = DeviceOptions::new("disk", "bulla#test");
        change(&mut options);
        let served = serve(block.clone(), directory.path(), options)
            .await
            .unwrap();
        let watchdog = Watchdog::start(served.directory(), Duration::from_secs(100));
        Shown {
            block,
            served: Some(served),
            directory,
            _watchdog: watchdog,
        }
    }

    async fn plain() -> Shown {
        Shown::new(64 * MIB, |_| {}).await
    }

    fn served(&self) -> &Served {
        self.served.as_ref().unwrap()
    }

    fn path(&self) -> PathBuf {
        self.served().file().to_owned()
    }

    fn open(&self) -> File {
        let both = OpenOptions::new().read(true).write(true).open(self.path());
        both.unwrap()
    }

    /// The calls that change something.
    fn changes(&self) -> Vec<Call> {
        let calls = self.block.calls().into_iter();
        calls
            .filter(|call| !matches!(call, Call::Read { .. }))
            .collect()
    }

    async fn finish(mut self, patience: Duration) -> Result<(), MountError> {
        self.served.take().unwrap().finish(patience).await
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        self.block.release();
        drop(self.served.take());
        assert_unmounted(self.directory.path());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn file_has_the_size_of_the_device_and_only_its_owner_may_open_it() {
    let s = Shown::new((1 << 40) + 512, |_| {}).await;
    let names: Vec<_> = fs::read_dir(s.directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names, ["disk"]);
    let told = fs::metadata(s.path()).unwrap();
    assert_eq!((told.len(), told.mode()), ((1 << 40) + 512, 0o100_600));
    assert_eq!(told.uid(), rustix::process::geteuid().as_raw());
}

#[tokio::test(flavor = "multi_thread")]
async fn any_range_is_read_and_whole_sectors_are_written() {
    let s = Shown::plain().await;
    let file = s.open();
    let bytes = noise(1, 3 * MIB as usize);
    file.write_all_at(&bytes, 512).unwrap();
    assert!(s.block.content(512..512 + 3 * MIB) == bytes);
    for (offset, length) in [(512, bytes.len()), (513, 1), (1000, 70_001), (4608, 4096)] {
        let mut read = vec![0; length];
        file.read_exact_at(&mut read, offset as u64).unwrap();
        assert!(
            read == bytes[offset - 512..offset - 512 + length],
            "{offset} {length}"
        );
    }
    // The end.
    let mut tail = Vec::new();
    let mut at_end = s.open();
    io::Seek::seek(&mut at_end, io::SeekFrom::End(-700)).unwrap();
    at_end.read_to_end(&mut tail).unwrap();
    assert_eq!(tail, [0; 700]);
    assert_eq!(file.read_at(&mut [0; 10], 64 * MIB).unwrap(), 0);
    assert_eq!(errno(file.write_at(&[1; 512], 64 * MIB)), libc::ENOSPC);
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_sectors_are_written_by_many_threads_without_losing_a_byte() {
    let s = Shown::plain().await;
    let bytes = noise(2, 400_003);
    let cuts: Vec<usize> = (0..=40).map(|n| 7 + n * 10_000 + n % 3).collect();
    let parts = cuts.windows(2).map(|cut| {
        let (file, part) = (s.open(), bytes[cut[0]..cut[1].min(bytes.len())].to_vec());
        let offset = cut[0] as u64;
        std::thread::spawn(move || file.write_all_at(&part, offset))
    });
    for part in parts.collect::<Vec<_>>() {
        part.join().unwrap().unwrap();
    }
    let end = cuts[40].min(bytes.len());
    assert!(s.block.content(7..end as u64) == bytes[7..end]);
    assert_eq!(s.block.content(0..7), [0; 7]);
    assert_eq!(s.block.content(end as u64..end as u64 + 512), [0; 512]);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_but_the_content_can_be_changed() {
    let s = Shown::plain().await;
    let (file, path) = (s.open(), s.path());
    let beside = s.directory.path().join("other");
    assert_eq!(errno(file.set_len(0)), libc::EPERM);
    assert_eq!(errno(file.set_len(65 * MIB)), libc::EPERM);
    assert_eq!(errno(File::create(&path)), libc::EPERM, "O_TRUNC");
    let mode = fs::Permissions::from_mode(0o666);
    assert_eq!(errno(fs::set_permissions(&path, mode)), libc::EPERM);
    assert_eq!(errno(file.set_modified(std::time::UNIX_EPOCH)), libc::EPERM);
    for refused in [
        fs::remove_file(&path),
        fs::rename(&path, &beside),
        fs::hard_link(&path, &beside),
        fs::create_dir(&beside),
        File::create(&beside).map(drop),
    ] {
        assert_eq!(errno(refused), libc::EROFS);
    }
    let reserve = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 4096);
    assert_eq!(reserve, Err(rustix::io::Errno::OPNOTSUPP));
    assert_eq!(fs::metadata(&path).unwrap().len(), 64 * MIB);
    assert_eq!(s.changes(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn holes_and_zeroed_ranges_are_zeroed_on_the_device() {
    let s = Shown::plain().await;
    let file = s.open();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 512, 1024).unwrap();
    rustix::fs::fallocate(&file, zero, 8192, 32 * MIB).unwrap();
    let expected =
        [(512, 1024), (8192, 32 * MIB)].map(|(offset, bytes)| Call::Zero { offset, bytes });
    assert_eq!(s.changes(), expected);
    for (offset, bytes, expected) in [
        (100, 512, rustix::io::Errno::INVAL),
        (64 * MIB - 512, 1024, rustix::io::Errno::NOSPC),
    ] {
        let refused = rustix::fs::fallocate(&file, punch, offset, bytes);
        assert_eq!(refused, Err(expected), "{offset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_fsync_is_one_flush_and_so_is_closing_what_was_written() {
    let s = Shown::plain().await;
    let file = s.open();
    for count in 1..=3 {
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        assert_eq!(s.changes(), vec![Call::Flush; count * 2]);
    }
    let reader = File::open(s.path()).unwrap();
    drop(reader);
    assert_eq!(s.changes().len(), 6);
    drop(file);
    assert_eq!(s.changes().len(), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_of_the_device_become_errno_and_are_counted() {
    let s = Shown::plain().await;
    let file = s.open();
    let integrity = || BlockError::Integrity {
        block: 3,
        offset: 12288,
    };
    let failed = || BlockError::Io {
        device: "the log",
        source: io::Error::from_raw_os_error(libc::ENOSPC),
    };
    let read_only = || BlockError::ReadOnly {
        why: "a sync failed".to_owned(),
    };
    s.block
        .fail(|call| matches!(call, Call::Read { .. }), 1, integrity);
    assert_eq!(errno(file.read_at(&mut [0; 8192], 8192)), libc::EIO);
    s.block
        .fail(|call| matches!(call, Call::Write { .. }), 1, read_only);
    assert_eq!(errno(file.write_at(&[1; 512], 5 * 4096)), libc::EROFS);
    // FSYNC is never answered by ENOSYS, and the next one reaches the device again.
    for error in [failed, || BlockError::Detached] {
        s.block.fail(|call| call == Call::Flush, 1, error);
        assert_eq!(errno(file.sync_all()), libc::EIO);
        file.sync_all().unwrap();
    }
    s.block
        .fail(|call| matches!(call, Call::Zero { .. }), 1, failed);
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let zeroed = rustix::fs::fallocate(&file, zero, 7 * 4096, 4096);
    assert_eq!(zeroed, Err(rustix::io::Errno::IO));
    let report = s.served().faults();
    let last = report.last.unwrap();
    assert_eq!(report.count, 5);
    assert_eq!(
        (last.operation, last.block, last.offset),
        ("zero", 7, 7 * 4096)
    );
    assert!(last.error.starts_with("the log failed: "), "{}", last.error);
}

/// Starts `count` threads that each write a sector.
fn write_from_threads(s: &Shown, count: u64) -> Vec<std::thread::JoinHandle<io::Result<()>>> {
    let writers = (0..count).map(|number| {
        let file = s.open();
        std::thread::spawn(move || {
            // In one page of memory: the kernel cuts a write where its pages are too many for a request.
            let mut page = Buffer::zeroed(PAGE_BYTES);
            page.fill(7);
            file.write_all_at(&page[..512], number * 4096)
        })
    });
    writers.collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn writes_that_wait_hold_up_no_read_and_no_flush() {
    let s = Shown::plain().await;
    let file = s.open();
    s.block.stall(|call| matches!(call, Call::Write { .. }));
    let writers = write_from_threads(&s, 100);
    let threads = DeviceOptions::new("", "").writers;
    assert!(s.block.wait_stalled(threads, PATIENCE));
    for offset in 0..50 {
        file.read_exact_at(&mut [0; 4096], offset * 4096).unwrap();
    }
    // By the descriptor's close, because FSYNC waits in the kernel for writes of programs, which have the file's lock.
    let flushes = |s: &Shown| {
        s.block
            .calls()
            .iter()
            .filter(|call| **call == Call::Flush)
            .count()
    };
    drop(s.open());
    // A process that another test starts closes its copies of these files, too.
    assert!(flushes(&s) >= 1);
    s.block.release();
    for writer in writers {
        writer.join().unwrap().unwrap();
    }
    assert_eq!(s.block.content(99 * 4096..99 * 4096 + 512), [7; 512]);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_of_writes_that_wait_is_bounded() {
    let small = |options: &mut DeviceOptions| {
        options.max_request_bytes = 4096;
        options.max_background = 8;
        options.writers = 2;
    };
    let s = Shown::new(64 * MIB, small).await;
    s.block.stall(|call| matches!(call, Call::Write { .. }));
    // 64 writes of 512 bytes fill it.
    let writers = write_from_threads(&s, 100);
    let refused = || writers.iter().filter(|writer| writer.is_finished()).count();
    wait_until("writes to be refused", || refused() == 36);
    s.block.release();
    let results = writers.into_iter().map(|writer| writer.join().unwrap());
    let errors: Vec<i32> = results
        .filter_map(|result| result.err())
        .map(|error| error.raw_os_error().unwrap())
        .collect();
    assert_eq!(errors, [libc::EBUSY; 36]);
    s.open().write_all_at(&[1; 512], 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn end_waits_for_requests_that_have_arrived() {
    let s = Shown::plain().await;
    s.block.stall(|call| matches!(call, Call::Write { .. }));
    let writers = write_from_threads(&s, 40);
    assert!(s.block.wait_stalled(16, PATIENCE));
    let block = s.block.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        block.release();
    });
    let (block, begin) = (s.block.clone(), Instant::now());
    s.finish(PATIENCE).await.unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(150));
    release.join().unwrap();
    // A process that another test starts closes its copies of these files, and so flushes.
    let calls = block.calls();
    let writes = calls.iter().filter(|call| **call != Call::Flush).count() as u64;
    // All that had arrived are done, the others are refused.
    let written = writers
        .into_iter()
        .filter_map(|writer| writer.join().unwrap().ok());
    assert_eq!(written.count() as u64, writes);
    assert!(writes >= 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn end_tells_how_many_requests_are_stuck() {
    let s = Shown::plain().await;
    s.block.stall(|call| matches!(call, Call::Read { .. }));
    let file = s.open();
    let reader = std::thread::spawn(move || file.read_exact_at(&mut [0; 512], 0));
    assert!(s.block.wait_stalled(1, PATIENCE));
    let block = s.block.clone();
    let error = s.finish(Duration::from_millis(100)).await.unwrap_err();
    let stuck = matches!(error, MountError::Unanswered { requests: 1, .. });
    assert!(stuck, "{error}");
    block.release();
    reader.join().unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_device_takes_no_write() {
    let s = Shown::new(MIB, |options| options.read_only = true).await;
    let told = fs::metadata(s.path()).unwrap();
    assert_eq!(told.mode(), 0o100_400);
    let refused = OpenOptions::new().write(true).open(s.path());
    assert_eq!(errno(refused), libc::EROFS);
    fs::read(s.path()).unwrap();
    assert_eq!(s.changes(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn device_that_panics_answers_eio_and_goes_on() {
    let s = Shown::plain().await;
    let panics = |call: Call| match call {
        Call::Read { offset: 4096, .. } => std::panic::resume_unwind(Box::new("of a test")),
        _ => false,
    };
    s.block.fail(panics, u64::MAX, || BlockError::Detached);
    let file = s.open();
    // More often than there are threads.
    for _ in 0..40 {
        assert_eq!(errno(file.read_at(&mut [0; 4096], 4096)), libc::EIO);
    }
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn mount_on_what_is_no_directory_is_refused() {
    let block = MemoryBlock::new(MIB, 512);
    let options = DeviceOptions::new("disk", "bulla#test");
    let refused = serve(block, Path::new("/dev/null"), options).await;
    assert!(matches!(refused.err(), Some(MountError::Directory { .. })));
    let mut sink = File::create("/dev/null").unwrap();
    sink.write_all(b"still there").unwrap();
}
