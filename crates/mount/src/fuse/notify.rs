//! Notifications to the kernel that something in its caches is stale.
//!
//! They take locks that the kernel holds while it waits for an answer (of the directory for an entry,
//! of pages for an inode), so they must not be sent by the thread that handles a request about the
//! same file. [`Notifier::increment_epoch`] takes no such lock.

use std::io::{self, IoSlice};
use std::sync::Arc;

use super::channel::Channel;
use super::protocol::notice;
use super::types::INodeNo;

/// Sends notifications of one mount. All fail with `ENODEV` or the like once it is unmounted. It is not an
/// error if the kernel does not have the entry in its caches.
#[derive(Debug)]
pub struct Notifier {
    channel: Arc<Channel>,
    /// Minor version of the protocol that was agreed on.
    minor: u32,
}

impl Notifier {
    pub(super) fn new(channel: Arc<Channel>, minor: u32) -> Self {
        Notifier { channel, minor }
    }

    /// Whether the kernel has [`Notifier::increment_epoch`].
    pub fn has_epochs(&self) -> bool {
        self.minor >= notice::INC_EPOCH_MINOR
    }

    /// Whether the kernel has [`Notifier::prune`].
    pub fn has_prune(&self) -> bool {
        self.minor >= notice::PRUNE_MINOR
    }

    /// Makes every cached name stale (decision 0010): each is looked up again when it is next used. Takes
    /// microseconds, however many names there are, and does not affect pages of open files.
    ///
    /// # Errors
    /// `Unsupported` if the kernel does not know the call.
    pub fn increment_epoch(&self) -> io::Result<()> {
        supported(self.has_epochs())?;
        self.send(&notice::inc_epoch(), &[])
    }

    /// Drops inodes that nothing uses, with their names, attributes and pages.
    ///
    /// # Errors
    /// `Unsupported` if the kernel does not know the call.
    pub fn prune(&self, inodes: &[INodeNo]) -> io::Result<()> {
        supported(self.has_prune())?;
        self.send(&notice::prune(inodes), &[])
    }

    /// Drops cached attributes of a file, not its pages.
    ///
    /// # Errors
    /// The kernel's.
    pub fn invalidate_attributes(&self, inode: INodeNo) -> io::Result<()> {
        self.send_found(&notice::inval_inode(inode, -1, 0), &[])
    }

    /// Drops cached attributes and pages of a file. Waits for reads of the file that are under way.
    ///
    /// # Errors
    /// The kernel's.
    pub fn invalidate_data(&self, inode: INodeNo) -> io::Result<()> {
        self.send_found(&notice::inval_inode(inode, 0, 0), &[])
    }

    /// Puts bytes into the page cache of a file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn store(&self, inode: INodeNo, offset: u64, data: &[u8]) -> io::Result<()> {
        let bytes = u32::try_from(data.len()).map_err(io::Error::other)?;
        self.send_found(&notice::store(inode, offset, bytes), data)
    }

    /// It is no error that the kernel does not know the inode.
    fn send_found(&self, message: &[u8], data: &[u8]) -> io::Result<()> {
        match self.send(message, data) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    fn send(&self, message: &[u8], data: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(message), IoSlice::new(data)];
        Ok(self.channel.send(&parts)?)
    }
}

fn supported(is_supported: bool) -> io::Result<()> {
    if is_supported {
        Ok(())
    } else {
        Err(io::ErrorKind::Unsupported.into())
    }
}
