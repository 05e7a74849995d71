//! Maps the errors of the libraries to kinds of failure. Every match is exhaustive, so a new variant of an
//! error does not compile until it has a kind, and with it an exit code and a hint. Those of the library are in `library`,
//! those of shared volumes in `shared`.

use std::error::Error;

use keys::keyfile::KeyError;
use keys::slots::{BadRecoveryKey, SlotError};
use mount::MountError;
use mount::loop_device::LoopError;
use protect::anchor::AnchorError;
use protect::enrol::EnrolError;
use protect::map::MapError;
use protect::{AttachError, EngineError};
use publish::publish_error::PublishError;
use reader::ReadError;
use replica::prune::PruneError;
use replica::pull::PullError;
use serve::mirror::ServeError;
use state::StateError;
use store::StoreError;
use trust::Reject;
use trust::signer::NoSignature;
use volume::VolumeError;
use volume::forks::ForkError;
use wal::LogError;
use wire::LocationError;

use crate::failure::{Failure, Kind, io_kind};

/// The kind of failure for a rejection.
pub fn reject_kind(reject: &Reject) -> Kind {
    match reject {
        Reject::WrongBlock
        | Reject::WrongKind { .. }
        | Reject::BadFrame(_)
        | Reject::Malformed { .. }
        | Reject::BadHistory(_) => Kind::Integrity,
        Reject::BadTree { .. } => Kind::Malformed,
        Reject::NotSigned(_) => Kind::NotSigned,
        Reject::StrayPolicy(_) => Kind::StrayPolicy,
        Reject::WrongVolume => Kind::WrongVolume,
        Reject::Rollback { .. } => Kind::Rollback,
        Reject::Fork(_) => Kind::Fork,
        Reject::Expired { .. } => Kind::Expired,
        Reject::Superseded(_) => Kind::Superseded,
        Reject::Refused(_) => Kind::Refused,
        Reject::NotYetValid { .. } => Kind::NotYetValid,
        Reject::Revoked { .. } => Kind::Revoked,
        Reject::NotPinned(_) => Kind::NotPinned,
        Reject::Unproved | Reject::PoliciesMissing { .. } | Reject::UnknownFrame(_) => {
            Kind::Unavailable
        }
        Reject::Unsupported { .. } => Kind::Newer,
    }
}

fn store_kind(error: &StoreError) -> Kind {
    match error {
        StoreError::Unavailable { .. } | StoreError::Unusable { .. } => Kind::Unavailable,
        StoreError::BadAnswer { why, .. } => reject_kind(why),
        StoreError::Unsupported { .. } => Kind::Newer,
        StoreError::NoVolume { .. } => Kind::NoVolume,
        StoreError::Full { .. } => Kind::DiskFull,
        StoreError::NoBlock { .. } | StoreError::WrongBlock { .. } => Kind::Damaged,
        StoreError::NoRepository { .. } => Kind::NoRepository,
        StoreError::Format { .. } => Kind::Newer,
        StoreError::Locked { .. } => Kind::Locked,
        StoreError::Damaged { .. } => Kind::Damaged,
        StoreError::Io { source, .. } => io_kind(source),
    }
}

fn read_kind(error: &ReadError) -> Kind {
    match error {
        ReadError::NotCached => Kind::Defect,
        ReadError::Unavailable { .. } => Kind::Unavailable,
        ReadError::Integrity { why, .. } => reject_kind(why),
        ReadError::Unsupported { .. } => Kind::Newer,
        ReadError::Malformed(_) => Kind::Malformed,
        ReadError::NotFound { .. } => Kind::NotFound,
        ReadError::WrongKind { .. } => Kind::Misfit,
    }
}

fn volume_kind(error: &VolumeError) -> Kind {
    match error {
        VolumeError::Read(error) => read_kind(error),
        VolumeError::Statement { why, .. } => reject_kind(why),
        VolumeError::Expired { .. } => Kind::Expired,
        VolumeError::Place(_) => Kind::Place,
        VolumeError::State(error) => state_kind(error),
    }
}

fn state_kind(error: &StateError) -> Kind {
    match error {
        StateError::Failed { .. } => Kind::State,
        StateError::Locked { .. } => Kind::StateLocked,
        StateError::Stalled { .. } => Kind::StateStalled,
    }
}

fn fork_kind(error: &ForkError) -> Kind {
    match error {
        ForkError::Unknown => Kind::NoFork,
        ForkError::Changed => Kind::OtherFork,
        ForkError::Refused(_) => Kind::Unsettled,
        ForkError::State(error) => state_kind(error),
    }
}

fn location_kind(error: &LocationError) -> Kind {
    match error {
        LocationError::Syntax { .. } => Kind::BadSource,
        LocationError::Place(_) => Kind::Place,
        LocationError::Unavailable(_) => Kind::Unavailable,
    }
}

fn pull_kind(error: &PullError) -> Kind {
    match error {
        PullError::Volume(error) => volume_kind(error),
        PullError::Store(error) => store_kind(error),
        PullError::OtherVolume { .. } => Kind::OtherVolume,
        PullError::Interrupted => Kind::Interrupted,
    }
}

fn prune_kind(error: &PruneError) -> Kind {
    match error {
        PruneError::Store(error) => store_kind(error),
        PruneError::Nothing { .. } => Kind::NoRepository,
        PruneError::Unsure { .. } => Kind::Damaged,
    }
}

fn key_kind(error: &KeyError) -> Kind {
    match error {
        KeyError::Io { source, .. } => io_kind(source),
        KeyError::Exists { .. } => Kind::Exists,
        KeyError::Exposed { .. } | KeyError::Malformed { .. } => Kind::KeyFile,
        KeyError::Foreign { .. } => Kind::ForeignKeyFile,
        KeyError::Elsewhere { .. } => Kind::KeyElsewhere,
        KeyError::BadReference { .. } => Kind::Usage,
        KeyError::WrongPassphrase { .. } => Kind::WrongPassphrase,
        KeyError::NoPassphrase { .. } => Kind::NoInput,
        KeyError::Random(_) | KeyError::Derivation(_) => Kind::System,
    }
}

fn no_signature_kind(_: &NoSignature) -> Kind {
    Kind::NoSignature
}

fn publish_kind(error: &PublishError) -> Kind {
    match error {
        PublishError::NoDirectory { source, .. } => io_kind(source),
        PublishError::Unreadable { .. } => Kind::Unreadable,
        PublishError::RepositoryInside { .. } => Kind::RepositoryInside,
        PublishError::OwnFile { .. } => Kind::OwnFile,
        PublishError::BadPattern { .. } => Kind::BadPattern,
        PublishError::WrongKey { .. } => Kind::WrongKey,
        PublishError::Archive { .. } => Kind::Archive,
        PublishError::Input(source) => io_kind(source),
        PublishError::Spool(source) => io_kind(source),
        PublishError::NoPublisher => Kind::NoPublisher,
        PublishError::NothingPublished { .. } => Kind::NoRepository,
        PublishError::SetBack { .. } => Kind::SetBack,
        PublishError::PolicyOver { .. } => Kind::PolicyOver,
        PublishError::RecordOver { .. } => Kind::RecordOver,
        PublishError::BadRequest { why, .. } => match reject_kind(why) {
            Kind::NotYetValid => Kind::EarlyRequest,
            Kind::Integrity | Kind::Malformed => Kind::BadRequest,
            kind => kind,
        },
        PublishError::SignaturesMissing { .. } => Kind::NotYetSigned,
        PublishError::TooFewKeys { .. } => Kind::TooFewKeys,
        PublishError::NoTimestamp { .. } => Kind::NoTimestamp,
        PublishError::NotNewest { why, .. } => match why {
            Reject::Rollback { .. } => Kind::ConfirmedLater,
            _ => Kind::ConfirmedOther,
        },
        PublishError::OtherTimestamp { .. } => Kind::OtherTimestamp,
        PublishError::OlderTimestamp { .. } => Kind::OlderTimestamp,
        PublishError::NoSignature(_) => Kind::NoSignature,
        PublishError::NoWitness { .. } => Kind::NoWitness,
        PublishError::NoLogKey { .. } => Kind::NoLogKey,
        PublishError::NotCosigned { contradicted, .. } => match contradicted {
            true => Kind::TwoHistories,
            false => Kind::NotCosigned,
        },
        PublishError::BadNote { .. } => Kind::BadNote,
        PublishError::OtherNote { .. } => Kind::OtherNote,
        PublishError::NoProof { .. } => Kind::NoLogProof,
        PublishError::BadProposal { why, .. } => match reject_kind(why) {
            Kind::Integrity | Kind::Malformed => Kind::BadProposal,
            kind => kind,
        },
        PublishError::NotOwner { .. } => Kind::NotOwner,
        PublishError::PolicyContradiction { why, .. } => match why {
            Reject::Rollback { .. } => Kind::SignedLaterPolicy,
            _ => Kind::SignedOtherPolicy,
        },
        PublishError::SkippedPolicies { .. } => Kind::SkippedPolicies,
        PublishError::PolicyNotSigned { .. } => Kind::PolicyNotSigned,
        PublishError::PolicyNotNext { why, .. } => match why {
            Reject::WrongVolume => Kind::WrongVolume,
            _ => Kind::PolicyNotNext,
        },
        PublishError::HasRoles { .. } => Kind::HasRoles,
        PublishError::OtherCopy { why, .. } => match why {
            Reject::WrongVolume => Kind::WrongVolume,
            _ => Kind::OtherCopy,
        },
        PublishError::RequestFile { source, .. } => io_kind(source),
        PublishError::Contradiction { why, .. } => match why {
            Reject::Rollback { .. } => Kind::SignedLater,
            _ => Kind::SignedOther,
        },
        PublishError::Skipped { .. } => Kind::SkippedVersions,
        PublishError::Forked { .. } => Kind::TwoRecords,
        PublishError::NotNext { why, .. } => match why {
            Reject::WrongVolume => Kind::WrongVolume,
            Reject::Rollback { .. } => Kind::OldRequest,
            _ => Kind::NotNext,
        },
        PublishError::Incomplete { .. } => Kind::Incomplete,
        PublishError::State(error) => state_kind(error),
        PublishError::Memory(_) => Kind::SignerMemory,
        PublishError::Locked { .. } => Kind::Locked,
        PublishError::ClockBehind { .. } => Kind::Clock,
        PublishError::BadHead { why, .. } => match reject_kind(why) {
            // This head is on the publisher's own disk, so no mirror is to blame.
            Kind::Newer => Kind::Newer,
            Kind::Revoked => Kind::Revoked,
            _ => Kind::BadHead,
        },
        PublishError::Impossible(_) => Kind::Usage,
        PublishError::Interrupted => Kind::Interrupted,
        PublishError::WorkerDied => Kind::Defect,
        PublishError::Random(_) => Kind::System,
        PublishError::Store(error) => store_kind(error),
        PublishError::Tree(_) => Kind::Unreadable,
    }
}

fn serve_kind(error: &ServeError) -> Kind {
    match error {
        ServeError::Listen(_) => Kind::Listen,
        ServeError::SameVolume { .. } | ServeError::Nothing => Kind::Usage,
        ServeError::Unpublished { .. } => Kind::NoRepository,
        ServeError::Store(error) => store_kind(error),
        ServeError::Head { why, .. } => match reject_kind(why) {
            Kind::Newer => Kind::Newer,
            _ => Kind::BadHead,
        },
    }
}

fn loop_kind(error: &LoopError) -> Kind {
    match error {
        LoopError::Busy { .. } => Kind::DeviceInUse,
        LoopError::NoModule
        | LoopError::NoPermission
        | LoopError::NoProgram
        | LoopError::Silent { .. }
        | LoopError::Refused { .. }
        | LoopError::Vanished { .. }
        | LoopError::Setting { .. }
        | LoopError::Io { .. } => Kind::LoopDevice,
    }
}

fn mount_kind(error: &MountError) -> Kind {
    match error {
        MountError::Directory { .. } | MountError::Refused { .. } | MountError::Silent { .. } => {
            Kind::Mount
        }
        MountError::Stale { .. } => Kind::Stale,
        MountError::Busy { .. } => Kind::Occupied,
        MountError::InUse { .. } => Kind::VolumeMounted,
        MountError::Home { source, .. } => crate::failure::io_kind(source),
        MountError::Volume(error) => library::kind(error),
        MountError::NotMounted { .. } | MountError::Unmount { .. } => Kind::Unmount,
        MountError::Ended { .. } | MountError::Unanswered { .. } => Kind::Mount,
    }
}

fn slot_kind(error: &SlotError) -> Kind {
    match error {
        SlotError::Malformed { .. } | SlotError::OtherVolume => Kind::LogDamaged,
        SlotError::Unsupported { .. } => Kind::Newer,
        SlotError::WrongKey { .. } | SlotError::NoSuchKind { .. } => Kind::VolumeKey,
        SlotError::NoSlot { .. } => Kind::NoSlot,
        SlotError::LastSlot { .. } => Kind::LastSlot,
        SlotError::Full => Kind::SlotsFull,
        SlotError::TooCostly { .. } => Kind::CostlySlot,
        SlotError::Empty => Kind::NoInput,
        SlotError::KeyLength { .. } => Kind::WeakKey,
        SlotError::Random(_) | SlotError::Derivation(_) => Kind::System,
    }
}

fn recovery_kind(_: &BadRecoveryKey) -> Kind {
    Kind::RecoveryText
}

fn anchor_kind(error: &AnchorError) -> Kind {
    match error {
        AnchorError::Io { source, .. } => io_kind(source),
        AnchorError::Malformed { .. } | AnchorError::Exposed { .. } => Kind::AnchorFile,
        AnchorError::OtherVolume { .. } => Kind::OtherAnchor,
        AnchorError::Locked { .. } => Kind::AnchorLocked,
        AnchorError::Exists { .. } => Kind::Exists,
        AnchorError::Backwards { .. } => Kind::LogRollback,
    }
}

fn log_kind(error: &LogError) -> Kind {
    match error {
        LogError::NotALog => Kind::NoLog,
        LogError::WrongKey { .. } => Kind::VolumeKey,
        LogError::OtherVolume { .. } => Kind::OtherLog,
        LogError::Unsupported { .. } => Kind::Newer,
        LogError::Rollback { .. } => Kind::LogRollback,
        LogError::StaleAnchor { .. } => Kind::StaleAnchor,
        LogError::Truncated { .. }
        | LogError::Integrity { .. }
        | LogError::Superblock { .. }
        | LogError::Released { .. } => Kind::LogDamaged,
        LogError::Io { .. } | LogError::Failed { .. } => Kind::LogDevice,
        LogError::Foreign => Kind::Attached,
        LogError::Claimed { .. } => Kind::AttachedElsewhere,
        LogError::Invalid { .. } => Kind::Usage,
        LogError::Full { .. } => Kind::Defect,
        LogError::Random => Kind::System,
    }
}

fn map_kind(error: &MapError) -> Kind {
    match error {
        MapError::Page { .. } | MapError::Range { .. } | MapError::Shape { .. } => Kind::LogDamaged,
        MapError::Area { .. } => Kind::LogDamaged,
        MapError::Io { .. } => Kind::LogDevice,
        MapError::Align { .. } => Kind::Usage,
        MapError::Digest | MapError::Uncommitted => Kind::Defect,
    }
}

fn engine_kind(error: &EngineError) -> Kind {
    match error {
        EngineError::Log(error) => log_kind(error),
        EngineError::Full => Kind::Defect,
        EngineError::Map(error) => map_kind(error),
        EngineError::Data { .. } => Kind::DataDevice,
        EngineError::Anchor(error) => anchor_kind(error),
    }
}

fn enrol_kind(error: &EnrolError) -> Kind {
    match error {
        EnrolError::Shape { .. } | EnrolError::OtherRing { .. } => Kind::Usage,
        EnrolError::TooSmall { .. } => Kind::LogTooSmall,
        EnrolError::Occupied { .. } => Kind::NotConfirmed,
        EnrolError::WrongKey { .. } => Kind::VolumeKey,
        EnrolError::Changed => Kind::DeviceChanged,
        EnrolError::Data { .. } => Kind::DataDevice,
        EnrolError::LogDevice { .. } => Kind::LogDevice,
        EnrolError::Log(error) => log_kind(error),
        EnrolError::Map(error) => map_kind(error),
        EnrolError::Stopped { .. } => Kind::Stopped,
    }
}

fn attach_kind(error: &AttachError) -> Kind {
    match error {
        AttachError::Log(error) => log_kind(error),
        AttachError::OtherDevice { .. } | AttachError::OtherContent { .. } => Kind::OtherLog,
        AttachError::ChangedContent { .. } => Kind::ChangedDevice,
        AttachError::Format(_) => Kind::Newer,
        AttachError::Contradiction(_) => Kind::Defect,
        AttachError::Map(error) => map_kind(error),
        AttachError::Data { .. } => Kind::DataDevice,
        AttachError::Threads(_) => Kind::System,
        AttachError::Engine(error) => engine_kind(error),
    }
}

macro_rules! failures {
    ($($error:ty => $kind:ident;)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Failure {
                let error: &$error = &error;
                Failure::from_error($kind(error), error as &dyn Error)
            }
        })*
    };
}

failures! {
    StoreError => store_kind;
    ReadError => read_kind;
    VolumeError => volume_kind;
    StateError => state_kind;
    ForkError => fork_kind;
    LocationError => location_kind;
    KeyError => key_kind;
    NoSignature => no_signature_kind;
    PublishError => publish_kind;
    PullError => pull_kind;
    PruneError => prune_kind;
    ServeError => serve_kind;
    MountError => mount_kind;
    SlotError => slot_kind;
    BadRecoveryKey => recovery_kind;
    AnchorError => anchor_kind;
    LogError => log_kind;
    AttachError => attach_kind;
    EnrolError => enrol_kind;
    EngineError => engine_kind;
}

mod library;
mod shared;

impl From<LoopError> for Failure {
    fn from(error: LoopError) -> Failure {
        // Its own hints are more specific.
        Failure::from_error(loop_kind(&error), &error).with_hint(error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use trust::error::Class;

    /// One of each rejection.
    fn rejects() -> Vec<Reject> {
        vec![
            Reject::WrongBlock,
            Reject::BadFrame("x"),
            Reject::UnknownFrame("x"),
            Reject::BadHistory("x"),
            Reject::Superseded("x"),
            Reject::StrayPolicy("x"),
            Reject::Refused("x"),
            Reject::NotPinned("x"),
            Reject::Unproved,
            Reject::Revoked { successor: None },
            Reject::BadTree {
                what: "x",
                why: "y",
            },
            Reject::NotSigned("x"),
            Reject::WrongVolume,
            Reject::Rollback {
                offered: 1,
                floor: 2,
            },
            Reject::Fork("x"),
            Reject::Expired { until: 1, now: 2 },
            Reject::NotYetValid { start: 2, now: 1 },
            Reject::Unsupported {
                what: "x",
                why: "format 9".into(),
            },
        ]
    }

    #[test]
    fn exit_codes_agree_with_the_classes_of_rejections() {
        for reject in rejects() {
            let exit = match reject.class() {
                Class::Unavailable => Exit::Unavailable,
                Class::Unsupported => Exit::Unsupported,
                Class::Expired => Exit::Expired,
                Class::Integrity => Exit::Integrity,
                Class::Rollback => Exit::Rollback,
                Class::Fork => Exit::Fork,
            };
            assert_eq!(reject_kind(&reject).exit(), exit, "{reject}");
            let error = VolumeError::Statement {
                place: "here".into(),
                why: reject,
            };
            assert_eq!(Failure::from(error).exit(), exit);
        }
    }

    #[test]
    fn old_statement_and_stray_policy_accuse_no_publisher() {
        for reject in [
            Reject::Superseded("x"),
            Reject::StrayPolicy("x"),
            Reject::Refused("x"),
        ] {
            let hint = reject_kind(&reject).hint();
            assert_ne!(hint, Kind::NotSigned.hint(), "{reject}");
            assert!(!hint.contains("did not sign"), "{hint}");
        }
        let fork = reject_kind(&Reject::Fork("x")).hint();
        assert!(fork.contains("bulla fork show"), "{fork}");
    }

    #[test]
    fn locked_state_directory_has_the_exit_code_of_a_lock() {
        let locked = || StateError::Locked {
            path: "/state/lock".into(),
            holder: "process 7".into(),
            waited_ms: 30_000,
        };
        for failure in [
            Failure::from(locked()),
            Failure::from(VolumeError::State(locked())),
            Failure::from(PublishError::State(locked())),
        ] {
            assert_eq!(failure.exit(), Exit::Locked);
        }
        let stalled = StateError::Stalled {
            path: "/state/lock".into(),
            begun: true,
        };
        assert_eq!(Failure::from(stalled).exit(), Exit::Failed);
    }

    #[test]
    fn causes_come_from_the_chain() {
        let source = std::io::Error::from_raw_os_error(28);
        let failure = Failure::from(StoreError::Io {
            path: "/repo/head".into(),
            source,
        });
        assert_eq!(failure.exit(), Exit::Failed);
        assert_eq!(failure.kind, Kind::DiskFull);
    }
}
