//! Real mounts in the real kernel (design `quality.md`, *The real kernel*). Needs /dev/fuse and the
//! right to mount; without them these tests fail, they are not skipped. The modules `writing_*` mount
//! `sim::memfs`, a writable file system in memory, to prove the writing half of `mount::fuse`; `wrong_sizes`
//! publishes from it.

// A test fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod attributes;
mod calls;
mod changes;
mod crashing;
mod device_file;
mod document;
mod evidence;
mod expiry;
mod failures;
mod fixture;
mod flush_prefixes;
mod kernel_facts;
mod lifecycle;
mod limits;
mod linux_sends;
mod listing;
mod looped;
mod loops;
mod power_cuts;
mod probe;
mod profiles;
mod programs;
mod protected_programs;
mod published;
mod recorder;
mod refusals;
mod scripted;
mod storm;
mod tree;
mod updates;
mod writable;
mod writing_locks;
mod writing_posix;
mod writing_programs;
mod wrong_sizes;
