//! The descriptor of `/dev/fuse` of one mount: one read gives one request, one write takes one answer. All threads
//! use the same descriptor.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno as System, retry_on_intr, writev};

use super::protocol::body::Body;
use super::protocol::out_header;
use super::types::Errno;
use super::under_way::UnderWay;

/// Linux takes at most 1024 pieces in one write. All further pieces are copied into the last one.
const MOST_PIECES: usize = 1000;

/// The descriptor, and the requests that were read from it.
#[derive(Debug)]
pub struct Channel {
    device: OwnedFd,
    /// What FUSE_INTERRUPT looks for.
    pub under_way: UnderWay,
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl Channel {
    /// Owns the descriptor of a mount.
    pub fn new(device: OwnedFd) -> Channel {
        Channel {
            device,
            under_way: UnderWay::default(),
        }
    }

    /// Waits for a request and reads it. `None`: the mount has ended.
    ///
    /// # Errors
    /// The kernel's.
    pub fn receive<'b>(&self, buffer: &'b mut [u8]) -> Result<Option<&'b [u8]>, System> {
        loop {
            match rustix::io::read(&self.device, &mut *buffer) {
                Ok(length) => return Ok(Some(&buffer[..length])),
                // ENOENT: the request was interrupted before it was read.
                Err(System::NOENT | System::INTR) => {}
                Err(System::AGAIN) => self.wait_for_request()?,
                Err(System::NODEV) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Only for a descriptor that does not wait by itself.
    fn wait_for_request(&self) -> Result<(), System> {
        let mut polled = [PollFd::new(&self.device, PollFlags::IN)];
        retry_on_intr(|| poll(&mut polled, None)).map(drop)
    }

    /// Sends a notification, or an answer.
    ///
    /// # Errors
    /// The kernel's.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> Result<(), System> {
        retry_on_intr(|| writev(&self.device, parts)).map(drop)
    }

    fn answer(&self, unique: u64, result: &Result<Body, Errno>) {
        let sent = match result {
            Err(errno) => self.refuse(unique, *errno),
            Ok(Body::Fixed(fixed)) => self.send_body(unique, fixed.as_slice()),
            Ok(Body::Entries(bytes)) => self.send_body(unique, bytes),
            Ok(Body::Bytes(bytes)) => self.send_body(unique, bytes),
            Ok(Body::Pieces(pieces)) => self.send_pieces(unique, pieces),
        };
        match sent {
            // The kernel no longer waits: the caller is gone, or the mount.
            Ok(()) | Err(System::NOENT | System::NODEV) => {}
            Err(error) => {
                tracing::warn!(unique, %error, "the kernel refuses an answer");
                // Its caller would wait for ever. If the kernel did take the answer, it knows the request no more.
                let _ = self.refuse(unique, Errno::EIO);
            }
        }
    }

    fn refuse(&self, unique: u64, errno: Errno) -> Result<(), System> {
        self.send(&[IoSlice::new(&out_header(0, -errno.code(), unique))])
    }

    fn send_body(&self, unique: u64, body: &[u8]) -> Result<(), System> {
        let header = out_header(body.len(), 0, unique);
        self.send(&[IoSlice::new(&header), IoSlice::new(body)])
    }

    fn send_pieces(&self, unique: u64, pieces: &[Bytes]) -> Result<(), System> {
        let (pieces, beyond) = pieces.split_at(pieces.len().min(MOST_PIECES));
        let beyond = beyond.concat();
        let length = pieces.iter().map(Bytes::len).sum::<usize>() + beyond.len();
        let header = out_header(length, 0, unique);
        let mut parts = Vec::with_capacity(pieces.len() + 2);
        parts.push(IoSlice::new(&header));
        parts.extend(pieces.iter().map(|piece| IoSlice::new(piece)));
        parts.push(IoSlice::new(&beyond));
        self.send(&parts)
    }
}

/// The duty to answer one request, on any thread. One that is dropped answers EIO: a caller must not wait for ever
/// because a task was dropped, or a thread panicked.
#[derive(Debug)]
#[must_use]
pub struct Duty {
    channel: Arc<Channel>,
    unique: u64,
    is_done: bool,
}

impl Duty {
    /// For a request that was read.
    pub fn new(channel: Arc<Channel>, unique: u64) -> Duty {
        channel.under_way.begin(unique);
        Duty {
            channel,
            unique,
            is_done: false,
        }
    }

    /// The kernel's number of the request.
    pub fn unique(&self) -> u64 {
        self.unique
    }

    /// Answers.
    pub fn answer(mut self, result: &Result<Body, Errno>) {
        self.is_done = true;
        self.channel.answer(self.unique, result);
    }
}

impl Drop for Duty {
    fn drop(&mut self) {
        if !self.is_done {
            self.channel.answer(self.unique, &Err(Errno::EIO));
        }
        // After the answer: FUSE_INTERRUPT would come again and again for a request that is not known.
        self.channel.under_way.end(self.unique);
    }
}
