//! Explores a protected device on simulated devices: every interleaving of a few operations with the stages of the
//! background work, every crash of them, and devices that lie (design `protect.md`, *Proof*).
//!
//! | module | what lives there |
//! |---|---|
//! | `content` | bytes that say which write made them, and where they belong |
//! | `model` | what a device may return |
//! | `subject` | the interface of what is explored |
//! | `trace` | what was done, as text |
//! | `explorer` | schedules, crashes, recoveries |
//! | `protected` | a protected device, driven stage by stage |
//! | `exhaustive` | all schedules of a few operations, and all crashes |
//! | `life`, `adversaries` | long lives by seed, on honest devices and on devices that lie |
//! | `beside` | reads that writes overtake |
//! | `refusals` | a full disk, a failed sync, a second host |
//! | `ring_rot` | schedules in which a page of the ring rots while the device is attached |
//! | `rot` | pages of the map and of the ring that are changed: what else goes on |
//! | `hosts` | threads that act as hosts, one at a time, by a schedule |
//! | `two_hosts` | two hosts that share the devices, and stop for a while at any operation |
//! | `raw`, `controls` | a raw disk, on which the explorer must find faults |

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

mod adversaries;
mod beside;
mod content;
mod controls;
mod exhaustive;
mod explorer;
mod hosts;
mod life;
mod model;
mod protected;
mod raw;
mod refusals;
mod ring_rot;
mod rot;
mod subject;
mod trace;
mod two_hosts;
