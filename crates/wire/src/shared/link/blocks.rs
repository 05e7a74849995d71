//! The link as a store of blocks (RETRIEVE) and as a sink (STORE, and CSTORE for `touch`).
//!
//! What `put` accepts is durable when it returns, so `flush` has nothing to do.

use store::{BlockSink, BlockStore, BoxFuture, StoreError};
use trust::{Handle, Record};

use super::Link;

/// Handles without repetitions, in their order.
fn unique(handles: &[Handle]) -> Vec<Handle> {
    let mut seen = std::collections::HashSet::new();
    let first = |handle: &Handle| seen.insert(*handle);
    handles.iter().copied().filter(first).collect()
}

impl BlockStore for Link {
    fn place(&self) -> &str {
        Link::place(self)
    }

    /// A shared volume has no order in which neighbours are read: `around` is ignored.
    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        _: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move { Ok(self.retrieve(&unique(want)).await?) })
    }

    fn get_within<'a>(
        &'a self,
        want: &'a [Handle],
        _: usize,
        most_bytes: u64,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let most_bytes = usize::try_from(most_bytes).unwrap_or(usize::MAX);
        Box::pin(async move { Ok(self.retrieve_within(&unique(want), most_bytes).await?) })
    }
}

impl BlockSink for Link {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move { Ok(self.store(records).await?) })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        Box::pin(async move {
            let handles = unique(handles);
            let have = self.cstore(&handles).await?;
            let absent = handles.iter().zip(have).filter(|(_, have)| !have);
            Ok(absent.map(|(handle, _)| *handle).collect())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}
