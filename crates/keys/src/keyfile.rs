//! Key files: an Ed25519 seed, plain or under a passphrase (`docs/decisions/0012-key-files.md`).
//!
//! ```text
//! bulla-key-1
//! public key1…
//! kdf argon2id m=65536 t=3 p=4 salt=<32 hex digits>     or: kdf none
//! cipher xchacha20poly1305 nonce=<48 hex digits>        or: cipher none
//! secret <hex digits>
//! ```
//!
//! The lines above `secret` are authenticated together with it. A file that other users could read is
//! refused. Secrets are wiped from memory when they are dropped. A file may also refer to a key that lies [`elsewhere`].

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use chacha20poly1305::aead::{Aead, KeyInit, Payload};
use chacha20poly1305::{XChaCha20Poly1305, XNonce};
use trust::key::{PublicKey, SecretKey};
use zeroize::{Zeroize, Zeroizing};

use crate::elsewhere::{self, Reference};
use crate::stretch::Cost;

const HEADER: &str = "bulla-key-1";
const MAX_FILE_BYTES: u64 = 4096;
const SEED_BYTES: usize = 32;

/// What is wrong with a key file.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The system refused.
    #[error("{}", path.display())]
    Io {
        /// The key file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The file exists. A new key never overwrites a file.
    #[error("{} exists already", path.display())]
    Exists {
        /// The file in the way.
        path: PathBuf,
    },
    /// Users other than the owner may read or write it.
    #[error("{} may be read or written by others (mode {mode:04o})", path.display())]
    Exposed {
        /// The key file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It names a program, and belongs to somebody else, who could name another one.
    #[error("{} refers to a key, and belongs to another user (number {owner})", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Not a key file.
    #[error("{} is not a key file: {why}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The file refers to a key that lies elsewhere, and a key in a file is needed.
    #[error("{} refers to a key that lies elsewhere ({by})", path.display())]
    Elsewhere {
        /// The file.
        path: PathBuf,
        /// Who signs with it; see [`elsewhere::By::word`].
        by: &'static str,
    },
    /// A reference that the file cannot hold.
    #[error("{} cannot refer to this key: {why}", path.display())]
    BadReference {
        /// The file.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// The passphrase does not open it, or the file was changed: the two cannot be distinguished.
    #[error("the passphrase does not open {}", path.display())]
    WrongPassphrase {
        /// The key file.
        path: PathBuf,
    },
    /// The file needs a passphrase and none was given.
    #[error("{} needs a passphrase: {why}", path.display())]
    NoPassphrase {
        /// The key file.
        path: PathBuf,
        /// Why there is none.
        why: String,
    },
    /// The system gave no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    /// The key derivation failed: too little memory.
    #[error("cannot derive a key from the passphrase: {0}")]
    Derivation(String),
}

/// Makes a new key and writes it to `path`, which must not exist; encrypted if there is a passphrase.
///
/// # Errors
/// [`KeyError`]; no file is left behind.
pub fn create(path: &Path, passphrase: Option<&[u8]>) -> Result<PublicKey, KeyError> {
    let mut seed = Zeroizing::new([0; SEED_BYTES]);
    random(&mut *seed)?;
    write(path, &SecretKey::from_seed(&seed), passphrase)
}

/// Writes a file that refers to a key to `path`, which must not exist.
///
/// # Errors
/// [`KeyError`]; no file is left behind.
pub fn refer(path: &Path, reference: &Reference) -> Result<(), KeyError> {
    let bad = |why| KeyError::BadReference {
        path: path.to_owned(),
        why,
    };
    let text = reference.to_text().map_err(bad)?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(bad("its arguments are over 4 KiB"));
    }
    write_new(path, text.as_bytes())
}

/// What a key file holds, as far as it can be read without a passphrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// A key.
    Key {
        /// Its public key. It is the file's claim: only [`load`] proves that the secret belongs to it.
        public: PublicKey,
        /// Whether [`load`] will ask for a passphrase.
        passphrase: bool,
    },
    /// A reference to a key that lies elsewhere.
    Reference(Reference),
}

impl Content {
    /// The public key.
    pub fn public(&self) -> PublicKey {
        match self {
            Content::Key { public, .. } => *public,
            Content::Reference(reference) => reference.public,
        }
    }
}

/// Reads what needs no passphrase.
///
/// # Errors
/// [`KeyError`].
pub fn content(path: &Path) -> Result<Content, KeyError> {
    let (text, owner) = read(path)?;
    let bad = |why| malformed(path, why);
    if let Some(reference) = reference(path, &text, owner)? {
        return Ok(Content::Reference(reference));
    }
    let parsed = KeyText::parse(&text).map_err(bad)?;
    Ok(Content::Key {
        public: parsed.public,
        passphrase: parsed.lock.is_some(),
    })
}

/// The reference in a file of this owner.
fn reference(path: &Path, text: &str, owner: u32) -> Result<Option<Reference>, KeyError> {
    if text.lines().next() != Some(elsewhere::HEADER) {
        return Ok(None);
    }
    if !may_name_program(owner, rustix::process::geteuid().as_raw()) {
        let path = path.to_owned();
        return Err(KeyError::Foreign { path, owner });
    }
    let parsed = Reference::parse(text).map_err(|why| malformed(path, why))?;
    Ok(Some(parsed))
}

/// Reads a key. `ask` returns the passphrase; it is called only if the file needs one.
///
/// # Errors
/// [`KeyError`]; [`KeyError::Elsewhere`] for a file that only refers to a key.
pub fn load<E: std::fmt::Display>(
    path: &Path,
    ask: impl FnOnce() -> Result<Zeroizing<Vec<u8>>, E>,
) -> Result<SecretKey, KeyError> {
    let (text, owner) = read(path)?;
    if let Some(reference) = reference(path, &text, owner)? {
        return Err(KeyError::Elsewhere {
            path: path.to_owned(),
            by: reference.by.word(),
        });
    }
    let parsed = KeyText::parse(&text).map_err(|why| malformed(path, why))?;
    let mut seed = Zeroizing::new([0; SEED_BYTES]);
    match &parsed.lock {
        None => copy_seed(&parsed.secret, &mut seed),
        Some(lock) => {
            let passphrase = ask().map_err(|why| KeyError::NoPassphrase {
                path: path.to_owned(),
                why: why.to_string(),
            })?;
            let payload = Payload {
                msg: &parsed.secret,
                aad: parsed.public_part.as_bytes(),
            };
            let plain = lock
                .cipher(&passphrase)?
                .decrypt(&XNonce::from(lock.nonce), payload)
                .map(Zeroizing::new)
                .map_err(|_| KeyError::WrongPassphrase {
                    path: path.to_owned(),
                })?;
            copy_seed(&plain, &mut seed)
        }
    }
    .ok_or_else(|| malformed(path, "the secret has another length"))?;
    let key = SecretKey::from_seed(&seed);
    if key.public() != parsed.public {
        return Err(malformed(
            path,
            "the secret does not belong to the public key",
        ));
    }
    Ok(key)
}

/// Whether the user `own` may run the program that a file of `owner` names. Everybody trusts root.
fn may_name_program(owner: u32, own: u32) -> bool {
    owner == own || owner == 0
}

/// Whether a file claims to be a key, by its first line. For finding keys among the files of a directory. A
/// file that is not regular is not a key.
///
/// # Errors
/// [`KeyError::Io`].
pub fn claims_to_be_one(path: &Path) -> Result<bool, KeyError> {
    let io = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Ok(false);
    }
    let mut start = Vec::with_capacity(elsewhere::HEADER.len());
    let file = open(path).map_err(io)?;
    let limit = elsewhere::HEADER.len() as u64;
    file.take(limit).read_to_end(&mut start).map_err(io)?;
    let headers = [HEADER, elsewhere::HEADER];
    Ok(headers.iter().any(|it| start.starts_with(it.as_bytes())))
}

/// Opens a file without blocking when it is a named pipe.
fn open(path: &Path) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32)
        .open(path)
}

fn malformed(path: &Path, why: &'static str) -> KeyError {
    KeyError::Malformed {
        path: path.to_owned(),
        why,
    }
}

fn random(bytes: &mut [u8]) -> Result<(), KeyError> {
    getrandom::fill(bytes).map_err(|e| KeyError::Random(e.to_string()))
}

fn copy_seed(bytes: &[u8], seed: &mut [u8; SEED_BYTES]) -> Option<()> {
    let bytes: &[u8; SEED_BYTES] = bytes.try_into().ok()?;
    seed.copy_from_slice(bytes);
    Some(())
}

/// Writes a key that exists to `path`, which must not exist; encrypted if there is a passphrase.
///
/// # Errors
/// [`KeyError`]; no file is left behind.
pub fn write(
    path: &Path,
    key: &SecretKey,
    passphrase: Option<&[u8]>,
) -> Result<PublicKey, KeyError> {
    let public = key.public();
    let seed = key.seed();
    let mut text = Zeroizing::new(format!("{HEADER}\npublic {public}\n"));
    match passphrase {
        None => {
            text.push_str("kdf none\ncipher none\nsecret ");
            push_hex(&mut text, &*seed);
        }
        Some(passphrase) => {
            let mut lock = Lock {
                cost: Cost::NEW,
                salt: [0; 16],
                nonce: [0; 24],
            };
            random(&mut lock.salt)?;
            random(&mut lock.nonce)?;
            lock.write(&mut text);
            let payload = Payload {
                msg: &*seed,
                aad: text.as_bytes(),
            };
            let sealed = lock
                .cipher(passphrase)?
                .encrypt(&XNonce::from(lock.nonce), payload)
                .map_err(|e| KeyError::Derivation(e.to_string()))?;
            text.push_str("secret ");
            push_hex(&mut text, &sealed);
        }
    }
    text.push('\n');
    write_new(path, text.as_bytes())?;
    Ok(public)
}

fn write_new(path: &Path, text: &[u8]) -> Result<(), KeyError> {
    let io = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::AlreadyExists => KeyError::Exists {
                path: path.to_owned(),
            },
            _ => io(source),
        })?;
    let written = file.write_all(text).and_then(|()| file.sync_all());
    let written = written.and_then(|()| {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    });
    written.map_err(|source| {
        // An incomplete key file is useless. The first error is the one to report.
        let _ = std::fs::remove_file(path);
        io(source)
    })
}

/// The text of a file, and its owner.
fn read(path: &Path) -> Result<(Zeroizing<String>, u32), KeyError> {
    let io = |source| KeyError::Io {
        path: path.to_owned(),
        source,
    };
    let file = open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(malformed(path, "it is not a regular file"));
    }
    if metadata.mode() & 0o077 != 0 {
        return Err(KeyError::Exposed {
            path: path.to_owned(),
            mode: metadata.mode() & 0o7777,
        });
    }
    // Allocated at full size: a growing buffer would leave copies behind.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FILE_BYTES as usize + 1));
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(io)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(malformed(path, "it is too long"));
    }
    match String::from_utf8(std::mem::take(&mut *bytes)) {
        Ok(text) => Ok((Zeroizing::new(text), metadata.uid())),
        Err(error) => {
            error.into_bytes().zeroize();
            Err(malformed(path, "it is not text"))
        }
    }
}

/// The parts of a key file.
struct KeyText<'a> {
    public: PublicKey,
    lock: Option<Lock>,
    /// Everything above the secret.
    public_part: &'a str,
    secret: Zeroizing<Vec<u8>>,
}

impl<'a> KeyText<'a> {
    fn parse(text: &'a str) -> Result<KeyText<'a>, &'static str> {
        let body = text.strip_suffix('\n').ok_or("its last line has no end")?;
        let at = body.find("\nsecret ").ok_or("there is no secret")? + 1;
        let (public_part, secret) = body.split_at(at);
        let mut lines = public_part.lines();
        let mut line = |key: &'static str, why| {
            let line = lines.next().ok_or(why)?;
            line.strip_prefix(key).ok_or(why)
        };
        if !line(HEADER, "its first line is not bulla-key-1")?.is_empty() {
            return Err("its first line is not bulla-key-1");
        }
        let public = line("public ", "there is no public key")?
            .parse()
            .map_err(|_| "the public key is mistyped")?;
        let kdf = line("kdf ", "there is no line kdf")?;
        let cipher = line("cipher ", "there is no line cipher")?;
        if lines.next().is_some() {
            return Err("there are lines that do not belong there");
        }
        let lock = match (kdf, cipher) {
            ("none", "none") => None,
            _ => Some(Lock::parse(kdf, cipher).ok_or("kdf or cipher is not known here")?),
        };
        let secret = secret.strip_prefix("secret ").unwrap_or_default();
        let secret = read_hex(secret).ok_or("the secret is not hexadecimal")?;
        Ok(KeyText {
            public,
            lock,
            public_part,
            secret,
        })
    }
}

/// How a passphrase locks a secret.
struct Lock {
    cost: Cost,
    salt: [u8; 16],
    nonce: [u8; 24],
}

impl Lock {
    fn write(&self, out: &mut String) {
        let Cost {
            memory_kib,
            passes,
            lanes,
        } = self.cost;
        out.push_str(&format!(
            "kdf argon2id m={memory_kib} t={passes} p={lanes} salt="
        ));
        push_hex(out, &self.salt);
        out.push_str("\ncipher xchacha20poly1305 nonce=");
        push_hex(out, &self.nonce);
        out.push('\n');
    }

    fn parse(kdf: &str, cipher: &str) -> Option<Lock> {
        let mut words = kdf.strip_prefix("argon2id ")?.split(' ');
        let mut number = |key: &str| words.next()?.strip_prefix(key)?.parse().ok();
        let cost = Cost {
            memory_kib: number("m=")?,
            passes: number("t=")?,
            lanes: number("p=")?,
        };
        // The file may be hostile.
        if !cost.is_bearable() {
            return None;
        }
        let salt = read_hex(words.next()?.strip_prefix("salt=")?)?;
        let nonce = read_hex(cipher.strip_prefix("xchacha20poly1305 nonce=")?)?;
        let lock = Lock {
            cost,
            salt: salt.as_slice().try_into().ok()?,
            nonce: nonce.as_slice().try_into().ok()?,
        };
        words.next().is_none().then_some(lock)
    }

    fn cipher(&self, passphrase: &[u8]) -> Result<XChaCha20Poly1305, KeyError> {
        let key = self.cost.derive(passphrase, &self.salt);
        let key = key.map_err(KeyError::Derivation)?;
        Ok(XChaCha20Poly1305::new((&*key).into()))
    }
}

fn push_hex(out: &mut String, bytes: &[u8]) {
    for byte in bytes {
        for digit in [byte >> 4, byte & 15] {
            out.push(char::from_digit(digit.into(), 16).unwrap_or('0'));
        }
    }
}

fn read_hex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let (pairs, odd) = text.as_bytes().as_chunks::<2>();
    let digit = |b: &u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let mut bytes = Zeroizing::new(Vec::with_capacity(pairs.len()));
    for [high, low] in pairs {
        bytes.push(digit(high)? << 4 | digit(low)?);
    }
    odd.is_empty().then_some(bytes)
}

#[cfg(test)]
mod tests;
