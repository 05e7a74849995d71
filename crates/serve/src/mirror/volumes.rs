//! The volumes of a mirror and what it keeps in memory for all of them: the state that its requests
//! share, over whatever protocol they come.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use bytes::Bytes;
use store::StoreError;
use tokio::sync::Semaphore;
use trust::statement::VolumeId;

use crate::mirror::bundle::HeadBundle;
use crate::mirror::counters::Counters;
use crate::mirror::error::ServeError;
use crate::mirror::options::Options;
use crate::mirror::path_cache::PathCache;
use crate::mirror::reader::RepositoryReader;
use crate::mirror::response_cache::ResponseCache;
use crate::net::Resources;

/// One volume.
pub(crate) struct Volume {
    pub(crate) reader: Arc<dyn RepositoryReader>,
    /// Its number in this process.
    pub(crate) number: u32,
    bundle: RwLock<Arc<HeadBundle>>,
}

impl Volume {
    fn new(reader: Arc<dyn RepositoryReader>, number: u32) -> Volume {
        let bundle = HeadBundle::prepare(&*reader, reader.head());
        Volume {
            reader,
            number,
            bundle: RwLock::new(Arc::new(bundle)),
        }
    }

    /// The bundle of `head`; `None` when that head is so new that nothing is prepared yet.
    pub(crate) fn bundle(&self, head: &Bytes) -> Option<Arc<HeadBundle>> {
        let bundle = self.bundle.read().unwrap_or_else(PoisonError::into_inner);
        bundle.is_of(head).then(|| Arc::clone(&bundle))
    }

    /// Prepares the bundle of a new head. Reads from the disk.
    fn prepare(&self) {
        let head = self.reader.head();
        if self.bundle(&head).is_none() {
            let bundle = Arc::new(HeadBundle::prepare(&*self.reader, head));
            *self.bundle.write().unwrap_or_else(PoisonError::into_inner) = bundle;
        }
    }
}

/// What all requests share.
pub(crate) struct Mirror {
    volumes: HashMap<VolumeId, Volume>,
    pub(crate) responses: ResponseCache,
    pub(crate) paths: PathCache,
    pub(crate) counters: Arc<Counters>,
    pub(crate) resources: Arc<Resources>,
    /// Turns of reads that wait for the disk.
    pub(crate) disk_reads: Arc<Semaphore>,
}

impl Mirror {
    pub(crate) fn new(
        readers: Vec<(VolumeId, Arc<dyn RepositoryReader>)>,
        options: &Options,
        resources: Arc<Resources>,
    ) -> Result<Mirror, ServeError> {
        let mut volumes: HashMap<VolumeId, Volume> = HashMap::new();
        for (id, reader) in readers {
            let second = reader.place().to_owned();
            let volume = Volume::new(reader, volumes.len() as u32);
            if let Some(first) = volumes.insert(id, volume) {
                return Err(ServeError::SameVolume {
                    first: first.reader.place().to_owned(),
                    second,
                });
            }
        }
        if volumes.is_empty() {
            return Err(ServeError::Nothing);
        }
        let counters = Counters {
            net: Arc::clone(resources.counters()),
            ..Counters::default()
        };
        Ok(Mirror {
            volumes,
            responses: ResponseCache::new(options.response_cache_bytes),
            paths: PathCache::new(options.path_cache_bytes),
            counters: Arc::new(counters),
            resources,
            disk_reads: Arc::new(Semaphore::new(options.disk_reads.max(1))),
        })
    }

    pub(crate) fn volume(&self, id: &VolumeId) -> Option<&Volume> {
        // A client without a volume id may ask for the id that no volume has. A server of one
        // volume then answers for that one; the client shows the id to its user and verifies nothing.
        if *id == VolumeId::UNBORN && self.volumes.len() == 1 {
            return self.volumes.values().next();
        }
        self.volumes.get(id)
    }

    /// Counts and logs a failure of the disk. Returns the error for the client, which names no path of
    /// this machine.
    pub(crate) fn storage_error(
        &self,
        reader: &dyn RepositoryReader,
        error: &StoreError,
    ) -> &'static str {
        self.counters.storage_errors.add(1);
        tracing::warn!(place = reader.place(), %error, "cannot read what a client asked for");
        "the repository cannot be read"
    }

    /// Looks for new heads and prepares their bundles. Reads from the disk.
    pub(crate) fn refresh(&self) {
        for volume in self.volumes.values() {
            let reader = &volume.reader;
            let refreshed = reader.refresh();
            volume.prepare();
            match refreshed {
                Ok(false) => {}
                Ok(true) => {
                    self.counters.new_heads.add(1);
                    tracing::info!(place = reader.place(), "serves a new version");
                }
                Err(error) => {
                    self.counters.refresh_errors.add(1);
                    tracing::warn!(place = reader.place(), %error, "cannot read the head; the old one stays");
                }
            }
        }
    }
}
