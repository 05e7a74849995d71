//! The body of a response. A file is read piece by piece as the client takes it, so a connection
//! holds one piece however long the file is.

use std::collections::VecDeque;
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
    /// All of it, if it is in memory.
    ready: Option<Bytes>,
    /// Sections that are not yet sent, in their order in the body.
    left: VecDeque<Section>,
    left_bytes: u64,
    source: Option<Source>,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
    _held: Option<Held>,
    _answering: Answering,
}

/// A contiguous part of a body.
#[derive(Debug)]
pub(super) enum Section {
    /// Bytes in memory.
    Ready(Bytes),
    /// A part of the file.
    File {
        /// Where it begins.
        offset: u64,
        /// Its length, bytes.
        len_bytes: u64,
    },
}

impl Section {
    pub(super) fn len_bytes(&self) -> u64 {
        match self {
            Section::Ready(bytes) => bytes.len() as u64,
            Section::File { len_bytes, .. } => *len_bytes,
        }
    }

    /// Takes at most so many bytes from its start.
    fn split_to(&mut self, most_bytes: u64) -> Section {
        match self {
            Section::Ready(bytes) => {
                let most = bytes.len().min(most_bytes as usize);
                Section::Ready(bytes.split_to(most))
            }
            Section::File { offset, len_bytes } => {
                let taken = Section::File {
                    offset: *offset,
                    len_bytes: most_bytes.min(*len_bytes),
                };
                *offset = offset.saturating_add(taken.len_bytes());
                *len_bytes -= taken.len_bytes();
                taken
            }
        }
    }
}

/// The file of an answer.
struct Source {
    file: Arc<dyn DiskFile>,
    mirror: Arc<Mirror>,
}

impl Answer {
    /// A body in memory; `held` is what is on the account for it.
    pub(super) fn bytes(bytes: Bytes, held: Option<Held>, answering: Answering) -> Answer {
        answering.begin();
        Answer {
            left_bytes: bytes.len() as u64,
            ready: Some(bytes).filter(|bytes| !bytes.is_empty()),
            left: VecDeque::new(),
            source: None,
            reading: None,
            _held: held,
            _answering: answering,
        }
    }

    /// A body of `sections`: parts of a file, and bytes between them.
    pub(super) fn file(
        (file, mirror): (Arc<dyn DiskFile>, Arc<Mirror>),
        sections: VecDeque<Section>,
        held: Held,
        answering: Answering,
    ) -> Answer {
        answering.begin();
        Answer {
            left_bytes: sections.iter().map(Section::len_bytes).sum(),
            ready: None,
            left: sections,
            source: Some(Source { file, mirror }),
            reading: None,
            _held: Some(held),
            _answering: answering,
        }
    }
}

/// Removes the next piece, at most [`PIECE_BYTES`] long, from what is left.
fn take_piece(left: &mut VecDeque<Section>) -> Vec<Section> {
    let (mut piece, mut room) = (Vec::new(), PIECE_BYTES as u64);
    while room > 0
        && let Some(first) = left.front_mut()
    {
        let taken = first.split_to(room);
        room -= taken.len_bytes();
        if first.len_bytes() == 0 {
            left.pop_front();
        }
        piece.push(taken);
    }
    piece
}

impl Source {
    /// Begins to read a piece on a thread that may wait for the disk.
    fn read(&self, piece: Vec<Section>) -> JoinHandle<io::Result<Bytes>> {
        let file = Arc::clone(&self.file);
        let turns = Arc::clone(&self.mirror.disk_reads);
        tokio::spawn(async move {
            // The read itself holds its turn, because it goes on when the connection is gone.
            let turn = turns.acquire_owned().await.map_err(io::Error::other)?;
            let read = tokio::task::spawn_blocking(move || {
                let _turn = turn;
                read(file.as_ref(), &piece)
            });
            read.await.map_err(io::Error::other)?
        })
    }
}

fn read(file: &dyn DiskFile, piece: &[Section]) -> io::Result<Bytes> {
    let len_bytes: u64 = piece.iter().map(Section::len_bytes).sum();
    let mut all = BytesMut::zeroed(len_bytes as usize);
    let mut rest = &mut *all;
    for section in piece {
        let Some((here, behind)) = rest.split_at_mut_checked(section.len_bytes() as usize) else {
            break;
        };
        match section {
            Section::Ready(bytes) => here.copy_from_slice(bytes),
            // The file became shorter than the promised length.
            Section::File { offset, .. } if file.read_at(here, *offset)? < here.len() => {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            Section::File { .. } => {}
        }
        rest = behind;
    }
    Ok(all.freeze())
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
            this.left_bytes = 0;
            return Poll::Ready(Some(Ok(Frame::data(bytes))));
        }
        let reading = this.reading.take().or_else(|| {
            let piece = take_piece(&mut this.left);
            let source = this.source.as_ref().filter(|_| !piece.is_empty());
            source.map(|source| source.read(piece))
        });
        let Some(mut reading) = reading else {
            return Poll::Ready(None);
        };
        let read = match Pin::new(&mut reading).poll(cx) {
            Poll::Pending => {
                this.reading = Some(reading);
                return Poll::Pending;
            }
            Poll::Ready(read) => read.unwrap_or_else(|e| Err(io::Error::other(e))),
        };
        let read = read.inspect(|bytes| {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of these bytes.
    struct Holds(&'static [u8]);

    impl DiskFile for Holds {
        fn len_bytes(&self) -> io::Result<u64> {
            Ok(self.0.len() as u64)
        }

        fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
            let rest = self.0.get(offset as usize..).unwrap_or_default();
            let len = rest.len().min(buf.len());
            buf[..len].copy_from_slice(&rest[..len]);
            Ok(len)
        }

        fn read_at_if_cached(&self, buf: &mut [u8], offset: u64) -> io::Result<Option<usize>> {
            self.read_at(buf, offset).map(Some)
        }

        fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }
    }

    fn sections() -> VecDeque<Section> {
        let file = |offset, len_bytes| Section::File { offset, len_bytes };
        let text = |text: &'static str| Section::Ready(Bytes::from_static(text.as_bytes()));
        VecDeque::from([text("<"), file(1, 2), text("|"), file(6, 3), text(">")])
    }

    #[test]
    fn sections_follow_one_another_and_a_file_that_became_shorter_is_an_error() {
        let piece = take_piece(&mut sections());
        let whole = read(&Holds(b"0123456789"), &piece).unwrap();
        assert_eq!(&*whole, b"<12|678>");
        let short = read(&Holds(b"01234567"), &piece).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_piece_is_bounded_and_sections_go_on_in_the_next_one() {
        let long = PIECE_BYTES as u64 + 5;
        let file = Section::File {
            offset: 3,
            len_bytes: long,
        };
        let mut left = VecDeque::from([Section::Ready(Bytes::from_static(b"<<")), file]);
        let len = |piece: &[Section]| piece.iter().map(Section::len_bytes).sum::<u64>();
        assert_eq!(len(&take_piece(&mut left)), PIECE_BYTES as u64);
        let rest = take_piece(&mut left);
        let [Section::File { offset, len_bytes }] = rest.as_slice() else {
            panic!("{rest:?}");
        };
        assert_eq!((*offset, *len_bytes), (PIECE_BYTES as u64 + 1, 7));
        assert!(left.is_empty());
    }
}
