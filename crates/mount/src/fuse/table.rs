//! The kernel's mount table, read from /proc/self/mountinfo, and which mount a path names. Never asks the
//! mounted file system, so it works on mounts that are dead or slow.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use std::{fs, io};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// Type of our mounts in the table, after `fuse.`.
pub const SUBTYPE: &str = "bulla";
/// How the source of a protected device's mount begins.
pub const DEVICE_SOURCE: &str = "bulla#protect:";
/// How long the kernel may take to walk a path. A path may lead through a mount that hangs.
const WALK: Duration = Duration::from_secs(2);

/// One line of the table: the fields that we use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Line {
    /// The kernel's number of the mount.
    pub id: u64,
    /// `major:minor` of the mounted file system.
    pub device: String,
    /// Where it is mounted.
    pub directory: PathBuf,
    /// Its type, such as `fuse.bulla`.
    pub kind: String,
    /// Its source, such as `bulla#vol1…`.
    pub source: String,
    /// The user who mounted it, if the options contain it.
    pub user: Option<u32>,
}

/// Whether a mount is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Life {
    /// It answers.
    Answers,
    /// The process that served it has ended.
    Dead,
    /// It did not answer in the time given.
    Silent,
}

impl Line {
    /// Whether it is a mount of bulla.
    pub fn is_ours(&self) -> bool {
        self.kind == format!("fuse.{SUBTYPE}")
            || (self.kind == "fuse" && self.source.starts_with("bulla#"))
    }

    /// Whether it is a mount of a volume of bulla, and not that of a protected device.
    pub fn is_volume(&self) -> bool {
        self.is_ours() && !self.source.starts_with(DEVICE_SOURCE)
    }

    /// Whether the mount is served; never waits longer than `patience`.
    pub fn life(&self, patience: Duration) -> Life {
        let directory = self.directory.clone();
        let (send, receive) = mpsc::sync_channel(1);
        // If the mount hangs, this thread hangs too: such a call cannot be cancelled. Unlike attributes, this is
        // never answered from the kernel's caches.
        let ask = move || send.send(rustix::fs::statfs(&directory).err());
        // If no thread can be started, the mount counts as silent.
        drop(std::thread::Builder::new().spawn(ask));
        match receive.recv_timeout(patience) {
            Ok(Some(Errno::NOTCONN)) => Life::Dead,
            Ok(_) => Life::Answers,
            Err(_) => Life::Silent,
        }
    }
}

/// The topmost mount on `directory`, if something is mounted there.
///
/// # Errors
/// When the table cannot be read.
pub fn find(directory: &Path) -> io::Result<Option<Line>> {
    Ok(all()?.into_iter().rfind(|line| line.directory == directory))
}

/// The mount whose root `path` names, in any way that the kernel takes: through symbolic links and `..`, or as a
/// bind mount. `None` if `path` is not the root of a mount.
///
/// # Errors
/// When the table cannot be read, or the directory above `path` does not exist.
pub fn named(path: &Path) -> io::Result<Option<Line>> {
    let walked = walk(path);
    let lines = all()?;
    if let Some((id, place)) = walked
        && let Some(line) = lines.iter().find(|line| line.id == id)
    {
        return Ok(Some(line.clone()).filter(|line| line.directory == place));
    }
    // The kernel does not walk through a dead mount, or not in time.
    let place = absolute(path)?;
    Ok(lines.into_iter().rfind(|line| line.directory == place))
}

/// The number of the mount to which the kernel's walk of `path` leads, and the absolute path without links.
/// The last step of a walk does not ask the mounted file system.
fn walk(path: &Path) -> Option<(u64, PathBuf)> {
    let path = path.to_owned();
    let (send, receive) = mpsc::sync_channel(1);
    // If the walk hangs, this thread hangs too: such a call cannot be cancelled.
    let walk = move || send.send(place_of(&path).ok());
    drop(std::thread::Builder::new().spawn(walk));
    receive.recv_timeout(WALK).ok()?
}

fn place_of(path: &Path) -> io::Result<(u64, PathBuf)> {
    let there = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let number = there.as_raw_fd();
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    let id = id.and_then(|id| id.trim().parse().ok());
    let id = id.ok_or(io::ErrorKind::InvalidData)?;
    Ok((id, fs::read_link(format!("/proc/self/fd/{number}"))?))
}

/// The mount that has `path`, an absolute path without links.
///
/// # Errors
/// When the table cannot be read.
pub fn of(path: &Path) -> io::Result<Option<Line>> {
    Ok(holding(path, all()?))
}

/// Of mounts in one directory the last one covers the others.
fn holding(path: &Path, lines: Vec<Line>) -> Option<Line> {
    let above = lines
        .into_iter()
        .filter(|line| path.starts_with(&line.directory));
    above.max_by_key(|line| line.directory.components().count())
}

/// Every mount that this process sees, in the table's order.
///
/// # Errors
/// When the table cannot be read.
pub fn all() -> io::Result<Vec<Line>> {
    let table = fs::read("/proc/self/mountinfo")?;
    Ok(table.split(|b| *b == b'\n').filter_map(parse).collect())
}

/// Every mount of ours that this process sees, the topmost of each directory.
///
/// # Errors
/// When the table cannot be read.
pub fn ours() -> io::Result<Vec<Line>> {
    let mut topmost: BTreeMap<PathBuf, Line> = BTreeMap::new();
    for line in all()? {
        topmost.insert(line.directory.clone(), line);
    }
    Ok(topmost.into_values().filter(Line::is_ours).collect())
}

/// Every mount of the file system of ours with this `major:minor`, as [`ours`]: where it was mounted first, where
/// it was moved to, and its bind mounts.
///
/// # Errors
/// When the table cannot be read.
pub fn with_device(device: &str) -> io::Result<Vec<Line>> {
    let lines = ours()?.into_iter();
    Ok(lines.filter(|line| line.device == device).collect())
}

/// The absolute path of `directory` with links resolved in all but its last component, which may be
/// a mount that no longer answers.
///
/// # Errors
/// When the directory above it does not exist.
pub fn absolute(directory: &Path) -> io::Result<PathBuf> {
    let full = std::path::absolute(directory)?;
    match (full.parent(), full.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => fs::canonicalize(full),
    }
}

/// `id parent major:minor root directory options [tags…] - type source options`, proc(5).
fn parse(line: &[u8]) -> Option<Line> {
    let mut fields = line.split(|b| *b == b' ');
    let id = text(fields.next()?).parse().ok()?;
    let device = text(fields.nth(1)?);
    let directory = PathBuf::from(OsString::from_vec(unescape(fields.nth(1)?)));
    let mut fields = fields.skip_while(|field| *field != b"-").skip(1);
    let kind = text(fields.next()?);
    let source = text(fields.next()?);
    let user = fields.next().and_then(|options| {
        let options = text(options);
        let mut options = options.split(',');
        options.find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    });
    Some(Line {
        id,
        device,
        directory,
        kind,
        source,
        user,
    })
}

fn text(field: &[u8]) -> String {
    OsString::from_vec(unescape(field))
        .as_bytes()
        .utf8_chunks()
        .map(|c| c.valid())
        .collect()
}

/// Undoes the kernel's `\040` for space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = |b: &u8| (b'0'..=b'7').contains(b).then(|| u32::from(b - b'0'));
        let code = match (first, tail) {
            (b'\\', [a, b, c, ..]) => match (octal(a), octal(b), octal(c)) {
                (Some(a), Some(b), Some(c)) => u8::try_from(a * 64 + b * 8 + c).ok(),
                _ => None,
            },
            _ => None,
        };
        match code {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_a_line_with_escapes_and_tags() {
        let line = parse(
            b"42 27 0:39 / /mnt/a\\040b\\134 ro,nosuid shared:1 master:2 - fuse.bulla bulla#vol1x ro,user_id=7,group_id=0",
        );
        let expected = Line {
            id: 42,
            device: "0:39".into(),
            directory: PathBuf::from("/mnt/a b\\"),
            kind: "fuse.bulla".into(),
            source: "bulla#vol1x".into(),
            user: Some(7),
        };
        assert_eq!(line, Some(expected.clone()));
        assert!(expected.is_ours());
        assert!(
            !Line {
                kind: "fuse.sshfs".into(),
                ..expected
            }
            .is_ours()
        );
    }

    #[test]
    fn path_lies_on_the_last_mount_of_the_nearest_directory() {
        let lines = || {
            let mounts = [
                ("/", "8:1"),
                ("/a", "0:5"),
                ("/a/b", "0:6"),
                ("/a/b", "0:7"),
            ];
            let line = |(directory, device)| {
                parse(format!("1 2 {device} / {directory} rw - x y rw").as_bytes()).unwrap()
            };
            mounts.map(line).to_vec()
        };
        let device = |path| holding(Path::new(path), lines()).map(|line| line.device);
        assert_eq!(device("/c").unwrap(), "8:1");
        assert_eq!(device("/ab/f").unwrap(), "8:1");
        assert_eq!(device("/a/f").unwrap(), "0:5");
        assert_eq!(device("/a/b/f").unwrap(), "0:7");
        assert_eq!(holding(Path::new("/c"), Vec::new()), None);
    }

    #[test]
    fn short_lines_are_skipped() {
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"42 27 0:39 / /mnt ro"), None);
    }

    #[test]
    fn an_existing_mount_is_found() {
        // Not the root: in a chroot it is not a mount.
        assert!(find(Path::new("/proc")).unwrap().is_some());
        assert!(find(Path::new("/no/such/mount")).unwrap().is_none());
    }

    #[test]
    fn mount_is_named_by_links_and_parents_and_not_by_what_lies_in_it() {
        let links = tempfile::tempdir().unwrap();
        let link = links.path().join("link");
        std::os::unix::fs::symlink("/proc", &link).unwrap();
        let proc = find(Path::new("/proc")).unwrap().unwrap();
        let parent = link.join("self/..");
        for name in [&link, &link.join("."), &parent, Path::new("/proc/")] {
            let line = named(name).unwrap();
            assert_eq!(line.as_ref(), Some(&proc), "{}", name.display());
        }
        assert_eq!(named(&link.join("self")).unwrap(), None);
        assert_eq!(named(links.path()).unwrap(), None);
        assert!(named(Path::new("/no/such/mount")).is_err());
    }
}
