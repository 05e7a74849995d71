//! Exit codes: a contract with scripts, documented in `docs/cli.md`. They let a script distinguish an attack
//! from an outage. Design: *Exit codes*.

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Done.
    Ok = 0,
    /// Failed for a reason without a code of its own.
    Failed = 1,
    /// The command line or the configuration is wrong.
    Usage = 2,
    /// Done, except for what was reported.
    Partial = 3,
    /// A named file, path or version does not exist.
    NotFound = 10,
    /// Another process holds the lock.
    Locked = 11,
    /// The key is not the key of the volume, or its passphrase is wrong.
    WrongKey = 12,
    /// Needs a newer bulla: the form is unknown to this version.
    Unsupported = 13,
    /// Somebody else has changed what would have been replaced.
    Conflict = 14,
    /// Bytes differ from the signed ones.
    Integrity = 20,
    /// A version older than one that was already seen.
    Rollback = 21,
    /// Two signed statements contradict each other.
    Fork = 22,
    /// The volume does not permit it to this user.
    Refused = 23,
    /// The statement is not valid at this time.
    Expired = 24,
    /// No replica answers.
    Unavailable = 30,
    /// Mounting or unmounting failed.
    Mount = 31,
    /// Ctrl-C.
    Interrupted = 130,
}

impl Exit {
    /// The number that the shell sees.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// `error.kind` of the JSON result record.
    pub fn kind(self) -> &'static str {
        match self {
            Exit::Ok => "ok",
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::Partial => "partial",
            Exit::NotFound => "not-found",
            Exit::Locked => "locked",
            Exit::WrongKey => "wrong-key",
            Exit::Unsupported => "unsupported",
            Exit::Conflict => "conflict",
            Exit::Integrity => "integrity",
            Exit::Rollback => "rollback",
            Exit::Fork => "fork",
            Exit::Refused => "refused",
            Exit::Expired => "expired",
            Exit::Unavailable => "unavailable",
            Exit::Mount => "mount",
            Exit::Interrupted => "interrupted",
        }
    }

    /// The exit of a child process, from its code.
    pub fn from_code(code: u8) -> Option<Exit> {
        Exit::ALL.into_iter().find(|exit| exit.code() == code)
    }

    /// Every code.
    pub const ALL: [Exit; 17] = [
        Exit::Ok,
        Exit::Failed,
        Exit::Usage,
        Exit::Partial,
        Exit::NotFound,
        Exit::Locked,
        Exit::WrongKey,
        Exit::Unsupported,
        Exit::Conflict,
        Exit::Integrity,
        Exit::Rollback,
        Exit::Fork,
        Exit::Refused,
        Exit::Expired,
        Exit::Unavailable,
        Exit::Mount,
        Exit::Interrupted,
    ];
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{Kind, UNATTESTED};

    #[test]
    fn document_lists_every_code() {
        let text = include_str!("../../../docs/cli.md");
        for exit in Exit::ALL {
            let row = format!("| {} | `{}` |", exit.code(), exit.kind());
            assert!(text.contains(&row), "docs/cli.md lacks `{row}`");
        }
        let code = Kind::Unattested.exit().code();
        let row = format!("| {code} | `{UNATTESTED}` |");
        assert!(text.contains(&row), "docs/cli.md lacks `{row}`");
    }
}
