//! Reads that wait for the disk, on blocking threads, a bounded number at a time. What will be read is
//! on the connection's account before the read begins, and until the connection takes it.
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
use crate::net::{Account, Completion, Held};

/// Most bytes of a slice. It ends with the first record that reaches them.
pub(crate) const SLICE_BYTES: usize = 512 << 10;
/// What a block is expected to take, bytes.
const EXPECTED_BLOCK_BYTES: usize = 64 << 10;

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

/// A slice of an answer.
struct Slice {
    messages: Vec<(u8, Bytes)>,
    /// The bytes that are not read yet.
    rest: Option<DiskRead>,
}

/// Why a slice was not read.
enum Failed {
    /// The client, or the server, holds too many bytes.
    Busy,
    NoObject,
    Storage(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Failed {
        Failed::Storage(error)
    }
}

/// About how many bytes an answer takes.
pub(crate) fn expected_bytes(handles: usize, around_bytes: usize) -> usize {
    let wanted = handles.saturating_mul(EXPECTED_BLOCK_BYTES);
    wanted.saturating_add(around_bytes)
}

/// Reads, slice by slice, and completes the request.
pub(crate) async fn answer(
    mirror: Arc<Mirror>,
    account: Arc<Account>,
    reader: Arc<dyn RepositoryReader>,
    mut read: DiskRead,
    mut completion: Completion,
) {
    let mut is_first = true;
    loop {
        let slice = match read.wait(&mirror, &account, &reader).await {
            Ok((slice, held)) => {
                completion.charge(held);
                slice
            }
            Err(Failed::Busy) => return completion.busy(),
            Err(Failed::NoObject) if is_first => {
                mirror.counters.no_object.add(1);
                return completion.refuse(NO_OBJECT, "no such object");
            }
            Err(Failed::NoObject) => {
                return completion.refuse(ErrorCode::STORAGE, "the object is gone");
            }
            Err(Failed::Storage(error)) => {
                let text = mirror.storage_error(&*reader, &error);
                return completion.refuse(ErrorCode::STORAGE, text);
            }
        };
        for (kind, body) in slice.messages {
            completion.message(kind, body);
        }
        let Some(rest) = slice.rest else {
            return completion.finish();
        };
        if !completion.send().await {
            return;
        }
        mirror.counters.disk_reads.add(1);
        read = rest;
        is_first = false;
    }
}

impl DiskRead {
    /// About how many bytes the next slice takes.
    fn slice_bytes(&self) -> usize {
        match self {
            DiskRead::Data { want, around_bytes } => {
                expected_bytes(want.len(), *around_bytes).min(SLICE_BYTES)
            }
            // A new head may replace the file at any time, so it is read whole, as of one moment.
            DiskRead::Range {
                object: ObjectName::Head,
                len_bytes,
                ..
            } => *len_bytes,
            DiskRead::Range { len_bytes, .. } => (*len_bytes).min(SLICE_BYTES),
            DiskRead::Path { around_bytes, .. } => *around_bytes,
        }
    }

    /// Waits for room and for a turn, then reads a slice on a blocking thread.
    async fn wait(
        self,
        mirror: &Arc<Mirror>,
        account: &Arc<Account>,
        reader: &Arc<dyn RepositoryReader>,
    ) -> Result<(Slice, Held), Failed> {
        // In this order: who waits for room must not keep others from the disk.
        let reserved = account.reserve(self.slice_bytes()).await;
        let mut held = reserved.ok_or(Failed::Busy)?;
        let turn = Arc::clone(&mirror.disk_reads).acquire_owned().await;
        let (mirror, on) = (Arc::clone(mirror), Arc::clone(reader));
        let found = tokio::task::spawn_blocking(move || {
            // The read itself holds its turn, because it goes on when the connection is gone.
            let _turn = turn;
            let slice = self.run(&mirror, &*on, held.bytes())?;
            held.resize(slice.messages.iter().map(|(_, body)| body.len()).sum());
            Ok((slice, held))
        });
        found.await.unwrap_or_else(|e| {
            Err(Failed::Storage(StoreError::Unavailable {
                place: reader.place().to_owned(),
                cause: e.to_string(),
            }))
        })
    }

    fn run(
        self,
        mirror: &Mirror,
        reader: &dyn RepositoryReader,
        slice_bytes: usize,
    ) -> Result<Slice, Failed> {
        match self {
            DiskRead::Path {
                bundle,
                toward,
                around_bytes,
            } => {
                let path = bundle.toward(reader, &toward, Patience::Wait);
                let path = Arc::new(path.unwrap_or_default());
                mirror.paths.keep(bundle.number(), &toward, &path);
                let records = (kind::RECORDS, path.within(around_bytes));
                let mut messages = vec![records, (kind::HEAD, bundle.head())];
                messages.retain(|(kind, body)| *kind == kind::HEAD || !body.is_empty());
                let rest = None;
                Ok(Slice { messages, rest })
            }
            DiskRead::Range {
                object,
                offset,
                len_bytes,
            } => range_slice(reader, object, offset, len_bytes, slice_bytes),
            DiskRead::Data { want, around_bytes } => {
                Ok(data_slice(reader, want, around_bytes, slice_bytes)?)
            }
        }
    }
}

fn range_slice(
    reader: &dyn RepositoryReader,
    object: ObjectName,
    offset: u64,
    len_bytes: usize,
    slice_bytes: usize,
) -> Result<Slice, Failed> {
    let count = match object {
        ObjectName::Head => len_bytes,
        _ => len_bytes.min(slice_bytes),
    };
    let bytes = reader.read_range(object, offset, count)?;
    let bytes = bytes.ok_or(Failed::NoObject)?;
    let left = len_bytes.saturating_sub(count);
    let rest = (left > 0 && bytes.len() == count).then(|| DiskRead::Range {
        object,
        offset: offset.saturating_add(count as u64),
        len_bytes: left,
    });
    let mut messages = Vec::new();
    if !bytes.is_empty() {
        messages.push((kind::RANGE, bytes));
    }
    if rest.is_none() {
        messages.push((kind::DONE, Bytes::new()));
    }
    Ok(Slice { messages, rest })
}

fn data_slice(
    reader: &dyn RepositoryReader,
    mut want: Vec<Handle>,
    around_bytes: usize,
    slice_bytes: usize,
) -> Result<Slice, StoreError> {
    let (mut regions, mut total) = (Vec::new(), 0);
    let mut cut = false;
    reader.read_blocking(&want, around_bytes, &mut |region| {
        total += region.len();
        regions.push(region);
        cut = total >= slice_bytes;
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
    let mut messages: Vec<_> = regions.into_iter().map(|r| (kind::RECORDS, r)).collect();
    let rest = (!want.is_empty()).then_some(DiskRead::Data {
        want,
        around_bytes: 0,
    });
    if rest.is_none() {
        messages.push((kind::DONE, Bytes::new()));
    }
    Ok(Slice { messages, rest })
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
