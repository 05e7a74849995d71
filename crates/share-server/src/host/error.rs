//! Why the server of a shared volume refuses or fails. Nothing that was acknowledged before is lost by any of these.

use std::path::PathBuf;
use std::sync::Arc;

use store::StoreError;
use trust::Reject;
use trust::key::PublicKey;

use crate::blocks;
use ordering::orderer::Turned;

/// Why a call is not carried out. An error can be given to several clients that waited for the same thing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum HostError {
    /// The orderer does not take the message.
    #[error("{}", turned(*.0))]
    Turned(Turned),
    /// The device is no member of the volume: its admission has no effect yet, or it was removed.
    #[error("this device is no member of the volume")]
    NoMember,
    /// The device has opened another session. This one is over.
    #[error("the device has opened another session")]
    Superseded,
    /// There are no leaves, or not so many.
    #[error("the log has {published} leaves, and no leaf {position}")]
    NoLeaf {
        /// What was asked for.
        position: u64,
        /// Number of leaves that are durable.
        published: u64,
    },
    /// The block server refuses or fails.
    #[error(transparent)]
    Blocks(#[from] blocks::Error),
    /// The mailbox does not take a message.
    #[error("the mailbox refuses the message: {0}")]
    Mailbox(#[from] super::mailbox::Refused),
    /// No checkpointer of the volume signed the checkpoint, or it is of another log.
    #[error("the checkpoint is not kept: {0}")]
    Checkpoint(Reject),
    /// A file of the server's directory cannot be read or written.
    #[error("{0}")]
    Disk(Arc<StoreError>),
    /// The directory is not that of a shared volume's server.
    #[error("{} holds no shared volume", path.display())]
    NotShared {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is that of another volume's server.
    #[error("{} holds another shared volume", path.display())]
    OtherVolume {
        /// The directory.
        path: PathBuf,
    },
    /// The key is not the one that the volume's policy names.
    #[error("the volume's orderer is {expected}, and this key is {found}")]
    OtherOrderer {
        /// The key that the policy names.
        expected: PublicKey,
        /// The key that was given.
        found: PublicKey,
    },
    /// The genesis policy is not one of a shared volume, or a policy is bad.
    #[error("a policy is refused: {0}")]
    Policy(Reject),
    /// Policies do not continue those that the server has: the owners have signed two rules with one number.
    #[error("the policies do not continue those of this server: {why}")]
    OtherPolicies {
        /// What differs.
        why: &'static str,
    },
    /// The owners let a prefix of the log stand that this server does not have.
    #[error(
        "the owners let the first {size} leaves of another log stand: this server has {published} leaves, and not those"
    )]
    OtherStart {
        /// Size of the prefix.
        size: u64,
        /// Leaves of this server.
        published: u64,
    },
    /// The log has fewer leaves than the orderer has signed: the directory was restored from a copy. Whatever the
    /// orderer signs next would be a fork, so it signs nothing any more.
    #[error("the log has fewer leaves than the orderer has signed: {why}")]
    Restored {
        /// What shows it.
        why: Arc<str>,
    },
    /// Damage that cannot be mended. Nothing was changed.
    #[error("the directory cannot be mended: {why}")]
    Unmended {
        /// What is missing, and what follows.
        why: String,
    },
    /// A copy of a server's directory is of another volume.
    #[error("{} is of another volume", path.display())]
    CopyOfOther {
        /// The copy.
        path: PathBuf,
    },
    /// A copy of a server's directory has another log or other policies: one of the two is a fork.
    #[error("{} has another log: {why}", path.display())]
    ForkedCopy {
        /// The copy.
        path: PathBuf,
        /// Where they differ.
        why: String,
    },
    /// A copy of a server's directory is newer than the directory itself.
    #[error("{} is newer: {why}", path.display())]
    NewerCopy {
        /// The copy.
        path: PathBuf,
        /// What it has.
        why: String,
    },
    /// The server stops.
    #[error("the server is stopping")]
    Stopped,
}

impl From<StoreError> for HostError {
    fn from(error: StoreError) -> HostError {
        HostError::Disk(Arc::new(error))
    }
}

impl From<Turned> for HostError {
    fn from(turned: Turned) -> HostError {
        HostError::Turned(turned)
    }
}

fn turned(why: Turned) -> &'static str {
    match why {
        Turned::NoSession => "the device must open a session first",
        Turned::Busy => "the server is busy, try again later",
        Turned::Quota => "the device sends too much, try again later",
        Turned::Forged => "the message is not signed by the device",
        Turned::OtherEpoch => {
            "the owners have begun the volume's log again, and this device has not gone over to it"
        }
        Turned::OtherLog => "the device's note is of another log",
        Turned::Restored => "the server's log was restored from a copy, and signs nothing any more",
    }
}
