//! Claims: who uses a log. Several hosts that share a disk may have no other channel, so each writes a claim on the
//! log's own device before it uses the log, and watches the claims of the others. Bytes: `docs/formats/log.md`,
//! *Claims*. Why it works: `docs/decisions/0096-two-hosts.md`.
//!
//! A claim prevents mistakes of honest hosts. A device that lies can hide it or show an old one; then two hosts are noticed
//! by the session in the superblock only.
//!
//! | module | what lives there |
//! |---|---|
//! | `page` | a claim as bytes, and the area of claims |
//! | `taking` | how a host comes to its claim |
//! | `asking` | whether a host answers, for those who have no key |
//! | `lease` | the claim of a host that uses the log: it answers others, and says how long writes are safe |
//! | `fenced` | a device that takes no write without a lease |

mod asking;
mod fenced;
mod lease;
mod page;
mod taking;

use std::time::Duration;

pub use asking::is_answered;
pub use fenced::Fenced;
pub use lease::{Keeper, LEASE, LOOK, Lease};
pub use taking::{ClaimOptions, WATCH, claim};

/// A process of a host, as other processes of the same host find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// The namespace that numbers it.
    pub namespace: u64,
    /// Its number. 0: not known.
    pub pid: u64,
    /// When it started, in ticks since the host started. Numbers are used again.
    pub started: u64,
}

/// What a host knows of one of its processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It has ended.
    Ended,
    /// It runs.
    Runs,
    /// It belongs to another namespace, so nothing is known.
    Unknown,
}

/// This machine, for claims.
pub trait Host: Send + Sync {
    /// Its name, for people.
    fn name(&self) -> String;

    /// What stays the same as long as this system runs and is different on all others, such as the ids of machine and
    /// boot. Empty if it is not known.
    fn system(&self) -> Vec<u8>;

    /// This process.
    fn process(&self) -> Process;

    /// What became of a process of this system.
    fn life(&self, process: &Process) -> Life;

    /// A clock that never goes back and counts while the machine is suspended.
    fn now(&self) -> Duration;

    /// Waits.
    fn wait(&self, time: Duration);
}
