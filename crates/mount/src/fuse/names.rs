//! Telling the kernel that the names it remembers are of an older version (decision 0010).
//!
//! `FUSE_NOTIFY_INC_EPOCH` (Linux 6.16) is a header of 16 bytes written to the session. After it,
//! each name that was looked up before is asked for again when it is next used, and a look-up that
//! was under way counts as one from before. It takes microseconds however many names there are, takes
//! no lock that a look-up holds, and leaves pages of open files alone. `fuser` does not have it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use fuser::{INodeNo, Notifier};

/// `FUSE_NOTIFY_INC_EPOCH` of linux/fuse.h.
const INC_EPOCH: i32 = 8;

/// The kernel's memory of names, of one mount.
#[derive(Debug)]
pub struct KernelNames {
    device: File,
    notifier: Notifier,
}

impl KernelNames {
    /// Through a descriptor of the session's device.
    pub fn new(device: OwnedFd, notifier: Notifier) -> Self {
        KernelNames {
            device: File::from(device),
            notifier,
        }
    }

    /// Makes all remembered names stale.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not know the call; `ENODEV` or the like once unmounted.
    pub fn make_stale(&self) -> io::Result<()> {
        (&self.device).write_all(&message())
    }

    /// Makes remembered attributes of a file stale, not its pages. Needed for directories that
    /// programs stand in or hold open, which are not looked up again.
    pub fn attributes_stale(&self, number: u64) {
        // The kernel may have forgotten it in the meantime, and then there is nothing to do.
        let _ = self.notifier.inval_inode(INodeNo(number), -1, 0);
    }
}

/// `fuse_out_header { len, error = code, unique = 0 }`: a notification without a body.
fn message() -> [u8; 16] {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
    message
}
