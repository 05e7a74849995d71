//! Files as members of a tar stream (POSIX.1-2017 pax): how a tree of a shared volume reaches `publish`. Names, times
//! and attributes stand in pax records, which hold any bytes.

use bytes::Bytes;
use trust::inode::Time;

/// Length of a header, and of what pads content, bytes.
const BLOCK: usize = 512;

/// What a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What<'a> {
    /// A file, and the length of its content.
    Regular(u64),
    /// Another name of an earlier member of this path.
    HardLink(&'a [u8]),
    /// A symbolic link to this target.
    Symlink(&'a [u8]),
    /// A directory.
    Directory,
    /// A pipe.
    Fifo,
    /// A device file for characters: major and minor number.
    CharDevice(u32, u32),
    /// A device file for blocks.
    BlockDevice(u32, u32),
}

/// What the stream says of a member before its content.
#[derive(Debug, Clone, Copy)]
pub struct Member<'a> {
    /// Its path.
    pub path: &'a [u8],
    /// Its kind, with the length of the content or the target of the link.
    pub what: What<'a>,
    /// Permission bits.
    pub mode: u16,
    /// Time of modification.
    pub mtime: Time,
    /// Extended attributes.
    pub xattrs: &'a [(Bytes, Bytes)],
}

impl Member<'_> {
    /// What stands before the content.
    pub fn head(&self) -> Vec<u8> {
        let mut records = Vec::new();
        record(&mut records, b"path", self.path);
        record(&mut records, b"mtime", time(self.mtime).as_bytes());
        match self.what {
            What::HardLink(target) | What::Symlink(target) => {
                record(&mut records, b"linkpath", target);
            }
            What::Regular(bytes) => record(&mut records, b"size", bytes.to_string().as_bytes()),
            _ => {}
        }
        for (name, value) in self.xattrs {
            record(&mut records, &[b"SCHILY.xattr.", &name[..]].concat(), value);
        }
        let mut head = header(b'x', 0o644, records.len() as u64, (0, 0));
        head.extend_from_slice(&records);
        pad(&mut head, records.len() as u64);
        let (kind, bytes, device) = match self.what {
            What::Regular(bytes) => (b'0', bytes, (0, 0)),
            What::HardLink(_) => (b'1', 0, (0, 0)),
            What::Symlink(_) => (b'2', 0, (0, 0)),
            What::CharDevice(major, minor) => (b'3', 0, (major, minor)),
            What::BlockDevice(major, minor) => (b'4', 0, (major, minor)),
            What::Directory => (b'5', 0, (0, 0)),
            What::Fifo => (b'6', 0, (0, 0)),
        };
        head.extend_from_slice(&header(kind, self.mode, bytes, device));
        head
    }
}

/// What stands behind content of this length.
pub fn padding(bytes: u64) -> Vec<u8> {
    let mut out = Vec::new();
    pad(&mut out, bytes);
    out
}

/// The end of the stream.
pub fn end() -> Vec<u8> {
    vec![0; 2 * BLOCK]
}

fn pad(out: &mut Vec<u8>, bytes: u64) {
    let over = (bytes % BLOCK as u64) as usize;
    if over > 0 {
        out.resize(out.len() + BLOCK - over, 0);
    }
}

/// A pax record: its own length, key and value.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    // The length counts its own digits.
    while len != rest + len.to_string().len() {
        len = rest + len.to_string().len();
    }
    out.extend_from_slice(format!("{len} ").as_bytes());
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// `[-]SECONDS.FRACTION`.
fn time(mtime: Time) -> String {
    match (mtime.seconds, mtime.nanos) {
        (seconds @ 0.., nanos) => format!("{seconds}.{nanos:09}"),
        (seconds, 0) => seconds.to_string(),
        // 0.75 s after −2 s is −1.25 s.
        (seconds, nanos) => {
            let whole = seconds.unsigned_abs() - 1;
            format!("-{whole}.{:09}", 1_000_000_000 - nanos.min(999_999_999))
        }
    }
}

/// A header whose name, times and links stand in the pax records before it.
fn header(kind: u8, mode: u16, bytes: u64, (major, minor): (u32, u32)) -> Vec<u8> {
    let mut fields: Vec<(usize, String)> = vec![
        (0, "-".to_owned()),
        (100, format!("{:07o}", mode & 0o7777)),
        (108, "0000000".to_owned()),
        (116, "0000000".to_owned()),
        (136, "00000000000".to_owned()),
        (148, "        ".to_owned()),
        (257, "ustar\u{0}00".to_owned()),
    ];
    // A longer file has its length in the pax records alone.
    let octal = format!("{bytes:011o}");
    let zero = "00000000000".to_owned();
    fields.push((124, if octal.len() == 11 { octal } else { zero }));
    fields.push((156, char::from(kind).to_string()));
    if matches!(kind, b'3' | b'4') {
        fields.push((329, format!("{major:07o}")));
        fields.push((337, format!("{minor:07o}")));
    }
    let mut block = vec![0; BLOCK];
    let mut put = |at: usize, text: &str| {
        if let Some(field) = block.get_mut(at..at + text.len()) {
            field.copy_from_slice(text.as_bytes());
        }
    };
    fields.iter().for_each(|(at, text)| put(*at, text));
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    let text = format!("{sum:06o}\u{0} ");
    if let Some(field) = block.get_mut(148..156) {
        field.copy_from_slice(text.as_bytes());
    }
    block
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn pax_records_count_their_own_digits() {
        for len in 0..300 {
            let mut out = Vec::new();
            record(&mut out, b"path", &vec![b'x'; len]);
            let text = String::from_utf8(out.clone()).unwrap();
            let told: usize = text.split(' ').next().unwrap().parse().unwrap();
            assert_eq!(told, out.len());
        }
    }

    #[test]
    fn times_before_1970_have_their_fraction() {
        let time = |seconds, nanos| time(Time { seconds, nanos });
        assert_eq!(time(12, 5), "12.000000005");
        assert_eq!(time(-2, 750_000_000), "-1.250000000");
        assert_eq!(time(-1, 0), "-1");
    }

    #[test]
    fn tar_lists_the_members() {
        let member = |path: &'static str, what| Member {
            path: path.as_bytes(),
            what,
            mode: 0o640,
            mtime: Time {
                seconds: 1_000_000_000,
                nanos: 0,
            },
            xattrs: &[],
        };
        let long = "x".repeat(200);
        let long: &'static str = Box::leak(long.into_boxed_str());
        let mut stream = member("d", What::Directory).head();
        stream.extend(member("d/a b", What::Regular(3)).head());
        stream.extend(b"abc");
        stream.extend(padding(3));
        stream.extend(member(long, What::Symlink(b"d/a b")).head());
        stream.extend(member("d/c", What::HardLink(b"d/a b")).head());
        stream.extend(end());
        let mut tar = Command::new("tar")
            .args(["-tv", "--utc", "--full-time"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        tar.stdin.take().unwrap().write_all(&stream).unwrap();
        let told = tar.wait_with_output().unwrap();
        assert!(told.status.success());
        let told = String::from_utf8(told.stdout).unwrap();
        let lines: Vec<&str> = told.lines().collect();
        assert_eq!(lines.len(), 4, "{told}");
        assert!(lines[0].starts_with("drw-r-----"), "{told}");
        assert!(lines[1].contains(" 3 2001-09-09 01:46:40"), "{told}");
        assert!(lines[1].ends_with("d/a b"), "{told}");
        assert!(lines[2].ends_with(&format!("{long} -> d/a b")), "{told}");
        assert!(lines[3].ends_with("d/c link to d/a b"), "{told}");
    }
}
