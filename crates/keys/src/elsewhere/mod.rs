//! Keys that lie elsewhere: with a program, such as that of a hardware token, or with an ssh-agent. A small file refers to
//! such a key, and is used wherever a key file is (docs/formats/key-reference.md):
//!
//! ```text
//! bulla-key-reference-1
//! public key1…
//! within 300
//! by command              or: by ssh-agent
//! argument pkcs11-tool    a command only: one line for each
//! argument --sign
//! ```
//!
//! [`agent`] speaks with the agent, `command` runs the program, `public_file` reads the public keys that such programs
//! write. Whatever they answer is verified by [`trust::signer::signature`].

pub mod agent;
mod command;
pub mod public_file;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use trust::key::{PublicKey, SIGNATURE_BYTES};
use trust::signer::Signer;

/// The first line of a file that refers to a key.
pub const HEADER: &str = "bulla-key-reference-1";
/// Most arguments of a command, its program included.
const MAX_ARGUMENTS: usize = 64;
/// The longest time to wait for a signature.
pub const MAX_WITHIN: Duration = Duration::from_secs(24 * 3600);
/// How often a wait looks whether it shall end.
const TICK: Duration = Duration::from_millis(20);

/// What a file says about a key that lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reference {
    /// The key.
    pub public: PublicKey,
    /// How long to wait for a signature, whole seconds. A person may have to touch a token.
    pub within: Duration,
    /// Who signs.
    pub by: By,
}

/// Who signs with a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// A program and its arguments. It gets the message as its stdin, and prints the signature.
    Command(Vec<String>),
    /// The ssh-agent of the user's session.
    Agent,
}

impl By {
    /// The word in files and messages.
    pub fn word(&self) -> &'static str {
        match self {
            By::Command(_) => "command",
            By::Agent => "ssh-agent",
        }
    }
}

impl Reference {
    /// The file's text.
    ///
    /// # Errors
    /// What the file cannot hold.
    pub fn to_text(&self) -> Result<String, &'static str> {
        let (seconds, word) = (self.within.as_secs(), self.by.word());
        let mut text = format!(
            "{HEADER}\npublic {}\nwithin {seconds}\nby {word}\n",
            self.public
        );
        if let By::Command(arguments) = &self.by {
            for argument in arguments {
                text.push_str(&format!("argument {argument}\n"));
            }
        }
        match Reference::parse(&text)? == *self {
            true => Ok(text),
            // A line break in an argument, which could become another line.
            false => Err("an argument has a line break"),
        }
    }

    /// Reads the file's text.
    ///
    /// # Errors
    /// Which rule it breaks.
    pub fn parse(text: &str) -> Result<Reference, &'static str> {
        let body = text.strip_suffix('\n').ok_or("its last line has no end")?;
        let mut lines = body.split('\n');
        if lines.next() != Some(HEADER) {
            return Err("its first line is not bulla-key-reference-1");
        }
        let mut value = |key: &str| lines.next().and_then(|line| line.strip_prefix(key));
        let public = value("public ").ok_or("there is no public key")?;
        let public = public.parse().map_err(|_| "the public key is mistyped")?;
        let within = value("within ").ok_or("there is no line within")?;
        let within = seconds(within).ok_or("within is not a number of seconds up to a day")?;
        let by = value("by ").ok_or("there is no line by")?;
        let arguments: Option<Vec<String>> = lines
            .map(|line| line.strip_prefix("argument ").map(str::to_owned))
            .collect();
        let arguments = arguments.ok_or("there are lines that do not belong there")?;
        let by = match (by, arguments.len()) {
            ("ssh-agent", 0) => By::Agent,
            ("command", 1..=MAX_ARGUMENTS) => By::Command(arguments),
            ("command", 0) => return Err("there is no program"),
            ("command", _) => return Err("there are more than 64 arguments"),
            _ => return Err("who signs is not known here, or has arguments"),
        };
        if let By::Command(arguments) = &by {
            if arguments.iter().any(|text| text.contains('\0')) {
                return Err("an argument has a zero byte");
            }
            if arguments.first().is_some_and(String::is_empty) {
                return Err("there is no program");
            }
        }
        Ok(Reference { public, within, by })
    }
}

/// A number in its one form, from 1 to a day.
fn seconds(text: &str) -> Option<Duration> {
    let seconds: u64 = text.parse().ok()?;
    let within = Duration::from_secs(seconds);
    let is_one_form = seconds.to_string() == text;
    (is_one_form && seconds > 0 && within <= MAX_WITHIN).then_some(within)
}

/// What a process reaches such keys with.
#[derive(Debug, Clone, Default)]
pub struct Reach {
    /// The socket of the ssh-agent (`SSH_AUTH_SOCK`).
    pub agent: Option<PathBuf>,
    /// Set from outside to stop a wait.
    pub stop: Arc<AtomicBool>,
    /// The longest wait, whatever a file says.
    pub longest: Option<Duration>,
}

/// A key that lies elsewhere.
#[derive(Debug, Clone)]
pub struct Elsewhere {
    reference: Reference,
    reach: Reach,
}

impl Elsewhere {
    /// Nothing is asked yet.
    pub fn new(reference: Reference, reach: Reach) -> Elsewhere {
        Elsewhere { reference, reach }
    }

    /// What the file says.
    pub fn reference(&self) -> &Reference {
        &self.reference
    }
}

impl Signer for Elsewhere {
    fn public(&self) -> PublicKey {
        self.reference.public
    }

    fn name(&self) -> String {
        match &self.reference.by {
            By::Command(arguments) => {
                let program = arguments.first().map_or("", String::as_str);
                format!("the program {program:?}")
            }
            By::Agent => "the ssh-agent".to_owned(),
        }
    }

    fn ask(
        &self,
        message: &[u8],
    ) -> Result<[u8; SIGNATURE_BYTES], Box<dyn Error + Send + Sync + 'static>> {
        let within = self.reference.within;
        let within = within.min(self.reach.longest.unwrap_or(within));
        let wait = Wait::begin(within, Arc::clone(&self.reach.stop));
        // Nothing is started that would only be ended.
        wait.goes_on()?;
        let signed = match &self.reference.by {
            By::Command(arguments) => command::sign(arguments, message, &wait),
            By::Agent => agent::Agent::of(self.reach.agent.as_deref(), &wait)
                .and_then(|mut agent| agent.sign(&self.reference.public, message)),
        };
        Ok(signed?)
    }
}

/// A wait with an end.
#[derive(Debug, Clone)]
pub struct Wait {
    within: Duration,
    until: Instant,
    stop: Arc<AtomicBool>,
}

impl Wait {
    /// Begins now.
    pub fn begin(within: Duration, stop: Arc<AtomicBool>) -> Wait {
        let now = Instant::now();
        let until = now.checked_add(within.min(MAX_WITHIN)).unwrap_or(now);
        Wait {
            within,
            until,
            stop,
        }
    }

    /// Whether it goes on.
    fn goes_on(&self) -> Result<(), ElsewhereError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(ElsewhereError::Stopped);
        }
        match Instant::now() < self.until {
            true => Ok(()),
            false => Err(ElsewhereError::Late(self.within.as_secs())),
        }
    }
}

/// Why a key that lies elsewhere did not sign.
#[derive(Debug, thiserror::Error)]
pub enum ElsewhereError {
    /// The program cannot be started.
    #[error("it cannot be started")]
    NotStarted(#[source] std::io::Error),
    /// The program failed.
    #[error("it ended with {0}")]
    Failed(ExitStatus),
    /// It printed more than any signature needs.
    #[error("it printed more than a signature")]
    TooMuch,
    /// It printed something else than a signature.
    #[error(
        "it printed {0} bytes that are no signature (64 bytes, or the same as base64 or hexadecimal text)"
    )]
    NotASignature(usize),
    /// No answer in time.
    #[error("it did not answer within {0} s")]
    Late(u64),
    /// Ctrl-C.
    #[error("interrupted")]
    Stopped,
    /// The system returned an error.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The environment names no agent.
    #[error("no ssh-agent runs in this session (SSH_AUTH_SOCK is not set)")]
    NoAgent,
    /// The agent cannot be reached.
    #[error("it cannot be reached at {}", path.display())]
    Unreachable {
        /// Its socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The agent does not have the key.
    #[error("it does not have this key")]
    NoSuchKey,
    /// The agent has the key, and refused.
    #[error("it refuses to sign: its user said no, the key is locked, or it may not sign this")]
    Refused,
    /// The agent broke its protocol.
    #[error("it answers nonsense: {0}")]
    Nonsense(&'static str),
}

impl From<rustix::io::Errno> for ElsewhereError {
    fn from(errno: rustix::io::Errno) -> Self {
        ElsewhereError::Io(errno.into())
    }
}

#[cfg(test)]
mod tests;
