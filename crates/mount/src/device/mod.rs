//! A protected device as a mount with one regular file, for a loop device or for programs that open files.
//!
//! [`serve`] mounts a [`protect::Block`]. Reads, writes, FALLOCATE and FSYNC go to threads of their own, so that no thread
//! of the mount waits, and a write that waits for space holds up no read. What Linux sends through a loop device, and
//! why the answers here are what they are: decision 0038.
//!
//! | module | what lives there |
//! |---|---|
//! | `served` | the mount, from its beginning to its end |
//! | `file_system` | the kernel's requests |
//! | `work` | pools of threads, and the memory of writes that wait |
//! | `buffers` | aligned memory that is used again |
//! | `faults` | what failed, for the log and for status |

mod buffers;
mod faults;
mod file_system;
mod options;
mod served;
mod work;

pub use faults::{Fault, FaultReport};
pub use options::DeviceOptions;
pub use served::{Served, serve};
