//! Errors of publishing a tree.

use content::attributes::AttributeError;
use std::path::PathBuf;

use state::StateError;
use store::StoreError;
use trust::Reject;
use trust::calendar::rfc3339;
use trust::signer::{NoSignature, SignError};
use trust::tally::Tally;

/// An error of publishing; nothing has been published when it is returned.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The directory to publish cannot be opened.
    #[error("cannot open the directory {}", path.display())]
    NoDirectory {
        /// As it was given.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// A file or directory of the tree cannot be published.
    #[error("cannot publish {}", path.display())]
    Unreadable {
        /// Relative to the published directory.
        path: PathBuf,
        /// Why not.
        #[source]
        why: Unreadable,
    },
    /// A member of an archive cannot be published, or the input is not an archive.
    #[error("cannot take {} from the archive: {why}", path.display())]
    Archive {
        /// As the archive names it.
        path: PathBuf,
        /// Why not.
        why: &'static str,
    },
    /// The archive cannot be read to its end.
    #[error("cannot read the archive")]
    Input(#[source] std::io::Error),
    /// A temporary file for sorting cannot be written or read.
    #[error("cannot keep a temporary file")]
    Spool(#[source] std::io::Error),
    /// The repository lies in the tree.
    #[error("the repository itself lies in the tree, at {}", path.display())]
    RepositoryInside {
        /// Relative to the published directory.
        path: PathBuf,
    },
    /// A key file, or another file of bulla's own, lies in the tree.
    #[error("{} is {what}", path.display())]
    OwnFile {
        /// Relative to the published directory.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A pattern of `--exclude` is malformed.
    #[error("the pattern {pattern:?} is malformed: {why}")]
    BadPattern {
        /// As it was given.
        pattern: String,
        /// Which rule it breaks.
        why: &'static str,
    },
    /// The repository belongs to a volume that this key may not publish.
    #[error("this key may not publish volume {volume}")]
    WrongKey {
        /// The volume in the repository.
        volume: String,
    },
    /// A new volume is to be signed later, but no publisher's key is given.
    #[error("a new volume needs to know whose it will be")]
    NoPublisher,
    /// The repository holds no version that could be renewed.
    #[error("nothing is published in {} yet", path.display())]
    NothingPublished {
        /// The repository.
        path: PathBuf,
    },
    /// The repository shows an older version than this machine has signed.
    #[error(
        "{} shows version {shows}, but this machine has signed version {signed} already",
        path.display()
    )]
    SetBack {
        /// The repository.
        path: PathBuf,
        /// What it shows.
        shows: u64,
        /// What was signed.
        signed: u64,
    },
    /// The newest policy has ended, so no reader would believe a version under it.
    #[error("the policy of this volume ended at {}", rfc3339(*not_after))]
    PolicyOver {
        /// End of the policy, unix seconds.
        not_after: u64,
    },
    /// The record that the timestamp would be for has expired.
    #[error("version {version} itself expired at {}: no timestamp can extend it", rfc3339(*until))]
    RecordOver {
        /// The version.
        version: u64,
        /// End of its validity, unix seconds.
        until: u64,
    },
    /// The file is not a signing request, or the request breaks a rule.
    #[error("the signing request {} is refused", path.display())]
    BadRequest {
        /// The file.
        path: PathBuf,
        /// The rule that the file breaks.
        #[source]
        why: Reject,
    },
    /// Signatures are missing under what is to be installed.
    #[error("{} is not signed by enough keys", path.display())]
    SignaturesMissing {
        /// The file.
        path: PathBuf,
        /// The roles that have not signed enough.
        #[source]
        missing: Missing,
    },
    /// More keys must sign than those that are here.
    #[error("version {version} of volume {volume} must be signed by more keys")]
    TooFewKeys {
        /// The version.
        version: u64,
        /// The volume.
        volume: String,
        /// The roles that cannot sign enough.
        #[source]
        missing: Missing,
    },
    /// The policy demands a timestamp, and the keys that are here cannot make one.
    #[error(
        "version {version} needs a timestamp: without it, no reader would believe the new head"
    )]
    NoTimestamp {
        /// The version.
        version: u64,
        /// The timestamp keys, and which of them are here.
        #[source]
        missing: Missing,
    },
    /// A timestamp of it would contradict what this machine has confirmed before.
    #[error("version {version} is not the newest that this machine has confirmed or signed")]
    NotNewest {
        /// The version to be confirmed.
        version: u64,
        /// What contradicts it.
        #[source]
        why: Reject,
    },
    /// A timestamp that was signed elsewhere is about something else.
    #[error("the timestamp is not about version {version}, or under another policy")]
    OtherTimestamp {
        /// The version that needs one.
        version: u64,
    },
    /// A timestamp that was signed elsewhere ends before the one that the repository shows.
    #[error("the timestamp ends at {}, and the repository shows one until {}", rfc3339(*until), rfc3339(*before))]
    OlderTimestamp {
        /// Its end, unix seconds.
        until: u64,
        /// The end of the one that is shown, unix seconds.
        before: u64,
    },
    /// A key did not sign: one that lies in a token, or with an agent.
    #[error(transparent)]
    NoSignature(#[from] NoSignature),
    /// The policy demands cosignatures, and nobody is named who makes them.
    #[error(
        "version {version} needs the cosignatures of {needed} of its witnesses, and no witness is named"
    )]
    NoWitness {
        /// The version.
        version: u64,
        /// How many must cosign.
        needed: u8,
    },
    /// Witnesses cosign only what a key of the log has signed, and none is here.
    #[error(
        "version {version} needs cosignatures, and no key that signs the log's checkpoints is here"
    )]
    NoLogKey {
        /// The version.
        version: u64,
    },
    /// Too few witnesses have cosigned. The version is remembered, and is not shown.
    #[error("too few witnesses have cosigned version {version}: nothing new is shown to readers")]
    NotCosigned {
        /// The version.
        version: u64,
        /// Whether so many witnesses say that they have cosigned another log of the volume that the others are too few.
        contradicted: bool,
        /// The witnesses, and what they said.
        #[source]
        said: Said,
    },
    /// The file is not a checkpoint for witnesses.
    #[error("{} is not a checkpoint for witnesses", path.display())]
    BadNote {
        /// The file.
        path: PathBuf,
        /// The rule that the file breaks.
        #[source]
        why: Reject,
    },
    /// The file is a checkpoint of another log, or of another version.
    #[error("{} is a checkpoint of another version", path.display())]
    OtherNote {
        /// The file.
        path: PathBuf,
    },
    /// The repository cannot prove that its log continues the one of this size.
    #[error("{} cannot prove that its log continues the first {from} entries", path.display())]
    NoProof {
        /// The repository.
        path: PathBuf,
        /// The size of the older log.
        from: u64,
    },
    /// The file is not a proposal of a policy, or breaks a rule.
    #[error("the proposal {} is refused", path.display())]
    BadProposal {
        /// The file.
        path: PathBuf,
        /// The rule that the file breaks.
        #[source]
        why: Reject,
    },
    /// The key is not that of an owner.
    #[error("this is not the key of an owner of volume {volume}")]
    NotOwner {
        /// The volume.
        volume: String,
    },
    /// Signing the policy would contradict what was signed before.
    #[error("policy {number} would contradict a policy that this machine has signed")]
    PolicyContradiction {
        /// Number of the policy.
        number: u64,
        /// What contradicts it.
        #[source]
        why: Reject,
    },
    /// The policy follows others that this machine has not signed, and that the file does not show.
    #[error(
        "policy {number} follows policies that the file does not show and that this machine has not signed, so nothing \
         here proves that owners have"
    )]
    SkippedPolicies {
        /// Number of the policy.
        number: u64,
    },
    /// More owners must sign the policy that is to be installed.
    #[error("{} is not signed by enough owners", path.display())]
    PolicyNotSigned {
        /// The file.
        path: PathBuf,
        /// The owners.
        #[source]
        missing: Missing,
    },
    /// The policy does not follow what the repository shows.
    #[error("policy {number} does not follow what {} shows", path.display())]
    PolicyNotNext {
        /// The repository.
        path: PathBuf,
        /// Number of the policy.
        number: u64,
        /// Why not.
        #[source]
        why: Reject,
    },
    /// A new volume was described, but the repository has one.
    #[error("{} has a volume already, with its own roles", path.display())]
    HasRoles {
        /// The repository.
        path: PathBuf,
    },
    /// Files that are to be installed together are not copies of one request.
    #[error("{} is not a copy of the same request as the first file", path.display())]
    OtherCopy {
        /// The file.
        path: PathBuf,
        /// How they differ.
        #[source]
        why: Reject,
    },
    /// A request cannot be read or written.
    #[error("{}", path.display())]
    RequestFile {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// Signing it would contradict what was signed before.
    #[error("version {version} would contradict what this machine has signed before")]
    Contradiction {
        /// The version to be signed.
        version: u64,
        /// What contradicts it.
        #[source]
        why: Reject,
    },
    /// The version follows others that this machine has not signed.
    #[error(
        "version {version} follows versions that this machine has not signed, and nothing here proves that \
         they continue the last one that it did"
    )]
    Skipped {
        /// The version to be signed.
        version: u64,
    },
    /// The repository shows a contradiction of what this machine has signed.
    #[error(
        "{} shows another version {version} than the one that this machine has signed",
        path.display()
    )]
    Forked {
        /// The repository.
        path: PathBuf,
        /// The version of which there are two records.
        version: u64,
    },
    /// The version to be installed does not continue the one that the repository shows.
    #[error("version {version} does not continue what {} shows: {why}", path.display())]
    NotNext {
        /// The repository.
        path: PathBuf,
        /// The version to be installed.
        version: u64,
        /// What it shows instead.
        why: Reject,
    },
    /// A block of the version to be installed is not in the repository.
    #[error("version {version} is not whole: {missing} of its blocks are not in {}", path.display())]
    Incomplete {
        /// The repository.
        path: PathBuf,
        /// The version to be installed.
        version: u64,
        /// How many blocks are missing, at least.
        missing: u64,
    },
    /// The memory of what this machine has signed cannot be read or written.
    #[error(transparent)]
    State(#[from] StateError),
    /// What this machine remembers of its signatures is damaged.
    #[error("the memory of what this machine has signed is damaged")]
    Memory(#[source] Reject),
    /// Another publication, pull or collection is at work.
    #[error("{} is locked by another process", path.display())]
    Locked {
        /// The repository.
        path: PathBuf,
    },
    /// The clock is before the start of the previous record.
    #[error(
        "the new version would begin at {}, before the last one, which begins at {}",
        rfc3339(*now), rfc3339(*previous)
    )]
    ClockBehind {
        /// What the clock says, or the request, unix seconds.
        now: u64,
        /// Start of the previous record, unix seconds.
        previous: u64,
    },
    /// The repository's head does not verify, so that nothing can be built on it.
    #[error("the head of {} does not verify", path.display())]
    BadHead {
        /// The repository.
        path: PathBuf,
        /// The rule that the file breaks.
        #[source]
        why: Reject,
    },
    /// The version numbers of this volume are used up, or the validity is too short.
    #[error("{0}")]
    Impossible(&'static str),
    /// Asked to stop.
    #[error("interrupted; the last published version stands")]
    Interrupted,
    /// A worker thread ended without an answer, which is a defect of this program.
    #[error("a worker thread died")]
    WorkerDied,
    /// The system gives no random numbers.
    #[error("the system gives no random numbers: {0}")]
    Random(String),
    /// The repository cannot be read or written.
    #[error(transparent)]
    Store(StoreError),
    /// A tree that the format cannot hold.
    #[error("the tree cannot be stored")]
    Tree(#[from] Reject),
}

impl From<SignError> for PublishError {
    fn from(error: SignError) -> Self {
        match error {
            SignError::Refused(why) => PublishError::Tree(why),
            SignError::NoSignature(none) => PublishError::NoSignature(none),
        }
    }
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Locked { path } => PublishError::Locked { path },
            other => PublishError::Store(other),
        }
    }
}

/// The roles of which more keys must sign.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missing(pub Vec<Tally>);

impl std::fmt::Display for Missing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, tally) in self.0.iter().enumerate() {
            f.write_str(if at == 0 { "" } else { "; " })?;
            tally.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for Missing {}

/// The witnesses that have not cosigned. Its sources are what each one said.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{missing}")]
pub struct Said {
    /// The witnesses of the policy.
    pub missing: Missing,
    /// What those said that were asked in vain.
    #[source]
    first: Option<Box<Heard>>,
}

/// Address and reason of a witness that was asked in vain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{said}")]
struct Heard {
    said: String,
    #[source]
    next: Option<Box<Heard>>,
}

impl Said {
    /// `said` has address and reason of each witness.
    pub(crate) fn new(missing: Missing, said: &[String]) -> Said {
        let chain = |next, said: &String| {
            Some(Box::new(Heard {
                said: said.clone(),
                next,
            }))
        };
        Said {
            missing,
            first: said.iter().rev().fold(None, chain),
        }
    }
}

/// Why one file cannot be published.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The system returned an error.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// It changed during each attempt to read it, or ended elsewhere than its size says.
    #[error(
        "it changed while it was read, {0} times in a row, or its file system reports a wrong size"
    )]
    Changing(u32),
    /// It is no longer the file that the directory listed.
    #[error("it was replaced by something else while it was read")]
    Replaced,
    /// A key file, or another file of bulla's own ([`state::own_files`]).
    #[error("it is {0}")]
    OwnFile(&'static str),
    /// Its attributes cannot be published.
    #[error("{0}")]
    Attributes(AttributeError),
    /// More names in its path than a reader looks up.
    #[error("its path has more than 256 names, and no reader looks up more")]
    TooDeep,
    /// A path that Linux would not take.
    #[error("its path is longer than 4,095 bytes, and no reader could open it")]
    LongPath,
    /// It breaks a rule of the format.
    #[error("{0}")]
    Refused(#[from] Reject),
}

impl From<rustix::io::Errno> for Unreadable {
    fn from(errno: rustix::io::Errno) -> Self {
        Unreadable::Io(errno.into())
    }
}

impl From<AttributeError> for Unreadable {
    fn from(why: AttributeError) -> Self {
        match why {
            AttributeError::Io(error) => Unreadable::Io(error),
            AttributeError::Refused(why) => Unreadable::Refused(why),
            why => Unreadable::Attributes(why),
        }
    }
}
