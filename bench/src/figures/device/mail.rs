//! Figure 41 (PFS Fig. 9): PostMark, and dbench.

use std::process::Command;

use anyhow::{Context, Result};

use super::{UNPINNED, at_least, disks, file_system};
use crate::cpu;
use crate::disks::Disk;
use crate::disks::postmark::{self, Load};
use crate::field::Field;
use crate::figure::{Figure, LineUp, Metric, Reading, nothing};
use crate::process;

const LOADS: (Load, Load) = (
    Load {
        files: 20_000,
        transactions: 60_000,
    },
    Load {
        files: 200,
        transactions: 500,
    },
);
/// Seconds of dbench; it counts from its first report, after a second.
const DBENCH_S: (u32, u32) = (8, 3);
const CLIENTS: &str = "4";
const IMAGE_BYTES: u64 = 2 << 30;
const RING_BYTES: u64 = 512 << 20;

const POSTMARK: Metric = Metric::rate("transactions");
const POSTMARK_CPU: Metric = Metric::processor("cpu", "machine µs each");
const DBENCH: Metric = Metric::rate_in("dbench", "MB/s");

/// Mail.
pub const FIGURE: Figure = Figure {
    number: 41,
    title: "PostMark and dbench on a protected device",
    rounds: (3, 1),
    placements: &[UNPINNED],
    metrics: &[POSTMARK, POSTMARK_CPU, DBENCH],
    reaches: &[at_least("transactions", 0.93), at_least("dbench", 0.85)],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    for (name, disk) in disks(field, "mail", RING_BYTES)? {
        let field = field.clone();
        line_up.add(&name, Ok(move |_| measure(&field, &disk)));
    }
    Ok(line_up)
}

fn measure(field: &Field, disk: &Disk) -> Result<Vec<Reading>> {
    let volume = file_system(field, disk, IMAGE_BYTES)?;
    let pool = volume.dir().join("postmark");
    std::fs::create_dir(&pool)?;
    let load = field.pick(LOADS);
    let before_s = cpu::machine_s()?;
    let done = postmark::run(&pool, load)?;
    let cpu_s = cpu::machine_s()? - before_s;

    let mut dbench = Command::new("dbench");
    dbench.args(["-t", &field.pick(DBENCH_S).to_string(), "-D"]);
    dbench.arg(volume.dir()).arg(CLIENTS);
    let ran =
        process::run(&mut dbench, volume.dir()).context("dbench (bench/peers.sh installs it)")?;
    let throughput = throughput(&ran.stdout)?;
    volume.finish()?;
    let transactions = load.transactions as f64;
    Ok(vec![
        (POSTMARK.name, transactions / done.transactions_s),
        (POSTMARK_CPU.name, cpu_s * 1e6 / transactions),
        (DBENCH.name, throughput),
    ])
}

/// The rate in dbench's last line.
fn throughput(printed: &str) -> Result<f64> {
    let line = printed
        .lines()
        .find_map(|line| line.strip_prefix("Throughput "));
    let number = line.and_then(|rest| rest.split(' ').next());
    let number = number.context("dbench printed no throughput")?;
    number.parse().context("dbench's throughput is no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throughput_of_dbench_is_read() {
        let printed = "\n   4   cleanup   2 sec\n\nThroughput 1234.5 MB/sec  4 clients  4 procs";
        assert_eq!(throughput(printed).unwrap(), 1234.5);
        assert!(throughput("failed").is_err());
    }
}
