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
