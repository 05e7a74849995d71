//! What failed in a device's mount: each block is logged once, so that a program that tries again does not fill the log.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use protect::BlockError;

/// Blocks that are logged one by one; further ones are only counted.
const MAX_LOGGED: usize = 1000;
const BLOCK_BYTES: u64 = 4096;

/// A request that failed.
#[derive(Debug, Clone)]
pub struct Fault {
    /// When.
    pub at: SystemTime,
    /// `read`, `write`, `zero` or `flush`.
    pub operation: &'static str,
    /// The block of 4 KiB: the one that is wrong if that is known, else the first of the request.
    pub block: u64,
    /// Where the block begins on the data device, bytes.
    pub offset: u64,
    /// What happened, with its causes.
    pub error: String,
}

/// What failed since the device is served.
#[derive(Debug, Clone, Default)]
pub struct FaultReport {
    /// Requests that failed.
    pub count: u64,
    /// The last of them.
    pub last: Option<Fault>,
}

/// Counts and logs.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged: BTreeSet<(&'static str, u64)>,
    full: bool,
    report: FaultReport,
}

impl Faults {
    /// Notes that `operation` at `offset` failed. Returns whether it was logged.
    pub fn note(&self, operation: &'static str, offset: u64, error: &BlockError) -> bool {
        let (block, offset) = match error {
            BlockError::Integrity { block, offset } => (*block, *offset),
            _ => (offset / BLOCK_BYTES, offset / BLOCK_BYTES * BLOCK_BYTES),
        };
        let fault = Fault {
            at: SystemTime::now(),
            operation,
            block,
            offset,
            error: told(error),
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !state.logged.contains(&(operation, block));
        let logs = is_new && state.logged.len() < MAX_LOGGED;
        if logs {
            let error = &fault.error;
            tracing::error!(operation, block, offset, %error, "a request on the device failed");
            state.logged.insert((operation, block));
        } else if is_new && !state.full {
            state.full = true;
            tracing::error!(
                "requests on more than {MAX_LOGGED} blocks failed; others are only counted"
            );
        }
        state.report.count += 1;
        state.report.last = Some(fault);
        logs
    }

    /// What failed so far.
    pub fn report(&self) -> FaultReport {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.report.clone()
    }
}

/// The error with its causes.
fn told(error: &BlockError) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(block: u64) -> BlockError {
        BlockError::Integrity {
            block,
            offset: block * BLOCK_BYTES,
        }
    }

    #[test]
    fn block_is_logged_once_for_each_operation() {
        let faults = Faults::default();
        assert!(faults.note("read", 0, &wrong(7)));
        assert!(!faults.note("read", 28672, &wrong(7)));
        assert!(faults.note("write", 28672, &wrong(7)));
        let report = faults.report();
        assert_eq!(report.count, 3);
        let last = report.last.unwrap();
        assert_eq!(
            (last.operation, last.block, last.offset),
            ("write", 7, 28672)
        );
    }

    #[test]
    fn log_and_memory_are_bounded() {
        let faults = Faults::default();
        let logged = (0..10_000).filter(|block| faults.note("read", 0, &wrong(*block)));
        assert_eq!(logged.count(), MAX_LOGGED);
        assert_eq!(faults.report().count, 10_000);
        assert_eq!(faults.state.lock().unwrap().logged.len(), MAX_LOGGED);
    }

    #[test]
    fn causes_are_told() {
        let source = std::io::Error::from_raw_os_error(28);
        let device = "the log";
        let faults = Faults::default();
        faults.note("flush", 0, &BlockError::Io { device, source });
        let told = faults.report().last.unwrap().error;
        assert!(told.starts_with("the log failed: No space left"), "{told}");
    }
}
