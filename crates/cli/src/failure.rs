//! What a person is told when a command fails: error, cause, and what to do. One table holds the
//! exit code and the hint of every kind, so that no error can be without either.

use std::fmt;

use crate::exit::Exit;

/// The kinds of failure, each with its exit code and its hint.
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident => $exit:ident, $hint:expr;)*) => {
        /// What went wrong, as finely as the advice differs.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind {
            $($(#[$doc])* $name,)*
        }

        impl Kind {
            /// How the program ends.
            pub fn exit(self) -> Exit {
                match self {
                    $(Kind::$name => Exit::$exit,)*
                }
            }

            /// What to do about it.
            pub fn hint(self) -> &'static str {
                match self {
                    $(Kind::$name => $hint,)*
                }
            }

            /// Every kind, for the test that reads all hints.
            #[cfg(test)]
            pub const ALL: &[Kind] = &[$(Kind::$name,)*];
        }
    };
}

kinds! {
    /// The command line is wrong.
    Usage => Usage, "`bulla --help` lists the commands, `bulla COMMAND --help` the flags of one";
    /// The configuration file or a `BULLA_*` variable is wrong.
    Config => Usage, "`bulla config show` tells where each value comes from; docs/cli.md lists the keys";
    /// SOURCE or LOCATION is not written as it must be.
    BadSource => Usage, "a source is written VOLUMEID@LOCATION; copy the volume id whole from the publisher, and write LOCATION as a directory, bulla://host[:port] or http(s)://host/path";
    /// SOURCE has no volume id.
    NoVolumeId => Usage, "ask the publisher for the volume id over a way that you trust, and write VOLUMEID@LOCATION";
    /// A pattern of `--exclude` means nothing.
    BadPattern => Usage, "patterns are written as in .gitignore: `*.o`, `build/`, `/docs/*.html`";
    /// A secret is needed and nobody may be asked.
    NoInput => Usage, "give the passphrase by --passphrase-file FILE, --passphrase-fd N or --passphrase-command CMD";
    /// A path is not in the volume, and that is proved.
    NotFound => NotFound, "the volume proves that the path is not there; `bulla ls SOURCE` shows what is";
    /// A path is there, but of another kind.
    Misfit => Failed, "`bulla stat SOURCE PATH` tells what it is";
    /// A file or directory of this machine is not there.
    NoFile => NotFound, "check the path; it is taken relative to the current directory";
    /// No key file where one was named.
    NoKey => NotFound, "name the publisher's key file with --key FILE (or the setting `key`); `bulla key new --out FILE` makes one";
    /// No repository where one was expected.
    NoRepository => NotFound, "check the path; `bulla publish DIR REPO --key FILE` makes a repository";
    /// Another process is at work in the repository.
    Locked => Locked, "wait until the other publication, pull or collection has finished; a lock is never left behind by a dead one";
    /// The repository is another volume's.
    OtherVolume => Usage, "name another repository: each holds one volume; an empty or missing directory makes a new replica";
    /// The key is not the volume's.
    WrongKey => WrongKey, "use the key with which the volume was first published (`bulla key show FILE` tells a key's name), or publish into an empty repository";
    /// The passphrase does not open the key file.
    WrongPassphrase => WrongKey, "try again; without the passphrase the key cannot be recovered";
    /// The key file cannot be used.
    KeyFile => WrongKey, "a key file is made by `bulla key new --out FILE` and must be readable by you alone (chmod 600 FILE)";
    /// A file that would be overwritten.
    Exists => Failed, "choose another name, or move what is there away; bulla overwrites no key and no file of yours";
    /// The tree holds what cannot be published.
    Unreadable => Failed, "nothing was published; make it readable, leave it out with --exclude, or publish the rest with --skip-unreadable";
    /// An archive that is none, or holds what cannot be published.
    Archive => Failed, "nothing was published; the archive must be a whole tar stream, unpacked (`zcat FILE | bulla publish - REPO`), whose names stay inside of it";
    /// The repository would publish itself.
    RepositoryInside => Usage, "put the repository beside the tree, not into it, or leave it out with --exclude";
    /// The clock is wrong.
    Clock => Failed, "set this machine's clock (`timedatectl` shows it), then publish again";
    /// A new volume without an owner.
    NoPublisher => Usage, "name the key that will sign it with --publisher KEY1...; `bulla key show FILE` tells its name where the key is";
    /// The repository went back behind what was signed here.
    SetBack => Failed, "the repository was restored or set back; `bulla publish` the tree again, which counts on from what was signed";
    /// A timestamp cannot help.
    RecordOver => Expired, "the publisher's own key must make a new version: `bulla renew REPO --key FILE`, or publish again";
    /// A file that is no signing request, or breaks a rule of one.
    BadRequest => Integrity, "the file was damaged or altered on its way; make it again with `bulla publish --unsigned`";
    /// A request where what was signed is expected.
    NotYetSigned => Integrity, "this is the request itself: `bulla sign` it where the key is, and install the file that comes of it";
    /// Nobody agreed.
    NotConfirmed => Usage, "look at what is shown and answer yes, or say --yes where no person is to be asked";
    /// A later version was signed.
    SignedLater => Rollback, "this machine has signed a later version; make a new request with `bulla publish --unsigned` from the newest repository";
    /// Another record of that version was signed.
    SignedOther => Fork, "this key has signed another tree as that version, and two would be a fork: install what was signed first (sign its own request again, if the file was lost), then publish anew";
    /// What was signed is not newer than what stands.
    OldRequest => Rollback, "the repository has a later version already; nothing needs to be installed";
    /// What was signed does not continue what stands.
    NotNext => Fork, "the repository went on without it: publish --unsigned again and have that signed";
    /// Blocks are missing.
    Incomplete => Failed, "the repository lost blocks of this version; publish the same tree --unsigned again (nothing else need be signed while the tree is the same), then install";
    /// A version that no place keeps.
    NoVersion => NotFound, "`bulla log SOURCE` lists the versions that are kept; another LOCATION may have more";
    /// A head that does not verify under its own volume id.
    BadHead => Integrity, "the repository was damaged or altered; restore it from a mirror, or publish into an empty one (which makes a new volume)";
    /// A repository's file is damaged.
    Damaged => Integrity, "restore the repository from a mirror or publish the tree again; `bulla verify` tells what is affected";
    /// Written by a newer bulla.
    Newer => Failed, "install a newer bulla; `bulla version` tells which one this is";
    /// The disk is full, or a quota is used up.
    DiskFull => Failed, "free some space and run the same command again; what was there before is untouched";
    /// The system does not allow it.
    Denied => Failed, "check the permissions, or run as a user who may do this";
    /// The system said no for another reason.
    System => Failed, "the cause is the system's own word; when it is mended, the same command can be run again";
    /// The state directory cannot be used.
    State => Failed, "the floor (which versions were already seen) lies there and cannot be done without; make it writable or name another with BULLA_STATE_DIR";
    /// Another process holds the lock of the state directory.
    StateLocked => Locked, "run the same command again when the other bulla has finished; one that is stopped keeps its lock: resume it (kill -CONT PID) or end it (kill PID)";
    /// The disk with the state directory does not answer.
    StateStalled => Failed, "the disk with the state directory is slow or hangs; run the same command again when it answers, or name another directory with BULLA_STATE_DIR";
    /// The cache directory cannot be used.
    Cache => Failed, "make the cache directory writable, name another with --cache DIR, or do without one; what lies in it can be deleted at any time";
    /// Bytes that are not what the publisher signed.
    Integrity => Integrity, "do not trust this place: it altered the volume or its disk did. Read from another LOCATION, and tell whoever runs this one";
    /// The publisher signed nonsense.
    Malformed => Integrity, "the publisher's own statement breaks the rules, so no mirror can help; tell the publisher";
    /// Signed by the wrong key.
    NotSigned => Integrity, "do not trust this place: the statement is not by the volume's publisher. Check the volume id, and read from another LOCATION";
    /// Another volume than the one named.
    WrongVolume => Integrity, "this place serves another volume than you named; check the volume id with its publisher, and the location";
    /// Older than what was seen.
    Rollback => Rollback, "this place serves an old version; use another LOCATION. If the publisher says that going back was meant, ask for a new, higher version";
    /// Two statements that contradict each other.
    Fork => Fork, "two different statements of the same rank exist: the publisher's key may be stolen. Stop, and ask the publisher; the evidence is kept in the state directory";
    /// The statement's time has passed.
    Expired => Expired, "ask the publisher to publish again (each version is valid for a limited time), try another LOCATION, and check this machine's clock";
    /// A statement from the future.
    NotYetValid => Expired, "the statement begins in the future: this machine's clock is slow or the publisher's is fast; `timedatectl` shows this one";
    /// The volume was ended by its owners.
    Revoked => Expired, "the owners ended this volume; ask them for its successor and use that volume id";
    /// Not the version that was asked for.
    NotPinned => Unavailable, "the place does not have exactly what you pinned; use another LOCATION, or pin another version";
    /// No replica answers.
    Unavailable => Unavailable, "check the address and that `bulla serve` or the web server is running there, or use another LOCATION";
    /// The place has no such volume.
    NoVolume => Unavailable, "this server does not carry the volume; check LOCATION, or ask the publisher where it is served";
    /// A place that is no place of the volume.
    Place => Unavailable, "check LOCATION: it must be a repository that `bulla publish` made, or a server that carries the volume";
    /// No address to listen on.
    Listen => Failed, "choose another address with --listen or --http; port 0 takes any free one";
    /// The mount cannot be made.
    Mount => Mount, "the directory must exist, /dev/fuse must be there, and users other than root need fusermount3 (package fuse3)";
    /// Something is mounted there.
    Occupied => Mount, "`bulla umount DIR` takes away what is mounted there; or choose another directory";
    /// A dead mount is in the way.
    Stale => Mount, "`bulla umount DIR` clears a mount whose daemon has died; then mount again";
    /// The mount cannot be unmade.
    Unmount => Mount, "`cat /proc/mounts` lists what is mounted; only root or the user who mounted it can unmount it";
    /// An entry that `extract` may not make.
    Extract => Failed, "special files and owners need root; `--skip-special` leaves special files out";
    /// The doctor found something.
    Unwell => Failed, "each finding tells what to do; `bulla doctor --fix` clears dead mounts and what dead daemons left";
    /// Ctrl-C.
    Interrupted => Interrupted, "run the same command again to go on; nothing half-finished is visible";
    /// A defect of bulla.
    Defect => Failed, "this is a defect of bulla; please report it with what -vv prints";
}

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// Which kind.
    pub kind: Kind,
    /// The error in one line.
    pub error: String,
    /// Why, from the outermost cause inwards.
    pub causes: Vec<String>,
    /// A hint that knows more than the table's.
    pub hint: Option<String>,
    /// The exit code, where another process of this program already chose it.
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

    /// A failure about something, with the causes that a library tells.
    pub fn of(kind: Kind, error: impl Into<String>, source: &dyn std::error::Error) -> Failure {
        let mut failure = Failure::new(kind, error);
        let mut next = Some(source);
        while let Some(cause) = next {
            failure.push_cause(cause.to_string());
            next = cause.source();
        }
        failure
    }

    /// A library's error, which is both the error and its causes.
    pub fn from_error(kind: Kind, error: &dyn std::error::Error) -> Failure {
        match error.source() {
            Some(source) => Failure::of(kind, error.to_string(), source),
            None => Failure::new(kind, error.to_string()),
        }
    }

    /// What the system said about `what`.
    pub fn io(what: impl Into<String>, error: &std::io::Error) -> Failure {
        Failure::of(io_kind(error), what, error)
    }

    /// Adds a cause, unless it repeats what was said.
    pub fn push_cause(&mut self, cause: String) {
        if !self.error.ends_with(&cause) && self.causes.last() != Some(&cause) {
            self.causes.push(cause);
        }
    }

    /// Replaces the table's hint by a better one.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// What to do.
    pub fn hint(&self) -> &str {
        self.hint.as_deref().unwrap_or(self.kind.hint())
    }

    /// How the program ends.
    pub fn exit(&self) -> Exit {
        self.exit_code.unwrap_or(self.kind.exit())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.error)
    }
}

/// The kind of a system's error.
pub fn io_kind(error: &std::io::Error) -> Kind {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::NotFound => Kind::NoFile,
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Kind::Denied,
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            Kind::DiskFull
        }
        ErrorKind::AlreadyExists => Kind::Exists,
        _ => Kind::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_hint_that_says_what_to_do() {
        for kind in Kind::ALL {
            let hint = kind.hint();
            assert!(hint.len() >= 30, "{kind:?}: {hint}");
            assert!(!hint.ends_with('.'), "{kind:?}: hints are phrases");
            assert_ne!(kind.exit(), Exit::Ok, "{kind:?}");
        }
    }

    #[test]
    fn causes_are_not_repeated() {
        let inner = std::io::Error::from_raw_os_error(28);
        let failure = Failure::io("writing the head", &inner);
        assert_eq!(failure.kind, Kind::DiskFull);
        assert_eq!(failure.causes.len(), 1);
        let mut failure = Failure::new(Kind::System, format!("x: {inner}"));
        failure.push_cause(inner.to_string());
        assert!(failure.causes.is_empty());
    }
}
