//! Where content that is put comes from: a stream, or a file of this machine, of which holes are not read.

use std::fs::File;
use std::io::{self, Read};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Content that is read at a time, bytes.
pub const READ_BYTES: usize = 1 << 20;

/// What comes next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece {
    /// Bytes: at least one and at most [`READ_BYTES`]; they are in the buffer.
    Bytes,
    /// So many zero bytes, at least one, that need not be read.
    Hole(u64),
    /// Nothing more.
    End,
}

/// Content that comes piece by piece.
pub trait Source {
    /// The next piece. Bytes replace what is in the buffer.
    ///
    /// # Errors
    /// Those of the system.
    fn next(&mut self, buffer: &mut Vec<u8>) -> io::Result<Piece>;
}

/// What can be read once, such as the standard input.
#[derive(Debug)]
pub struct Stream<R>(pub R);

impl<R: Read> Source for Stream<R> {
    fn next(&mut self, buffer: &mut Vec<u8>) -> io::Result<Piece> {
        buffer.clear();
        let from = &mut self.0;
        Ok(match from.take(READ_BYTES as u64).read_to_end(buffer)? {
            0 => Piece::End,
            _ => Piece::Bytes,
        })
    }
}

/// A regular file. Where the file system does not say what is a hole, all is read.
#[derive(Debug)]
pub struct Sparse {
    file: File,
    at: u64,
    /// The end of the run of data that is being read.
    run_end: u64,
}

impl Sparse {
    /// The content of a file from its beginning.
    pub fn of(file: File) -> Sparse {
        Sparse {
            file,
            at: 0,
            run_end: 0,
        }
    }

    /// The hole at this position, if there is one; else where the data that begins here ends.
    fn look(&mut self) -> io::Result<Option<u64>> {
        let start = match rustix::fs::seek(&self.file, SeekFrom::Data(self.at)) {
            Ok(start) => start,
            // No data follows: a hole up to the end.
            Err(Errno::NXIO) => self.file.metadata()?.len(),
            // A file system without this.
            Err(_) => self.at,
        };
        if start > self.at {
            let hole = start - self.at;
            self.at = start;
            return Ok(Some(hole));
        }
        let end = rustix::fs::seek(&self.file, SeekFrom::Hole(self.at));
        // At or after the end, or without knowledge of holes: read until nothing comes.
        self.run_end = end.ok().filter(|end| *end > self.at).unwrap_or(u64::MAX);
        rustix::fs::seek(&self.file, SeekFrom::Start(self.at))?;
        Ok(None)
    }
}

impl Source for Sparse {
    fn next(&mut self, buffer: &mut Vec<u8>) -> io::Result<Piece> {
        if self.at >= self.run_end
            && let Some(hole) = self.look()?
        {
            return Ok(Piece::Hole(hole));
        }
        buffer.clear();
        let most = (self.run_end - self.at).min(READ_BYTES as u64);
        let read = (&self.file).take(most).read_to_end(buffer)?;
        self.at += read as u64;
        if read > 0 {
            return Ok(Piece::Bytes);
        }
        // The file became shorter, or ends here.
        self.run_end = self.at;
        Ok(Piece::End)
    }
}

/// Content whose first piece was looked at.
#[derive(Debug)]
pub struct Begun<S> {
    first: Option<Piece>,
    start: Vec<u8>,
    from: S,
}

impl<S: Source> Begun<S> {
    /// Reads the first piece.
    ///
    /// # Errors
    /// Those of the system.
    pub fn of(mut from: S) -> io::Result<Begun<S>> {
        let mut start = Vec::new();
        let first = Some(from.next(&mut start)?);
        Ok(Begun { first, start, from })
    }

    /// The bytes with which the content begins. Empty for a hole.
    pub fn start(&self) -> &[u8] {
        &self.start
    }
}

impl<S: Source> Source for Begun<S> {
    fn next(&mut self, buffer: &mut Vec<u8>) -> io::Result<Piece> {
        let Some(first) = self.first.take() else {
            return self.from.next(buffer);
        };
        *buffer = std::mem::take(&mut self.start);
        Ok(first)
    }
}
