//! Memory of a process that the kernel writes to when memory is short: a loop device of a protected device.
//!
//! When a program in a memory limit writes to the device, the kernel may let any process in the same limit that needs a
//! page wait until pages are written. If that process is the one that writes them, both wait for good. So a device takes
//! what it needs before it answers, and locks it: its heap never gives anything back, has no mappings beside it, and is
//! as large as it gets. Where it may, it also says that it is the one who writes (PR_SET_IO_FLUSHER, prctl(2)).

use std::hint::black_box;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use ::protect::Limits;
use ::protect::map::DEFAULT_CACHE_BYTES;
use rustix::mm::MlockAllFlags;

use crate::units;

/// How the C library's allocator is told to keep what it has (mallopt(3)). Others ignore it.
const KEEPS: [(&str, &str); 4] = [
    ("MALLOC_ARENA_MAX", "1"),
    ("MALLOC_MMAP_MAX_", "0"),
    ("MALLOC_TRIM_THRESHOLD_", "1099511627776"),
    ("MALLOC_TOP_PAD_", "1048576"),
];
/// Says that the program was started again. Where the variables are gone all the same, nothing is tried again.
const AGAIN: &str = "BULLA_STARTED_AGAIN";
/// What the process needs beside its heap, bytes: code, stacks, and what the kernel has for it.
const OTHER_BYTES: u64 = 92 << 20;
/// The stack of a thread that there is for each processor, bytes.
const STACK_BYTES: u64 = 2 << 20;
/// The bit of CAP_IPC_LOCK in a set of capabilities (capabilities(7)).
const IPC_LOCK: u32 = 14;
/// Below this memory limit a device takes less than it takes elsewhere, bytes.
const TIGHT_BYTES: u64 = 640 << 20;
/// What control groups of the first version say without a limit is more.
const NO_LIMIT: u64 = 1 << 60;
/// `oom_score_adj` of a process that is never killed for memory.
const NEVER_KILLED: &str = "-1000";

/// In a memory limit, starts this program again in the same process, with an allocator that keeps what it has; one heap for
/// all threads is slower. Returns if it is so already, or if that fails. Nothing may be open yet that the program opens again.
pub fn start_again_to_keep_memory() {
    if memory_limit().is_none() || keeps_memory() || std::env::var_os(AGAIN).is_some() {
        return;
    }
    let mut words = crate::words().into_iter();
    // By its own name: /proc/self/exe would show a process called "exe".
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let mut command = Command::new(program);
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    let error = command.args(words).envs(KEEPS).env(AGAIN, "1").exec();
    tracing::debug!(%error, "cannot start again");
}

/// Whether the allocator was told. The loader takes the variables away from programs with capabilities of their own.
fn keeps_memory() -> bool {
    let keeps =
        |(name, value): &(&str, &str)| std::env::var_os(name).is_some_and(|it| it == *value);
    KEEPS.iter().all(keeps)
}

/// The memory of a device.
pub struct Memory {
    /// For what was written and is on its way.
    pub limits: Limits,
    /// For pages of the map, bytes.
    pub map_cache_bytes: usize,
    /// Requests of a loop device that are here at once.
    pub requests: u16,
    /// What the heap is with all of this in use, bytes, as measured (decision 0097).
    heap_bytes: usize,
}

impl Default for Memory {
    fn default() -> Memory {
        Memory::within(None)
    }
}

impl Memory {
    /// Of a device whose process may have so much.
    fn within(limit: Option<u64>) -> Memory {
        if limit.is_none_or(|limit| limit >= TIGHT_BYTES) {
            return Memory {
                limits: Limits::default(),
                map_cache_bytes: DEFAULT_CACHE_BYTES,
                requests: 256,
                heap_bytes: 208 << 20, // measured: 183 MiB, 48 of them FUSE's buffers (three of 16 MiB)
            };
        }
        Memory {
            limits: Limits {
                staged_bytes: 8 << 20,
                frame_bytes: 2 << 20,
                cached_bytes: 8 << 20,
                unsettled_bytes: 8 << 20,
                ..Limits::default()
            },
            map_cache_bytes: 16 << 20,
            requests: 64,
            heap_bytes: 136 << 20, // measured: less than 120 MiB, 48 of them FUSE's buffers
        }
    }

    fn needed_bytes(&self) -> u64 {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        self.heap_bytes as u64 + OTHER_BYTES + STACK_BYTES * processors as u64
    }
}

/// Prepares for being the disk that the kernel writes to when memory is short. Threads inherit it, so it is done before
/// there are any. Returns what the device may take, and what it lacks.
pub fn prepare() -> (Memory, Option<String>) {
    let limit = memory_limit();
    let memory = Memory::within(limit);
    let lacks = lock(limit, &memory);
    (memory, lacks)
}

fn lock(limit: Option<u64>, memory: &Memory) -> Option<String> {
    let flusher = rustix::process::configure_io_flusher_behavior(true);
    let spared = std::fs::write("/proc/self/oom_score_adj", NEVER_KILLED);
    let needed = memory.needed_bytes();
    let too_little = limit.filter(|limit| *limit < needed);
    // Without a limit nobody waits for pages that are written, and a device that has little to do takes little.
    let is_taken = limit.is_some() && too_little.is_none();
    let mut flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE;
    flags.set(MlockAllFlags::ONFAULT, !is_taken);
    let locked = may_lock() && rustix::mm::mlockall(flags).is_ok();
    if is_taken {
        // The kernel gives a page when it is written. The allocator keeps freed memory in its heap.
        drop(black_box(vec![1u8; memory.heap_bytes]));
    }
    if let Some(limit) = too_little {
        return Some(format!(
            "the memory limit of this process is {}, and a loop device needs {}: when programs in the same limit write \
             much, they and this process can wait for each other for good",
            units::size(limit),
            units::size(needed)
        ));
    }
    if !locked {
        return Some(
            "this process lacks CAP_IPC_LOCK: when memory is short, it may wait for pages that it must write itself"
                .to_owned(),
        );
    }
    if is_taken && !keeps_memory() {
        return Some(
            "the allocator cannot be told to keep memory: with this memory limit, this process may wait for pages that it \
             must write itself"
                .to_owned(),
        );
    }
    let error = flusher.map_err(|error| error.to_string());
    let error = error.and(spared.map_err(|error| error.to_string())).err()?;
    tracing::debug!(%error, "the kernel does not spare this process");
    Some(
        "this process lacks CAP_SYS_RESOURCE: when memory is short, the kernel may kill it, or make it wait as it does others"
            .to_owned(),
    )
}

/// Whether all memory may be locked. With a limit (RLIMIT_MEMLOCK) a later allocation would fail.
fn may_lock() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock);
    effective.is_some_and(|set| set >> IPC_LOCK & 1 == 1) || limit.current.is_none()
}

/// The memory limit of this process, bytes.
fn memory_limit() -> Option<u64> {
    limit(Path::new("/")).filter(|limit| *limit < NO_LIMIT)
}

/// The least memory limit of the control groups that this process is in, bytes. `root`: where the file system of this
/// machine begins.
fn limit(root: &Path) -> Option<u64> {
    let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).ok()?;
    let mounted = root.join("sys/fs/cgroup");
    let of_group = |line: &str| {
        let (_, line) = line.split_once(':')?;
        let (controllers, path) = line.split_once(':')?;
        let (mounted, file) = match controllers {
            "" => (mounted.clone(), "memory.max"),
            _ if controllers.split(',').any(|it| it == "memory") => {
                (mounted.join("memory"), "memory.limit_in_bytes")
            }
            _ => return None,
        };
        // In a container the path may be one that only its host has. Then its own group is where the root is.
        let path = PathBuf::from(path.trim_start_matches('/'));
        let all = path.ancestors().map(|path| mounted.join(path).join(file));
        all.filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
            .min()
    };
    groups.lines().filter_map(of_group).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_limit_of_all_groups_counts() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        assert_eq!(limit(root.path()), None);
        write("proc/self/cgroup", "0::/system.slice/one.service\n");
        assert_eq!(limit(root.path()), None);
        write("sys/fs/cgroup/system.slice/one.service/memory.max", "max\n");
        assert_eq!(limit(root.path()), None);
        write("sys/fs/cgroup/system.slice/memory.max", "300000000\n");
        assert_eq!(limit(root.path()), Some(300_000_000));
        write(
            "sys/fs/cgroup/system.slice/one.service/memory.max",
            "200000000\n",
        );
        assert_eq!(limit(root.path()), Some(200_000_000));
        // The first version, of a container that does not see its path.
        write("proc/self/cgroup", "5:cpu:/\n4:memory:/docker/12\n0::/\n");
        write(
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n",
        );
        assert_eq!(limit(root.path()), Some(9_223_372_036_854_771_712));
        write(
            "sys/fs/cgroup/memory/docker/12/memory.limit_in_bytes",
            "1000\n",
        );
        assert_eq!(limit(root.path()), Some(1000));
    }
}
