//! Opening a volume of any kind by its SOURCE.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use share::home::Home;
use volume::{VersionRef, Volume as PublishedVolume, VolumeOptions};
use wire::http::Tls;
use wire::location::{self, Location, Source as PublishedSource};

use crate::error::Error;
use crate::shared::{SharedOptions, SharedVolume};
use crate::tree::Tree;

/// What a user names as SOURCE.
#[derive(Debug, Clone)]
pub enum Source {
    /// `VOLUMEID@LOCATION`.
    Published(PublishedSource),
    /// A shared volume of which this machine is a device.
    Shared(Home),
}

/// How a volume is opened.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Further locations of a published volume.
    pub mirrors: Vec<Location>,
    /// Whom to trust for `https` locations. It only hides what is read: the volume is verified all the same.
    pub tls: Tls,
    /// How a published volume is read. Its state directory and its deadline hold for shared ones too.
    pub volume: VolumeOptions,
}

/// An open volume.
pub enum Volume {
    /// A signed tree, which any mirror may serve (SFSRO).
    Published(Arc<PublishedVolume>),
    /// A volume that many devices write (SUNDR).
    Shared(Box<SharedVolume>),
}

impl Source {
    /// Reads a SOURCE: `VOLUMEID@LOCATION`, or the name or id of a shared volume in the state directory of this machine.
    ///
    /// # Errors
    /// [`Error::Location`] if it is written wrong, [`Error::NoShared`] if it is neither.
    pub fn parse(text: &str, state_directory: &Path) -> Result<Source, Error> {
        if text.contains('@') {
            return Ok(Source::Published(PublishedSource::from_str(text)?));
        }
        match Home::find(state_directory, text)? {
            Some(home) => Ok(Source::Shared(home)),
            None => Err(Error::NoShared {
                name: text.to_owned(),
            }),
        }
    }
}

/// Opens a volume. Needs a runtime of tokio with timers and I/O.
///
/// # Errors
/// [`Error`]: no location answers, or what they answer is refused; the server of a shared volume does not answer, or
/// refuses this device.
pub async fn open(source: Source, options: &Options) -> Result<Volume, Error> {
    match source {
        Source::Published(source) => {
            let opened = open_published(&source, options).await?;
            Ok(Volume::Published(opened))
        }
        Source::Shared(home) => {
            let options = SharedOptions {
                deadline: options.volume.deadline,
                alone: false,
                other: None,
            };
            let opened = SharedVolume::open(home, &options).await?;
            Ok(Volume::Shared(Box::new(opened)))
        }
    }
}

/// Opens a published volume.
///
/// # Errors
/// As [`open`].
pub async fn open_published(
    source: &PublishedSource,
    options: &Options,
) -> Result<Arc<PublishedVolume>, Error> {
    let replicas = location::open_all(source, &options.mirrors, &options.tls)?;
    let opening = PublishedVolume::open(source.volume, replicas, options.volume.clone());
    Ok(opening.await?)
}

impl Volume {
    /// The newest state: the newest version of a published volume, a shared one as it is now.
    ///
    /// # Errors
    /// [`Error::Volume`] if the newest version has expired.
    pub fn tree(&self) -> Result<Tree<'_>, Error> {
        match self {
            Volume::Published(volume) => Ok(Tree::published(volume, volume.current()?)),
            Volume::Shared(shared) => Ok(Tree::shared(shared, None)),
        }
    }

    /// An earlier state: a version by its number or name, or a shared volume after the entry with this number, or as a
    /// snapshot has it.
    ///
    /// # Errors
    /// [`Error::NoVersion`] if no location keeps the version; [`Error::NoSnapshot`]. That a shared volume has no such entry
    /// shows when the state is read ([`Error::Refused`]).
    pub async fn at(&self, state: &VersionRef) -> Result<Tree<'_>, Error> {
        let none = || Error::NoVersion {
            version: state.to_string(),
        };
        match (self, state) {
            (Volume::Published(volume), state) => {
                let number = volume.number(state).await?.ok_or_else(none)?;
                let snapshot = volume.version(number).await?.ok_or_else(none)?;
                Ok(Tree::published(volume, Arc::new(snapshot)))
            }
            (Volume::Shared(shared), state) => {
                let entry = shared.entry(state).await?;
                Ok(Tree::shared(shared, Some(entry)))
            }
        }
    }

    /// The volume, if it is a shared one, for what only those can do: changes, the log, members.
    pub fn as_shared(&self) -> Option<&SharedVolume> {
        match self {
            Volume::Published(_) => None,
            Volume::Shared(shared) => Some(shared),
        }
    }

    /// The volume, if it is a published one, for what only those can do: versions, policies, forks.
    pub fn as_published(&self) -> Option<&Arc<PublishedVolume>> {
        match self {
            Volume::Published(volume) => Some(volume),
            Volume::Shared(_) => None,
        }
    }

    /// Ends the work: what was written is durable, and other devices can use it.
    ///
    /// # Errors
    /// As [`SharedVolume::close`].
    pub async fn close(self) -> Result<(), Error> {
        match self {
            Volume::Published(_) => Ok(()),
            Volume::Shared(shared) => shared.close().await,
        }
    }
}
