//! The stat cache: the attributes of every file when it was last published. Unchanged files are not read
//! again (docs/decisions/0011-publish-pipeline.md).
//!
//! A file is unchanged when device, inode number, size, modification time and change time are equal, to the
//! nanosecond. A file that was changed less than [`RACY_SECONDS`] before a publication began is not
//! remembered: a later change could bear the same times. The cache is used only together with the version
//! that it was written for, because only that version proves that the blocks are in the repository. It is
//! written and read as a stream, in the order of the walk. Losing or damaging it costs time only.
//!
//! Entries are taken over as they are. So a build that writes inodes differently (a new extension) also changes
//! the magic number: otherwise a root would depend on which build filled the cache.
//!
//! ```text
//! magic [16] | nonce [32] | volume [32] | record hash [32] | options u8 | check [16]
//! frames: length u32 | check [16] | items: 1 path  or  2 name stamp linked value
//! ```
//!
//! Checks are keyed by the nonce. So a frame of another file that a crash left here fails its check.

use std::cmp::Ordering;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};

use trust::encode::{Decoder, Encoder};
use trust::{Hasher, Kind, Reject};

use content::attributes::Stamp;

const MAGIC: &[u8; 16] = b"bulla stat 1\n\0\0\0";
const HEADER_BYTES: usize = 16 + 3 * 32 + 1 + CHECK_BYTES;
const CHECK_BYTES: usize = 16;
/// A frame is written out when it is this long, bytes.
const FRAME_BYTES: usize = 64 << 10;
/// No frame is longer, bytes.
const MAX_FRAME_BYTES: usize = 256 << 10;
/// Longest name, path or value that is remembered, bytes.
const MAX_FIELD_BYTES: usize = 32 << 10;
/// The coarsest time stamps of a file system that is still in use (FAT) count in two seconds.
const RACY_SECONDS: i64 = 2;
const DIRECTORY: u8 = 1;
const ENTRY: u8 = 2;

/// What a cache belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Binding {
    pub volume: [u8; 32],
    /// The version's root. A repository whose newest version has this root has all blocks that are
    /// remembered here, whichever record names the root.
    pub root: [u8; 32],
    /// Whether inodes hold owners.
    pub with_owner: bool,
    /// Whether files of bulla's own are published.
    pub publish_keys: bool,
}

/// The cached entry of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// The entry as it was in its directory.
    pub value: Vec<u8>,
    /// Whether the file had several names, so that its entry may be different now.
    pub linked: bool,
}

/// The file in `directory` that holds the cache for publishing `tree` into `repository`.
pub(crate) fn file_name(directory: &Path, tree: &Path, repository: &Path) -> PathBuf {
    use std::os::unix::ffi::OsStrExt;
    let whole = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (tree, repository) = (whole(tree), whole(repository));
    let both = [
        tree.as_os_str().as_bytes(),
        repository.as_os_str().as_bytes(),
    ]
    .join(&0);
    let hash = Hasher::new(MAGIC_KEY).name(Kind::Data, &both);
    let hex = |b: &u8| format!("{b:02x}");
    let name: String = hash.as_bytes().iter().take(16).map(hex).collect();
    directory.join(format!("{name}.stat"))
}

const MAGIC_KEY: &[u8; 32] = b"bulla stat cache, names of files";

/// The order of the walk: a directory comes after everything below it.
fn walk_order(a: &[u8], b: &[u8]) -> Ordering {
    let mut left = a.split(|c| *c == b'/').filter(|name| !name.is_empty());
    let mut right = b.split(|c| *c == b'/').filter(|name| !name.is_empty());
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Greater,
            (Some(_), None) => return Ordering::Less,
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => return a.cmp(b),
        }
    }
}

/// Reads a cache alongside the walk.
pub(crate) struct CacheReader {
    file: BufReader<File>,
    check: Hasher,
    frame: Vec<u8>,
    /// How much of `frame` has been read.
    at: usize,
    next: Option<Item>,
}

enum Item {
    Directory(Vec<u8>),
    Entry(Vec<u8>, Stamp, Remembered),
}

impl CacheReader {
    /// Opens a cache, if there is one that belongs to `binding`.
    pub(crate) fn open(path: &Path, binding: &Binding) -> Option<CacheReader> {
        let mut file = BufReader::with_capacity(256 << 10, File::open(path).ok()?);
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header).ok()?;
        let nonce = header.get(16..48)?.try_into().ok()?;
        if encode_header(&nonce, binding) != header {
            return None;
        }
        let mut reader = CacheReader {
            file,
            check: Hasher::new(&nonce),
            frame: Vec::new(),
            at: 0,
            next: None,
        };
        reader.advance();
        Some(reader)
    }

    /// Goes on to a directory, which must come after the one before in the order of the walk.
    pub(crate) fn enter(&mut self, path: &[u8]) {
        while let Some(item) = &self.next {
            match item {
                Item::Directory(here) if walk_order(here, path).is_gt() => return,
                Item::Directory(here) if here.as_slice() == path => return self.advance(),
                _ => self.advance(),
            }
        }
    }

    /// The cached entry of `name` in the directory that was entered, if the file has not changed. Names
    /// must come in order.
    pub(crate) fn find(&mut self, name: &[u8], stamp: &Stamp) -> Option<Remembered> {
        while let Some(Item::Entry(here, ..)) = &self.next {
            match here.as_slice().cmp(name) {
                Ordering::Less => self.advance(),
                Ordering::Greater => return None,
                Ordering::Equal => {
                    let item = self.next.take();
                    self.advance();
                    return match item {
                        Some(Item::Entry(_, then, entry)) if then == *stamp => Some(entry),
                        _ => None,
                    };
                }
            }
        }
        None
    }

    fn advance(&mut self) {
        self.next = self.read_item();
        if self.next.is_none() {
            // The end, or damage: nothing after this is used.
            self.frame.clear();
            self.at = 0;
        }
    }

    fn read_item(&mut self) -> Option<Item> {
        if self.at >= self.frame.len() {
            self.read_frame()?;
        }
        let rest = self.frame.get(self.at..)?;
        let mut d = Decoder::new(rest, "stat cache");
        let item = decode_item(&mut d).ok()?;
        self.at = self.frame.len() - d.remaining();
        Some(item)
    }

    fn read_frame(&mut self) -> Option<()> {
        let mut head = [0; 4 + CHECK_BYTES];
        self.file.read_exact(&mut head).ok()?;
        let (len, check) = head.split_first_chunk::<4>()?;
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 || len > MAX_FRAME_BYTES {
            return None;
        }
        self.frame.resize(len, 0);
        self.at = 0;
        let read = self.file.read_exact(&mut self.frame);
        let whole = read.is_ok() && check == check_of(&self.check, &self.frame);
        if !whole {
            self.frame.clear();
            tracing::warn!("the stat cache is damaged; what is missing will be read anew");
            return None;
        }
        Some(())
    }
}

/// Writes the next cache.
pub(crate) struct CacheWriter {
    temporary: PathBuf,
    file: BufWriter<File>,
    nonce: [u8; 32],
    check: Hasher,
    frame: Encoder,
    /// Files changed since are not remembered, unix seconds.
    racy_from: i64,
    failed: Option<std::io::Error>,
}

impl CacheWriter {
    /// Begins a cache beside `path`, for a publication that began at `now` (unix seconds).
    pub(crate) fn begin(path: &Path, now: u64) -> std::io::Result<CacheWriter> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce).map_err(|e| std::io::Error::other(e.to_string()))?;
        let temporary = path.with_extension("tmp");
        let mut file = BufWriter::with_capacity(256 << 10, File::create(&temporary)?);
        // No header yet: an unfinished file is not taken for a cache.
        file.write_all(&[0; HEADER_BYTES])?;
        Ok(CacheWriter {
            temporary,
            file,
            check: Hasher::new(&nonce),
            nonce,
            frame: Encoder::new(),
            racy_from: i64::try_from(now).unwrap_or(i64::MAX) - RACY_SECONDS,
            failed: None,
        })
    }

    /// The entries that follow are those of `path`.
    pub(crate) fn directory(&mut self, path: &[u8]) {
        self.frame.u8(DIRECTORY).bytes(path);
        if path.len() > MAX_FIELD_BYTES {
            // It could not be read back, and its entries would be taken for another directory's.
            self.failed = Some(std::io::Error::other(
                "a path is too long for the stat cache",
            ));
        }
        self.flush_full();
    }

    /// Remembers an entry of the present directory.
    pub(crate) fn entry(&mut self, name: &[u8], stamp: &Stamp, linked: bool, value: &[u8]) {
        let newest = stamp.mtime.0.max(stamp.ctime.0);
        if newest >= self.racy_from || value.len() > MAX_FIELD_BYTES {
            return;
        }
        self.frame.u8(ENTRY).bytes(name);
        self.frame.varint(stamp.file.0).varint(stamp.file.1);
        self.frame.varint(stamp.size);
        for (seconds, nanos) in [stamp.mtime, stamp.ctime] {
            self.frame.u64(seconds as u64).u32(nanos);
        }
        self.frame.u8(linked.into()).bytes(value);
        self.flush_full();
    }

    fn flush_full(&mut self) {
        if self.frame.len() >= FRAME_BYTES
            && let Err(e) = self.flush()
        {
            self.failed.get_or_insert(e);
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let frame = std::mem::take(&mut self.frame).finish();
        if frame.is_empty() || self.failed.is_some() {
            return Ok(());
        }
        self.file.write_all(&(frame.len() as u32).to_le_bytes())?;
        self.file.write_all(&check_of(&self.check, &frame))?;
        self.file.write_all(&frame)
    }

    /// Moves the file to `target`, in the same directory, as the cache for `binding`. All blocks of that
    /// version must be in the repository.
    pub(crate) fn finish(mut self, target: &Path, binding: &Binding) -> std::io::Result<()> {
        self.flush()?;
        if let Some(e) = self.failed.take() {
            return Err(e);
        }
        self.file.rewind()?;
        self.file.write_all(&encode_header(&self.nonce, binding))?;
        self.file.flush()?;
        std::fs::rename(&self.temporary, target)
    }
}

fn check_of(check: &Hasher, bytes: &[u8]) -> [u8; CHECK_BYTES] {
    let hash = check.name(Kind::Data, bytes);
    let [half, _] = hash.as_bytes().as_chunks::<CHECK_BYTES>().0 else {
        return [0; CHECK_BYTES];
    };
    *half
}

fn encode_header(nonce: &[u8; 32], binding: &Binding) -> [u8; HEADER_BYTES] {
    let mut e = Encoder::new();
    e.raw(MAGIC).raw(nonce);
    e.raw(&binding.volume).raw(&binding.root);
    e.u8(u8::from(binding.with_owner) | u8::from(binding.publish_keys) << 1);
    let mut bytes = e.finish();
    bytes.extend(check_of(&Hasher::new(nonce), &bytes));
    bytes.try_into().unwrap_or([0; HEADER_BYTES])
}

fn decode_item(d: &mut Decoder<'_>) -> Result<Item, Reject> {
    match d.u8()? {
        DIRECTORY => Ok(Item::Directory(d.bytes(MAX_FIELD_BYTES)?.to_vec())),
        ENTRY => {
            let name = d.bytes(MAX_FIELD_BYTES)?.to_vec();
            let file = (d.varint()?, d.varint()?);
            let size = d.varint()?;
            let mtime = (d.u64()? as i64, d.u32()?);
            let ctime = (d.u64()? as i64, d.u32()?);
            let stamp = Stamp {
                size,
                mtime,
                ctime,
                file,
            };
            let linked = d.u8()? != 0;
            let value = d.bytes(MAX_FIELD_BYTES)?.to_vec();
            Ok(Item::Entry(name, stamp, Remembered { value, linked }))
        }
        _ => Err(d.bad("unknown item")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BINDING: Binding = Binding {
        volume: [1; 32],
        root: [2; 32],
        with_owner: false,
        publish_keys: false,
    };

    fn stamp(n: u64) -> Stamp {
        Stamp {
            size: n,
            mtime: (-5, 7),
            ctime: (n as i64, 9),
            file: (3, n),
        }
    }

    fn written(dir: &Path) -> PathBuf {
        let path = dir.join("c.stat");
        let mut writer = CacheWriter::begin(&path, 10_000).unwrap();
        for d in ["a/b", "a", "b", ""] {
            writer.directory(d.as_bytes());
            for n in 0..1000u64 {
                let name = format!("{n:04}");
                writer.entry(
                    name.as_bytes(),
                    &stamp(n),
                    n.is_multiple_of(7),
                    &[n as u8; 60],
                );
            }
        }
        writer.finish(&path, &BINDING).unwrap();
        path
    }

    fn found(reader: &mut CacheReader, n: u64) -> bool {
        let name = format!("{n:04}");
        let expected = Remembered {
            value: vec![n as u8; 60],
            linked: n.is_multiple_of(7),
        };
        match reader.find(name.as_bytes(), &stamp(n)) {
            None => false,
            Some(entry) => {
                assert_eq!(entry, expected);
                true
            }
        }
    }

    #[test]
    fn the_cache_is_merged_along_the_walk() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        let mut reader = CacheReader::open(&path, &BINDING).unwrap();
        // A directory that is new, one that is skipped, entries that are new, gone and changed.
        reader.enter(b"a/a/new");
        assert!(!found(&mut reader, 1));
        reader.enter(b"a/b");
        assert!(found(&mut reader, 1));
        assert!(reader.find(b"0001x", &stamp(1)).is_none());
        assert!(found(&mut reader, 5));
        for changed in [
            Stamp {
                size: 0,
                ..stamp(6)
            },
            Stamp {
                mtime: (-5, 8),
                ..stamp(6)
            },
            Stamp {
                ctime: (6, 8),
                ..stamp(6)
            },
            Stamp {
                file: (3, 7),
                ..stamp(6)
            },
        ] {
            let mut reader = CacheReader::open(&path, &BINDING).unwrap();
            reader.enter(b"a/b");
            assert!(reader.find(b"0006", &changed).is_none());
        }
        reader.enter(b"b");
        assert!((0..1000).all(|n| found(&mut reader, n)));
        assert!(reader.find(b"zzzz", &stamp(1)).is_none());
        reader.enter(b"");
        assert!(found(&mut reader, 999));
        reader.enter(b"");
        assert!(!found(&mut reader, 999));
    }

    #[test]
    fn recently_changed_files_are_not_remembered() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.stat");
        let mut writer = CacheWriter::begin(&path, 100).unwrap();
        writer.directory(b"");
        for n in [97, 98, 99, 100, 101] {
            writer.entry(format!("{n:04}").as_bytes(), &stamp(n), false, b"v");
        }
        writer.finish(&path, &BINDING).unwrap();
        let mut reader = CacheReader::open(&path, &BINDING).unwrap();
        reader.enter(b"");
        assert!(reader.find(b"0097", &stamp(97)).is_some());
        for n in [98, 99, 100, 101] {
            let name = format!("{n:04}");
            assert!(reader.find(name.as_bytes(), &stamp(n)).is_none(), "{n}");
        }
    }

    #[test]
    fn a_cache_that_is_damaged_or_of_another_version_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        let path = written(dir.path());
        for other in [
            Binding {
                volume: [9; 32],
                ..BINDING
            },
            Binding {
                root: [9; 32],
                ..BINDING
            },
            Binding {
                with_owner: true,
                ..BINDING
            },
        ] {
            assert!(CacheReader::open(&path, &other).is_none());
        }
        let good = std::fs::read(&path).unwrap();
        for at in (0..good.len()).step_by(977) {
            let mut bad = good.clone();
            bad[at] ^= 0x10;
            std::fs::write(&path, &bad).unwrap();
            // It gives either nothing or the entries that were written.
            if let Some(mut reader) = CacheReader::open(&path, &BINDING) {
                assert!(at >= HEADER_BYTES);
                for d in ["a/b", "a", "b", ""] {
                    reader.enter(d.as_bytes());
                    for n in 0..1000 {
                        found(&mut reader, n);
                    }
                }
            }
        }
        for cut in [0, 10, HEADER_BYTES, HEADER_BYTES + 10, good.len() / 2] {
            std::fs::write(&path, &good[..cut]).unwrap();
            if let Some(mut reader) = CacheReader::open(&path, &BINDING) {
                reader.enter(b"");
                assert!(!found(&mut reader, 999));
            }
        }
    }

    /// Content of a frame: one valid item, or arbitrary bytes.
    fn any_item() -> impl Strategy<Value = Vec<u8>> {
        let number = prop_oneof![0..4u64, any::<u64>()];
        let entry = ("[a-d]{1,2}", prop::collection::vec(number, 4), any::<u8>());
        prop_oneof![
            "[ab/]{0,4}".prop_map(|path| {
                let mut e = Encoder::new();
                e.u8(DIRECTORY).bytes(path.as_bytes());
                e.finish()
            }),
            entry.prop_map(|(name, numbers, linked)| {
                let mut e = Encoder::new();
                e.u8(ENTRY).bytes(name.as_bytes());
                for number in numbers.iter().take(3) {
                    e.varint(*number);
                }
                e.u64(numbers[3]).u32(1).u64(numbers[3]).u32(2);
                e.u8(linked).bytes(b"value");
                e.finish()
            }),
            prop::collection::vec(any::<u8>(), 0..12),
        ]
    }

    /// A cache whose header and checks are right, whatever its frames hold. A process that can write into
    /// the cache directory can make one.
    fn forged(frames: &[Vec<Vec<u8>>], tail: &[u8]) -> Vec<u8> {
        let nonce = [7; 32];
        let mut bytes = encode_header(&nonce, &BINDING).to_vec();
        for frame in frames {
            let frame = frame.concat();
            bytes.extend((frame.len() as u32).to_le_bytes());
            bytes.extend(check_of(&Hasher::new(&nonce), &frame));
            bytes.extend(frame);
        }
        bytes.extend(tail);
        bytes
    }

    proptest! {
        // Any cache is read to its end without a panic, and gives no more than it holds. What it gives has
        // the stamp that was asked for.
        #[test]
        fn a_forged_cache_gives_no_more_than_it_holds(
            frames in prop::collection::vec(prop::collection::vec(any_item(), 0..6), 0..4),
            tail in prop::collection::vec(any::<u8>(), 0..40))
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("c.stat");
            std::fs::write(&path, forged(&frames, &tail)).unwrap();
            let Some(mut reader) = CacheReader::open(&path, &BINDING) else { return Ok(()) };
            let mut found = 0;
            for directory in ["a/b", "a", "b", ""] {
                reader.enter(directory.as_bytes());
                for name in ["a", "ab", "b", "c", "d"] {
                    let stamp = match &reader.next {
                        Some(Item::Entry(_, stamp, _)) => *stamp,
                        _ => stamp(1),
                    };
                    let entry = reader.find(name.as_bytes(), &stamp);
                    found += usize::from(entry.is_some());
                }
            }
            prop_assert!(found <= frames.iter().map(Vec::len).sum());
            while reader.next.is_some() {
                reader.advance();
            }
            prop_assert!(reader.frame.capacity() <= MAX_FRAME_BYTES);
        }
    }

    #[test]
    fn a_frame_that_states_a_huge_length_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.stat");
        for len in [0, MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
            let tail = [&len.to_le_bytes()[..], &[0; CHECK_BYTES + 8]].concat();
            std::fs::write(&path, forged(&[], &tail)).unwrap();
            let reader = CacheReader::open(&path, &BINDING).unwrap();
            assert!(
                reader.next.is_none() && reader.frame.capacity() == 0,
                "{len}"
            );
        }
    }
}
