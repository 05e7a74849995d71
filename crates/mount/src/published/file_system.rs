//! A published volume as a read-only [`FileSystem`]. Requests that would change it are EROFS by the trait's
//! defaults.
//!
//! A request that can be answered from memory (or a local repository) is answered at once. One that
//! needs a network is answered later, with the volume's deadline. `operations` says what each request
//! means.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use trust::inode::{FileKind, MAX_NAME_BYTES};
use volume::Fetch;

use crate::attributes;
use crate::fuse::request::{
    Attributes, Caller, Data, Entry, Features, Lookup, Opened, Read, Seek, Statistics,
};
use crate::fuse::{
    self, AddEntry, AddName, Answer, Error, FileHandle, FileSystem, FopenFlags, INodeNo, InitFlags,
    LockOwner, OpenFlags,
};
use crate::published::failure::Failure;
use crate::published::listing::{Inside, Listing, entered, listing};
use crate::published::operations::Core;
use crate::published::seeking::seek;

/// A mounted volume.
#[derive(Debug)]
pub struct Published {
    core: Arc<Core>,
    read_ahead_bytes: u32,
}

impl Published {
    /// Shows `core`; the kernel reads ahead `read_ahead_bytes`.
    pub fn new(core: Arc<Core>, read_ahead_bytes: u32) -> Self {
        Published {
            core,
            read_ahead_bytes,
        }
    }

    /// Answers now if that can be done without waiting, else later, with the volume's deadline.
    fn answer<T, Make, Work>(&self, make: Make) -> Answer<T, Failure>
    where
        Make: Fn(Arc<Core>, Fetch) -> Work,
        Work: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        match make(self.core.clone(), Fetch::Cached).now_or_never() {
            None => {}
            Some(Err(failure)) if failure.must_wait() => {}
            Some(result) => return Answer::Now(result),
        }
        let deadline = self.core.volume.deadline();
        Answer::later(deadline, make(self.core.clone(), Fetch::Until(deadline)))
    }
}

impl FileSystem for Published {
    type Error = Failure;
    type Listing = Listing;

    fn features(&self) -> Features {
        let defaults = Features::default();
        Features {
            // OPEN is not needed: a file number always stands for the same content.
            flags: defaults.flags | InitFlags::FUSE_NO_OPEN_SUPPORT,
            max_read_ahead_bytes: self.read_ahead_bytes,
            ..defaults
        }
    }

    fn refused(&self, operation: &'static str, inode: INodeNo, failure: &Failure) {
        self.core.faults.count(failure);
        failure.log(operation, || self.core.path(inode.0));
    }

    fn lookup(&self, _: &Caller, parent: INodeNo, name: &[u8]) -> Answer<Lookup, Failure> {
        let name = Bytes::copy_from_slice(name);
        self.answer(move |core, how| {
            let name = name.clone();
            async move { core.lookup(parent.0, &name, how).await }
        })
    }

    fn forget(&self, inode: INodeNo, lookups: u64) {
        self.core.nodes.forget(inode.0, lookups);
    }

    fn getattr(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: Option<FileHandle>,
    ) -> Answer<Attributes, Failure> {
        self.answer(move |core, how| async move { core.attributes(inode.0, how).await })
    }

    fn readlink(&self, _: &Caller, inode: INodeNo) -> Answer<Bytes, Failure> {
        self.core.target(inode.0).into()
    }

    fn open(&self, _: &Caller, _: INodeNo, _: OpenFlags) -> Answer<Opened, Failure> {
        Answer::Now(Ok(Opened {
            handle: FileHandle(0),
            flags: FopenFlags::FOPEN_KEEP_CACHE,
        }))
    }

    fn read(&self, _: &Caller, read: &Read) -> Answer<Data, Failure> {
        let (number, offset, size) = (read.inode.0, read.offset, read.size as usize);
        self.answer(move |core, how| async move { core.read(number, offset, size, how).await })
    }

    fn flush(&self, _: &Caller, _: INodeNo, _: FileHandle, _: LockOwner) -> Answer<(), Failure> {
        // There is nothing to write. After one such answer the kernel no longer asks.
        Error::NotImplemented.into()
    }

    fn opendir(&self, _: &Caller, inode: INodeNo, _: OpenFlags) -> Answer<Opened, Failure> {
        self.answer(move |core, how| async move {
            // No flags: the kernel must not keep the listing after the directory is closed.
            core.open_directory(inode.0, how).await.map(Opened::new)
        })
    }

    fn readdir(
        &self,
        _: &Caller,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
    ) -> Answer<Listing, Failure> {
        self.answer(move |core, how| async move { listing(&core, handle.0, offset, how).await })
    }

    fn releasedir(&self, _: &Caller, _: INodeNo, handle: FileHandle) -> Answer<(), Failure> {
        self.core.close_directory(handle.0);
        Answer::Now(Ok(()))
    }

    fn statfs(&self, _: &Caller, _: INodeNo) -> Answer<Statistics, Failure> {
        // The totals that the publisher signed; only a walk of the whole tree could check them. No space
        // and no inodes are free.
        let totals = self.core.view().snapshot.record().totals;
        let unit_bytes = attributes::STATFS_UNIT_BYTES;
        Answer::Now(Ok(Statistics {
            blocks: totals.bytes.div_ceil(u64::from(unit_bytes)),
            free: 0,
            available: 0,
            files: totals.entries(),
            free_files: 0,
            best_bytes: attributes::BLOCK_BYTES,
            longest_name: MAX_NAME_BYTES as u32,
            unit_bytes,
        }))
    }

    fn getxattr(&self, _: &Caller, inode: INodeNo, name: &[u8]) -> Answer<Bytes, Failure> {
        let name = Bytes::copy_from_slice(name);
        self.answer(move |core, how| {
            let name = name.clone();
            async move { core.xattr(inode.0, &name, how).await }
        })
    }

    fn listxattr(&self, _: &Caller, inode: INodeNo) -> Answer<Vec<u8>, Failure> {
        self.answer(move |core, how| async move { core.xattr_names(inode.0, how).await })
    }

    fn lseek(
        &self,
        _: &Caller,
        inode: INodeNo,
        _: FileHandle,
        offset: i64,
        what: Seek,
    ) -> Answer<i64, Failure> {
        self.answer(move |core, how| async move { seek(&core, inode.0, offset, what, how).await })
    }
}

impl fuse::Listing<Published> for Listing {
    fn names(self, file_system: &Published, add: AddName<'_>) {
        self.fill(&file_system.core, |core, directory, next, name, inode| {
            let (number, kind) = match inode {
                Inside::Child(inode) => {
                    let number = core.nodes.number_of(&directory.node, name, inode);
                    (number, inode.kind())
                }
                Inside::Known(number) => (*number, FileKind::Directory),
            };
            add(next, name, INodeNo(number), attributes::kind(kind))
        });
    }

    fn entries(self, file_system: &Published, add: AddEntry<'_>) {
        self.fill(&file_system.core, |core, directory, next, name, inode| {
            let (attributes, ttl) = match inode {
                Inside::Child(inode) => entered(core, directory, name, inode),
                Inside::Known(number) => {
                    let of = attributes::of(&directory.inode, *number, core.owners());
                    (of, Duration::ZERO)
                }
            };
            let entry = Entry {
                attributes,
                ttl,
                generation: 0,
            };
            let full = add(next, name, &entry);
            if full && matches!(inode, Inside::Child(_)) {
                core.nodes.forget(attributes.ino.0, 1);
            }
            full
        });
    }
}
