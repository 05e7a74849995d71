//! The body of a response. A file is read piece by piece as the client takes it, so a connection
//! holds one piece however long the file is.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
use http_body::{Body, Frame, SizeHint};
use store::disk::DiskFile;
use tokio::task::JoinHandle;

use super::deadlines::{Answering, PIECE_BYTES};
use crate::mirror::volumes::Mirror;
use crate::net::Held;

/// The body of an answer.
pub(super) struct Answer {
    /// Bytes that are in memory.
    ready: Option<Bytes>,
    file: Option<FilePart>,
    left_bytes: u64,
    _held: Option<Held>,
    _answering: Answering,
}

/// The rest of a file.
pub(super) struct FilePart {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) offset: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    mirror: Arc<Mirror>,
}

impl Answer {
    /// A body in memory; `held` is what is on the account for it.
    pub(super) fn bytes(bytes: Bytes, held: Option<Held>, answering: Answering) -> Answer {
        answering.begin();
        Answer {
            left_bytes: bytes.len() as u64,
            ready: Some(bytes).filter(|b| !b.is_empty()),
            file: None,
            _held: held,
            _answering: answering,
        }
    }

    /// A part of a file.
    pub(super) fn file(
        file: Arc<dyn DiskFile>,
        offset: u64,
        len_bytes: u64,
        mirror: Arc<Mirror>,
        held: Held,
        answering: Answering,
    ) -> Answer {
        answering.begin();
        Answer {
            ready: None,
            file: Some(FilePart {
                file,
                offset,
                reading: None,
                mirror,
            }),
            left_bytes: len_bytes,
            _held: Some(held),
            _answering: answering,
        }
    }
}

impl FilePart {
    /// Begins to read the next piece on a thread that may wait for the disk.
    fn read(&self, len_bytes: usize) -> JoinHandle<io::Result<Bytes>> {
        let (file, offset) = (Arc::clone(&self.file), self.offset);
        let turns = Arc::clone(&self.mirror.disk_reads);
        tokio::spawn(async move {
            // The read itself holds its turn, because it goes on when the connection is gone.
            let turn = turns.acquire_owned().await.map_err(io::Error::other)?;
            let read = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                let mut bytes = BytesMut::zeroed(len_bytes);
                let read = file.read_at(&mut bytes, offset)?;
                // The file became shorter than the promised length.
                if read < len_bytes {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Ok(bytes.freeze())
            });
            read.await.map_err(io::Error::other)?
        })
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = &mut *self;
        if let Some(bytes) = this.ready.take() {
            this.left_bytes = this.left_bytes.saturating_sub(bytes.len() as u64);
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let Some(part) = this.file.as_mut().filter(|_| this.left_bytes > 0) else {
            return Poll::Ready(None);
        };
        let len_bytes = this.left_bytes.min(PIECE_BYTES as u64) as usize;
        let mut reading = match part.reading.take() {
            Some(reading) => reading,
            None => part.read(len_bytes),
        };
        let read = match Pin::new(&mut reading).poll(cx) {
            Poll::Pending => {
                part.reading = Some(reading);
                return Poll::Pending;
            }
            Poll::Ready(read) => read.unwrap_or_else(|e| Err(io::Error::other(e))),
        };
        let read = read.inspect(|bytes| {
            part.offset = part.offset.saturating_add(bytes.len() as u64);
            this.left_bytes = this.left_bytes.saturating_sub(bytes.len() as u64);
        });
        Poll::Ready(Some(read.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.left_bytes == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left_bytes)
    }
}
