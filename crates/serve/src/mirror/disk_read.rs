//! Reads that wait for the disk: on blocking threads, each in its turn, their answers on the
//! server's account until a connection takes them over.
//!
//! A long answer comes in slices, so that no connection holds more than one of them at a time for
//! each read. Relies on [`RepositoryReader`] for the reading.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use store::{Patience, StoreError};
use trust::Handle;
use trust::record::RECORD_HEADER_BYTES;
use wire::ObjectName;

use crate::mirror::bundle::HeadBundle;
use crate::mirror::reader::RepositoryReader;
use crate::mirror::server::Shared;

/// A read from disk is handed on in slices of about this size.
const SLICE_BYTES: usize = 2 << 20;

/// A read that waits for the disk.
pub(crate) enum DiskRead {
    Data {
        want: Vec<Handle>,
        around: usize,
    },
    Range {
        object: ObjectName,
        offset: u64,
        len_bytes: usize,
    },
    /// A walk into the tree, for an answer to *get head*.
    PathRecords {
        landing: Arc<HeadBundle>,
        toward: Vec<u8>,
        around: usize,
    },
}

/// What came of it.
pub(crate) struct DiskAnswer {
    pub(crate) id: u32,
    pub(crate) shelf: Arc<dyn RepositoryReader>,
    /// `None`: too much was held for the read to begin.
    pub(crate) found: Option<Result<(Found, Held), StoreError>>,
}

/// An answer's share of the server's account until its connection takes it over.
pub(crate) struct Held {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Held {
    fn new(shared: Arc<Shared>, found: &Found) -> Held {
        let bytes = found.len_bytes() as u64;
        shared.counters.held_bytes.add(bytes);
        Held { shared, bytes }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.counters.held_bytes.take_off(self.bytes);
    }
}

/// What was read.
pub(crate) enum Found {
    /// Regions, and the handles that are still to be looked for.
    Records(Vec<Bytes>, Vec<Handle>),
    Range(Option<Bytes>),
    /// Records to go with a head, and it.
    Landed(Bytes, Bytes),
}

impl Found {
    fn len_bytes(&self) -> usize {
        match self {
            Found::Records(regions, _) => regions.iter().map(Bytes::len).sum(),
            Found::Range(bytes) => bytes.as_ref().map_or(0, Bytes::len),
            Found::Landed(records, head) => records.len() + head.len(),
        }
    }
}

impl DiskRead {
    /// Waits for a turn and for room, then reads on a blocking thread.
    pub(crate) async fn answer(
        self,
        shared: Arc<Shared>,
        id: u32,
        shelf: Arc<dyn RepositoryReader>,
    ) -> DiskAnswer {
        let turn = Arc::clone(&shared.disk_reads).acquire_owned().await;
        if !shared.wait_for_room().await {
            let found = None;
            return DiskAnswer { id, shelf, found };
        }
        let (on, place) = (Arc::clone(&shelf), shelf.place().to_owned());
        let found = tokio::task::spawn_blocking(move || {
            // Held by the read itself: it goes on when the connection is gone.
            let _turn = turn;
            let found = self.run(&shared, &*on)?;
            let held = Held::new(shared, &found);
            Ok((found, held))
        });
        let found = found.await.unwrap_or_else(|e| {
            Err(StoreError::Unavailable {
                place,
                cause: e.to_string(),
            })
        });
        let found = Some(found);
        DiskAnswer { id, shelf, found }
    }

    fn run(self, shared: &Shared, shelf: &dyn RepositoryReader) -> Result<Found, StoreError> {
        match self {
            DiskRead::PathRecords {
                landing,
                toward,
                around,
            } => {
                let way = landing.toward(shelf, &toward, Patience::Wait);
                let way = Arc::new(way.unwrap_or_default());
                shared.ways.keep(landing.number(), &toward, &way);
                Ok(Found::Landed(way.within(around), landing.head()))
            }
            DiskRead::Range {
                object,
                offset,
                len_bytes,
            } => shelf
                .read_range(object, offset, len_bytes)
                .map(Found::Range),
            DiskRead::Data { mut want, around } => {
                let (mut regions, mut total) = (Vec::new(), 0);
                let mut cut = false;
                shelf.read_blocking(&want, around, &mut |region| {
                    total += region.len();
                    regions.push(region);
                    cut = total >= SLICE_BYTES;
                    if cut {
                        ControlFlow::Break(())
                    } else {
                        ControlFlow::Continue(())
                    }
                })?;
                if cut {
                    let sent = handles(&regions);
                    want.retain(|h| !sent.contains(h));
                } else {
                    want.clear();
                }
                Ok(Found::Records(regions, want))
            }
        }
    }
}

/// The names of the records in regions that a shelf gave.
fn handles(regions: &[Bytes]) -> HashSet<Handle> {
    let mut names = HashSet::new();
    for region in regions {
        let mut rest = &region[..];
        while let Some(header) = rest.first_chunk::<RECORD_HEADER_BYTES>() {
            let Some((name, len)) = header.split_first_chunk::<32>() else {
                break;
            };
            names.insert(Handle::from_bytes(*name));
            let len = <[u8; 4]>::try_from(len).map_or(0, u32::from_le_bytes) as usize;
            rest = rest.get(RECORD_HEADER_BYTES + len..).unwrap_or_default();
        }
    }
    names
}
