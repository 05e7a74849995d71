//! Formats inodes for `ls -l`, for `stat`, and as fields of JSON records.

use serde_json::{Map, Value, json};
use trust::inode::{Content, FileContent, FileKind, Inode, Time};

use crate::text;

/// The word for a kind of file.
pub fn kind(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Regular => "file",
        FileKind::Directory => "directory",
        FileKind::Symlink => "symlink",
        FileKind::Fifo => "fifo",
        FileKind::Socket => "socket",
        FileKind::CharDevice => "char-device",
        FileKind::BlockDevice => "block-device",
    }
}

/// `drwxr-xr-x`.
pub fn mode(inode: &Inode) -> String {
    let mut out = String::with_capacity(10);
    out.push(match inode.kind() {
        FileKind::Regular => '-',
        FileKind::Directory => 'd',
        FileKind::Symlink => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::CharDevice => 'c',
        FileKind::BlockDevice => 'b',
    });
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    for (i, (bit, letter)) in special.into_iter().enumerate() {
        let bits = inode.mode >> (6 - 3 * i);
        out.push(if bits & 4 != 0 { 'r' } else { '-' });
        out.push(if bits & 2 != 0 { 'w' } else { '-' });
        out.push(match (inode.mode & bit != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    out
}

/// RFC 3339 with nanoseconds; outside of the years 1970 to 9999, `@` and the seconds since 1970.
/// date(1) reads both.
pub fn time(time: Time) -> String {
    let whole = std::time::UNIX_EPOCH;
    let at = match u64::try_from(time.seconds) {
        Ok(seconds) if seconds < 253_402_300_800 => {
            whole.checked_add(std::time::Duration::new(seconds, time.nanos))
        }
        _ => None,
    };
    match at {
        Some(at) => humantime::format_rfc3339_nanos(at).to_string(),
        None => since_1970(time),
    }
}

/// `@` and a decimal number. The nanoseconds of an inode always count forward in time, also before 1970;
/// the fraction of a negative number counts backward.
fn since_1970(mtime: Time) -> String {
    let ns = i128::from(mtime.seconds) * 1_000_000_000 + i128::from(mtime.nanos);
    let sign = if ns < 0 { "-" } else { "" };
    let (whole, fraction) = (
        ns.unsigned_abs() / 1_000_000_000,
        ns.unsigned_abs() % 1_000_000_000,
    );
    format!("@{sign}{whole}.{fraction:09}")
}

/// The handle of the content, if it is stored in blocks. Files with equal content have equal handles.
pub fn content_handle(inode: &Inode) -> Option<String> {
    match &inode.content {
        Content::Regular(FileContent::Array(root)) => Some(text::block_name(&root.top)),
        Content::Directory {
            map: Some(root), ..
        } => Some(root.handle.to_string()),
        _ => None,
    }
}

/// The fields of an inode without its extended attributes.
pub fn record(path: &[u8], inode: &Inode) -> Map<String, Value> {
    let mut out = Map::new();
    text::put_name(&mut out, "path", path);
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put("kind", kind(inode.kind()).into());
    put("mode", format!("{:04o}", inode.mode).into());
    put("size", inode.content.size().into());
    put("mtime", time(inode.mtime).into());
    if let Some(ctime) = inode.ctime {
        put("ctime", time(ctime).into());
    }
    put("links", inode.links.into());
    if let Some(owner) = &inode.owner {
        put("uid", owner.uid.into());
        put("gid", owner.gid.into());
    }
    if let Some(handle) = content_handle(inode) {
        put("handle", handle.into());
    }
    match &inode.content {
        Content::Directory { map, opaque } => {
            put(
                "entries",
                map.as_ref().map_or(0, |root| root.entries).into(),
            );
            put("opaque", (*opaque).into());
        }
        Content::CharDevice { major, minor } | Content::BlockDevice { major, minor } => {
            put("device", json!([major, minor]));
        }
        Content::Symlink(target) => text::put_name(&mut out, "target", target),
        Content::Regular(_) | Content::Fifo | Content::Socket => {}
    }
    out
}

/// A path argument as the library has it: no slashes at its ends, no empty names, no `.`.
pub fn clean(path: &std::ffi::OsStr) -> Vec<u8> {
    bulla::path::clean(path.as_encoded_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn modes_look_as_in_ls() {
        let inode = |mode, content| Inode::new(mode, Time::default(), content);
        let file = || Content::Regular(FileContent::Empty);
        assert_eq!(mode(&inode(0o644, file())), "-rw-r--r--");
        assert_eq!(mode(&inode(0o4755, file())), "-rwsr-xr-x");
        assert_eq!(mode(&inode(0o2640, file())), "-rw-r-S---");
        let directory = Content::Directory {
            map: None,
            opaque: false,
        };
        assert_eq!(mode(&inode(0o1777, directory)), "drwxrwxrwt");
    }

    #[test]
    fn paths_and_times() {
        assert_eq!(clean(OsStr::new("/a//./b/")), b"a/b");
        assert_eq!(clean(OsStr::new("")), b"");
        let far = Time {
            seconds: i64::MAX,
            nanos: 1,
        };
        assert_eq!(time(far), format!("@{}.000000001", i64::MAX));
        let early = |seconds, nanos| time(Time { seconds, nanos });
        assert_eq!(early(-1, 0), "@-1.000000000");
        assert_eq!(early(-1, 750_000_000), "@-0.250000000");
        assert_eq!(early(-5, 250_000_000), "@-4.750000000");
        assert_eq!(early(0, 5), "1970-01-01T00:00:00.000000005Z");
    }
}
