//! Why a call has no answer, and why an engine stopped.

use std::path::PathBuf;
use std::time::Duration;

use store::StoreError;
use trust::device::DeviceKey;

use super::connection::{Connection, Trouble};
use crate::checkpoint::StartError;
use crate::disk::DiskError;
use crate::home::HomeError;

/// A call of a client failed. Whether a call that changes something had effect is unknown unless said.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ClientError {
    /// The home cannot be used. Nothing was sent.
    #[error("{0}")]
    Home(String),
    /// The memory of this device cannot be read or written.
    #[error(transparent)]
    Disk(#[from] DiskError),
    /// There was no answer before the deadline. A call that changes something may still have effect.
    #[error("{}", unanswered(connection))]
    Deadline {
        /// What the connection to the server was like then.
        connection: Connection,
    },
    /// Too many calls wait. This one was not taken.
    #[error("too many calls wait for an answer")]
    Busy,
    /// The engine has stopped.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// The device has gone over to another epoch of the log meanwhile, or has begun with a checkpoint. Start again.
    #[error("this device has gone over to another epoch of the log meanwhile; try again")]
    GoneOver,
    /// The client was closed.
    #[error("the volume was closed")]
    Closed,
    /// The process that ran the engine has ended before it answered. The call may have had effect.
    #[error(
        "the process that ran this volume's engine has ended before it answered: whether the change had effect is not \
         known"
    )]
    Interrupted,
    /// The blocks of a change could not be stored. It had no effect.
    #[error("the content of a change could not be stored: {cause}")]
    Unstored {
        /// The server has no room, or a quota is reached.
        is_full: bool,
        /// What the server, or this machine, says.
        cause: String,
    },
    /// Another version of this program runs the engine. Nothing was sent.
    #[error("process {process} uses this volume with another version of bulla ({build})")]
    OtherBuild {
        /// Its version.
        build: String,
        /// Its number, 0 if the system does not say.
        process: u32,
    },
    /// Another program of this user runs the engine, and this is done where the engine runs. Nothing was done.
    #[error(
        "process {process} runs the engine of this volume, and checkpoints are made where it runs: stop that program, and \
         run the command again"
    )]
    EngineElsewhere {
        /// Its number, 0 if the system does not say.
        process: u32,
    },
    /// A beacon is silent for longer than this home allows. A call that changes something had no effect.
    #[error(
        "nothing new of the beacon {device} has come for {}, and at most {} is allowed: the beacon is off, the server \
         hides it, or this device is shown another log than the beacon",
        seconds(*age), seconds(*within)
    )]
    Overdue {
        /// The beacon.
        device: DeviceKey,
        /// How long it may be silent.
        within: Duration,
        /// How long it is, by this machine's monotonic clock.
        age: Duration,
    },
    /// A later bulla is needed for this volume.
    #[error("a newer bulla is needed: {0}")]
    Unsupported(String),
}

/// A time for people, seconds.
fn seconds(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}

/// Why a call was not answered in time, as a person reads it.
fn unanswered(connection: &Connection) -> String {
    match connection {
        Connection::Connecting => "the server has not answered in time".to_owned(),
        Connection::Online => {
            "the server is connected, and has not answered this call in time".to_owned()
        }
        Connection::Offline(lost) => match lost.trouble {
            Trouble::Unreachable => format!("the server cannot be reached: {lost}"),
            Trouble::Refused => format!("the server refuses to work: {lost}"),
            _ => lost.to_string(),
        },
    }
}

impl From<StoreError> for ClientError {
    fn from(error: StoreError) -> Self {
        ClientError::Unstored {
            is_full: matches!(error, StoreError::Full { .. }),
            cause: error.to_string(),
        }
    }
}

impl From<StartError> for ClientError {
    fn from(error: StartError) -> Self {
        ClientError::Home(error.to_string())
    }
}

impl From<HomeError> for ClientError {
    fn from(error: HomeError) -> Self {
        ClientError::Home(error.to_string())
    }
}

/// Why an engine stopped. It writes nothing more; a new start begins with what it had.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Stopped {
    /// The device's key is used by another engine, or by somebody who has a copy of it.
    #[error(
        "the key of this device is used elsewhere too: another machine, or a copy of this home, writes with it. Remove \
         the device from the volume and admit this machine as a new one"
    )]
    Elsewhere,
    /// A step of the engine has failed: it made an entry that has no encoding, or panicked. A bug of bulla.
    #[error("the engine of this volume has failed. Nothing that was acknowledged is lost")]
    Unsigned,
    /// The server signed a lie.
    #[error(
        "the server has lied: {what}. Nothing is written any more, what was read before stays. {}",
        match evidence {
            Some(path) => format!("The proof is in {}: `bulla share check` verifies it anywhere", path.display()),
            None => "No file could be made that proves it to others".to_owned(),
        }
    )]
    Convicted {
        /// What the server did.
        what: String,
        /// The file that proves it.
        evidence: Option<PathBuf>,
    },
    /// The log does not begin as the invitation says.
    #[error(
        "the server shows another log than the one that this device was invited to: the inviter and this device do not \
         see the same volume"
    )]
    OtherBeginning,
    /// The disk failed.
    #[error(transparent)]
    Disk(#[from] DiskError),
}

/// A device attests a log that is not this device's: one of the two was shown another log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Differing {
    /// The device.
    pub device: DeviceKey,
    /// Size of the prefix that it attests.
    pub size: u64,
}
