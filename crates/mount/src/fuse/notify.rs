//! Notifications to the kernel that something in its caches is stale.
//!
//! They take locks that the kernel holds while it waits for an answer (of the directory for an entry,
//! of pages for an inode), so they must not be sent by the thread that handles a request about the
//! same file. [`Notifier::increment_epoch`] takes no such lock.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use fuser::INodeNo;

/// `FUSE_NOTIFY_INC_EPOCH` of linux/fuse.h.
const INC_EPOCH: i32 = 8;

/// Sends notifications of one mount. All fail with `ENODEV` or the like once it is unmounted. It is not an
/// error if the kernel does not have the entry in its caches.
#[derive(Debug)]
pub struct Notifier {
    device: File,
    fuser: fuser::Notifier,
}

impl Notifier {
    /// Sends through a descriptor of the session's device.
    pub(super) fn new(device: OwnedFd, fuser: fuser::Notifier) -> Self {
        Notifier {
            device: File::from(device),
            fuser,
        }
    }

    /// Makes every cached name stale (decision 0010): each is looked up again when it is next used. Takes
    /// microseconds, however many names there are, and does not affect pages of open files. Needs Linux
    /// 6.16; `fuser` does not have this call.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not know the call.
    pub fn increment_epoch(&self) -> io::Result<()> {
        (&self.device).write_all(&epoch_message())
    }

    /// Drops cached attributes of a file, not its pages.
    ///
    /// # Errors
    /// The kernel's.
    pub fn invalidate_attributes(&self, inode: INodeNo) -> io::Result<()> {
        self.fuser.inval_inode(inode, -1, 0)
    }

    /// Puts bytes into the page cache of a file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn store(&self, inode: INodeNo, offset: u64, data: &[u8]) -> io::Result<()> {
        self.fuser.store(inode, offset, data)
    }
}

/// `fuse_out_header { len, error = code, unique = 0 }`: a notification without a body.
fn epoch_message() -> [u8; 16] {
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16u32.to_ne_bytes());
    message[4..8].copy_from_slice(&INC_EPOCH.to_ne_bytes());
    message
}
