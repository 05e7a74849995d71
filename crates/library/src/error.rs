//! What can go wrong with a volume of any kind. Each error says what failed and where.

use content::upload::UploadError;
use reader::ReadError;
use share::client::{ClientError, Connection, Stopped, Trouble};
use share::files::Refused;
use share::home::HomeError;
use trust::error::Class;
use trust::text::printable;
use volume::VolumeError;
use wire::LocationError;

use crate::members::MemberError;

/// An error of a volume.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// SOURCE or LOCATION is wrong, or cannot be opened.
    #[error(transparent)]
    Location(#[from] LocationError),
    /// A published volume.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A block or a path of a volume of any kind.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// What this machine keeps of a shared volume.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The client of a shared volume.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A user, group or device of a shared volume.
    #[error(transparent)]
    Member(#[from] MemberError),
    /// Content cannot be read, cut or stored.
    #[error(transparent)]
    Content(#[from] UploadError),
    /// This machine has no shared volume of this name.
    #[error("this machine has no shared volume `{name}`")]
    NoShared {
        /// A name, or the text of a volume id.
        name: String,
    },
    /// The volume proves that the path does not exist.
    #[error("{path}: not in the volume")]
    NotFound {
        /// For people.
        path: String,
    },
    /// No file of a volume can have this path.
    #[error("{path}: {why}")]
    BadPath {
        /// For people.
        path: String,
        /// Why not.
        why: String,
    },
    /// No location has this version, or the volume never had it.
    #[error("no location has version {version}")]
    NoVersion {
        /// A number or a name.
        version: String,
    },
    /// A shared volume has no snapshot of this name.
    #[error("the volume has no snapshot `{name}`")]
    NoSnapshot {
        /// The name.
        name: String,
    },
    /// A shared volume refuses a call, which has no effect.
    #[error("{about}: {why}")]
    Refused {
        /// What the call is about, for people.
        about: String,
        /// Why it has no effect.
        why: Refused,
    },
    /// An answer would rest on what a silent device wrote.
    #[error("the server or {whose} is silent, and what it wrote last is not used")]
    Silent {
        /// The volume's name on this machine.
        volume: String,
        /// The device's number, or its key.
        device: String,
        /// The device, for people.
        whose: String,
    },
    /// The owners have begun the log again during a change.
    #[error(
        "the owners have begun the log of this volume again: whether this change stands is not known"
    )]
    Undecided {
        /// The volume's name on this machine.
        volume: String,
    },
    /// Directories are nested more deeply than anybody follows.
    #[error("{path} is nested too deeply")]
    TooDeep {
        /// For people.
        path: String,
    },
    /// Two states of different volumes cannot be compared.
    #[error("the two states are of different volumes")]
    OtherVolume,
    /// A defect of this library.
    #[error("a shared volume gave an answer of another kind")]
    Defect,
}

/// What a server of a shared volume has done.
fn class_of_client(error: &ClientError) -> Option<Class> {
    match error {
        ClientError::Stopped(Stopped::Convicted { .. } | Stopped::OtherBeginning) => {
            Some(Class::Fork)
        }
        ClientError::Deadline {
            connection: Connection::Offline(lost),
        } => match lost.trouble {
            Trouble::OtherLog => Some(Class::Fork),
            Trouble::Restored => Some(Class::Rollback),
            Trouble::OtherServer | Trouble::Unfit => Some(Class::Integrity),
            _ => Some(Class::Unavailable),
        },
        ClientError::Deadline { .. } => Some(Class::Unavailable),
        _ => None,
    }
}

impl Error {
    /// The product-wide name of the error, if it has one.
    pub fn class(&self) -> Option<Class> {
        match self {
            Error::Read(why) => why.class(),
            Error::Volume(why) => why.class(),
            Error::Client(why) => class_of_client(why),
            Error::Refused {
                why: Refused::Damaged(_),
                ..
            }
            | Error::TooDeep { .. } => Some(Class::Integrity),
            _ => None,
        }
    }

    pub(crate) fn not_found(path: &[u8]) -> Error {
        let path = printable(path);
        Error::NotFound { path }
    }

    pub(crate) fn bad_path(path: &[u8], why: String) -> Error {
        let path = printable(path);
        Error::BadPath { path, why }
    }

    pub(crate) fn too_deep(path: &[u8]) -> Error {
        let path = printable(path);
        Error::TooDeep { path }
    }

    pub(crate) fn refused(about: String, why: Refused) -> Error {
        Error::Refused { about, why }
    }
}

#[cfg(test)]
mod tests {
    use share::client::Lost;

    use super::*;

    #[test]
    fn lies_and_outages_of_a_shared_server_have_their_names() {
        let offline = |trouble| {
            let text = "why".to_owned();
            let connection = Connection::Offline(Lost { trouble, text });
            Error::from(ClientError::Deadline { connection }).class()
        };
        for (trouble, class) in [
            (Trouble::OtherLog, Class::Fork),
            (Trouble::Restored, Class::Rollback),
            (Trouble::OtherServer, Class::Integrity),
            (Trouble::Unfit, Class::Integrity),
            (Trouble::Unreachable, Class::Unavailable),
        ] {
            assert_eq!(offline(trouble), Some(class), "{trouble:?}");
        }
        let other = Error::from(ClientError::Stopped(Stopped::OtherBeginning));
        assert_eq!(other.class(), Some(Class::Fork));
        let damaged = Error::refused("a".to_owned(), Refused::Damaged("why".to_owned()));
        assert_eq!(damaged.class(), Some(Class::Integrity));
        let absent = Error::refused("a".to_owned(), Refused::NotFound);
        assert_eq!(absent.class(), None);
    }
}
