//! Options of mounting a published volume.

use std::time::Duration;

use volume::profile::Profile;

use crate::attributes::Owners;

/// Owner of files as the mount shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ownership {
    /// The user who mounts.
    #[default]
    Mounter,
    /// A fixed user and group.
    Fixed {
        /// Numeric user.
        uid: u32,
        /// Numeric group.
        gid: u32,
    },
    /// As published; files without a published owner belong to the user who mounts.
    Published,
}

impl Ownership {
    /// The owners under this option, for this process.
    pub fn owners(self) -> Owners {
        match self {
            Ownership::Mounter => Owners::own(),
            Ownership::Published => Owners {
                published: true,
                ..Owners::own()
            },
            Ownership::Fixed { uid, gid } => Owners {
                uid,
                gid,
                published: false,
            },
        }
    }
}

/// How names leave the kernel's cache when a new version is adopted (decision 0010).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameCaching {
    /// By one call that makes all cached names stale, on kernels that have it (Linux 6.16); else as
    /// [`NameCaching::Short`].
    #[default]
    Automatic,
    /// The kernel caches names for one second.
    Short,
}

/// What a mount fetches when it starts, before programs ask for it.
#[derive(Debug, Clone, Default)]
pub enum FetchFirst {
    /// What the profile says that the publisher has put into the tree ([`volume::profile::ATTACHED`]), if there is one.
    #[default]
    Attached,
    /// What this profile says.
    Given(Profile),
    /// Nothing.
    Nothing,
}

/// Options of mounting. The default is that of `bulla mount`.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Pause between two searches for a newer version.
    pub refresh: Duration,
    /// Other users may enter (for users other than root, /etc/fuse.conf must allow it).
    pub allow_other: bool,
    /// Owner of files.
    pub ownership: Ownership,
    /// Set-user-id bits and device nodes work. Only for volumes that the administrator trusts: their
    /// publisher can become root on this machine.
    pub honour_suid_and_devices: bool,
    /// Programs cannot be started from the mount.
    pub no_exec: bool,
    /// Threads that read the kernel's requests; 0 chooses by the machine.
    pub threads: usize,
    /// What the kernel reads ahead for sequential readers, bytes. More than 128 KiB takes effect
    /// only when root mounts.
    pub read_ahead_bytes: u32,
    /// How names leave the kernel's cache.
    pub name_caching: NameCaching,
    /// The order in which the mount fetches ahead.
    pub fetch_first: FetchFirst,
    /// What programs read is noted ([`super::mounted::Mounted::recorder`]).
    pub record: bool,
}

impl Default for MountOptions {
    fn default() -> Self {
        MountOptions {
            refresh: Duration::from_secs(30),
            allow_other: false,
            ownership: Ownership::Mounter,
            honour_suid_and_devices: false,
            no_exec: false,
            threads: 0,
            read_ahead_bytes: 1 << 20,
            name_caching: NameCaching::Automatic,
            fetch_first: FetchFirst::Attached,
            record: false,
        }
    }
}
