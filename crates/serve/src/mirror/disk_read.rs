//! Reads that wait for the disk, on blocking threads, a bounded number at a time. Bytes that were read count
//! as held by the server until the connection takes them.
//!
//! A long answer comes in slices, so that no request holds more than one of them at a time. Relies
//! on [`RepositoryReader`] for the reading.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use store::{Patience, StoreError};
use trust::Handle;
use trust::record::RECORD_HEADER_BYTES;
use wire::ObjectName;
use wire::mirror::{NO_OBJECT, kind};
use wire::refusal::ErrorCode;

use crate::mirror::bundle::HeadBundle;
use crate::mirror::reader::RepositoryReader;
use crate::mirror::volumes::Mirror;
use crate::net::{Completion, Held};

/// Size of a slice, bytes; a slice ends with the first record that reaches it.
const SLICE_BYTES: usize = 2 << 20;

/// A read that waits for the disk.
pub(crate) enum DiskRead {
    Data {
        want: Vec<Handle>,
        around_bytes: usize,
    },
    Range {
        object: ObjectName,
        offset: u64,
        len_bytes: usize,
    },
    /// The records on a path, for an answer to *get head*.
    Path {
        bundle: Arc<HeadBundle>,
        toward: Vec<u8>,
        around_bytes: usize,
    },
}

/// The result of a read.
pub(crate) enum Found {
    /// Regions, and the handles that are still to be read.
    Records(Vec<Bytes>, Vec<Handle>),
    Range(Option<Bytes>),
    /// The records on a path, and the head.
    Path(Bytes, Bytes),
}

impl Found {
    fn len_bytes(&self) -> usize {
        match self {
            Found::Records(regions, _) => regions.iter().map(Bytes::len).sum(),
            Found::Range(bytes) => bytes.as_ref().map_or(0, Bytes::len),
            Found::Path(records, head) => records.len() + head.len(),
        }
    }
}

/// Reads, slice by slice, and completes the request.
pub(crate) async fn answer(
    mirror: Arc<Mirror>,
    reader: Arc<dyn RepositoryReader>,
    mut read: DiskRead,
    mut completion: Completion,
) {
    loop {
        let (found, held) = match read.wait(&mirror, &reader).await {
            None => return completion.busy(),
            Some(Ok(found)) => found,
            Some(Err(error)) => {
                let text = mirror.storage_error(&*reader, &error);
                return completion.refuse(ErrorCode::STORAGE, text);
            }
        };
        match found {
            Found::Range(None) => {
                mirror.counters.no_object.add(1);
                return completion.refuse(NO_OBJECT, "no such object");
            }
            Found::Range(Some(bytes)) => completion.message(kind::RANGE, bytes),
            Found::Path(records, head) => {
                if !records.is_empty() {
                    completion.message(kind::RECORDS, records);
                }
                completion.message(kind::HEAD, head);
            }
            Found::Records(regions, rest) => {
                for region in regions {
                    completion.message(kind::RECORDS, region);
                }
                if !rest.is_empty() {
                    drop(held);
                    if !completion.send().await {
                        return;
                    }
                    mirror.counters.disk_reads.add(1);
                    read = DiskRead::Data {
                        want: rest,
                        around_bytes: 0,
                    };
                    continue;
                }
                completion.message(kind::DONE, Bytes::new());
            }
        }
        drop(held);
        return completion.finish();
    }
}

impl DiskRead {
    /// Waits for a turn and for room, then reads on a blocking thread; `None` when the server holds
    /// too many bytes.
    async fn wait(
        self,
        mirror: &Arc<Mirror>,
        reader: &Arc<dyn RepositoryReader>,
    ) -> Option<Result<(Found, Held), StoreError>> {
        let turn = Arc::clone(&mirror.disk_reads).acquire_owned().await;
        if !mirror.resources.wait_for_room().await {
            return None;
        }
        let (mirror, on) = (Arc::clone(mirror), Arc::clone(reader));
        let found = tokio::task::spawn_blocking(move || {
            // The read itself holds its turn, because it goes on when the connection is gone.
            let _turn = turn;
            let found = self.run(&mirror, &*on)?;
            let held = mirror.resources.hold(found.len_bytes());
            Ok((found, held))
        });
        Some(found.await.unwrap_or_else(|e| {
            Err(StoreError::Unavailable {
                place: reader.place().to_owned(),
                cause: e.to_string(),
            })
        }))
    }

    fn run(self, mirror: &Mirror, reader: &dyn RepositoryReader) -> Result<Found, StoreError> {
        match self {
            DiskRead::Path {
                bundle,
                toward,
                around_bytes,
            } => {
                let path = bundle.toward(reader, &toward, Patience::Wait);
                let path = Arc::new(path.unwrap_or_default());
                mirror.paths.keep(bundle.number(), &toward, &path);
                Ok(Found::Path(path.within(around_bytes), bundle.head()))
            }
            DiskRead::Range {
                object,
                offset,
                len_bytes,
            } => reader
                .read_range(object, offset, len_bytes)
                .map(Found::Range),
            DiskRead::Data {
                mut want,
                around_bytes,
            } => {
                let (mut regions, mut total) = (Vec::new(), 0);
                let mut cut = false;
                reader.read_blocking(&want, around_bytes, &mut |region| {
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

/// The handles of the records in regions.
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
