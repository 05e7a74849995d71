//! The errors of the library, and the hints that name commands.

use bulla::Error;
use bulla::extract::ExtractError;
use bulla::members::MemberError;
use content::upload::UploadError;
use share::files::Refused;

use super::shared::{client_kind, home_kind};
use super::{location_kind, read_kind, store_kind, volume_kind};
use crate::failure::{Failure, Kind, io_kind};

pub(super) fn kind(error: &Error) -> Kind {
    match error {
        Error::Location(error) => location_kind(error),
        Error::Volume(error) => volume_kind(error),
        Error::Read(error) => read_kind(error),
        Error::Home(error) => home_kind(error),
        Error::Client(error) => client_kind(error),
        Error::Member(error) => member_kind(error),
        Error::Content(error) => content_kind(error),
        Error::NoShared { .. } => Kind::NoShared,
        Error::NotFound { .. } => Kind::NotFound,
        Error::BadPath { .. } => Kind::BadPath,
        Error::NoVersion { .. } => Kind::NoVersion,
        Error::NoSnapshot { .. } => Kind::NoSnapshot,
        Error::Refused { why, .. } => refused_kind(why),
        Error::Silent { .. } => Kind::Unattested,
        Error::Undecided { .. } => Kind::OtherEpoch,
        Error::TooDeep { .. } => Kind::Malformed,
        Error::OtherVolume => Kind::Usage,
        Error::Defect => Kind::Defect,
    }
}

fn content_kind(error: &UploadError) -> Kind {
    match error {
        UploadError::Read(error) => io_kind(error),
        UploadError::Sink(error) => store_kind(error),
        UploadError::Defect(_) => Kind::Defect,
    }
}

fn refused_kind(why: &Refused) -> Kind {
    match why {
        Refused::NotFound => Kind::NotFound,
        Refused::NotPermitted => Kind::NoPermission,
        Refused::Exists => Kind::Exists,
        Refused::NotEmpty
        | Refused::NotADirectory
        | Refused::IsADirectory
        | Refused::NotRegular
        | Refused::BelowItself
        | Refused::Loop
        | Refused::Needed => Kind::Misfit,
        Refused::Stale => Kind::Overtaken,
        Refused::Locked | Refused::NotLocked => Kind::FileLocked,
        Refused::TooLarge | Refused::TooMany | Refused::Full => Kind::TooMuch,
        Refused::NeedsPath => Kind::Defect,
        Refused::Beyond | Refused::Forgotten(_) => Kind::NoEntry,
        Refused::Damaged(_) => Kind::Malformed,
        Refused::Unsupported(_) => Kind::Newer,
    }
}

fn member_kind(error: &MemberError) -> Kind {
    match error {
        MemberError::None { .. } | MemberError::Several { .. } | MemberError::NoDevice(_) => {
            Kind::NoMember
        }
        MemberError::SeveralDevices { .. } => Kind::SameDevice,
        MemberError::NotMember => Kind::NotMember,
        MemberError::NotAdmin(_) => Kind::NoPermission,
        MemberError::TooManyDevices => Kind::TooMuch,
    }
}

/// A hint that says more than that of the kind.
fn hint(error: &Error) -> Option<String> {
    match error {
        Error::Silent { volume, device, .. } => Some(format!(
            "the device may be off, or the server hides what it says: try again when it is on. If it is lost, an \
             administrator accepts what it wrote: `bulla share accept {volume} {device}`"
        )),
        Error::Undecided { volume } => Some(format!(
            "`bulla share follow {volume}` goes over, and brings back what this device alone has. Then look whether the \
             change is there before you repeat it"
        )),
        Error::Refused {
            why: Refused::Needed,
            ..
        } => Some(
            "make another user an administrator first: `bulla share grant VOLUME GROUP USER admin`"
                .to_owned(),
        ),
        Error::Member(MemberError::None { what, name }) => Some(format!(
            "`bulla share {what} list VOLUME` shows who is there; an administrator adds one: `bulla share {what} add \
             VOLUME {name}`"
        )),
        Error::Member(MemberError::SeveralDevices { numbers, .. }) => {
            let [one, other] = numbers;
            Some(format!(
                "name it by its number: {one}, {other} (`bulla share device list VOLUME` shows the keys)"
            ))
        }
        _ => None,
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let failure = Failure::from_error(kind(&error), &error);
        match hint(&error) {
            Some(hint) => failure.with_hint(hint),
            None => failure,
        }
    }
}

impl From<MemberError> for Failure {
    fn from(error: MemberError) -> Failure {
        Error::from(error).into()
    }
}

impl From<ExtractError> for Failure {
    fn from(error: ExtractError) -> Failure {
        let kind = match error {
            ExtractError::Volume(error) => return error.into(),
            ExtractError::Read { ref why, .. } => kind(why),
            ExtractError::NotEmpty { .. } => Kind::NotEmpty,
            ExtractError::InUse { .. } => Kind::TargetInUse,
            ExtractError::Fewer { .. } | ExtractError::Replaced { .. } => Kind::OneEntry,
            ExtractError::System { ref source, .. } => io_kind(source),
            ExtractError::Special { .. } => Kind::Extract,
            ExtractError::TooDeep { .. } => Kind::Malformed,
            ExtractError::NoRoom { .. } => Kind::DiskFull,
            ExtractError::Died(_) => Kind::Defect,
        };
        Failure::from_error(kind, &error)
    }
}
