//! Makes the inode of a file from its attributes on this machine, and decides which attributes are
//! published.
//!
//! By default: kind, permission bits, modification time and the `user.*` attributes. With `--owner` also
//! numeric owner and group, and file capabilities. Never: change and access times, and attributes of other
//! namespaces. Of an access control list, what it leaves of the mode ([`crate::access`]).

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use bytes::Bytes;
use rustix::buffer::spare_capacity;
use rustix::fs::{FileType, Statx, fgetxattr, flistxattr};
use rustix::io::Errno;
use trust::Reject;
use trust::inode::{
    Content, Inode, MAX_INLINE_XATTR_BYTES, MAX_XATTR_LIST_BYTES, MAX_XATTR_VALUE_BYTES, Owner,
    Time, Xattrs,
};

use crate::access::{self, Access};

/// The names of all extended attributes of a file, each with a NUL, bytes: Linux lists 64 KiB, and a mount adds some.
const MAX_XATTR_NAMES_BYTES: usize = 63 << 10;

/// Why the attributes of a file cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum AttributeError {
    /// The system returned an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// An attribute that only a mount may show.
    #[error("it has the attribute {0:?}; names that begin with user.bulla. are reserved")]
    Reserved(String),
    /// More than the format holds.
    #[error("its extended attributes are over 1 MiB")]
    TooMany,
    /// Names that Linux would not list.
    #[error("the names of its extended attributes are over 63 KiB, and no reader could list them")]
    LongNames,
    /// They break a rule of the format.
    #[error("{0}")]
    Refused(#[from] Reject),
}

impl From<Errno> for AttributeError {
    fn from(errno: Errno) -> Self {
        AttributeError::Io(errno.into())
    }
}

/// The device of a file.
pub fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}

/// Refuses a list of attributes that the system, or a reader, would not take.
///
/// # Errors
/// [`AttributeError::LongNames`], [`AttributeError::Refused`].
pub fn check_xattrs(list: &[(Bytes, Bytes)]) -> Result<(), AttributeError> {
    if list.is_empty() {
        return Ok(());
    }
    if list.iter().map(|(name, _)| name.len() + 1).sum::<usize>() > MAX_XATTR_NAMES_BYTES {
        return Err(AttributeError::LongNames);
    }
    trust::inode::decode_xattrs(&trust::inode::encode_xattrs(list))?;
    Ok(())
}

/// Attributes that are published with owners only.
pub const WITH_OWNER: [&[u8]; 1] = [b"security.capability"];

/// Name and value, sorted by name.
pub type XattrList = Vec<(Bytes, Bytes)>;

/// Size, times and identity of a file: if all are equal, it is still the file that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Modification: seconds and nanoseconds.
    pub mtime: (i64, u32),
    /// Change: seconds and nanoseconds.
    pub ctime: (i64, u32),
    /// Device and inode number.
    pub file: (u64, u64),
}

impl Stamp {
    /// That of a file.
    pub fn of(stat: &Statx) -> Stamp {
        Stamp {
            size: stat.stx_size,
            mtime: (stat.stx_mtime.tv_sec, stat.stx_mtime.tv_nsec),
            ctime: (stat.stx_ctime.tv_sec, stat.stx_ctime.tv_nsec),
            file: (device(stat), stat.stx_ino),
        }
    }
}

/// The type of a file.
pub fn file_type(stat: &Statx) -> FileType {
    FileType::from_raw_mode(stat.stx_mode.into())
}

/// The inode of a file with this content; hard links and extended attributes come later.
pub fn inode(stat: &Statx, access: Access, with_owner: bool, content: Content) -> Inode {
    let mtime = Time {
        seconds: stat.stx_mtime.tv_sec,
        nanos: stat.stx_mtime.tv_nsec,
    };
    let mut inode = Inode::new(access.narrow(stat.stx_mode & 0o7777), mtime, content);
    if with_owner {
        inode.owner = Some(Owner {
            uid: stat.stx_uid,
            gid: stat.stx_gid,
        });
    }
    inode
}

/// A list that is short enough for the inode, or the bytes of a longer one.
pub fn place_xattrs(list: XattrList) -> Result<Xattrs, Vec<u8>> {
    if list.is_empty() {
        return Ok(Xattrs::None);
    }
    let encoded = trust::inode::encode_xattrs(&list);
    if encoded.len() <= MAX_INLINE_XATTR_BYTES {
        Ok(Xattrs::Inline(list))
    } else {
        Err(encoded)
    }
}

/// Reads extended attributes; keeps its buffers from file to file.
#[derive(Debug, Default)]
pub struct XattrReader {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl XattrReader {
    /// The attributes of an open file that are to be published, and what its access control list leaves of the mode.
    ///
    /// # Errors
    /// [`AttributeError`]: they cannot be read, are too many, or have a reserved name.
    pub fn read(
        &mut self,
        fd: &OwnedFd,
        with_owner: bool,
    ) -> Result<(XattrList, Access), AttributeError> {
        self.names.clear();
        self.names.reserve(MAX_XATTR_VALUE_BYTES);
        match flistxattr(fd, spare_capacity(&mut self.names)) {
            Ok(_) => {}
            Err(Errno::OPNOTSUPP) => return Ok((Vec::new(), Access::MODE)),
            Err(errno) => return Err(errno.into()),
        }
        let mut list = XattrList::new();
        let mut rest = self.names.as_slice();
        let mut total = 0;
        let mut access = Access::MODE;
        while let Ok(name) = CStr::from_bytes_until_nul(rest) {
            rest = rest
                .get(name.to_bytes_with_nul().len()..)
                .unwrap_or_default();
            let bytes = name.to_bytes();
            if bytes.starts_with(b"user.bulla.") {
                let name = bytes.escape_ascii().to_string();
                return Err(AttributeError::Reserved(name));
            }
            let is_list = access::is_list(bytes);
            if !(is_list
                || bytes.starts_with(b"user.")
                || (with_owner && WITH_OWNER.contains(&bytes)))
            {
                continue;
            }
            self.value.clear();
            self.value.reserve(MAX_XATTR_VALUE_BYTES);
            match fgetxattr(fd, name, spare_capacity(&mut self.value)) {
                Ok(_) => {}
                // Removed since; the change time tells the caller whether that matters.
                Err(Errno::NODATA) => continue,
                Err(errno) => return Err(errno.into()),
            }
            if is_list {
                access = access.and(Access::of_attribute(bytes, &self.value));
                continue;
            }
            total += bytes.len() + self.value.len() + 8;
            if total > MAX_XATTR_LIST_BYTES {
                return Err(AttributeError::TooMany);
            }
            list.push((
                Bytes::copy_from_slice(bytes),
                Bytes::copy_from_slice(&self.value),
            ));
        }
        list.sort();
        check_xattrs(&list)?;
        Ok((list, access))
    }
}

/// What the access control list of a file that is not opened, a pipe or a device, leaves of its mode.
pub fn access_at(directory: &OwnedFd, name: &CStr) -> Result<Access, AttributeError> {
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;
    let mut path = format!("/proc/self/fd/{}/", directory.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(&path));
    let mut names = Vec::with_capacity(MAX_XATTR_VALUE_BYTES);
    match rustix::fs::llistxattr(path, spare_capacity(&mut names)) {
        Ok(_) => {}
        Err(Errno::OPNOTSUPP) => return Ok(Access::MODE),
        Err(errno) => return Err(errno.into()),
    }
    let mut access = Access::MODE;
    for attribute in names
        .split(|b| *b == 0)
        .filter(|name| access::is_list(name))
    {
        let mut value = Vec::with_capacity(MAX_XATTR_VALUE_BYTES);
        match rustix::fs::lgetxattr(path, attribute, spare_capacity(&mut value)) {
            Ok(_) => access = access.and(Access::of_attribute(attribute, &value)),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(access)
}
