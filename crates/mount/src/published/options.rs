//! How a volume is to be mounted.

use std::time::Duration;

/// Who files belong to as seen through the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ownership {
    /// Whoever mounts.
    #[default]
    Mounter,
    /// These, whatever was published.
    Fixed {
        /// Numeric user.
        uid: u32,
        /// Numeric group.
        gid: u32,
    },
    /// As published; where the publisher did not say, whoever mounts.
    Published,
}

/// How the kernel is made to forget names when a version ends (decision 0010).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NameCaching {
    /// One call that makes all cached names stale where the kernel has it (Linux 6.16), else as
    /// [`NameCaching::Short`].
    #[default]
    Automatic,
    /// Names are believed for one second at a time.
    Short,
}

/// How a volume is to be mounted. The default is what `bulla mount` does without options.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// How often newer statements are looked for.
    pub refresh: Duration,
    /// Other users may enter (for users other than root, /etc/fuse.conf must allow it).
    pub allow_other: bool,
    /// Who files belong to.
    pub ownership: Ownership,
    /// Set-user-id bits and device nodes work. Only for volumes that the administrator named: a
    /// publisher who may set them is root on this machine.
    pub honour_suid_and_devices: bool,
    /// Programs cannot be started from the mount.
    pub no_exec: bool,
    /// Threads that read the kernel's requests; 0 chooses by the machine.
    pub threads: usize,
    /// What the kernel reads ahead for sequential readers, bytes. More than 128 KiB takes effect
    /// only when root mounts.
    pub read_ahead_bytes: u32,
    /// How names are forgotten.
    pub name_caching: NameCaching,
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
        }
    }
}
