//! Gives each request to the file system in typed form, and sends the answer: at once from the thread that read the
//! request, from a task ([`super::parked`]), or from a thread of the file system. The only place where an error becomes
//! an errno.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;

use super::answer::{Answer, Reply};
use super::channel::{Channel, Duty};
use super::error::{Error, Refusal};
use super::file_system::{FileSystem, Listing};
use super::parked::Parking;
use super::protocol::body::{self, Body, Directory};
use super::protocol::parse::{Operation, Page};
use super::protocol::{Header, Malformed, opcode, out_header};
use super::request::{Attributes, Entry, Opened};
use super::types::{Errno, INodeNo};

/// The kernel asks for one listing of at most this size, bytes.
const MAX_LISTING_BYTES: u32 = 1 << 20;

/// A file system and the descriptor over which it answers.
#[derive(Debug)]
pub struct Dispatch<F> {
    file_system: Arc<F>,
    channel: Arc<Channel>,
    parking: Parking,
    /// Whether the kernel does without OPEN, because the file system asked for that.
    no_open: bool,
}

/// A request, for logs.
#[derive(Debug, Clone, Copy)]
struct About {
    operation: &'static str,
    inode: INodeNo,
    pid: u32,
}

impl<F: FileSystem> Dispatch<F> {
    /// Serves `file_system`; waits run in `parking`.
    pub fn new(
        file_system: Arc<F>,
        channel: Arc<Channel>,
        parking: Parking,
        no_open: bool,
    ) -> Self {
        Dispatch {
            file_system,
            channel,
            parking,
            no_open,
        }
    }

    /// Handles a message of the kernel.
    pub fn receive(&self, message: &[u8]) {
        let (header, body) = match Header::split(message) {
            Ok(split) => split,
            Err(Malformed::Length(header)) => return self.refuse(&header, Errno::EIO),
            Err(Malformed::Short) => {
                tracing::warn!("the kernel sent less than a header");
                return;
            }
        };
        match Operation::parse(&header, body) {
            Ok(Operation::Forget(forgotten)) => {
                forgotten.each(|inode, lookups| self.file_system.forget(inode, lookups));
            }
            Ok(Operation::Interrupt { unique }) => self.interrupt(header.unique, unique),
            Ok(Operation::NotifyReply) => {}
            Ok(operation) => {
                let to = Asked {
                    dispatch: self,
                    duty: Duty::new(self.channel.clone(), header.unique),
                    about: About {
                        operation: opcode::name(header.opcode),
                        inode: header.inode,
                        pid: header.caller.pid,
                    },
                };
                self.ask(&header, operation, to);
            }
            Err(errno) => self.refuse(&header, errno),
        }
    }

    /// Answers a message that is no request of ours.
    fn refuse(&self, header: &Header, errno: Errno) {
        if errno != Errno::ENOSYS {
            tracing::debug!(?header, ?errno, "refused a request");
        }
        if opcode::is_answered(header.opcode) {
            Duty::new(self.channel.clone(), header.unique).answer(&Err(errno));
        }
    }

    /// The caller of the request `unique` has a signal. FUSE_INTERRUPT itself has no answer, except that it comes
    /// again after EAGAIN: another thread has read the request and not noted it yet.
    fn interrupt(&self, interrupt: u64, unique: u64) {
        if !self.channel.under_way.interrupt(unique) {
            let again = out_header(0, -Errno::EAGAIN.code(), interrupt);
            // It fails if the request has been answered since.
            let _ = self.channel.send(&[IoSlice::new(&again)]);
        }
    }

    /// One arm for each request.
    fn ask(&self, header: &Header, operation: Operation<'_>, to: Asked<'_, F>) {
        let (fs, by, inode) = (&*self.file_system, &header.caller, header.inode);
        match operation {
            Operation::Lookup(name) => {
                to.body(fs.lookup(by, inode, name), |found| Ok(body::lookup(&found)));
            }
            Operation::GetAttr(handle) => to.attributes(fs.getattr(by, inode, handle)),
            Operation::SetAttr(changes) => to.attributes(fs.setattr(by, inode, &changes)),
            Operation::ReadLink => {
                to.body(fs.readlink(by, inode), |target| Ok(Body::Bytes(target)))
            }
            Operation::SymLink { name, target } => {
                to.entry(fs.symlink(by, inode, name, target));
            }
            Operation::MkNod { new, rdev } => to.entry(fs.mknod(by, &new, rdev)),
            Operation::MkDir(new) => to.entry(fs.mkdir(by, &new)),
            Operation::Unlink(name) => to.empty(fs.unlink(by, inode, name)),
            Operation::RmDir(name) => to.empty(fs.rmdir(by, inode, name)),
            Operation::Rename(rename) => to.empty(fs.rename(by, &rename)),
            // The header has the directory, and logs the file.
            Operation::Link {
                inode: file,
                new_name,
            } => {
                to.about(file).entry(fs.link(by, file, inode, new_name));
            }
            // After one such answer the kernel opens files by itself, and keeps their pages.
            Operation::Open(_) if self.no_open => to.refuse(Errno::ENOSYS),
            Operation::Open(flags) => to.opened(fs.open(by, inode, flags)),
            Operation::Create { new, flags } => {
                to.body(fs.create(by, &new, flags), |(entry, opened)| {
                    Ok(body::created(&entry, &opened))
                });
            }
            Operation::Read(read) => to.body(fs.read(by, &read), |data| Ok(Body::Pieces(data))),
            Operation::Write(write) => {
                to.body(fs.write(by, &write), |count| Ok(body::written(count)));
            }
            Operation::Flush { handle, owner } => to.empty(fs.flush(by, inode, handle, owner)),
            Operation::FSync { handle, data_only } => {
                to.empty(fs.fsync(by, inode, handle, data_only));
            }
            Operation::Release(release) => to.empty(fs.release(by, &release)),
            Operation::OpenDir(flags) => to.opened(fs.opendir(by, inode, flags)),
            Operation::ReadDir(page) => {
                to.names(page, fs.readdir(by, inode, page.handle, page.offset));
            }
            Operation::ReadDirPlus(page) => {
                to.entries(page, fs.readdir(by, inode, page.handle, page.offset));
            }
            Operation::ReleaseDir(handle) => to.empty(fs.releasedir(by, inode, handle)),
            Operation::FSyncDir { handle, data_only } => {
                to.empty(fs.fsyncdir(by, inode, handle, data_only));
            }
            Operation::StatFs => to.body(fs.statfs(by, inode), |of| Ok(body::statistics(&of))),
            Operation::GetXattr { name, size } => {
                to.body(fs.getxattr(by, inode, name), move |value| {
                    body::xattr(value, size)
                });
            }
            Operation::ListXattr { size } => to.body(fs.listxattr(by, inode), move |names| {
                body::xattr(Bytes::from(names), size)
            }),
            Operation::SetXattr { name, value, how } => {
                to.empty(fs.setxattr(by, inode, name, value, how));
            }
            Operation::RemoveXattr(name) => to.empty(fs.removexattr(by, inode, name)),
            Operation::Access { mask } => to.empty(fs.access(by, inode, mask)),
            Operation::GetLk(lock) => to.body(fs.getlk(by, &lock), |lock| Ok(body::lock(&lock))),
            Operation::SetLk { lock, wait } => to.empty(fs.setlk(by, &lock, wait)),
            Operation::FAllocate {
                handle,
                range,
                what,
            } => {
                to.empty(fs.fallocate(by, inode, handle, range, what));
            }
            Operation::LSeek {
                handle,
                offset,
                what,
            } => {
                let answer = fs.lseek(by, inode, handle, offset, what);
                to.body(answer, |offset| Ok(body::offset(offset)));
            }
            Operation::CopyFileRange { copy, wide } => {
                let encode = if wide { body::copied } else { body::written };
                to.body(fs.copy_file_range(by, &copy), move |count| {
                    Ok(encode(count))
                });
            }
            Operation::IoCtl => to.refuse(Error::NoSuchIoctl.errno()),
            // The kernel then uses GETATTR.
            Operation::Statx { .. } => to.refuse(Errno::ENOSYS),
            Operation::Destroy => to.duty.answer(&Ok(body::empty())),
            Operation::Forget(_) | Operation::Interrupt { .. } | Operation::NotifyReply => {}
        }
    }
}

/// A request that the file system is asked now.
struct Asked<'d, F> {
    dispatch: &'d Dispatch<F>,
    duty: Duty,
    about: About,
}

impl<F: FileSystem> Asked<'_, F> {
    /// Gives the result of `answer` to the kernel: now, or from a task.
    fn listed<T, Encode>(self, answer: Answer<T, F::Error>, encode: Encode)
    where
        T: Send + 'static,
        Encode: FnOnce(&F, T) -> Result<Body, Errno> + Send + 'static,
    {
        let Asked {
            dispatch,
            duty,
            about,
        } = self;
        let unique = duty.unique();
        let finish = move |file_system: &F, result: Result<T, F::Error>| {
            let result = told(file_system, about, result);
            duty.answer(&result.and_then(|value| encode(file_system, value)));
        };
        match answer {
            Answer::Now(result) => finish(&dispatch.file_system, result),
            Answer::Later(later) => {
                let signal = dispatch.channel.under_way.wait(unique);
                let file_system = dispatch.file_system.clone();
                dispatch
                    .parking
                    .park(later, about.pid, signal, move |result| {
                        finish(&file_system, result);
                    });
            }
            Answer::Elsewhere(start) => {
                let file_system = dispatch.file_system.clone();
                start(Reply::new(move |result| finish(&file_system, result)));
            }
        }
    }

    fn body<T, Encode>(self, answer: Answer<T, F::Error>, encode: Encode)
    where
        T: Send + 'static,
        Encode: FnOnce(T) -> Result<Body, Errno> + Send + 'static,
    {
        self.listed(answer, |_, value| encode(value));
    }

    fn empty(self, answer: Answer<(), F::Error>) {
        self.body(answer, |()| Ok(body::empty()));
    }

    fn entry(self, answer: Answer<Entry, F::Error>) {
        self.body(answer, |entry| Ok(body::entry(&entry)));
    }

    fn attributes(self, answer: Answer<Attributes, F::Error>) {
        self.body(answer, |attributes| Ok(body::attributes(&attributes)));
    }

    fn opened(self, answer: Answer<Opened, F::Error>) {
        self.body(answer, |opened| Ok(body::opened(&opened)));
    }

    fn names(self, page: Page, answer: Answer<F::Listing, F::Error>) {
        self.listed(answer, move |file_system, listing| {
            let mut directory = Directory::new(room(page));
            listing.names(file_system, &mut |next, name, inode, kind| {
                directory.add_name(next, name, inode, kind)
            });
            Ok(directory.finish())
        });
    }

    fn entries(self, page: Page, answer: Answer<F::Listing, F::Error>) {
        self.listed(answer, move |file_system, listing| {
            let mut directory = Directory::new(room(page));
            listing.entries(file_system, &mut |next, name, entry| {
                directory.add_entry(next, name, entry)
            });
            Ok(directory.finish())
        });
    }

    /// Answers without the file system.
    fn refuse(self, errno: Errno) {
        self.duty.answer(&Err(errno));
    }

    /// The same request, logged for another inode than the header's.
    fn about(mut self, inode: INodeNo) -> Self {
        self.about.inode = inode;
        self
    }
}

fn room(page: Page) -> usize {
    page.size.min(MAX_LISTING_BYTES) as usize
}

/// Reports an error to the file system, and converts it to an errno.
fn told<F: FileSystem, T>(
    file_system: &F,
    about: About,
    result: Result<T, F::Error>,
) -> Result<T, Errno> {
    result.map_err(|error| {
        file_system.refused(about.operation, about.inode, &error);
        error.errno()
    })
}

#[cfg(test)]
mod tests;
