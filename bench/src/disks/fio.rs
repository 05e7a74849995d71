//! Jobs of fio on a block device, and its results.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::process;

/// A job with direct I/O.
#[derive(Debug, Clone, Copy)]
pub struct Job {
    /// fio's name of the pattern: `read`, `randwrite` and so on.
    pub pattern: &'static str,
    /// Bytes of one access.
    pub block_bytes: u64,
    /// Accesses in flight.
    pub depth: u32,
    /// How much or how long.
    pub extent: Extent,
    /// More options.
    pub options: &'static [&'static str],
}

/// How much or how long a job runs.
#[derive(Debug, Clone, Copy)]
pub enum Extent {
    /// Each block once, up to this many bytes in all.
    Bytes(u64),
    /// As long as this.
    Seconds(u32),
    /// All of it, once.
    Whole,
}

/// What fio has measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ran {
    /// Bytes for each second, with the sync at the end of writes.
    pub bytes_s: f64,
    /// Accesses for each second.
    pub accesses_s: f64,
}

impl Ran {
    /// Megabytes for each second.
    pub fn mb_s(&self) -> f64 {
        self.bytes_s / 1e6
    }
}

impl Job {
    /// Runs it on a device.
    ///
    /// # Errors
    /// Also if one access failed.
    pub fn run(&self, device: &Path) -> Result<Ran> {
        let mut command = Command::new("fio");
        command.args(self.arguments(&device.to_string_lossy()));
        let dir = device.parent().context("a device is in a directory")?;
        let cost = process::run(&mut command, dir).context("fio (bench/peers.sh installs it)")?;
        parse(&cost.stdout, self.pattern)
    }

    /// Reads what a log ([`log`]) lists, as fast as the depth allows.
    ///
    /// # Errors
    /// As [`Job::run`].
    pub fn replay(&self, device: &Path, log: &Path) -> Result<Ran> {
        let mut command = Command::new("fio");
        let whole = Job {
            extent: Extent::Whole,
            ..*self
        };
        command.args(whole.arguments(&device.to_string_lossy()));
        command.arg(format!("--read_iolog={}", log.display()));
        command.arg(format!("--replay_redirect={}", device.display()));
        command.arg("--replay_no_stall=1");
        let dir = device.parent().context("a device is in a directory")?;
        let cost = process::run(&mut command, dir)?;
        parse(&cost.stdout, self.pattern)
    }

    /// The arguments of fio. Offsets are the same in each run.
    pub fn arguments(&self, device: &str) -> Vec<String> {
        let mut arguments = vec![
            "--name=bench".to_owned(),
            "--ioengine=libaio".to_owned(),
            "--direct=1".to_owned(),
            "--output-format=json".to_owned(),
            format!("--filename={device}"),
            format!("--rw={}", self.pattern),
            format!("--bs={}", self.block_bytes),
            format!("--iodepth={}", self.depth),
        ];
        match self.extent {
            Extent::Bytes(bytes) => arguments.push(format!("--io_size={bytes}")),
            Extent::Whole => {}
            Extent::Seconds(seconds) => {
                arguments.push("--time_based".to_owned());
                arguments.push(format!("--runtime={seconds}"));
            }
        }
        if self.pattern.contains("write") {
            arguments.push("--end_fsync=1".to_owned());
        }
        arguments.extend(self.options.iter().map(|option| (*option).to_owned()));
        arguments
    }
}

/// Writes a list of reads in fio's format.
pub fn log(path: &Path, offsets: &[u64], bytes: u64) -> Result<()> {
    let mut text = "fio version 2 iolog\ndevice add\ndevice open\n".to_owned();
    for offset in offsets {
        let _ = writeln!(text, "device read {offset} {bytes}");
    }
    text.push_str("device close\n");
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

/// Reads fio's JSON.
pub fn parse(json: &str, pattern: &str) -> Result<Ran> {
    // Warnings may stand before it.
    let start = json.find('{').context("fio printed no JSON")?;
    let printed: Value = serde_json::from_str(json.get(start..).unwrap_or_default())?;
    let job = printed.pointer("/jobs/0").context("fio printed no job")?;
    let failed = job.pointer("/error").and_then(Value::as_i64);
    ensure!(failed == Some(0), "fio: error {failed:?}");
    let side = if pattern.contains("write") {
        "write"
    } else {
        "read"
    };
    let number = |name: &str| {
        let value = job
            .pointer(&format!("/{side}/{name}"))
            .and_then(Value::as_f64);
        value.with_context(|| format!("fio printed no {name}"))
    };
    let (bytes, accesses) = (number("io_bytes")?, number("total_ios")?);
    let seconds = number("runtime")? / 1e3;
    ensure!(bytes > 0.0 && seconds > 0.0, "fio did nothing");
    Ok(Ran {
        bytes_s: bytes / seconds,
        accesses_s: accesses / seconds,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_failures_reported() {
        let printed = |error: i32, bytes: u64| {
            format!(
                "note\n{{\"jobs\": [{{\"error\": {error}, \"read\": {{\"io_bytes\": 1, \"total_ios\": 1,
                \"runtime\": 1}}, \"write\": {{\"io_bytes\": {bytes}, \"total_ios\": 500,
                \"runtime\": 2000}}}}]}}"
            )
        };
        let ran = parse(&printed(0, 8_000_000), "randwrite").unwrap();
        assert_eq!((ran.mb_s(), ran.accesses_s), (4.0, 250.0));
        assert!(parse(&printed(5, 8), "write").is_err());
        assert!(parse(&printed(0, 0), "write").is_err());
        assert!(parse("fio: no such device", "read").is_err());
    }

    #[test]
    fn writes_end_with_a_sync_and_reads_do_not() {
        let job = |pattern| Job {
            pattern,
            block_bytes: 4096,
            depth: 1,
            extent: Extent::Bytes(1 << 20),
            options: &[],
        };
        let sync = "--end_fsync=1".to_owned();
        assert!(job("randwrite").arguments("/dev/x").contains(&sync));
        assert!(!job("randread").arguments("/dev/x").contains(&sync));
    }
}
