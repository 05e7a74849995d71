//! A replica of which a test alters single answers. All other answers are those of an honest one.

use std::ops::Deref;

use bytes::Bytes;
use store::object::ObjectName;
use store::{BlockStore, BoxFuture, Objects, Replica, StoreError};
use trust::{Handle, Record};

/// The alterations: a test implements the methods whose answers differ. Unlike [`crate::liar`], they may have a state.
pub trait Alteration: Send + Sync + 'static {
    /// The replica that answers everything else.
    fn honest(&self) -> &dyn Replica;

    /// The answer to [`Replica::head`].
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.honest().head()
    }

    /// The answer to [`BlockStore::get_many`].
    fn records<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.honest().get_many(want, around)
    }

    /// The answer to [`Objects::range`].
    fn file(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        match self.honest().objects() {
            Some(objects) => objects.range(name, offset, len_bytes),
            None => Box::pin(async { Ok(None) }),
        }
    }
}

/// The replica with these alterations.
#[derive(Debug)]
pub struct Altered<A>(pub A);

impl<A> Deref for Altered<A> {
    type Target = A;

    fn deref(&self) -> &A {
        &self.0
    }
}

impl<A: Alteration> BlockStore for Altered<A> {
    fn place(&self) -> &str {
        "altered"
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        self.0.records(want, around)
    }
}

impl<A: Alteration> Replica for Altered<A> {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        self.0.head()
    }

    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }
}

impl<A: Alteration> Objects for Altered<A> {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        self.0.file(name, offset, len_bytes)
    }
}
