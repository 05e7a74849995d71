//! Which files this device may hold in the log for its programs, on disk: what a mount that was killed held is given up by
//! the next one. If the file is lost, other devices wait until the locks run out.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use share::locks::Key;
use share::writeback::lock;
use trust_shared::hold::Family;
use trust_shared::principal::{Device, FileId, INumber, Principal};

/// Bytes of a record: principal, device u32, counter u64, family u8.
const RECORD_BYTES: usize = 32 + 4 + 8 + 1;
/// Most files that are given up.
const MAX_RECORDS: usize = 1 << 14;
/// So many records are written before the file is made anew.
const MANY: usize = 1024;

/// The files, and where they are written down.
#[derive(Debug)]
pub struct HeldBefore {
    path: PathBuf,
    noted: Mutex<Noted>,
}

#[derive(Debug)]
struct Noted {
    file: File,
    keys: BTreeSet<Key>,
    /// Records in the file.
    written: usize,
    before: Vec<Key>,
}

impl HeldBefore {
    /// Reads what an earlier run wrote, and goes on with that.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<HeldBefore> {
        let bytes = match std::fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            read => read?,
        };
        let records = bytes.chunks_exact(RECORD_BYTES).take(MAX_RECORDS);
        let before: Vec<Key> = records.filter_map(decode).collect();
        let keys: BTreeSet<Key> = before.iter().copied().collect();
        Ok(HeldBefore {
            path: path.to_owned(),
            noted: Mutex::new(Noted {
                file: anew(path, &keys)?,
                written: keys.len(),
                keys,
                before,
            }),
        })
    }

    /// What an earlier run may have held.
    pub fn take(&self) -> Vec<Key> {
        std::mem::take(&mut lock(&self.noted).before)
    }

    /// The device may hold something of a file from now on.
    pub fn note(&self, key: Key) {
        let mut noted = lock(&self.noted);
        if !noted.keys.insert(key) {
            return;
        }
        noted.written += 1;
        let written = noted.file.write_all(&encode(&key));
        if let Err(error) = written.and_then(|()| noted.tidy(&self.path)) {
            tracing::warn!(%error, path = %self.path.display(), "what is locked is not written down");
        }
    }

    /// The device holds nothing of a file any more.
    pub fn forget(&self, key: Key) {
        lock(&self.noted).keys.remove(&key);
    }

    /// The device holds nothing any more.
    pub fn end(&self) {
        // Without it the next start gives up what is not held.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Noted {
    /// Makes the file anew if most of it is of files that are not held any more.
    fn tidy(&mut self, path: &Path) -> io::Result<()> {
        if self.written > MANY.max(4 * self.keys.len()) {
            self.file = anew(path, &self.keys)?;
            self.written = self.keys.len();
        }
        Ok(())
    }
}

fn anew(path: &Path, keys: &BTreeSet<Key>) -> io::Result<File> {
    let mut file = File::create(path)?;
    let records: Vec<u8> = keys.iter().flat_map(encode).collect();
    file.write_all(&records)?;
    Ok(file)
}

fn encode((file, family): &Key) -> Vec<u8> {
    let mut record = file.principal.as_bytes().to_vec();
    record.extend(file.number.device.0.to_le_bytes());
    record.extend(file.number.counter.to_le_bytes());
    record.push(family.to_byte());
    record
}

fn decode(record: &[u8]) -> Option<Key> {
    let (principal, rest) = record.split_first_chunk()?;
    let (device, rest) = rest.split_first_chunk()?;
    let (counter, family) = rest.split_first_chunk()?;
    let number = INumber {
        device: Device(u32::from_le_bytes(*device)),
        counter: u64::from_le_bytes(*counter),
    };
    let principal = Principal::from_bytes(*principal);
    let family = Family::from_byte(*family.first()?)?;
    Some((FileId { principal, number }, family))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn next_run_knows_what_was_held_and_survives_what_is_no_record() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("locks");
        let number = INumber {
            device: Device(7),
            counter: 9,
        };
        let principal = Principal::from_bytes([3; 32]);
        let key = (FileId { principal, number }, Family::Fcntl);
        let held = HeldBefore::open(&path).unwrap();
        assert_eq!(held.take(), []);
        held.note(key);
        held.note(key);
        let mut bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), RECORD_BYTES);
        // A family that there is not, and a record that was cut off.
        bytes.extend([0xff; RECORD_BYTES + 3]);
        std::fs::write(&path, bytes).unwrap();
        for _ in 0..2 {
            let held = HeldBefore::open(&path).unwrap();
            assert_eq!((held.take(), held.take()), (vec![key], vec![]));
        }
        let held = HeldBefore::open(&path).unwrap();
        for counter in 0..5000 {
            let number = INumber { counter, ..number };
            let file = FileId { principal, number };
            held.note((file, Family::Flock));
            held.forget((file, Family::Flock));
        }
        let bytes = std::fs::metadata(&path).unwrap().len() as usize;
        assert!(bytes <= (MANY + 1) * RECORD_BYTES, "{bytes}");
        assert!(HeldBefore::open(&path).unwrap().take().contains(&key));
        held.end();
        assert_eq!(HeldBefore::open(&path).unwrap().take(), []);
    }
}
