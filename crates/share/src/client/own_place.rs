//! The server's blocks beside those that this device wrote itself ([`super::own`]): what is put is kept here too, and what
//! is read of lost work comes from here first, then from the place that a person names ([`super::other_place`]).

use std::sync::Arc;

use store::{BlockSink, BlockStore, BoxFuture, Replica, StoreError};
use trust::{Handle, Record};

use super::other_place::OtherPlace;
use super::own::{Own, without};
use super::place::{ServerBlocks, Sink};

/// Puts blocks into what this device keeps, and into the server.
#[derive(Clone)]
pub struct OwnSink {
    pub(super) own: Option<Arc<Own>>,
    pub(super) sink: Sink,
}

impl std::fmt::Debug for OwnSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Own{:?}", self.sink)
    }
}

impl BlockSink for OwnSink {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let keeping = async {
                if let Some(own) = self.own.as_ref().filter(|_| !records.is_empty()) {
                    own.keep(records).await;
                }
            };
            let (put, ()) = tokio::join!(self.sink.put(records), keeping);
            put
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        self.sink.touch(handles)
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.sink.flush()
    }
}

/// The blocks of lost work: what is on this disk or in another place goes to the server before it is given. So who has
/// read a file by this may name it in an entry.
pub(super) struct Return {
    pub(super) own: Option<Arc<Own>>,
    pub(super) other: Option<Arc<OtherPlace>>,
    pub(super) server: ServerBlocks,
    pub(super) sink: Sink,
}

impl BlockStore for Return {
    fn place(&self) -> &str {
        self.server.place()
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            let mut found = match &self.own {
                Some(own) => own.get(want).await,
                None => Vec::new(),
            };
            let mut rest = without(want, &found);
            if let Some(other) = self.other.as_ref().filter(|_| !rest.is_empty()) {
                found.extend(other.get(&rest).await);
                rest = without(want, &found);
            }
            if !found.is_empty() {
                self.sink.put(&found).await?;
            }
            if !rest.is_empty() {
                found.extend(self.server.get_many(&rest, around).await?);
            }
            Ok(found)
        })
    }
}

impl Replica for Return {
    fn head(&self) -> BoxFuture<'_, Result<bytes::Bytes, StoreError>> {
        self.server.head()
    }
}
