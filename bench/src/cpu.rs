//! Processor time of other processes, and the processors that this process may use.
//!
//! Running processes are asked through their processor clock (`clock_getcpuclockid(3)`), ended children
//! through `getrusage(2)`. Both are exact to the microsecond and include threads that have ended; the
//! clock of a thread that just runs is as of its last tick or switch, some milliseconds ago. The ticks of
//! `/proc/PID/stat` are 10 ms, too coarse to compare two builds. Only the ended children of
//! another process are counted in ticks. A server is the tree of its processes and all of its process
//! group: the ssh that sshfs starts is adopted by init, and stays in the group.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use nix::time::ClockId;
use nix::unistd::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Ticks per second of the times in `/proc`: `USER_HZ`, which is 100 on Debian.
const TICKS_PER_SECOND: f64 = 100.0;

/// The times of one process from its `stat` line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Times {
    /// Its parent's process id.
    pub parent: u32,
    /// Its process group.
    pub group: u32,
    /// User and system seconds of all its threads.
    pub own_s: f64,
    /// User and system seconds of the children that it has waited for, and of their children.
    pub waited_s: f64,
}

/// Reads one `stat` line; none if it is not one.
pub fn parse_stat(line: &str) -> Option<Times> {
    // The name is in parentheses and may contain blanks and parentheses.
    let (_, rest) = line.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // `fields[0]` is field 3 of the manual page.
    let seconds = |field: usize| -> Option<f64> {
        Some(fields.get(field.checked_sub(3)?)?.parse::<f64>().ok()? / TICKS_PER_SECOND)
    };
    Some(Times {
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        own_s: seconds(14)? + seconds(15)?,
        waited_s: seconds(16)? + seconds(17)?,
    })
}

/// Processor seconds that this process's ended and waited-for children have used so far.
pub fn children_s() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).context("getrusage")?;
    let seconds = |time: TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Processor seconds that the whole machine has worked so far, the kernel's threads included: more than
/// the work under test if something else runs.
pub fn machine_s() -> Result<f64> {
    let text = fs::read_to_string("/proc/stat").context("reading /proc/stat")?;
    busy_s(&text).context("/proc/stat has an unknown format")
}

/// User, nice, system, irq and softirq of all processors (`proc(5)`).
fn busy_s(stat: &str) -> Option<f64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<f64> = line.split_whitespace().flat_map(str::parse).collect();
    let busy = [0, 1, 2, 5, 6].map(|field| ticks.get(field).copied());
    let total: Option<f64> = busy.into_iter().sum();
    Some(total? / TICKS_PER_SECOND)
}

/// Processor seconds of all threads of a process; none once it has ended.
fn process_s(pid: u32) -> Option<f64> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?);
    let time = ClockId::pid_cpu_clock_id(pid).ok()?.now().ok()?;
    Some(time.tv_sec() as f64 + time.tv_nsec() as f64 / 1e9)
}

/// Processor seconds that the calling thread has used so far, exactly.
pub fn own_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor seconds that all threads of this process have used so far, exactly.
pub fn all_threads_s() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor seconds of a process, of the group that it leads, and of everything below these, running or
/// waited for.
pub fn tree_s(pid: u32) -> Result<f64> {
    let all = processes()?;
    ensure!(all.contains_key(&pid), "process {pid} is gone");
    let group = all.iter().filter(|(_, times)| times.group == pid);
    let mut left: Vec<u32> = group.map(|(member, _)| *member).chain([pid]).collect();
    let mut counted = BTreeSet::new();
    let mut total = 0.0;
    while let Some(process) = left.pop() {
        if let Some(times) = all.get(&process)
            && counted.insert(process)
        {
            // A process that has ended since it was listed has no clock any more.
            total += process_s(process).unwrap_or(times.own_s) + times.waited_s;
            let children = all.iter().filter(|(_, times)| times.parent == process);
            left.extend(children.map(|(child, _)| *child));
        }
    }
    Ok(total)
}

fn processes() -> Result<BTreeMap<u32, Times>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir("/proc").context("reading /proc")? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|n| n.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end between the listing and this: then it no longer counts.
        if let Ok(line) = fs::read_to_string(entry.path().join("stat"))
            && let Some(times) = parse_stat(&line)
        {
            found.insert(pid, times);
        }
    }
    Ok(found)
}

/// Binds the calling thread, and every process that it starts meanwhile, to one processor.
///
/// Dropping it restores the former set of processors.
pub struct Pin {
    before: CpuSet,
}

impl Pin {
    /// Pins to the highest allowed processor: the lowest takes most of the machine's interrupts.
    pub fn to_one() -> Result<Pin> {
        let before = sched_getaffinity(None).context("asking for the allowed processors")?;
        let last = (0..CpuSet::MAX_CPU)
            .rev()
            .find(|cpu| before.is_set(*cpu))
            .ok_or_else(|| anyhow!("no processor is allowed"))?;
        let mut one = CpuSet::new();
        one.set(last);
        sched_setaffinity(None, &one).context("pinning to one processor")?;
        Ok(Pin { before })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Err(error) = sched_setaffinity(None, &self.before) {
            eprintln!("warning: this thread stays pinned to one processor: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn parentheses_in_a_name_do_not_shift_the_fields() {
        let line = "7 (a) (b c) S 3 7 7 0 -1 4194304 104 0 0 0 150 50 700 300 20 0 1 0 1311 31 384";
        assert_eq!(
            parse_stat(line),
            Some(Times {
                parent: 3,
                group: 7,
                own_s: 2.0,
                waited_s: 10.0
            })
        );
        assert_eq!(parse_stat("7 (a) S 3"), None);
    }

    #[test]
    fn idle_and_stolen_time_is_no_work_of_the_machine() {
        let stat = "cpu  100 10 50 9999 888 20 20 777 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_s(stat), Some(2.0));
        assert_eq!(busy_s("cpu  100 10"), None);
        assert!(machine_s().unwrap() > 0.0);
    }

    #[test]
    fn work_of_a_grandchild_is_seen() {
        // The shell waits for the loop, which uses at least some ticks.
        let before = children_s().unwrap();
        let busy = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
        let status = Command::new("sh")
            .args(["-c", &format!("sh -c '{busy}'; true")])
            .status()
            .unwrap();
        assert!(status.success());
        assert!(children_s().unwrap() > before);
    }

    #[test]
    fn work_of_an_orphan_of_the_group_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        // The middle shell ends at once, so that the loop is no descendant of the first one.
        let busy = "while :; do :; done";
        let mut command = Command::new("sh");
        command.args(["-c", &format!("sh -c '{busy} &'; sleep 1000")]);
        let mut daemon =
            crate::process::Daemon::start("sh", &mut command, &dir.path().join("log")).unwrap();
        let pid = daemon.pid();
        let worked = || tree_s(pid).is_ok_and(|s| s > 0.2);
        daemon.wait_until("worked", worked).unwrap();
    }

    #[test]
    fn running_process_is_measured_in_less_than_a_tick() {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sleep");
        let log = dir.path().join("log");
        let mut daemon = crate::process::Daemon::start("sleep", command.arg("1000"), &log).unwrap();
        // Starting takes less than a tick of 10 ms, so the ticks would show 0. The clock shows it once the process sleeps.
        let pid = daemon.pid();
        let worked = || process_s(pid).is_some_and(|s| s > 0.0);
        daemon.wait_until("worked", worked).unwrap();
        assert!(process_s(u32::MAX).is_none());
    }

    #[test]
    fn own_time_counts_work_and_not_sleep() {
        let before_s = own_s();
        std::thread::sleep(std::time::Duration::from_millis(100));
        let slept_s = own_s() - before_s;
        assert!(slept_s < 0.05, "{slept_s}");
        let mut sum = 0_u64;
        while own_s() - before_s < slept_s + 0.02 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(sum > 0);
    }

    #[test]
    fn pin_is_inherited_and_undone() {
        let allowed = |list: &str| -> String {
            list.lines()
                .find_map(|l| l.strip_prefix("Cpus_allowed_list:"))
                .unwrap()
                .trim()
                .to_owned()
        };
        let ask = || {
            let out = Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .unwrap();
            allowed(&String::from_utf8(out.stdout).unwrap())
        };
        let before = ask();
        let pin = Pin::to_one().unwrap();
        assert!(ask().parse::<u32>().is_ok(), "not one processor: {}", ask());
        drop(pin);
        assert_eq!(ask(), before);
    }
}
