//! A repository that is opened on first use, because it may not be there yet: a USB stick that is not
//! plugged in, a file system that is not mounted. Until it can be opened, it is a place that does not
//! answer.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use bytes::Bytes;
use trust::{Frame, Handle, Record};

use crate::blocking::Blocking;
use crate::{BlockStore, BoxFuture, Objects, Replica, Repository, StoreError};

/// Tries to open a repository each time it is asked for its head, until that succeeds.
pub struct LazyRepository {
    path: PathBuf,
    place: String,
    open: OnceLock<Repository>,
}

impl LazyRepository {
    /// The repository at `path`, which need not exist yet.
    pub fn new(path: &Path) -> LazyRepository {
        LazyRepository {
            path: path.to_owned(),
            place: path.display().to_string(),
            open: OnceLock::new(),
        }
    }

    async fn look(&self) -> Result<&Repository, StoreError> {
        if let Some(open) = self.open.get() {
            return Ok(open);
        }
        let path = self.path.clone();
        let open = move || Repository::open(&path);
        let opened = Blocking::Pool.run(&self.place, open).await?;
        Ok(self.open.get_or_init(|| opened))
    }

    fn silent(&self, cause: &str) -> StoreError {
        StoreError::Unusable {
            place: self.place.clone(),
            cause: cause.to_owned(),
        }
    }
}

impl BlockStore for LazyRepository {
    fn place(&self) -> &str {
        &self.place
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        match self.open.get() {
            Some(open) => open.get_many(want, around),
            None => Box::pin(async { Err(self.silent("no repository could be opened")) }),
        }
    }

    fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        self.open.get()?.try_cached(handle)
    }

    fn is_local(&self) -> bool {
        true
    }
}

impl Replica for LazyRepository {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async move { self.look().await?.head().await })
    }

    fn objects(&self) -> Option<&dyn Objects> {
        self.open.get().and_then(Replica::objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;

    #[tokio::test]
    async fn repository_answers_once_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("stick");
        let late = LazyRepository::new(&path);
        let error = late.head().await.unwrap_err();
        assert!(matches!(error, StoreError::NoRepository { .. }), "{error}");
        let error = late.get_many(&[], 0).await.unwrap_err();
        assert!(matches!(error, StoreError::Unusable { .. }), "{error}");
        assert!(late.objects().is_none());
        let repository = Repository::create(&path).unwrap();
        let mut writer = Writer::begin(&repository).unwrap();
        writer.commit(b"statements").unwrap();
        assert_eq!(&late.head().await.unwrap()[..], b"statements");
        assert!(late.get_many(&[], 0).await.unwrap().is_empty());
        assert!(late.objects().is_some());
    }
}
