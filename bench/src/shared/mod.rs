//! Shared volumes for the figures 22 to 26: a volume with a home for each machine, its server as a process of its own,
//! and devices with real clients. Of figure 30: a
//! volume that the binary under test mounts.

pub mod author;
pub mod catch_up;
pub mod device;
pub mod mounted;
pub mod phase;
pub mod server;
pub mod volume;
