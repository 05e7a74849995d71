//! The mount of a device, from its beginning to its end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use protect::Block;

use super::faults::FaultReport;
use super::file_system::DeviceFile;
use super::options::DeviceOptions;
use crate::error::MountError;
use crate::fuse::{Session, SessionOptions};

/// Threads that take requests. One may wait in a read and one in a flush; there is always one for the others.
const THREADS: usize = 3;

/// A device that is mounted. Dropping it unmounts without waiting for requests.
pub struct Served {
    session: Session,
    device: Arc<DeviceFile>,
    file: PathBuf,
}

/// Mounts `block` on `directory` as one regular file and returns when the mount answers. Must be called within a tokio
/// runtime, which only the mount's beginning and end need.
///
/// # Errors
/// As [`Session::mount`]; [`MountError::Refused`] also when the system refuses a thread.
pub async fn serve(
    block: Arc<dyn Block>,
    directory: &Path,
    options: DeviceOptions,
) -> Result<Served, MountError> {
    let session_options = SessionOptions {
        read_only: options.read_only,
        no_exec: true,
        read_ahead_bytes: options.max_request_bytes,
        threads: THREADS,
        ..SessionOptions::new(options.source.clone())
    };
    let name = options.name.clone();
    let device = DeviceFile::new(block, options).map_err(|source| MountError::Refused {
        directory: directory.to_owned(),
        source,
    })?;
    let device = Arc::new(device);
    let session = Session::mount(device.clone(), directory, session_options).await?;
    let file = session.directory().join(name);
    Ok(Served {
        session,
        device,
        file,
    })
}

impl Served {
    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Where it is mounted.
    pub fn directory(&self) -> &Path {
        self.session.directory()
    }

    /// Requests that failed since it was mounted.
    pub fn faults(&self) -> FaultReport {
        self.device.faults().report()
    }

    /// Unmounts, and waits `patience` at most until every request that has arrived is done. Later ones fail. A loop
    /// device on the file must be detached before, or what is in the kernel's caches is lost.
    ///
    /// # Errors
    /// [`MountError::Unmount`] when the system refuses, [`MountError::Unanswered`] when requests still wait.
    pub async fn finish(self, patience: Duration) -> Result<(), MountError> {
        self.session.unmount()?;
        let deadline = Instant::now() + patience;
        let device = self.device.clone();
        let drained = tokio::task::spawn_blocking(move || device.drain(deadline)).await;
        match drained {
            Ok(0) => Ok(()),
            Ok(requests) => Err(MountError::Unanswered {
                directory: self.directory().to_owned(),
                requests,
            }),
            Err(error) => Err(MountError::Ended {
                directory: self.directory().to_owned(),
                source: std::io::Error::other(error),
            }),
        }
    }

    /// As [`Session::ended`].
    ///
    /// # Errors
    /// [`MountError::Ended`] when it ended by an error.
    pub async fn ended(&mut self) -> Result<(), MountError> {
        self.session.ended().await
    }
}
