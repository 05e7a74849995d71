//! Loop devices over files of ours: attach, find, check, detach.
//!
//! The system's `losetup` does the work, because it knows every kernel's way to do it in one step; what is attached is
//! read from /sys. Every call here may wait for the file system that has the file, so a process that serves the file must
//! not call from a thread that serves it.
//!
//! | module | what lives there |
//! |---|---|
//! | `attached` | devices that are attached, their settings, and whether they are in use |
//! | `error` | what can go wrong, each with a hint |
//! | `fault` | settings that cannot be used |
//! | `losetup` | runs the program, with a deadline |

mod attached;
mod error;
mod fault;
mod losetup;

use std::path::Path;

pub use attached::{Attached, all, of, on};
pub use error::LoopError;
pub use fault::Fault;

/// How a file is attached.
#[derive(Debug, Clone, Copy)]
pub struct LoopOptions {
    /// The logical sector in bytes: 512 or 4096. It must be that of the device below, or a file system that was made on
    /// that device cannot be mounted.
    pub sector_bytes: u32,
    /// Nothing can be written.
    pub read_only: bool,
    /// Largest request in bytes. A larger one than the file takes is sent in two, with more work for both.
    pub max_request_bytes: u32,
}

/// Attaches `file` to a free loop device, without the page cache in between, and checks what the kernel made of it.
///
/// # Errors
/// [`LoopError`] in all its kinds. Nothing stays attached then.
pub fn attach(file: &Path, options: LoopOptions) -> Result<Attached, LoopError> {
    let name = losetup::attach(file, options)?;
    attached::limit_requests(&name, options.max_request_bytes);
    let Some(attached) = on(&name)? else {
        return Err(LoopError::Vanished { device: name });
    };
    match attached.faults(options.sector_bytes).first() {
        None => Ok(attached),
        Some(fault) => {
            let fault = *fault;
            attached.detach()?;
            Err(LoopError::Setting {
                device: attached.device,
                fault,
            })
        }
    }
}

/// What [`clear_stale`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cleared {
    /// Detached.
    pub detached: Vec<Attached>,
    /// A file system on them is unmounted, and programs still have files of it open. The last one detaches them.
    pub left: Vec<Attached>,
}

/// Detaches loop devices that an earlier process left on `file`, whose server is dead. The caller knows that it is dead:
/// it holds the lock of the file's server, and has not mounted yet.
///
/// # Errors
/// [`LoopError::Busy`] when one is mounted: then it must be unmounted first. Others as for [`Attached::detach`].
pub fn clear_stale(file: &Path) -> Result<Cleared, LoopError> {
    let mut cleared = Cleared::default();
    for attached in of(file)? {
        let device = attached.device.display();
        match attached.detach() {
            Ok(()) => {
                tracing::info!(%device, "cleared a stale loop device");
                cleared.detached.push(attached);
            }
            Err(LoopError::Busy {
                mounted_on: None, ..
            }) => {
                attached.detach_when_closed()?;
                tracing::warn!(%device, "programs have files of a stale loop device open");
                cleared.left.push(attached);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(cleared)
}
