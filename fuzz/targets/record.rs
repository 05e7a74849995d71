//! Arbitrary bytes as a run of records. Each record that is taken encodes to the bytes that it was read from.
#![no_main]

use bulla_fuzz::{plant, record, run_of};
use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use trust::Record;

fuzz_target!(
    init: plant([run_of(&[record(1, 0), record(2, 90), record(3, 300)]).to_vec()]),
    |data: &[u8]| {
        let mut rest = Bytes::copy_from_slice(data);
        let mut again = BytesMut::new();
        while let Ok(Some(record)) = Record::take(&mut rest) {
            record.put(&mut again);
        }
        assert!(data.starts_with(&again));
    }
);
