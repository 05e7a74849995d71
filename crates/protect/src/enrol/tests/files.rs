//! Enrolment of real files: sparse ones, and ones that somebody else uses.

use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use sim::random::noise;
use wal::{Device, FileDevice, MIN_RING_BYTES};

use super::super::{Enrol, EnrolError, Progress, Source, plan};
use super::enrolment;
use crate::volume::Shape;

const BYTES: u64 = 64 << 20;

/// A file with data in two places, and a file for its log.
fn files() -> (tempfile::NamedTempFile, tempfile::NamedTempFile, Shape) {
    let mut data = tempfile::NamedTempFile::new().unwrap();
    data.as_file().set_len(BYTES).unwrap();
    data.write_all(&noise(1, 100_000)).unwrap();
    data.seek(SeekFrom::Start(40 << 20)).unwrap();
    data.write_all(&noise(2, 4096)).unwrap();
    data.as_file().sync_all().unwrap();
    let shape = Shape {
        bytes: BYTES,
        sector_bytes: 512,
    };
    let (_, layout) = plan(shape, MIN_RING_BYTES).unwrap();
    let log = tempfile::NamedTempFile::new().unwrap();
    log.as_file().set_len(layout.device_bytes()).unwrap();
    (data, log, shape)
}

#[test]
fn holes_of_a_sparse_file_are_skipped_and_its_data_found() {
    let (file, log, shape) = files();
    let data = FileDevice::open(file.path()).unwrap();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(range) = Source::data_after(&data, at).unwrap() {
        assert!(range.start >= at && range.end > range.start && range.end <= BYTES);
        at = range.end;
        found.push(range);
    }
    let bytes: u64 = found.iter().map(|range| range.end - range.start).sum();
    let has = |offset: u64| found.iter().any(|range| range.contains(&offset));
    assert!(has(0) && has(99_999) && has(40 << 20) && has((40 << 20) + 4095));
    assert!(bytes < BYTES / 2, "{found:?}");

    let log = Arc::new(FileDevice::open(log.path()).unwrap());
    let enrol = Enrol {
        checkpoint_bytes: 1 << 30,
        ..enrolment(&data, log, shape)
    };
    let enrolled = enrol.run(&mut |_| {}).unwrap();
    assert_eq!(enrolled.blocks - enrolled.zero_blocks, 25 + 1);
}

#[test]
fn device_in_use_cannot_be_opened_twice() {
    let (file, _, _) = files();
    let data = FileDevice::open(file.path()).unwrap();
    let second = FileDevice::open(file.path()).unwrap_err();
    assert_eq!(second.kind(), std::io::ErrorKind::WouldBlock);
    drop(data);
    FileDevice::open(file.path()).unwrap();
}

#[test]
fn file_that_is_written_meanwhile_is_not_enrolled() {
    let (file, log, shape) = files();
    let data = FileDevice::open(file.path()).unwrap();
    let log: Arc<dyn Device> = Arc::new(FileDevice::open(log.path()).unwrap());
    let enrol = Enrol {
        checkpoint_bytes: 1 << 30,
        ..enrolment(&data, log.clone(), shape)
    };
    let mut wrote = false;
    let error = enrol.run(&mut |progress| {
        if !wrote && matches!(progress, Progress::Reading { .. }) {
            std::thread::sleep(std::time::Duration::from_millis(30));
            file.as_file().write_all_at(b"x", 1 << 20).unwrap();
            file.as_file().sync_all().unwrap();
            wrote = true;
        }
    });
    assert!(matches!(error, Err(EnrolError::Changed)), "{error:?}");
    assert!(wal::key_slots(&*log).is_err(), "no log was made");
}
