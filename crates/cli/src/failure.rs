//! Failures of commands: error, causes and a hint. The table of kinds (`kinds`) has an exit code and a hint for each,
//! so every error has both.

mod kinds;

use std::fmt;

use crate::exit::Exit;

pub use kinds::Kind;

/// The word for a device that stays silent: its exit code is that of an outage.
pub const UNATTESTED: &str = "unattested";

/// A failed command.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The kind.
    pub kind: Kind,
    /// The error in one line.
    pub error: String,
    /// The causes, outermost first.
    pub causes: Vec<String>,
    /// A more specific hint than that of the kind.
    pub hint: Option<String>,
    /// The exit code, if a child process has chosen it.
    pub exit_code: Option<Exit>,
    /// Further fields of the JSON result record.
    pub fields: serde_json::Map<String, serde_json::Value>,
}

/// The outcome of a command.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    /// A failure without further cause.
    pub fn new(kind: Kind, error: impl Into<String>) -> Failure {
        Failure {
            kind,
            error: error.into(),
            causes: Vec::new(),
            hint: None,
            exit_code: None,
            fields: serde_json::Map::new(),
        }
    }

    /// A failure with the chain of `source` as its causes.
    pub fn of(kind: Kind, error: impl Into<String>, source: &dyn std::error::Error) -> Failure {
        let mut failure = Failure::new(kind, error);
        let mut next = Some(source);
        while let Some(cause) = next {
            failure.push_cause(cause.to_string());
            next = cause.source();
        }
        failure
    }

    /// A failure with the message of a library's error, and its sources as causes.
    pub fn from_error(kind: Kind, error: &dyn std::error::Error) -> Failure {
        match error.source() {
            Some(source) => Failure::of(kind, error.to_string(), source),
            None => Failure::new(kind, error.to_string()),
        }
    }

    /// A failure because of an I/O error.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Failure {
        Failure::of(io_kind(error), what, error)
    }

    /// Adds a cause, unless it repeats the error or the last cause.
    pub fn push_cause(&mut self, cause: String) {
        if !self.error.ends_with(&cause) && self.causes.last() != Some(&cause) {
            self.causes.push(cause);
        }
    }

    /// Sets a more specific hint.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// The hint.
    pub fn hint(&self) -> &str {
        let told = || std::iter::once(&self.error).chain(&self.causes);
        let shortage = || told().find_map(|text| shortage(text));
        match &self.hint {
            Some(hint) => hint,
            None => shortage().unwrap_or(self.kind.hint()),
        }
    }

    /// The exit code.
    pub fn exit(&self) -> Exit {
        self.exit_code.unwrap_or(self.kind.exit())
    }

    /// `error.kind` of the JSON result record: the word of the exit code, or a narrower one.
    pub fn word(&self) -> &'static str {
        match self.kind {
            Kind::Unattested | Kind::Overdue => UNATTESTED,
            _ => self.exit().kind(),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

fn is_descriptors(code: i32) -> bool {
    [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE]
        .iter()
        .any(|errno| errno.raw_os_error() == code)
}

/// The hint for an error of the system that has the same remedy wherever it comes up: libraries keep some of these
/// errors as text only.
fn shortage(text: &str) -> Option<&'static str> {
    use rustix::io::Errno;
    let is = |errno: Errno| text.contains(&format!("(os error {})", errno.raw_os_error()));
    if is(Errno::NOSPC) || is(Errno::DQUOT) {
        return Some(Kind::DiskFull.hint());
    }
    (is(Errno::MFILE) || is(Errno::NFILE)).then_some(Kind::Descriptors.hint())
}

/// The kind of an I/O error.
pub fn io_kind(error: &std::io::Error) -> Kind {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => Kind::NoFile,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Kind::DiskFull
        }
        ErrorKind::AlreadyExists => Kind::Exists,
        _ if error.raw_os_error().is_some_and(is_descriptors) => Kind::Descriptors,
        _ => Kind::System,
    }
}

#[cfg(test)]
mod tests;
