//! Answers to messages that a kernel does not send when a test wants them: malformed ones, unknown ones, and FUSE_INTERRUPT that
//! comes before its request.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;
use crate::fuse::file_system::{AddEntry, AddName};
use crate::fuse::request::{Caller, Data, Lookup, Read, Statistics};
use crate::fuse::types::FileHandle;

/// A file system that knows nothing.
#[derive(Debug)]
struct Nothing;

impl Listing<Nothing> for () {
    fn names(self, _: &Nothing, _: AddName<'_>) {}
    fn entries(self, _: &Nothing, _: AddEntry<'_>) {}
}

impl FileSystem for Nothing {
    type Error = Error;
    type Listing = ();

    fn lookup(&self, _: &Caller, _: INodeNo, _: &[u8]) -> Answer<Lookup, Error> {
        Error::NotFound.into()
    }

    fn getattr(&self, _: &Caller, _: INodeNo, _: Option<FileHandle>) -> Answer<Attributes, Error> {
        Error::StaleInode.into()
    }

    fn read(&self, _: &Caller, _: &Read) -> Answer<Data, Error> {
        // A thread that never answers.
        Answer::elsewhere(std::mem::forget)
    }

    fn readdir(&self, _: &Caller, _: INodeNo, _: FileHandle, _: u64) -> Answer<(), Error> {
        Answer::Now(Ok(()))
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, Error> {
        Error::NotImplemented.into()
    }
}

/// The kernel's end.
struct Kernel {
    socket: OwnedFd,
    dispatch: Dispatch<Nothing>,
}

impl Kernel {
    fn new() -> Kernel {
        let (ours, socket) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        let parking = Parking::new(tokio::runtime::Handle::current());
        let channel = Arc::new(Channel::new(ours));
        Kernel {
            socket,
            dispatch: Dispatch::new(Arc::new(Nothing), channel, parking, true),
        }
    }

    fn say(&self, opcode: u32, unique: u64, body: &[u8]) {
        self.say_of_length(40 + body.len() as u32, opcode, unique, body);
    }

    fn say_of_length(&self, length: u32, opcode: u32, unique: u64, body: &[u8]) {
        let mut message = Vec::new();
        message.extend(length.to_ne_bytes());
        message.extend(opcode.to_ne_bytes());
        message.extend(unique.to_ne_bytes());
        message.extend([0; 24]);
        message.extend(body);
        self.dispatch.receive(&message);
    }

    /// Error and number of the next answer, if there is one.
    fn hear(&self) -> Option<(i32, u64)> {
        let mut polled = [PollFd::new(&self.socket, PollFlags::IN)];
        if poll(&mut polled, Some(&Timespec::default())).unwrap() == 0 {
            return None;
        }
        let mut bytes = [0; 256];
        let length = rustix::io::read(&self.socket, &mut bytes[..]).unwrap();
        assert_eq!(bytes[..4], (length as u32).to_ne_bytes());
        let error = i32::from_ne_bytes(bytes[4..8].try_into().unwrap());
        Some((error, u64::from_ne_bytes(bytes[8..16].try_into().unwrap())))
    }
}

#[tokio::test]
async fn each_request_has_one_answer_and_no_other_message_has_one() {
    let kernel = Kernel::new();
    kernel.say(opcode::LOOKUP, 2, b"name\0");
    assert_eq!(kernel.hear(), Some((-libc::ENOENT, 2)));
    for (opcode, errno) in [
        (opcode::POLL, libc::ENOSYS),
        (opcode::STATX, libc::EIO),
        (opcode::IOCTL, libc::ENOTTY),
        (opcode::OPEN, libc::EIO),
        (9999, libc::ENOSYS),
    ] {
        kernel.say(opcode, 4, b"");
        assert_eq!(kernel.hear(), Some((-errno, 4)), "{opcode}");
    }
    kernel.say(opcode::STATX, 6, &[0; 24]);
    assert_eq!(kernel.hear(), Some((-libc::ENOSYS, 6)));
    kernel.say(opcode::OPEN, 6, &[0; 8]);
    assert_eq!(kernel.hear(), Some((-libc::ENOSYS, 6)), "without OPEN");
    kernel.say(opcode::DESTROY, 8, b"");
    assert_eq!(kernel.hear(), Some((0, 8)));
    kernel.say_of_length(7, opcode::LOOKUP, 10, b"name\0");
    assert_eq!(kernel.hear(), Some((-libc::EIO, 10)));
    for opcode in [opcode::FORGET, opcode::BATCH_FORGET, opcode::NOTIFY_REPLY] {
        for body in [&[0; 8][..], b"", b"bad"] {
            kernel.say(opcode, 12, body);
        }
    }
    kernel.say_of_length(7, opcode::FORGET, 12, b"");
    kernel.dispatch.receive(b"short");
    assert_eq!(kernel.hear(), None);
}

#[tokio::test]
async fn interrupt_comes_again_until_its_request_is_known() {
    let kernel = Kernel::new();
    let interrupt = || kernel.say(opcode::INTERRUPT, 3, &2_u64.to_ne_bytes());
    interrupt();
    assert_eq!(kernel.hear(), Some((-libc::EAGAIN, 3)));
    kernel.say(opcode::READ, 2, &[0; 40]);
    interrupt();
    assert_eq!(kernel.hear(), None);
}

#[tokio::test]
async fn request_that_is_dropped_is_eio() {
    let kernel = Kernel::new();
    let channel = &kernel.dispatch.channel;
    drop(Duty::new(channel.clone(), 2));
    assert_eq!(kernel.hear(), Some((-libc::EIO, 2)));
    assert!(!channel.under_way.interrupt(2));
    Duty::new(channel.clone(), 4).answer(&Ok(body::empty()));
    assert_eq!(kernel.hear(), Some((0, 4)));
    assert_eq!(kernel.hear(), None);
    assert!(!channel.under_way.interrupt(4));
}
