//! A repository on disk as a [`RepositoryReader`]: what its pages in memory hold is answered at once, the rest
//! by threads that may wait (docs/decisions/0007).

use std::sync::Arc;

use bytes::Bytes;
use store::{BlockStore, Repository, StoreError};
use trust::head::Head;
use trust::{Handle, Reject};
use wire::ObjectName;
use wire::mirror::Volume;

use crate::mirror::error::ServeError;
use crate::mirror::reader::{OpenObject, Regions, RepositoryReader};
use crate::mirror::server::Server;
use crate::net::limits::Limits;
use crate::net::listener::Listen;

impl Server {
    /// Listens for readers of the volumes that these repositories hold.
    ///
    /// # Errors
    /// As [`Server::listen`]; [`ServeError::Unpublished`], [`ServeError::Head`].
    pub fn bind(
        listen: impl Into<Listen>,
        repositories: Vec<Repository>,
        limits: Limits,
    ) -> Result<Server, ServeError> {
        let mut shelves: Vec<(Volume, Arc<dyn RepositoryReader>)> =
            Vec::with_capacity(repositories.len());
        for repository in repositories {
            shelves.push((volume(&repository)?, Arc::new(repository)));
        }
        Server::listen(listen, shelves, limits)
    }
}

/// Which volume a repository holds, by its own word.
///
/// # Errors
/// [`ServeError::Unpublished`] before the first version, [`ServeError::Head`] when its head is none.
pub fn volume(repository: &Repository) -> Result<Volume, ServeError> {
    let place = || BlockStore::place(repository).to_owned();
    let statements = repository.statements();
    if statements.is_empty() {
        return Err(ServeError::Unpublished { place: place() });
    }
    let volume = Head::decode(&statements).and_then(|head| {
        let genesis = head.policies.first().ok_or(Reject::Malformed {
            what: "head",
            why: "no policy",
        })?;
        Ok(genesis.hash())
    });
    volume.map_err(|why| ServeError::Head {
        place: place(),
        why,
    })
}

impl RepositoryReader for Repository {
    fn place(&self) -> &str {
        BlockStore::place(self)
    }

    fn head(&self) -> Bytes {
        self.statements()
    }

    fn read_if_cached(
        &self,
        want: &[Handle],
        around: usize,
    ) -> Result<Option<Vec<Bytes>>, StoreError> {
        let answer = Repository::read_if_cached(self, want, around)?;
        Ok(answer.map(|a| a.regions.into_iter().map(|r| r.bytes).collect()))
    }

    fn read_blocking(
        &self,
        want: &[Handle],
        around: usize,
        sink: &mut Regions<'_>,
    ) -> Result<(), StoreError> {
        Repository::read_blocking(self, want, around, &mut |region| sink(region.bytes)).map(drop)
    }

    fn read_range(
        &self,
        object: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> Result<Option<Bytes>, StoreError> {
        self.read_object(object, offset, len_bytes)
    }

    fn open_object(&self, object: ObjectName) -> Result<Option<OpenObject>, StoreError> {
        let (disk, name) = (self.disk_shared(), object.to_string());
        let fail = |source| StoreError::Io {
            path: disk.path(&name),
            source,
        };
        match disk.open(&name) {
            Ok(file) => {
                let len = file.len_bytes().map_err(fail)?;
                Ok(Some((file, len)))
            }
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(fail(e)),
        }
    }

    fn refresh(&self) -> Result<bool, StoreError> {
        Repository::refresh(self)
    }
}
