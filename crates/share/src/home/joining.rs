//! A device that has asked for admission and has no home yet. Its key is kept, so that a process that is killed while it
//! waits can go on: with another key, an administrator would admit a device that nobody has.
//!
//! ```text
//! <state directory>/shared/<volume id>.joining/
//!     device.key     the key of the device
//!     request        lines of text: header, the line of the invitation, random bytes, and the six words if they were shown
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use keys::keyfile;
use state::private;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;

use super::{HomeError, KEY, SHARED, damaged, read};

const REQUEST: &str = "request";
const HEADER: &str = "bulla-joining-1";
/// Longest request, bytes.
const MAX_REQUEST_BYTES: u64 = 8 << 10;

/// A request for admission that was begun.
#[derive(Debug)]
pub struct Begun {
    directory: PathBuf,
    line: String,
    random: [u8; 32],
    words: Option<String>,
    key: SecretKey,
}

impl Begun {
    /// The request of this machine for a volume, if one was begun with this line. One that is damaged counts as none.
    ///
    /// # Errors
    /// [`HomeError`] when the state directory cannot be read.
    pub fn find(
        state_directory: &Path,
        volume: VolumeId,
        line: &str,
    ) -> Result<Option<Begun>, HomeError> {
        let directory = place(state_directory, volume);
        let path = directory.join(REQUEST);
        if !path.try_exists().map_err(|e| damaged(&path, e))? {
            return Ok(None);
        }
        let text = String::from_utf8(read(&path, MAX_REQUEST_BYTES)?).unwrap_or_default();
        let key = keyfile::load(&directory.join(KEY), || Err("the key of a device has none"));
        let (Some((known, random, words)), Ok(key)) = (decode(&text), key) else {
            return Ok(None);
        };
        Ok((known == line).then(|| Begun {
            line: known,
            directory,
            random,
            words,
            key,
        }))
    }

    /// Begins a request, durably. An earlier one with another line is given up.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn begin(
        state_directory: &Path,
        volume: VolumeId,
        line: &str,
        key: SecretKey,
        random: [u8; 32],
    ) -> Result<Begun, HomeError> {
        private::create_directory(&state_directory.join(SHARED))?;
        let directory = place(state_directory, volume);
        remove(&directory)?;
        private::create_directory(&directory)?;
        keyfile::write(&directory.join(KEY), &key, None)?;
        let begun = Begun {
            directory,
            line: line.to_owned(),
            random,
            words: None,
            key,
        };
        begun.write()?;
        private::sync_parent(&begun.directory)?;
        Ok(begun)
    }

    /// The key of the device.
    pub fn key(&self) -> &SecretKey {
        &self.key
    }

    /// The random bytes of the request.
    pub fn random(&self) -> [u8; 32] {
        self.random
    }

    /// The words that a person was shown.
    pub fn words(&self) -> Option<&str> {
        self.words.as_deref()
    }

    /// Notes the words, durably, before they are shown.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn show(&mut self, words: &str) -> Result<(), HomeError> {
        self.words = Some(words.to_owned());
        self.write()
    }

    fn write(&self) -> Result<(), HomeError> {
        let path = self.directory.join(REQUEST);
        let text = encode(&self.line, &self.random, self.words.as_deref());
        Ok(private::replace(&path, text.as_bytes())?)
    }

    /// Removes what was kept: the device has a home.
    ///
    /// # Errors
    /// [`HomeError`].
    pub fn end(state_directory: &Path, volume: VolumeId) -> Result<(), HomeError> {
        remove(&place(state_directory, volume))
    }
}

fn place(state_directory: &Path, volume: VolumeId) -> PathBuf {
    state_directory
        .join(SHARED)
        .join(format!("{volume}.joining"))
}

fn remove(directory: &Path) -> Result<(), HomeError> {
    match fs::remove_dir_all(directory) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(damaged(directory, e)),
        _ => Ok(()),
    }
}

fn encode(line: &str, random: &[u8; 32], words: Option<&str>) -> String {
    let random: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let words = words.map_or(String::new(), |words| format!("words {words}\n"));
    format!("{HEADER}\nline {line}\nrandom {random}\n{words}")
}

fn decode(text: &str) -> Option<(String, [u8; 32], Option<String>)> {
    let mut lines = text.strip_suffix('\n')?.split('\n');
    if lines.next()? != HEADER {
        return None;
    }
    let line = lines.next()?.strip_prefix("line ")?.to_owned();
    let digits = lines.next()?.strip_prefix("random ")?;
    let words = match lines.next() {
        None => None,
        Some(line) => Some(line.strip_prefix("words ")?.to_owned()),
    };
    if digits.len() != 64 || !digits.is_ascii() || lines.next().is_some() {
        return None;
    }
    let mut random = [0; 32];
    for (at, byte) in random.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some((line, random, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    const VOLUME: VolumeId = VolumeId::from_bytes([7; 32]);

    #[test]
    fn request_is_found_again_by_its_line() {
        let at = tempfile::tempdir().unwrap();
        let find = |line: &str| Begun::find(at.path(), VOLUME, line).unwrap();
        assert!(find("inv1a").is_none());
        let key = SecretKey::from_seed(&[3; 32]);
        let mut begun = Begun::begin(at.path(), VOLUME, "inv1a", key.clone(), [9; 32]).unwrap();
        assert!(find("inv1b").is_none());
        let found = find("inv1a").unwrap();
        assert_eq!(found.key().public(), key.public());
        assert_eq!((found.random(), found.words()), ([9; 32], None));
        begun.show("one two three").unwrap();
        assert_eq!(find("inv1a").unwrap().words(), Some("one two three"));
        let other = SecretKey::from_seed(&[4; 32]);
        Begun::begin(at.path(), VOLUME, "inv1b", other, [8; 32]).unwrap();
        assert!(find("inv1a").is_none());
        Begun::end(at.path(), VOLUME).unwrap();
        assert!(find("inv1b").is_none());
        Begun::end(at.path(), VOLUME).unwrap();
    }

    #[test]
    fn damaged_request_counts_as_none() {
        let at = tempfile::tempdir().unwrap();
        let key = SecretKey::from_seed(&[3; 32]);
        let begun = Begun::begin(at.path(), VOLUME, "inv1a", key, [9; 32]).unwrap();
        let path = begun.directory.join(REQUEST);
        let whole = fs::read(&path).unwrap();
        for len in 0..whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            assert!(
                Begun::find(at.path(), VOLUME, "inv1a").unwrap().is_none(),
                "{len}"
            );
        }
        fs::write(&path, &whole).unwrap();
        fs::remove_file(begun.directory.join(KEY)).unwrap();
        assert!(Begun::find(at.path(), VOLUME, "inv1a").unwrap().is_none());
    }
}
