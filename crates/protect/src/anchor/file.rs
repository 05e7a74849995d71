//! The anchor in a file on a disk that is trusted: two slots of 4096 bytes, each a text that newlines fill up.
//!
//! ```text
//! bulla-anchor-1
//! volume <32 hex digits>
//! epoch <decimal>
//! lsn <decimal>
//! tag <64 hex digits>
//! check <16 hex digits>
//! ```
//!
//! The newest mark counts. The next one overwrites the other slot in place and is synced, so a crash in between leaves
//! the mark before. Nothing is allocated and no name changes: this costs one sync, also on a disk that is full. A slot
//! that a crash left half written is not read; if the newest one is damaged otherwise, the anchor is one mark behind.
//!
//! The check is the beginning of BLAKE3 of the lines before. It finds damage; whoever can write the file can set it back,
//! so a file that others may write is refused. While an anchor is open, its lock file is locked, so that two processes
//! cannot overtake one another.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use wal::{Lsn, Mark, VolumeId};

use super::{Anchor, AnchorError, follows};

const HEADER: &str = "bulla-anchor-1";
/// A slot is a block of its own on usual disks and file systems, so a torn write damages no other one.
const SLOT_BYTES: usize = 4096;
const SLOTS: usize = 2;
const CHECK_DIGITS: usize = 16;

/// An anchor in a file. It locks the file until it is dropped, so that no other process opens it.
#[derive(Debug)]
pub struct FileAnchor {
    path: PathBuf,
    volume: VolumeId,
    held: Mutex<Held>,
    _lock: File,
}

#[derive(Debug)]
struct Held {
    file: File,
    mark: Mark,
    /// The slot that has it.
    slot: usize,
}

impl FileAnchor {
    /// Makes the anchor of a volume. The file must not exist.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub fn create(path: &Path, volume: VolumeId, mark: Mark) -> Result<FileAnchor, AnchorError> {
        let lock = lock(path)?;
        match fs::symlink_metadata(path) {
            Ok(_) => return Err(AnchorError::Exists { path: path.into() }),
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(e) => return Err(failed(path, "written", e)),
        }
        FileAnchor::written(path, volume, mark, lock)
    }

    /// Makes or replaces the anchor of a volume, also backwards: for people who know why the log was put back.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub fn set(path: &Path, volume: VolumeId, mark: Mark) -> Result<FileAnchor, AnchorError> {
        let lock = lock(path)?;
        FileAnchor::written(path, volume, mark, lock)
    }

    fn written(
        path: &Path,
        volume: VolumeId,
        mark: Mark,
        lock: File,
    ) -> Result<FileAnchor, AnchorError> {
        let held = make(path, volume, mark).map_err(|e| failed(path, "written", e))?;
        Ok(FileAnchor {
            path: path.into(),
            volume,
            held: Mutex::new(held),
            _lock: lock,
        })
    }

    /// Opens the anchor of a volume. A missing file is an error: nobody can tell whether it was removed.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub fn open(path: &Path, volume: VolumeId) -> Result<FileAnchor, AnchorError> {
        // First the file, so that a mistyped path leaves no lock file behind.
        read(path, OpenOptions::new().read(true))?;
        let lock = lock(path)?;
        let (found, held) = read(path, OpenOptions::new().read(true).write(true))?;
        if found != volume {
            return Err(AnchorError::OtherVolume {
                path: path.into(),
                volume: found,
            });
        }
        Ok(FileAnchor {
            path: path.into(),
            volume,
            held: Mutex::new(held),
            _lock: lock,
        })
    }

    /// What an anchor file says, without locking it.
    ///
    /// # Errors
    /// [`AnchorError`].
    pub fn show(path: &Path) -> Result<(VolumeId, Mark), AnchorError> {
        let (volume, held) = read(path, OpenOptions::new().read(true))?;
        Ok((volume, held.mark))
    }
}

impl Anchor for FileAnchor {
    fn mark(&self) -> Result<Mark, AnchorError> {
        Ok(self
            .held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .mark)
    }

    fn advance(&self, mark: Mark) -> Result<(), AnchorError> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if held.mark == mark {
            return Ok(());
        }
        if !follows(&held.mark, &mark) {
            return Err(AnchorError::Backwards {
                held: held.mark,
                offered: mark,
            });
        }
        let moved = match held.is_at(&self.path) {
            true => held.advance(self.volume, mark),
            // Somebody removed or replaced the file.
            false => make(&self.path, self.volume, mark).map(|made| *held = made),
        };
        moved.map_err(|e| failed(&self.path, "written", e))
    }
}

impl Held {
    /// Whether the path still leads to this file.
    fn is_at(&self, path: &Path) -> bool {
        let place = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let there = fs::metadata(path).map(place);
        let here = self.file.metadata().map(place);
        matches!((there, here), (Ok(there), Ok(here)) if there == here)
    }

    /// Overwrites the slot of the mark before.
    fn advance(&mut self, volume: VolumeId, mark: Mark) -> io::Result<()> {
        let slot = (self.slot + 1) % SLOTS;
        let place = (slot * SLOT_BYTES) as u64;
        self.file.write_all_at(&encode(volume, &mark), place)?;
        self.file.sync_data()?;
        (self.mark, self.slot) = (mark, slot);
        Ok(())
    }
}

fn failed(path: &Path, doing: &'static str, source: io::Error) -> AnchorError {
    AnchorError::Io {
        path: path.into(),
        doing,
        source,
    }
}

fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn lock(path: &Path) -> Result<File, AnchorError> {
    let place = beside(path, ".lock");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32);
    let file = options.open(&place);
    let file = file.map_err(|e| failed(&place, "written", e))?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(Errno::WOULDBLOCK) => Err(AnchorError::Locked { path: path.into() }),
        Err(e) => Err(failed(&place, "written", e.into())),
    }
}

/// Makes the file with both slots, or replaces it: a crash at any time leaves the old file or the new one.
fn make(path: &Path, volume: VolumeId, mark: Mark) -> io::Result<Held> {
    let new = beside(path, ".tmp");
    match fs::remove_file(&new) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&new)?;
    file.write_all(&encode(volume, &mark).repeat(SLOTS))?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(Held {
        file,
        mark,
        slot: 0,
    })
}

fn read(path: &Path, options: &mut OpenOptions) -> Result<(VolumeId, Held), AnchorError> {
    let io = |source| failed(path, "read", source);
    // A named pipe must not block.
    let options = options.custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let malformed = |why| AnchorError::Malformed {
        path: path.into(),
        why,
    };
    if !metadata.is_file() {
        return Err(malformed("it is not a regular file"));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(AnchorError::Exposed {
            path: path.into(),
            mode: metadata.mode() & 0o7777,
        });
    }
    let mut bytes = Vec::new();
    let limit = (SLOTS * SLOT_BYTES) as u64;
    let mut limited = Read::take(&file, limit + 1);
    limited.read_to_end(&mut bytes).map_err(io)?;
    let (volume, mark, slot) = decode(&bytes).map_err(malformed)?;
    Ok((volume, Held { file, mark, slot }))
}

/// A slot.
fn encode(volume: VolumeId, mark: &Mark) -> Vec<u8> {
    let mut bytes = text(volume, mark).into_bytes();
    bytes.resize(SLOT_BYTES, b'\n');
    bytes
}

/// Reads the slots of a file: the newest mark, and the slot that has it.
pub(super) fn decode(bytes: &[u8]) -> Result<(VolumeId, Mark, usize), &'static str> {
    let (slots, rest) = bytes.as_chunks::<SLOT_BYTES>();
    let [first, second] = slots else {
        return Err("it does not have two slots of 4096 bytes");
    };
    if !rest.is_empty() {
        return Err("it is longer than two slots of 4096 bytes");
    }
    match (parse(first), parse(second)) {
        (Ok((volume, _)), Ok((other, _))) if volume != other => {
            Err("its slots belong to two volumes")
        }
        (Ok((volume, mark)), Ok((_, other))) if follows(&other, &mark) => Ok((volume, mark, 0)),
        (Ok((volume, mark)), Ok((_, other))) if follows(&mark, &other) => Ok((volume, other, 1)),
        (Ok(_), Ok(_)) => Err("its slots contradict one another"),
        (Ok((volume, mark)), Err(_)) => Ok((volume, mark, 0)),
        (Err(_), Ok((volume, mark))) => Ok((volume, mark, 1)),
        (Err(why), Err(_)) => Err(why),
    }
}

fn text(volume: VolumeId, mark: &Mark) -> String {
    let mut text = format!(
        "{HEADER}\nvolume {volume}\nepoch {}\nlsn {}\ntag ",
        mark.epoch, mark.lsn
    );
    for byte in mark.tag {
        text.push_str(&format!("{byte:02x}"));
    }
    text.push('\n');
    let check = check(&text);
    text.push_str(&format!("check {check}\n"));
    text
}

fn check(text: &str) -> String {
    let hash = blake3::hash(text.as_bytes()).to_hex();
    hash.as_str().chars().take(CHECK_DIGITS).collect()
}

/// Reads a slot; exactly what [`encode`] makes is accepted.
fn parse(slot: &[u8; SLOT_BYTES]) -> Result<(VolumeId, Mark), &'static str> {
    let whole = std::str::from_utf8(slot).map_err(|_| "it is not text")?;
    let mut lines = whole.lines();
    let mut line = |key: &str, why| {
        let line = lines.next().ok_or(why)?;
        line.strip_prefix(key).ok_or(why)
    };
    if !line(HEADER, "its first line is not bulla-anchor-1")?.is_empty() {
        return Err("its first line is not bulla-anchor-1");
    }
    let volume = line("volume ", "there is no volume")?;
    let volume = VolumeId(hex(volume).ok_or("the volume is not 32 hexadecimal digits")?);
    let number = |text: &str, why| text.parse::<u64>().map_err(|_| why);
    let epoch = number(
        line("epoch ", "there is no epoch")?,
        "the epoch is no number",
    )?;
    let lsn = number(line("lsn ", "there is no lsn")?, "the lsn is no number")?;
    let tag = line("tag ", "there is no tag")?;
    let mark = Mark {
        epoch,
        lsn: Lsn(lsn),
        tag: hex(tag).ok_or("the tag is not 64 hexadecimal digits")?,
    };
    match encode(volume, &mark) == slot {
        true => Ok((volume, mark)),
        false => Err("its check does not match: it was changed or damaged"),
    }
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !odd.is_empty() {
        return None;
    }
    let digit = |byte: &u8| char::from(*byte).to_digit(16);
    let mut bytes = [0; N];
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = u8::try_from(digit(high)? << 4 | digit(low)?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;

    const VOLUME: VolumeId = VolumeId([7; 16]);

    fn mark(epoch: u64, lsn: u64) -> Mark {
        Mark {
            epoch,
            lsn: Lsn(lsn),
            tag: [9; 32],
        }
    }

    #[test]
    fn file_anchor_is_an_anchor() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("anchor");
        let first = super::super::conformance::first();
        drop(FileAnchor::create(&path, VOLUME, first).unwrap());
        super::super::conformance::suite(&|| Box::new(FileAnchor::open(&path, VOLUME).unwrap()));
    }

    #[test]
    fn anchor_is_used_by_one_process_and_one_volume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("anchor");
        let missing = FileAnchor::open(&path, VOLUME).unwrap_err();
        assert!(matches!(missing, AnchorError::Io { source, .. }
            if source.kind() == ErrorKind::NotFound));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        let anchor = FileAnchor::create(&path, VOLUME, mark(1, 4096)).unwrap();
        for again in [
            FileAnchor::open(&path, VOLUME),
            FileAnchor::create(&path, VOLUME, mark(1, 0)),
            FileAnchor::set(&path, VOLUME, mark(1, 0)),
        ] {
            assert!(matches!(again, Err(AnchorError::Locked { .. })));
        }
        drop(anchor);
        let exists = FileAnchor::create(&path, VOLUME, mark(1, 0)).unwrap_err();
        assert!(matches!(exists, AnchorError::Exists { .. }));
        let other = FileAnchor::open(&path, VolumeId([8; 16])).unwrap_err();
        assert!(matches!(other, AnchorError::OtherVolume { volume, .. } if volume == VOLUME));
        assert_eq!(FileAnchor::show(&path).unwrap(), (VOLUME, mark(1, 4096)));
        drop(FileAnchor::set(&path, VOLUME, mark(1, 0)).unwrap());
        assert_eq!(FileAnchor::show(&path).unwrap(), (VOLUME, mark(1, 0)));
    }

    #[test]
    fn damaged_slot_leaves_the_mark_of_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("anchor");
        let (old, new) = (mark(3, 1 << 40), mark(3, 1 << 41));
        let anchor = FileAnchor::create(&path, VOLUME, old).unwrap();
        anchor.advance(new).unwrap();
        let good = fs::read(&path).unwrap();
        assert_eq!(decode(&good), Ok((VOLUME, new, 1)));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            // The newest mark is in the second slot.
            let left = if at < SLOT_BYTES { (new, 1) } else { (old, 0) };
            assert_eq!(decode(&bad), Ok((VOLUME, left.0, left.1)), "{at}");
            bad[(at + SLOT_BYTES) % good.len()] ^= 1;
            assert!(decode(&bad).is_err(), "{at}");
            assert!(decode(&good[..at]).is_err(), "{at}");
        }
        assert!(decode(&good.repeat(2)).is_err());
    }

    #[test]
    fn slots_that_are_not_of_one_history_are_refused() {
        let slots = |first: Vec<u8>, second: Vec<u8>| decode(&[first, second].concat());
        let (early, late) = (mark(1, 4096), mark(2, 8192));
        let newest = slots(encode(VOLUME, &late), encode(VOLUME, &early));
        assert_eq!(newest, Ok((VOLUME, late, 0)));
        let other = VolumeId([8; 16]);
        assert!(slots(encode(VOLUME, &early), encode(other, &late)).is_err());
        let contrary = mark(1, 12288);
        assert!(slots(encode(VOLUME, &late), encode(VOLUME, &contrary)).is_err());
    }

    #[test]
    fn exposed_anchor_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("anchor");
        drop(FileAnchor::create(&path, VOLUME, mark(3, 1 << 40)).unwrap());
        for mode in [0o620, 0o602, 0o666] {
            fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let exposed = FileAnchor::open(&path, VOLUME).unwrap_err();
            assert!(matches!(exposed, AnchorError::Exposed { mode: m, .. } if m == mode));
        }
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(FileAnchor::open(&path, VOLUME).is_err());
    }

    #[test]
    fn movement_needs_no_new_file_and_no_space() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("anchor");
        let anchor = FileAnchor::create(&path, VOLUME, mark(1, 1)).unwrap();
        let before = fs::metadata(&path).unwrap();
        // Nothing can be made beside it.
        fs::create_dir(beside(&path, ".tmp")).unwrap();
        for lsn in 2..9 {
            anchor.advance(mark(1, lsn)).unwrap();
            assert_eq!(FileAnchor::show(&path).unwrap(), (VOLUME, mark(1, lsn)));
        }
        let after = fs::metadata(&path).unwrap();
        let space = |it: &fs::Metadata| (it.ino(), it.len(), it.blocks());
        assert_eq!(space(&after), space(&before));
    }

    #[test]
    fn anchor_that_was_removed_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("anchor");
        let anchor = FileAnchor::create(&path, VOLUME, mark(1, 1)).unwrap();
        fs::remove_file(&path).unwrap();
        // What a crash leaves behind.
        fs::write(beside(&path, ".tmp"), "half").unwrap();
        anchor.advance(mark(1, 2)).unwrap();
        assert_eq!(FileAnchor::show(&path).unwrap(), (VOLUME, mark(1, 2)));
        assert!(!beside(&path, ".tmp").exists());
        // Where nothing can be written, the anchor stays as it is.
        fs::remove_file(&path).unwrap();
        fs::create_dir(beside(&path, ".tmp")).unwrap();
        assert!(anchor.advance(mark(1, 3)).is_err());
        assert_eq!(anchor.mark().unwrap(), mark(1, 2));
        fs::remove_dir(beside(&path, ".tmp")).unwrap();
        anchor.advance(mark(1, 3)).unwrap();
        assert_eq!(FileAnchor::show(&path).unwrap(), (VOLUME, mark(1, 3)));
    }

    proptest! {
        #[test]
        fn any_mark_is_read_back(volume: [u8; 16], epoch: u64, lsn: u64, tag: [u8; 32]) {
            let mark = Mark { epoch, lsn: Lsn(lsn), tag };
            let volume = VolumeId(volume);
            let slot = encode(volume, &mark);
            prop_assert_eq!(decode(&slot.repeat(2)), Ok((volume, mark, 0)));
        }

        #[test]
        fn any_text_is_refused_or_canonical(words in "(bulla-anchor-1\n)?(.|\n){0,300}") {
            let mut slot = words.into_bytes();
            slot.resize(SLOT_BYTES, b'\n');
            if let Ok((volume, mark, _)) = decode(&slot.repeat(2)) {
                prop_assert_eq!(encode(volume, &mark), slot);
            }
        }
    }
}
