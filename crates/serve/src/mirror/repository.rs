//! A repository on disk as a [`RepositoryReader`]: bytes in the page cache are read at once, the others on
//! threads that may wait (docs/decisions/0007).

use bytes::Bytes;
use store::{BlockStore, Repository, StoreError};
use trust::head::Head;
use trust::statement::VolumeId;
use trust::{Handle, Reject};
use wire::ObjectName;

use crate::mirror::error::ServeError;
use crate::mirror::reader::{OpenObject, Regions, RepositoryReader};

/// The volume that a repository claims to hold.
///
/// # Errors
/// [`ServeError::Unpublished`] before the first version, [`ServeError::Head`] when its head cannot be
/// decoded.
pub fn volume(repository: &Repository) -> Result<VolumeId, ServeError> {
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
        Ok(VolumeId::from_bytes(genesis.hash()))
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
