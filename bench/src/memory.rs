//! Memory use: of a process from `/proc/PID/status`, of the kernel's sockets from
//! `/proc/net/sockstat` (`proc(5)`).

use std::fs;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

/// Sampling period of values that go up and down.
const STEP: Duration = Duration::from_millis(5);

/// Resident memory of a process, bytes.
pub fn resident_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))
        .with_context(|| format!("process {pid} is gone"))?;
    field_bytes(&status, "VmRSS").with_context(|| format!("process {pid} has ended"))
}

/// Peak resident memory of a process, bytes; none once it has ended.
pub fn peak_bytes(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field_bytes(&status, "VmHWM")
}

/// Pages that the kernel uses for all TCP sockets of this machine, both ends of local ones.
pub fn socket_pages() -> Result<u64> {
    let sockets = fs::read_to_string("/proc/net/sockstat").context("reading /proc/net/sockstat")?;
    tcp_pages(&sockets).context("/proc/net/sockstat has an unknown format")
}

/// Bytes of a page. The call is expensive: the kernel walks through all memory of this process.
pub fn page_bytes() -> Result<u64> {
    let maps = fs::read_to_string("/proc/self/smaps").context("reading /proc/self/smaps")?;
    field_bytes(&maps, "KernelPageSize").context("/proc/self/smaps has no page size")
}

/// Runs something while another thread calls `sample`. Returns the result and the largest sample.
pub fn most<T>(sample: impl Fn() -> u64 + Send, run: impl FnOnce() -> T) -> (T, u64) {
    let (over, wait) = channel::<()>();
    thread::scope(|scope| {
        let watcher = scope.spawn(move || {
            let mut most = sample();
            while wait.recv_timeout(STEP) == Err(RecvTimeoutError::Timeout) {
                most = most.max(sample());
            }
            most
        });
        let done = run();
        drop(over);
        match watcher.join() {
            Ok(most) => (done, most),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// The first line `name: N kB` of a file of `/proc`.
fn field_bytes(text: &str, name: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The number after `mem` in the line of TCP.
fn tcp_pages(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find_map(|l| l.strip_prefix("TCP:"))?;
    let mut words = line.split_whitespace();
    words.find(|word| *word == "mem")?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_and_missing_ones_reported() {
        let status = "Name:\tVmRSS\nVmHWM:\t    2048 kB\nVmRSS:\t     16 kB\n";
        assert_eq!(field_bytes(status, "VmRSS"), Some(16 << 10));
        assert_eq!(field_bytes(status, "VmHWM"), Some(2 << 20));
        assert_eq!(field_bytes(status, "Vm"), None);
        let sockstat =
            "sockets: used 9\nTCP: inuse 5 orphan 0 tw 0 alloc 7 mem 31\nUDP: inuse 1 mem 2\n";
        assert_eq!(tcp_pages(sockstat), Some(31));
        assert_eq!(tcp_pages("UDP: inuse 1 mem 2\n"), None);
        assert!(socket_pages().is_ok());
        assert!(page_bytes().unwrap().is_power_of_two());
    }

    #[test]
    fn temporary_memory_is_counted() {
        let own = std::process::id();
        let before = resident_bytes(own).unwrap();
        let held_bytes = 64 << 20;
        let sample = || resident_bytes(own).unwrap();
        let (sum, most) = most(sample, || {
            let held = std::hint::black_box(vec![1_u8; held_bytes]);
            thread::sleep(10 * STEP);
            held.iter().map(|byte| usize::from(*byte)).sum::<usize>()
        });
        assert_eq!(sum, held_bytes);
        assert!(most > before + held_bytes as u64 / 2, "{before} {most}");
        // The kernel's two counters differ a little.
        assert!(peak_bytes(own).unwrap() > before + held_bytes as u64 / 2);
    }
}
