//! The errors of shared volumes: of homes, clients, links, admissions, and of their servers.

use std::error::Error;

use ::share::admission::AdmissionError;
use ::share::client::disk::DiskError;
use ::share::client::{ClientError, Connection, PlaceError, Stopped, Trouble};
use ::share::home::HomeError;
use serve::net::ListenError;
use serve::shared::TlsError;
use share_server::host::HostError;
use trust::Reject;
use wal::LogError;
use wire::shared::LinkError;

use super::{key_kind, reject_kind, state_kind, store_kind};
use crate::failure::{Failure, Kind};

failures! {
    HomeError => home_kind;
    ClientError => client_kind;
    LinkError => link_kind;
    AdmissionError => admission_kind;
    HostError => host_kind;
    PlaceError => place_kind;
    ListenError => listen_kind;
    TlsError => tls_kind;
}

/// Like [`reject_kind`], for policies of a shared volume, which no publisher signs.
fn policy_kind(reject: &Reject) -> Kind {
    match reject_kind(reject) {
        Kind::Newer => Kind::Newer,
        Kind::Revoked => Kind::Revoked,
        _ => Kind::BadPolicies,
    }
}

pub(super) fn home_kind(error: &HomeError) -> Kind {
    match error {
        HomeError::State(error) => state_kind(error),
        // The hints about key files are about those that users name.
        HomeError::Key(error) => match key_kind(error) {
            Kind::KeyFile | Kind::NoFile | Kind::NoInput => Kind::BadHome,
            kind => kind,
        },
        HomeError::Disk(error) => disk_kind(error),
        HomeError::Damaged { .. } => Kind::BadHome,
        HomeError::Exists { .. } => Kind::JoinedAlready,
        HomeError::NameTaken { .. } => Kind::Exists,
        HomeError::BadName { .. } | HomeError::BadServer(_) => Kind::Usage,
        HomeError::Ambiguous { .. } => Kind::SameName,
        HomeError::OtherPolicies => Kind::OwnersFork,
        HomeError::GivesUp { .. } => Kind::BadPolicies,
        HomeError::Policies(why) => policy_kind(why),
    }
}

fn disk_kind(error: &DiskError) -> Kind {
    match error {
        DiskError::State(error) => state_kind(error),
        DiskError::Damaged { .. } => Kind::DeviceMemory,
    }
}

fn stopped_kind(stopped: &Stopped) -> Kind {
    match stopped {
        Stopped::Elsewhere => Kind::Elsewhere,
        Stopped::Unsigned => Kind::Defect,
        Stopped::Convicted { .. } => Kind::Convicted,
        Stopped::OtherBeginning => Kind::OtherBeginning,
        Stopped::Disk(error) => disk_kind(error),
    }
}

fn connection_kind(connection: &Connection) -> Kind {
    match connection {
        Connection::Connecting | Connection::Online => Kind::NoServer,
        Connection::Offline(lost) => match lost.trouble {
            Trouble::Unreachable | Trouble::Refused => Kind::NoServer,
            Trouble::OtherServer => Kind::OtherServer,
            Trouble::NoVolume => Kind::NoVolume,
            Trouble::NotMember => Kind::NotMember,
            Trouble::Restored => Kind::Restored,
            Trouble::OtherLog => Kind::OtherHistory,
            Trouble::NotAccepted => Kind::NotAccepted,
            Trouble::Successor | Trouble::OtherEpoch => Kind::OtherEpoch,
            Trouble::Unfit => Kind::Integrity,
        },
    }
}

pub(super) fn client_kind(error: &ClientError) -> Kind {
    match error {
        ClientError::Home(_) => Kind::BadHome,
        ClientError::Disk(error) => disk_kind(error),
        ClientError::Deadline { connection } => connection_kind(connection),
        ClientError::Unstored { is_full: true, .. } => Kind::DiskFull,
        ClientError::Busy | ClientError::Unstored { .. } => Kind::Unavailable,
        ClientError::Stopped(stopped) => stopped_kind(stopped),
        ClientError::GoneOver => Kind::OtherEpoch,
        ClientError::Closed => Kind::Defect,
        ClientError::Unsupported(_) => Kind::Newer,
        ClientError::Interrupted => Kind::EngineEnded,
        ClientError::OtherBuild { .. } => Kind::OtherBuild,
        ClientError::EngineElsewhere { .. } => Kind::StateLocked,
        ClientError::Overdue { .. } => Kind::Overdue,
    }
}

fn link_kind(error: &LinkError) -> Kind {
    match error {
        LinkError::Unavailable { .. } => Kind::Unavailable,
        LinkError::OtherServer { .. } => Kind::OtherServer,
        LinkError::BadAnswer { .. } => Kind::Integrity,
        LinkError::Unsupported { .. } => Kind::Newer,
        LinkError::Refused { refusal, .. } => match refusal.code {
            wire::shared::NO_VOLUME => Kind::NoVolume,
            wire::shared::NOT_MEMBER | wire::shared::GUEST => Kind::NotMember,
            wire::shared::OTHER_LOG => Kind::OtherHistory,
            wire::shared::OTHER_EPOCH => Kind::OtherEpoch,
            wire::shared::RESTORED => Kind::Restored,
            wire::shared::QUOTA | wire::shared::FULL => Kind::DiskFull,
            _ => Kind::Unavailable,
        },
    }
}

fn admission_kind(error: &AdmissionError) -> Kind {
    match error {
        AdmissionError::Link(error) => link_kind(error),
        AdmissionError::Used => Kind::UsedInvitation,
        AdmissionError::Late(_) => Kind::NoAdmission,
        AdmissionError::Forged(..) => Kind::ForgedAdmission,
        AdmissionError::Policies(why) => policy_kind(why),
        AdmissionError::Server(_) => Kind::BadInvitation,
    }
}

fn place_kind(error: &PlaceError) -> Kind {
    match error {
        PlaceError::Home(error) => home_kind(error),
        PlaceError::Directory(error) => match error.downcast_ref().map(host_kind) {
            // The directory is another server's, and this command does not depend on it.
            Some(Kind::ServerDisk | Kind::ServerDamaged | Kind::BadGenesis) => Kind::NoOtherPlace,
            Some(Kind::NoRepository | Kind::OtherVolume) | None => Kind::NoOtherPlace,
            Some(kind) => kind,
        },
        PlaceError::Mute(_) => Kind::NoOtherPlace,
    }
}

fn host_kind(error: &HostError) -> Kind {
    match error {
        HostError::Disk(error) => match store_kind(error) {
            Kind::Unavailable | Kind::NoVolume => Kind::ServerDisk,
            Kind::Damaged => Kind::ServerDamaged,
            kind => kind,
        },
        HostError::NotShared { .. } => Kind::NoRepository,
        HostError::OtherVolume { .. } => Kind::OtherVolume,
        HostError::OtherOrderer { .. } => Kind::OrdererKey,
        HostError::Policy(why) => match reject_kind(why) {
            Kind::Newer => Kind::Newer,
            _ => Kind::BadGenesis,
        },
        HostError::OtherPolicies { .. } => Kind::OwnersFork,
        HostError::OtherStart { .. } => Kind::OtherStart,
        HostError::Restored { .. } => Kind::ServerRestored,
        HostError::Blocks(error) => match error {
            share_server::blocks::Error::Log(error) => match error {
                LogError::Integrity { .. }
                | LogError::Rollback { .. }
                | LogError::Superblock { .. }
                | LogError::NotALog
                | LogError::WrongKey { .. }
                | LogError::Truncated { .. } => Kind::ServerDamaged,
                LogError::Unsupported { .. } => Kind::Newer,
                _ => Kind::ServerDisk,
            },
            _ => Kind::ServerDisk,
        },
        HostError::Unmended { .. } => Kind::ServerUnmended,
        HostError::CopyOfOther { .. } => Kind::Usage,
        HostError::ForkedCopy { .. } => Kind::ForkedCopy,
        HostError::NewerCopy { .. } => Kind::NewerCopy,
        HostError::Turned(_)
        | HostError::NoMember
        | HostError::Superseded
        | HostError::NoLeaf { .. }
        | HostError::Mailbox(_)
        | HostError::Checkpoint(_)
        | HostError::Stopped => Kind::Defect,
    }
}

fn listen_kind(_: &ListenError) -> Kind {
    Kind::Listen
}

fn tls_kind(_: &TlsError) -> Kind {
    Kind::OrdererKey
}
