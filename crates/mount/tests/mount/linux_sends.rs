//! What Linux sends to a FUSE file below a loop device: the contract on which `mount::device` relies (decision 0038).
//! Lines that begin with `observed:` tell what may differ between kernels and what nothing relies on.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use mount::fuse::Error;
use mount::fuse::request::Allocation;
use sim::guarded::GuardedDir;

use crate::fixture::wait_until;
use crate::looped::{Loop, can_loop, has, sh};
use crate::recorder::{Kind, Recording, Sent, Shape};

const GIB: u64 = 1 << 30;
/// Writes one block, past every cache.
const WRITE: &str = "dd if=/dev/zero of=$1 bs=4096 count=1 oflag=direct status=none";
/// Reads one block, past every cache.
const READ: &str = "dd if=$1 of=/dev/null bs=4096 count=1 iflag=direct status=none";
const FSYNC: Sent = Sent::Fsync { data_only: false };

fn write(offset: u64, bytes: usize) -> Sent {
    Sent::Write { offset, bytes }
}

/// A recorded file of `bytes` and a loop device on it; nothing if the machine has none.
async fn looped(bytes: u64) -> Option<(Recording, Loop)> {
    if !can_loop("what Linux sends through a loop device") {
        return None;
    }
    let recording = Recording::new(Shape::device(bytes)).await;
    let device = Loop::new(&recording.file(), 512);
    recording.fs.take();
    Some((recording, device))
}

#[tokio::test(flavor = "multi_thread")]
async fn flush_is_one_fsync() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    sh("sync $1", &device.path()).unwrap();
    assert_eq!(r.fs.changes(), [FSYNC]);
    let and_sync = format!("{WRITE} conv=fsync");
    sh(&and_sync, &device.path()).unwrap();
    assert_eq!(r.fs.changes(), [write(0, 4096), FSYNC]);
}

#[tokio::test(flavor = "multi_thread")]
async fn fua_is_a_write_and_then_an_fsync() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    let durable = WRITE.replace("oflag=direct", "oflag=direct,dsync");
    sh(&durable, &device.path()).unwrap();
    // The first FSYNC is for FUA. The second is the call's own: block device files flush after each O_DSYNC write.
    let sent = r.fs.changes();
    assert_eq!(sent[..2], [write(0, 4096), FSYNC]);
    eprintln!(
        "observed: a write with O_DSYNC costs {} FSYNC",
        sent.len() - 1
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn fsync_of_a_file_is_a_flush_before_and_after_the_commit_record() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    let directory = GuardedDir::new().unwrap();
    let place = directory.path().to_str().unwrap();
    // Without what ext4 does in the background: inode tables, and commits every five seconds.
    let make = "mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $1";
    sh(make, &device.path()).unwrap();
    sh(&format!("mount -o commit=600 $1 {place}"), &device.path()).unwrap();
    let mut counts = Vec::new();
    for change in [
        "echo a > $1/f",
        "dd if=/dev/zero of=$1/f bs=4k count=1 conv=notrunc status=none",
    ] {
        sh("sync -f $1", place).unwrap();
        r.fs.take();
        sh(&format!("{change}; sync $1/f"), place).unwrap();
        let sent = r.fs.changes();
        counts.push(sent.iter().filter(|sent| **sent == FSYNC).count());
        assert_eq!(sent.last(), Some(&FSYNC), "{sent:?}");
    }
    sh("umount $1", place).unwrap();
    assert_eq!(counts, [2, 2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn discards_and_zeroing_are_two_modes_of_fallocate_and_up_to_4_gib() {
    let Some((r, device)) = looped(16 * GIB).await else {
        return;
    };
    let allocations = |script: &str| {
        sh(script, &device.path()).unwrap();
        let sent = r.fs.changes().into_iter();
        let ranges = sent.filter_map(|sent| match sent {
            Sent::Allocate(range, what) => Some((range, what)),
            FSYNC => None,
            other => panic!("{other:?}"),
        });
        ranges.collect::<Vec<_>>()
    };
    let zero = Allocation::ZeroRange { keep_size: true };
    for (script, mode) in [
        ("blkdiscard $1", Allocation::PunchHole),
        ("blkdiscard -z $1", zero),
        ("fallocate -p -o 0 -l 17179869184 $1", Allocation::PunchHole),
        ("fallocate -z -o 0 -l 17179869184 $1", zero),
    ] {
        let sent = allocations(script);
        let mut at = 0;
        for (range, what) in &sent {
            assert_eq!((range.start, *what), (at, mode), "{script}");
            assert!(range.end - range.start < 4 * GIB, "{script}: {range:?}");
            at = range.end;
        }
        assert_eq!(at, 16 * GIB, "{script}");
        let largest = sent.iter().map(|(range, _)| range.end - range.start).max();
        eprintln!(
            "observed: {script}: {} pieces of up to {largest:?}",
            sent.len()
        );
    }
    let sent = allocations("blkdiscard -o 512 -l 1024 $1");
    eprintln!("observed: a discard of two sectors within a block: {sent:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_whole_sectors_and_no_larger_than_was_asked_for() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    let most = Shape::device(0).max_request_bytes;
    let small = "dd if=/dev/zero of=$1 bs=512 count=1 seek=3 oflag=direct status=none";
    sh(small, &device.path()).unwrap();
    assert_eq!(r.fs.changes(), [write(1536, 512)]);
    for script in [
        "dd if=/dev/zero of=$1 bs=8M count=1 oflag=direct status=none",
        "dd if=/dev/zero of=$1 bs=8M count=1 conv=fsync status=none",
    ] {
        sh(script, &device.path()).unwrap();
        let mut writes: Vec<(u64, usize)> = Vec::new();
        for sent in r.fs.changes() {
            match sent {
                Sent::Write { offset, bytes } => writes.push((offset, bytes)),
                sent => assert_eq!(sent, FSYNC),
            }
        }
        writes.sort_unstable();
        let mut at = 0;
        for (offset, bytes) in &writes {
            assert_eq!((*offset, bytes % 512), (at, 0));
            assert!(*bytes <= most as usize, "{bytes}");
            at += *bytes as u64;
        }
        assert_eq!(at, 8 << 20, "nothing is sent twice");
        eprintln!("observed: 8 MiB in {} writes", writes.len());
    }
    sh(&READ.replace("4096", "8M"), &device.path()).unwrap();
    let sizes = r.fs.take().into_iter().filter_map(|sent| match sent {
        Sent::Read { bytes, .. } => Some(bytes),
        _ => None,
    });
    assert!(sizes.max().unwrap() <= most);
}

/// How many requests of `kind` wait at once when a program has 32 under way.
fn depth(device: &Loop, r: &Recording, kind: Kind) -> usize {
    let rw = if kind == Kind::Read {
        "randread"
    } else {
        "randwrite"
    };
    r.fs.answer(|manner| manner.delay = Duration::from_millis(4));
    r.fs.most_under_way(kind);
    let fio = format!(
        "fio --name=x --filename=$1 --rw={rw} --bs=4k --iodepth=32 --ioengine=libaio --direct=1 --size=64m \
         --number_ios=1000"
    );
    sh(&fio, &device.path()).unwrap();
    r.fs.most_under_way(kind)
}

#[tokio::test(flavor = "multi_thread")]
async fn thirty_two_requests_are_under_way_at_queue_depth_32() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    if !has("fio") {
        return;
    }
    assert_eq!(depth(&device, &r, Kind::Read), 32);
    assert_eq!(depth(&device, &r, Kind::Write), 32);
    drop((device, r));
    // The control: `max_background` bounds it.
    let shape = Shape {
        max_background: 16,
        ..Shape::device(GIB)
    };
    let r = Recording::new(shape).await;
    let device = Loop::new(&r.file(), 4096);
    assert_eq!(depth(&device, &r, Kind::Read), 16);
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_pass_writes_that_wait_but_not_a_flush() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    let waiting = |kind: Kind, script: &'static str| {
        r.fs.answer(|manner| manner.held = vec![kind]);
        let path = device.path();
        let waiting = std::thread::spawn(move || sh(script, &path));
        wait_until("a request that is held", || r.fs.under_way(kind) > 0);
        waiting
    };
    let held = waiting(
        Kind::Write,
        "dd if=/dev/zero of=$1 bs=64k count=1 oflag=direct status=none",
    );
    sh(READ, &device.path()).unwrap();
    r.fs.answer(|manner| manner.held.clear());
    held.join().unwrap().unwrap();
    // The loop device does FSYNC and FALLOCATE on the thread that sends everything else: they must be quick.
    for (kind, script) in [
        (Kind::Fsync, "sync $1"),
        (Kind::Allocate, "fallocate -p -n -o 1048576 -l 1048576 $1"),
    ] {
        let held = waiting(kind, script);
        let path = device.path();
        let read = std::thread::spawn(move || sh(READ, &path));
        std::thread::sleep(Duration::from_millis(200));
        eprintln!(
            "observed: a read waits for {kind:?}: {}",
            !read.is_finished()
        );
        // The file itself can be read.
        let file = std::fs::File::open(r.file()).unwrap();
        file.read_exact_at(&mut [0; 4096], 0).unwrap();
        r.fs.answer(|manner| manner.held.clear());
        held.join().unwrap().unwrap();
        read.join().unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn short_reads_are_continued_and_short_writes_fail() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    r.fs.answer(|manner| manner.short_reads = Some(1024));
    sh(READ, &device.path()).unwrap();
    r.fs.answer(|manner| manner.short_writes = Some(1024));
    r.fs.take();
    let written = sh(WRITE, &device.path());
    // Never continued, so the file must take all or fail. Some kernels report success.
    assert_eq!(r.fs.changes(), [write(0, 4096)]);
    eprintln!("observed: a short write: {written:?}");
    // A program that opens the file itself continues.
    r.fs.answer(|manner| manner.short_writes = Some(2048));
    let file = OpenOptions::new().write(true).open(r.file()).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    assert_eq!(r.fs.changes(), [write(0, 4096), write(2048, 2048)]);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_reach_the_program_and_later_requests_are_still_sent() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    let path = device.path();
    let sync = |_: ()| sh("sync $1", &path);
    for (error, told) in [
        (Error::Io("of a test".to_owned()), "Input/output error"),
        (Error::ReadOnly, "Input/output error"),
        (Error::NoSpace, "No space left on device"),
    ] {
        for (kind, script) in [(Kind::Read, READ), (Kind::Write, WRITE)] {
            r.fs.answer(|manner| manner.fails = Some((kind, error.clone())));
            let complaint = sh(script, &path).unwrap_err();
            assert!(complaint.contains(told), "{kind:?}: {complaint}");
        }
        r.fs.answer(|manner| manner.fails = Some((Kind::Fsync, error.clone())));
        assert!(sync(()).unwrap_err().contains("Input/output error"));
    }
    r.fs.answer(|manner| manner.fails = None);
    for script in [READ, WRITE] {
        sh(script, &path).unwrap();
    }
    r.fs.take();
    sync(()).unwrap();
    assert_eq!(r.fs.changes(), [FSYNC]);
}

#[tokio::test(flavor = "multi_thread")]
async fn enosys_to_fsync_and_eopnotsupp_to_a_discard_end_them_for_good() {
    let Some((r, device)) = looped(GIB).await else {
        return;
    };
    let path = device.path();
    let limit = || {
        let name = path.strip_prefix("/dev/").unwrap();
        let setting = format!("/sys/block/{name}/queue/discard_max_bytes");
        std::fs::read_to_string(setting).unwrap().trim().to_owned()
    };
    assert_ne!(limit(), "0");
    r.fs.answer(|manner| manner.fails = Some((Kind::Allocate, Error::NotSupported)));
    let _ = sh("blkdiscard -l 4096 $1", &path);
    assert_eq!(limit(), "0", "the loop device discards no more");
    r.fs.answer(|manner| manner.fails = Some((Kind::Fsync, Error::NotImplemented)));
    sh("sync $1", &path).unwrap();
    r.fs.answer(|manner| manner.fails = None);
    r.fs.take();
    sh("sync $1", &path).unwrap();
    assert_eq!(
        r.fs.changes(),
        [],
        "success is told and nothing is made durable"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_come_back_through_the_loop_device() -> io::Result<()> {
    let Some((r, device)) = looped(GIB).await else {
        return Ok(());
    };
    let bytes = crate::fixture::noise(5, 3 << 20);
    let block = OpenOptions::new()
        .read(true)
        .write(true)
        .open(device.path())?;
    block.write_all_at(&bytes, 512)?;
    block.sync_all()?;
    let file = std::fs::File::open(r.file())?;
    let mut read = vec![0; bytes.len()];
    file.read_exact_at(&mut read, 512)?;
    assert!(read == bytes);
    Ok(())
}
