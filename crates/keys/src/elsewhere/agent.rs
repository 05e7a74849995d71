//! The ssh-agent protocol (draft-ietf-sshm-ssh-agent), as far as Ed25519 keys need it: which keys the agent has, and a
//! signature. An `ssh-ed25519` key signs exactly the message (RFC 8032). Keys of other types, also those of security keys
//! (`sk-`), sign something else, or with something else.
//!
//! An SSH server lets nobody in because of such a signature, and no statement is signed by a login: what an SSH client
//! signs begins with the length of a session id, and what bulla signs with a letter.
//!
//! The agent may be hostile: lengths are bounded, and all waits end.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use trust::key::{PublicKey, SIGNATURE_BYTES};

use super::{ElsewhereError, TICK, Wait};

/// The type of the only keys that fit.
pub(super) const ED25519: &[u8] = b"ssh-ed25519";
/// Largest message of the protocol that is read or sent, bytes; OpenSSH's agent has the same limit.
const MAX_MESSAGE_BYTES: usize = 256 << 10;
/// Most keys that an agent may list; OpenSSH has the same limit.
const MAX_KEYS: u32 = 2048;

const FAILURE: u8 = 5;
const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;

/// A connection to an agent.
#[derive(Debug)]
pub struct Agent<'a> {
    stream: UnixStream,
    wait: &'a Wait,
}

/// A key that the agent has and that fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The key.
    pub key: PublicKey,
    /// What its owner calls it. Any bytes.
    pub comment: Vec<u8>,
}

/// What the agent has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Identities {
    /// The keys that fit.
    pub keys: Vec<Identity>,
    /// How many keys of other types it has.
    pub others: usize,
}

impl Identities {
    /// Reads an agent's list.
    ///
    /// # Errors
    /// [`ElsewhereError::Nonsense`].
    pub fn decode(answer: &[u8]) -> Result<Identities, ElsewhereError> {
        let mut d = Parts(answer);
        if d.byte()? != IDENTITIES_ANSWER {
            return Err(ElsewhereError::Nonsense("no list of keys"));
        }
        let count = d.number()?;
        if count > MAX_KEYS {
            return Err(ElsewhereError::Nonsense("more than 2048 keys"));
        }
        let mut found = Identities::default();
        for _ in 0..count {
            let (key, comment) = (d.string()?, d.string()?);
            match public_of_blob(key) {
                Some(key) => found.keys.push(Identity {
                    key,
                    comment: comment.to_vec(),
                }),
                None => found.others = found.others.saturating_add(1),
            }
        }
        d.end()?;
        Ok(found)
    }
}

/// The signature in an agent's answer, or `None` if it refuses.
///
/// # Errors
/// [`ElsewhereError::Nonsense`].
pub fn signature_in(answer: &[u8]) -> Result<Option<[u8; SIGNATURE_BYTES]>, ElsewhereError> {
    let mut d = Parts(answer);
    match d.byte()? {
        SIGN_RESPONSE => {}
        FAILURE => return Ok(None),
        _ => return Err(ElsewhereError::Nonsense("no signature")),
    }
    let mut signature = Parts(d.string()?);
    d.end()?;
    if signature.string()? != ED25519 {
        return Err(ElsewhereError::Nonsense("a signature of another type"));
    }
    let bytes = signature.string()?;
    signature.end()?;
    let wrong = |_| ElsewhereError::Nonsense("a signature of another length");
    bytes.try_into().map(Some).map_err(wrong)
}

impl Agent<'_> {
    /// Connects to the agent at `socket`.
    ///
    /// # Errors
    /// [`ElsewhereError::NoAgent`] without a socket, [`ElsewhereError::Unreachable`].
    pub fn of<'a>(socket: Option<&Path>, wait: &'a Wait) -> Result<Agent<'a>, ElsewhereError> {
        let path = socket.ok_or(ElsewhereError::NoAgent)?;
        let connected = || -> std::io::Result<UnixStream> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            // A full queue of an agent that accepts nothing is an error, and no wait.
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            connect(&socket, &SocketAddrUnix::new(path)?)?;
            let stream = UnixStream::from(socket);
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(TICK))?;
            stream.set_write_timeout(Some(TICK))?;
            Ok(stream)
        };
        match connected() {
            Ok(stream) => Ok(Agent { stream, wait }),
            Err(source) => Err(ElsewhereError::Unreachable {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The keys that the agent has.
    ///
    /// # Errors
    /// [`ElsewhereError`].
    pub fn identities(&mut self) -> Result<Identities, ElsewhereError> {
        Identities::decode(&self.ask(&[REQUEST_IDENTITIES])?)
    }

    /// A signature over exactly `message`. It is not verified.
    ///
    /// # Errors
    /// [`ElsewhereError::NoSuchKey`], [`ElsewhereError::Refused`]; others of [`ElsewhereError`].
    pub fn sign(
        &mut self,
        key: &PublicKey,
        message: &[u8],
    ) -> Result<[u8; SIGNATURE_BYTES], ElsewhereError> {
        let mut request = vec![SIGN_REQUEST];
        put(&mut request, &blob_of(key))?;
        put(&mut request, message)?;
        // Flags: they are for RSA keys.
        request.extend_from_slice(&[0; 4]);
        if let Some(signature) = signature_in(&self.ask(&request)?)? {
            return Ok(signature);
        }
        let has = self.identities()?;
        Err(match has.keys.iter().any(|one| one.key == *key) {
            true => ElsewhereError::Refused,
            false => ElsewhereError::NoSuchKey,
        })
    }

    /// Sends a message and reads the answer.
    fn ask(&mut self, message: &[u8]) -> Result<Vec<u8>, ElsewhereError> {
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(ElsewhereError::Nonsense("the message is too long for it"));
        }
        let mut sent = Vec::new();
        put(&mut sent, message)?;
        self.send(&sent)?;
        let mut length = [0; 4];
        self.receive(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > MAX_MESSAGE_BYTES {
            return Err(ElsewhereError::Nonsense("an answer of this length"));
        }
        let mut answer = vec![0; length];
        self.receive(&mut answer)?;
        Ok(answer)
    }

    fn send(&mut self, mut bytes: &[u8]) -> Result<(), ElsewhereError> {
        while !bytes.is_empty() {
            self.wait.goes_on()?;
            let count = self.stream.write(bytes);
            let count = moved(count)?;
            bytes = bytes.get(count..).unwrap_or_default();
        }
        Ok(())
    }

    fn receive(&mut self, into: &mut [u8]) -> Result<(), ElsewhereError> {
        let mut at = 0_usize;
        while at < into.len() {
            self.wait.goes_on()?;
            let rest = into.get_mut(at..).unwrap_or_default();
            let count = self.stream.read(rest);
            at = at.saturating_add(moved(count)?);
        }
        Ok(())
    }
}

/// How many bytes went through; none when it was not time yet.
fn moved(done: std::io::Result<usize>) -> Result<usize, ElsewhereError> {
    match done {
        Ok(0) => Err(ElsewhereError::Nonsense("it closes the connection")),
        Ok(count) => Ok(count),
        Err(error) => match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => Ok(0),
            _ => Err(error.into()),
        },
    }
}

/// A public key as SSH writes it.
fn blob_of(key: &PublicKey) -> Vec<u8> {
    let length = |bytes: &[u8]| (bytes.len() as u32).to_be_bytes();
    [
        length(ED25519).as_slice(),
        ED25519,
        &length(key.as_bytes()),
        key.as_bytes(),
    ]
    .concat()
}

/// The Ed25519 key that SSH has written so.
pub(super) fn public_of_blob(blob: &[u8]) -> Option<PublicKey> {
    let mut d = Parts(blob);
    if d.string().ok()? != ED25519 {
        return None;
    }
    let bytes = d.string().ok()?.try_into().ok()?;
    d.end().ok()?;
    PublicKey::from_bytes(bytes).ok()
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Result<(), ElsewhereError> {
    let length = u32::try_from(bytes.len());
    let length = length.map_err(|_| ElsewhereError::Nonsense("the message is too long for it"))?;
    out.extend_from_slice(&length.to_be_bytes());
    out.extend_from_slice(bytes);
    Ok(())
}

/// Reads SSH's types (RFC 4251, 5).
struct Parts<'a>(&'a [u8]);

impl<'a> Parts<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], ElsewhereError> {
        let cut = self.0.split_at_checked(count);
        let (taken, rest) = cut.ok_or(ElsewhereError::Nonsense("its answer is cut off"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, ElsewhereError> {
        let taken = self.take(1)?;
        Ok(taken.first().copied().unwrap_or_default())
    }

    fn number(&mut self) -> Result<u32, ElsewhereError> {
        let taken = self.take(4)?.try_into().unwrap_or_default();
        Ok(u32::from_be_bytes(taken))
    }

    fn string(&mut self) -> Result<&'a [u8], ElsewhereError> {
        let length = self.number()? as usize;
        self.take(length)
    }

    fn end(&self) -> Result<(), ElsewhereError> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(ElsewhereError::Nonsense("its answer is too long")),
        }
    }
}
