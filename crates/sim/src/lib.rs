//! For tests only: adversaries, crashing disks, slow networks, and reference models to compare with.
//!
//! | module | what it simulates |
//! |---|---|
//! | [`block`] | a block device in memory, for tests of front ends |
//! | [`device`] | devices that crash, lie and are put back |
//! | [`altered`] | a replica of which a test alters single answers |
//! | [`clock`] | processes whose wall clock is wrong |
//! | [`disk`] | a disk that crashes, and one that fills up |
//! | `forking` | a server that shows the devices of a shared volume two logs (feature `forking`) |
//! | [`fsx`] | random operations on a file, compared with a model |
//! | [`guarded`] | a temporary directory of which nothing is left behind |
//! | [`holder`] | a process that holds a lock and is stopped |
//! | [`liar`] | a replica that tells one named lie |
//! | [`log`] | no part of the world: it collects log lines |
//! | `memfs` | a writable file system in memory, for mounts (feature `memfs`) |
//! | [`model`] | a publisher in memory, honest or malformed |
//! | [`network`] | hosts far apart: delay, loss, partition |
//! | [`nginx`] | a real web server |
//! | [`port`] | no part of the world: it finds ports that stay free |
//! | [`power`] | devices as disks of other processes, whose power a test cuts |
//! | [`random`] | numbers and bytes that are the same in every run |
//! | [`time`] | the time, and waits for a condition |

pub mod altered;
pub mod block;
pub mod clock;
pub mod device;
pub mod disk;
#[cfg(feature = "forking")]
pub mod forking;
pub mod fsx;
pub mod guarded;
pub mod holder;
pub mod liar;
pub mod log;
#[cfg(feature = "memfs")]
pub mod memfs;
pub mod model;
pub mod network;
pub mod nginx;
pub mod port;
pub mod power;
pub mod random;
pub mod time;
