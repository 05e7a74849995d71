//! A repository as a [`BlockSink`]: one [`Writer`] that many tasks put blocks through.
//!
//! The calls take turns at the writer in the order in which they came. `flush` is [`Writer::checkpoint`]: it
//! commits the blocks without changing the statements. Frames are not checked against their handles. Nothing
//! is collected while the sink is open, because it holds the writer's lock; so a block that was put or
//! touched stays until the sink is dropped.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::Arc;

use tokio::sync::Mutex;
use trust::{Handle, Record};

use crate::blocking::Blocking;
use crate::error::StoreError;
use crate::traits::{BlockSink, BlockStore, BoxFuture};
use crate::writer::Writer;

/// A repository that is open for putting blocks. Blocks that were not flushed are removed when it is dropped.
pub struct RepositorySink {
    writer: Arc<Mutex<Writer>>,
    place: String,
    blocking: Blocking,
}

impl RepositorySink {
    /// A sink that writes by `writer` and waits for the disk where `blocking` says.
    pub fn new(writer: Writer, blocking: Blocking) -> RepositorySink {
        RepositorySink {
            place: writer.repository().place().to_owned(),
            writer: Arc::new(Mutex::new(writer)),
            blocking,
        }
    }

    /// Runs `work` with the writer, between other calls: a commit with new statements, for one.
    ///
    /// # Errors
    /// Those of `work`, with [`StoreError::Full`] for a full disk; [`StoreError::Unavailable`] as
    /// [`Blocking::run`].
    pub async fn with_writer<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Writer) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let mut writer = self.writer.clone().lock_owned().await;
        let work = move || work(&mut writer);
        let done = self.blocking.run(&self.place, work).await;
        done.map_err(|error| self.told(error))
    }

    /// Reports a full disk as [`StoreError::Full`].
    fn told(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Io { source, .. }
                if matches!(
                    source.kind(),
                    ErrorKind::StorageFull | ErrorKind::QuotaExceeded
                ) =>
            {
                StoreError::Full {
                    place: self.place.clone(),
                    cause: source.to_string(),
                }
            }
            other => other,
        }
    }
}

impl BlockSink for RepositorySink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        let records = records.to_vec();
        Box::pin(self.with_writer(move |writer| {
            for record in &records {
                writer.append(record)?;
            }
            Ok(())
        }))
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        let handles = handles.to_vec();
        Box::pin(self.with_writer(move |writer| {
            let mut absent = Vec::new();
            let mut asked = HashSet::new();
            for handle in handles {
                if asked.insert(handle) && !writer.contains(&handle)? {
                    absent.push(handle);
                }
            }
            Ok(absent)
        }))
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(self.with_writer(|writer| writer.flush()))
    }
}
