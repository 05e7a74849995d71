//! The threads that read requests. FUSE_INIT comes first and is answered before they begin.

use std::io::{self, IoSlice};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::channel::Channel;
use super::dispatch::Dispatch;
use super::file_system::FileSystem;
use super::protocol::init::{self, Offer};
use super::protocol::{Header, body, opcode, out_header};
use super::request::Features;
use super::types::{Errno, InitFlags};

/// The largest request that is no write: an extended attribute with its name.
const MIN_REQUEST_BYTES: usize = 64 << 10;
/// Room for headers, names, and the target of a link.
const BESIDES_BYTES: usize = 8 << 10;

/// What was agreed on with the kernel.
#[derive(Debug, Clone, Copy)]
pub struct Agreed {
    /// Minor version of the protocol.
    pub minor: u32,
    /// Those of the wanted flags that the kernel has.
    pub granted: InitFlags,
    /// Size of a buffer for any request, bytes.
    pub buffer_bytes: usize,
}

fn buffer_bytes(max_write: u32) -> usize {
    (max_write as usize).max(MIN_REQUEST_BYTES) + BESIDES_BYTES
}

/// Reads FUSE_INIT and answers it. `granted` is called before the answer.
///
/// # Errors
/// The kernel's; `Unsupported` when it is too old.
pub fn shake_hands(
    channel: &Channel,
    features: &Features,
    granted: impl FnOnce(InitFlags),
) -> io::Result<Agreed> {
    let mut buffer = vec![0; buffer_bytes(0)];
    loop {
        let message = channel.receive(&mut buffer)?;
        let message = message.ok_or(io::ErrorKind::NotConnected)?;
        let invalid = || io::Error::other("the kernel does not begin with FUSE_INIT");
        let (header, bytes) = Header::split(message).map_err(|_| invalid())?;
        let refuse = |errno: Errno| {
            let refusal = out_header(0, -errno.code(), header.unique);
            channel.send(&[IoSlice::new(&refusal)])
        };
        if header.opcode != opcode::INIT {
            refuse(Errno::EIO)?;
            return Err(invalid());
        }
        let Ok(offer) = Offer::parse(bytes) else {
            refuse(Errno::EPROTO)?;
            return Err(invalid());
        };
        if offer.major > init::MAJOR {
            // The kernel sends FUSE_INIT again, in our version.
            accept(channel, header.unique, &init::only_version())?;
            continue;
        }
        if !offer.is_served() {
            refuse(Errno::EPROTO)?;
            return Err(too_old(&offer));
        }
        let (agreed, flags) = offer.agree(features);
        granted(flags);
        accept(channel, header.unique, &agreed)?;
        return Ok(Agreed {
            minor: agreed.minor,
            granted: flags,
            buffer_bytes: buffer_bytes(agreed.max_write),
        });
    }
}

fn accept(channel: &Channel, unique: u64, agreed: &body::Init) -> io::Result<()> {
    let body = body::init(agreed);
    let header = out_header(body.as_slice().len(), 0, unique);
    let parts = [IoSlice::new(&header), IoSlice::new(body.as_slice())];
    Ok(channel.send(&parts)?)
}

fn too_old(offer: &Offer) -> io::Error {
    let Offer { major, minor, .. } = offer;
    let needed = init::OLDEST_MINOR;
    let told = format!(
        "the kernel has version {major}.{minor} of FUSE, and 7.{needed} (Linux 5.4) is needed"
    );
    io::Error::new(io::ErrorKind::Unsupported, told)
}

/// Serves requests by `threads` threads until the mount has ended.
///
/// # Errors
/// The system's, when it refuses every thread; the kernel's, when the connection was broken.
pub fn serve<F: FileSystem>(
    channel: &Arc<Channel>,
    dispatch: &Arc<Dispatch<F>>,
    threads: usize,
    buffer_bytes: usize,
) -> io::Result<()> {
    let mut running = Vec::new();
    for number in 0..threads.max(1) {
        let (channel, dispatch) = (channel.clone(), dispatch.clone());
        let thread = std::thread::Builder::new()
            .name(format!("bulla-fuse-{number}"))
            .spawn(move || read_all(&channel, &dispatch, buffer_bytes));
        match thread {
            Ok(thread) => running.push(thread),
            Err(error) if running.is_empty() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "{number} threads serve the mount, not {threads}");
                break;
            }
        }
    }
    let mut result = Ok(());
    for thread in running {
        let ended = thread.join();
        let ended =
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread of the mount panicked")));
        result = result.and(ended);
    }
    result
}

fn read_all<F: FileSystem>(
    channel: &Channel,
    dispatch: &Dispatch<F>,
    buffer_bytes: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    while let Some(message) = channel.receive(&mut buffer)? {
        // The caller gets EIO from what the panic drops. Others must not wait for ever because a thread is gone.
        let handled = catch_unwind(AssertUnwindSafe(|| dispatch.receive(message)));
        if handled.is_err() {
            tracing::error!("a request was ended by a panic");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::fd::OwnedFd;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    /// A channel, and the kernel's end of it: one write is one message there, too.
    fn pair() -> (Channel, OwnedFd) {
        let (ours, kernels) = socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        (Channel::new(ours), kernels)
    }

    fn say(kernel: &OwnedFd, opcode: u32, unique: u64, words: &[u32]) {
        let mut message = Vec::new();
        message.extend((40 + 4 * words.len() as u32).to_ne_bytes());
        message.extend(opcode.to_ne_bytes());
        message.extend(unique.to_ne_bytes());
        message.extend([0; 24]);
        message.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        rustix::io::write(kernel, &message).unwrap();
    }

    /// Error, number and first two words of an answer.
    fn hear(kernel: &OwnedFd) -> (i32, u64, Vec<u32>) {
        let mut bytes = [0; 256];
        let length = rustix::io::read(kernel, &mut bytes[..]).unwrap();
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
        assert_eq!(word(0) as usize, length);
        let unique = u64::from_ne_bytes(bytes[8..16].try_into().unwrap());
        let body = (16..length).step_by(4).take(2).map(word);
        (word(4) as i32, unique, body.collect())
    }

    fn shake(channel: &Channel) -> io::Result<(Agreed, InitFlags)> {
        let mut granted = InitFlags::empty();
        let features = Features::default();
        let agreed = shake_hands(channel, &features, |flags| granted = flags)?;
        Ok((agreed, granted))
    }

    #[test]
    fn file_system_is_told_what_the_kernel_has() {
        let (channel, kernel) = pair();
        let has = InitFlags::FUSE_PARALLEL_DIROPS.bits() as u32;
        say(&kernel, opcode::INIT, 2, &[7, 44, 1 << 20, has]);
        let (agreed, granted) = shake(&channel).unwrap();
        assert_eq!(
            (agreed.minor, granted),
            (44, InitFlags::FUSE_PARALLEL_DIROPS)
        );
        assert!(agreed.buffer_bytes > Features::default().max_request_bytes as usize + 80);
        assert_eq!(hear(&kernel), (0, 2, vec![7, 44]));
    }

    #[test]
    fn old_kernel_is_refused_with_its_version() {
        let (channel, kernel) = pair();
        say(&kernel, opcode::INIT, 2, &[7, 30, 0, 0]);
        let error = shake(&channel).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().contains("7.30"), "{error}");
        assert_eq!(hear(&kernel), (-libc::EPROTO, 2, vec![]));
    }

    #[test]
    fn kernel_with_a_later_major_version_is_told_ours() {
        let (channel, kernel) = pair();
        say(&kernel, opcode::INIT, 2, &[8, 1, 0, 0]);
        say(&kernel, opcode::INIT, 4, &[7, 31, 0, 0]);
        assert_eq!(shake(&channel).unwrap().0.minor, 31);
        assert_eq!(hear(&kernel), (0, 2, vec![7, init::NEWEST_MINOR]));
        assert_eq!(hear(&kernel), (0, 4, vec![7, 31]));
    }

    #[test]
    fn what_is_no_init_ends_the_handshake() {
        for (opcode, words, errno) in [
            (opcode::GETATTR, &[0; 4][..], libc::EIO),
            (opcode::INIT, &[7, 45], libc::EPROTO),
        ] {
            let (channel, kernel) = pair();
            say(&kernel, opcode, 2, words);
            shake(&channel).unwrap_err();
            assert_eq!(hear(&kernel), (-errno, 2, vec![]));
        }
    }
}
