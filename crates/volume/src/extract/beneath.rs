//! Opens names of an extraction beneath the directory that they are in, and never through a link.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// Opens a name in `directory`; never outside of it, never through a link.
pub(super) fn open_beneath(
    directory: BorrowedFd<'_>,
    name: &[u8],
    flags: OFlags,
    mode: Mode,
) -> Result<OwnedFd, Errno> {
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    match rustix::fs::openat2(directory, name, flags, mode, resolve) {
        // Kernels before 5.6, and sandboxes that do not know the call. A single checked name
        // leads outside only through a link, and links are not followed.
        Err(Errno::NOSYS) if !name.contains(&b'/') => {
            rustix::fs::openat(directory, name, flags, mode)
        }
        other => other,
    }
}
