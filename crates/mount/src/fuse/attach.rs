//! Makes the mount: by mount(2), or by the set-user-id helper `fusermount3` for users who may not. The helper opens
//! `/dev/fuse` itself and sends the descriptor over a socket, which is its standard input.

use std::ffi::{CString, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use super::channel::Channel;
use super::{table, unmount};

const DEVICE: &str = "/dev/fuse";
/// The helpers, the newest first.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];
/// Tells the helper the number of the socket.
const SOCKET_VARIABLE: &str = "_FUSE_COMMFD";

/// How a file system is mounted.
#[derive(Debug, Clone)]
pub struct Attachment {
    /// What the mount table shows as the source.
    pub source: String,
    /// The kernel itself refuses writes.
    pub read_only: bool,
    /// Other users may enter.
    pub allow_other: bool,
    /// Set-user-id bits and device nodes work.
    pub honour_suid_and_devices: bool,
    /// Programs cannot be started.
    pub no_exec: bool,
}

/// A mount. Dropping it unmounts what is still there.
#[derive(Debug)]
pub struct Attached {
    pub channel: Arc<Channel>,
    directory: PathBuf,
}

impl Attached {
    /// Mounts on `directory`, an absolute path.
    ///
    /// # Errors
    /// The system's, or what the helper says.
    pub fn new(directory: &Path, how: &Attachment) -> io::Result<Attached> {
        let device = match by_system_call(directory, how)? {
            Some(device) => device,
            None => by_helper(directory, how)?,
        };
        Ok(Attached {
            channel: Arc::new(Channel::new(device)),
            directory: directory.to_owned(),
        })
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        // When it has ended, another mount may be on the directory.
        let is_connected = unmount::is_connected(self.channel.as_fd());
        if is_connected.is_ok_and(|is_connected| is_connected)
            && let Err(error) = unmount::detach(&self.directory)
        {
            tracing::warn!(%error, "left mounted");
        }
    }
}

/// `None`: this user may not.
fn by_system_call(directory: &Path, how: &Attachment) -> io::Result<Option<OwnedFd>> {
    let device = match rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) {
        Ok(device) => device,
        Err(Errno::ACCESS | Errno::PERM) => return Ok(None),
        Err(error) => {
            return Err(io::Error::new(
                io::Error::from(error).kind(),
                format!("{DEVICE}: {error}; `modprobe fuse` may help"),
            ));
        }
    };
    // The kernel checks permissions by the attributes that it is given.
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions,subtype={}",
        device.as_raw_fd(),
        std::fs::metadata(directory)?.mode(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        table::SUBTYPE,
    );
    if how.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data)?;
    match rustix::mount::mount(
        how.source.as_str(),
        directory,
        "fuse",
        flags(how),
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device)),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn flags(how: &Attachment) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, how.read_only);
    flags.set(MountFlags::NOSUID, !how.honour_suid_and_devices);
    flags.set(MountFlags::NODEV, !how.honour_suid_and_devices);
    flags.set(MountFlags::NOEXEC, how.no_exec);
    flags
}

/// The same for the helper, `-o`.
fn options(how: &Attachment) -> String {
    let mut options = vec![if how.read_only { "ro" } else { "rw" }];
    options.extend(if how.honour_suid_and_devices {
        ["suid", "dev"]
    } else {
        ["nosuid", "nodev"]
    });
    if how.no_exec {
        options.push("noexec");
    }
    options.push("default_permissions");
    if how.allow_other {
        options.push("allow_other");
    }
    let source = how.source.replace('\\', "\\\\").replace(',', "\\,");
    let options = options.join(",");
    format!("{options},subtype={},fsname={source}", table::SUBTYPE)
}

fn by_helper(directory: &Path, how: &Attachment) -> io::Result<OwnedFd> {
    let mut missing = None;
    for helper in HELPERS {
        let (ours, theirs) = UnixStream::pair()?;
        let run = Command::new(helper)
            .args([OsString::from("-o"), options(how).into(), "--".into()])
            .arg(directory)
            .env(SOCKET_VARIABLE, "0")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let run = match run {
            Ok(run) => run,
            Err(error) => {
                // The first one is the one to install.
                missing.get_or_insert(format!("{helper}: {error}"));
                continue;
            }
        };
        // The helper has the only other end, so this ends when it does.
        let device = received(&ours);
        drop(ours);
        let output = run.wait_with_output();
        // It has mounted, whatever became of waiting for it.
        if let Ok(Some(device)) = device {
            return Ok(device);
        }
        device?;
        let output = output?;
        let told = String::from_utf8_lossy(&output.stderr);
        return Err(match told.trim() {
            "" => io::Error::other(format!("{helper} ended with {}", output.status)),
            told => refusal(told),
        });
    }
    let missing = missing.unwrap_or_default();
    Err(io::Error::new(io::ErrorKind::NotFound, missing))
}

/// What the helper says, as an error.
fn refusal(told: &str) -> io::Error {
    // /etc/fuse.conf forbids it.
    let kind = if told.contains("user_allow_other") {
        io::ErrorKind::PermissionDenied
    } else {
        io::ErrorKind::Other
    };
    io::Error::new(kind, told.to_owned())
}

/// The descriptor that the helper sends; `None` if it ends without.
fn received(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::io::retry_on_intr(|| {
        let into = &mut [IoSliceMut::new(&mut byte)];
        recvmsg(socket, into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut messages = control.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comma_in_the_source_is_no_option_of_the_helper() {
        let how = Attachment {
            source: "a,suid\\,dev".to_owned(),
            read_only: true,
            allow_other: false,
            honour_suid_and_devices: false,
            no_exec: true,
        };
        let expected =
            "ro,nosuid,nodev,noexec,default_permissions,subtype=bulla,fsname=a\\,suid\\\\\\,dev";
        assert_eq!(options(&how), expected);
    }
}
