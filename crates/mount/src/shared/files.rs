//! What requests about open files mean.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use share::files::{Call, Refused};
use share::writeback::{Changed, From, Local, Opens};
use trust::inode::{Content, FileContent};

use super::core::{Core, found, is_absent};
use super::failure::Failure;
use super::spool::{Node, Spool, write};
use crate::fuse::request::Data;
use crate::fuse::{Error, FileType, LockOwner};

impl Core {
    /// OPEN: shows the newest version of the file that the name leads to. Gives a handle.
    ///
    /// # Errors
    /// ESTALE if the name, or one above it, leads elsewhere now: the kernel looks the path up again.
    pub async fn open(
        self: &Arc<Self>,
        number: u64,
        flags: i32,
        thread: u32,
    ) -> Result<u64, Failure> {
        let node = self.node(number)?;
        let truncates = flags & libc::O_TRUNC != 0;
        let writes = truncates || flags & libc::O_ACCMODE != libc::O_RDONLY;
        if writes {
            self.may_write()?;
        }
        // What a commit under way makes is newer than what the log says before it.
        self.settled(&node).await?;
        let opening = self
            .nodes
            .opening(&node, thread, self.volume.client().root());
        let follow = false;
        let place = opening.place.clone();
        let asked = self.ask(Call::Lookup { place, follow }).await;
        let (found, at) = match asked.and_then(found) {
            Ok((file, at)) => (Some(file), at),
            Err(why) if is_absent(&why) => (None, 0),
            Err(why) => return Err(why),
        };
        match self.nodes.opened(&opening, (&node, thread), found.as_ref()) {
            Opens::Newest(inode) => {
                self.drive(&node, |cached| ((), cached.show(&inode, at)));
                self.settled(&node).await?;
            }
            Opens::Known => {}
            Opens::Stale => return Err(Error::StaleInode.into()),
        }
        let handle = self.new_handle();
        if truncates {
            self.truncate_here(&node, 0, Some(handle)).await?;
        }
        self.show_to_kernel(&node);
        self.keep_open(handle, node, writes);
        Ok(handle)
    }

    /// CREATE. Gives the file, which counts as looked up, a handle, and until when the kernel may keep the entry.
    ///
    /// # Errors
    /// EEXIST with O_EXCL; those of the log.
    pub async fn create_and_open(
        self: &Arc<Self>,
        (parent, name): (u64, &[u8]),
        mode: u32,
        (flags, thread): (i32, u32),
    ) -> Result<(Arc<Node>, u64, Instant), Failure> {
        let content = Content::Regular(FileContent::Empty);
        match self.make(parent, name, (mode, content)).await {
            Ok((node, until)) => {
                let handle = self.new_handle();
                self.show_to_kernel(&node);
                self.keep_open(handle, node.clone(), true);
                Ok((node, handle, until))
            }
            // Somebody has made it since the kernel looked.
            Err(Failure::Refused(Refused::Exists)) if flags & libc::O_EXCL == 0 => {
                let crate::fuse::request::Lookup::Found(entry) = self.lookup(parent, name).await?
                else {
                    return Err(Error::StaleInode.into());
                };
                let number = entry.attributes.ino.0;
                if entry.attributes.kind != FileType::RegularFile {
                    self.nodes.forget(number, 1);
                    return Err(Error::StaleInode.into());
                }
                let handle = self.open(number, flags, thread).await;
                let handle = handle.inspect_err(|_| self.nodes.forget(number, 1))?;
                // OPEN has just asked; the entry is of the look-up before.
                Ok((self.node(number)?, handle, Instant::now()))
            }
            Err(why) => Err(why),
        }
    }

    /// READ.
    pub async fn read(&self, handle: u64, offset: u64, bytes: usize) -> Result<Data, Failure> {
        let node = self.opened(handle)?.node;
        let plan = node
            .cached()
            .plan(offset, offset.saturating_add(bytes as u64));
        let mut data = Vec::new();
        for (range, from) in plan.stretches {
            let bytes = (range.end - range.start) as usize;
            match (from, &plan.bytes) {
                (From::Local, Some(spool)) => {
                    let mut buffer = vec![0; bytes];
                    spool
                        .read(range.start, &mut buffer)
                        .map_err(Failure::Local)?;
                    data.push(Bytes::from(buffer));
                }
                (From::Base, _) => {
                    let read = self
                        .contents
                        .read(&plan.base, range.start, bytes, self.how());
                    data.extend(read.await?);
                }
                _ => data.push(Bytes::from(vec![0; bytes])),
            }
        }
        Ok(data)
    }

    /// Changes the content here. While a commit of it is under way, waits.
    async fn change_here<T>(
        self: &Arc<Self>,
        node: &Arc<Node>,
        handle: Option<u64>,
        mut change: impl FnMut(&mut Local<Arc<Spool>>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        loop {
            match self.try_here(node, handle, &mut change)? {
                Changed::Made(changed) => return Ok(changed),
                Changed::Busy => self.settled(node).await?,
            }
        }
    }

    /// The same, if no commit of it is under way.
    fn try_here<T>(
        self: &Arc<Self>,
        node: &Arc<Node>,
        handle: Option<u64>,
        change: impl FnOnce(&mut Local<Arc<Spool>>) -> Result<T, Failure>,
    ) -> Result<Changed<T>, Failure> {
        self.may_write()?;
        let Content::Regular(_) = node.cached().inode().content else {
            return Err(Error::InvalidArgument.into());
        };
        let by = (handle, Core::now(), self.clock_ms());
        // Before the change: a lock that is lost meanwhile is still the guard of what is written.
        let guards = handle.map(|handle| self.locks.guards(node.id(), handle));
        let guards = guards.unwrap_or_else(|| Some(Vec::new()));
        let Some(guards) = guards else {
            return Err(Failure::LockLost);
        };
        let place = || self.spools.make().map(Arc::new).map_err(Failure::Local);
        self.drive(node, |cached| match cached.change(by, place, change) {
            Ok((changed, effects)) => {
                if let Changed::Made(_) = changed {
                    self.locks.wrote(node.id(), guards);
                }
                (Ok(changed), effects)
            }
            Err(failure) => (Err(failure), Vec::new()),
        })
    }

    /// WRITE, if it can be answered at once. None as for a content, whose offset is the end.
    pub fn write_now(
        self: &Arc<Self>,
        handle: u64,
        offset: Option<u64>,
        data: &[u8],
    ) -> Result<Option<u32>, Failure> {
        let node = self.opened(handle)?.node;
        let written = self.try_here(&node, Some(handle), |local| write(local, offset, data))?;
        Ok(match written {
            Changed::Made(_) => Some(data.len() as u32),
            Changed::Busy => None,
        })
    }

    /// WRITE.
    pub async fn write(
        self: &Arc<Self>,
        handle: u64,
        offset: Option<u64>,
        data: Bytes,
    ) -> Result<u32, Failure> {
        let node = self.opened(handle)?.node;
        self.change_here(&node, Some(handle), |local| write(local, offset, &data))
            .await?;
        Ok(data.len() as u32)
    }

    async fn truncate_here(
        self: &Arc<Self>,
        node: &Arc<Node>,
        len: u64,
        handle: Option<u64>,
    ) -> Result<(), Failure> {
        if len > i64::MAX as u64 {
            return Err(Error::FileTooLarge.into());
        }
        self.change_here(node, handle, |local| {
            local.overlay.truncate(len);
            Ok(())
        })
        .await
    }

    /// Sets the length: of an open file here, else in the log.
    pub async fn truncate(
        self: &Arc<Self>,
        node: &Arc<Node>,
        len: u64,
        handle: Option<u64>,
    ) -> Result<(), Failure> {
        self.truncate_here(node, len, handle).await?;
        match handle {
            Some(_) => Ok(()),
            None => self.committed(node, None).await,
        }
    }

    /// Makes a stretch zeros.
    pub async fn zero(
        self: &Arc<Self>,
        handle: u64,
        range: std::ops::Range<u64>,
        keep: bool,
    ) -> Result<(), Failure> {
        let node = self.opened(handle)?.node;
        self.change_here(&node, Some(handle), |local| {
            local.zero(range.clone(), keep);
            Ok(())
        })
        .await
    }

    /// Reserves space, which nobody guarantees: the file only becomes as long.
    pub async fn allocate(self: &Arc<Self>, handle: u64, end: u64) -> Result<(), Failure> {
        let node = self.opened(handle)?.node;
        if node.cached().shown().size >= end {
            return Ok(());
        }
        self.change_here(&node, Some(handle), |local| {
            local.reach(end);
            Ok(())
        })
        .await
    }

    /// FLUSH: what was written through the handle is in the log then. A handle that only reads does not wait for bytes of
    /// other handles.
    pub async fn flush(self: &Arc<Self>, handle: u64, owner: LockOwner) -> Result<(), Failure> {
        self.flush_locks(handle, owner).await?;
        let file = self.opened(handle)?;
        match file.writes {
            true => self.committed(&file.node, Some(handle)).await,
            false => Ok(()),
        }
    }

    /// FSYNC: what is local of the file is in the log then.
    pub async fn sync(self: &Arc<Self>, handle: u64) -> Result<(), Failure> {
        let node = self.opened(handle)?.node;
        self.committed(&node, Some(handle)).await
    }

    /// RELEASE. What was written through a mapping after the last close is committed; nobody waits for it.
    pub fn close(self: &Arc<Self>, handle: u64) {
        let Some(file) = self.close_file(handle) else {
            return;
        };
        let (node, number) = (&file.node, file.node.number());
        self.release_locks(node, handle);
        self.begin_commit(node);
        if node.cached().closed(handle) {
            self.locks.clean(node.id());
            self.nodes.let_go(number);
        }
        self.nodes.let_go(number);
    }
}
