//! What requests about names and attributes mean. Every change is a call of the log, and its errno is what the log says.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use share::client::NewFile;
use share::files::{Attributes as Set, Call, FileRef, Over, Place, Refused, Replace};
use trust::inode::{Content, FileContent, Inode, Time};
use trust_shared::principal::Name;

use super::core::{Core, done, found, is_absent, place, place_of};
use super::failure::Failure;
use super::spool::Node;
use crate::attributes::{self, Owners};
use crate::fuse::request::{Attributes, Changes, Entry, Lookup, SetXattr};
use crate::fuse::{Error, FileAttr, RenameFlags, TimeOrNow};

/// Beginning of the names of attributes that programs may set.
const USER: &[u8] = b"user.";

impl Core {
    /// The attributes of a file as programs see it.
    pub fn attributes(&self, node: &Node) -> FileAttr {
        let shown = node.cached().shown();
        let owners = Owners {
            uid: self.owner.0,
            gid: self.owner.1,
            published: false,
        };
        let mut of = attributes::of(&shown, node.number(), &owners);
        if shown.links == 0 {
            of.nlink = 0;
        }
        of
    }

    /// The entry of a file that was found, which counts as a look-up. The kernel may keep it until then.
    pub fn entry(&self, node: &Node, until: Instant) -> Entry {
        Entry {
            attributes: self.attributes(node),
            ttl: left(until),
            generation: 0,
        }
    }

    /// LOOKUP.
    pub async fn lookup(&self, parent: u64, name: &[u8]) -> Result<Lookup, Failure> {
        let parent = self.node(parent)?;
        let (place, name) = place(parent.id(), name)?;
        let follow = false;
        let lookup = Call::Lookup { place, follow };
        let (asked, until) = self.ask_for_name(lookup).await;
        match asked.and_then(found) {
            Ok((file, at)) => {
                let node = self.nodes.found(file, at, (&parent, &name));
                Ok(Lookup::Found(self.entry(&node, until)))
            }
            Err(why) if is_absent(&why) => Ok(Lookup::Absent(left(until))),
            Err(why) => Err(why),
        }
    }

    /// GETATTR.
    pub async fn getattr(&self, number: u64) -> Result<Attributes, Failure> {
        let node = self.node(number)?;
        let place = place_of(node.id());
        let follow = false;
        let lookup = Call::Lookup { place, follow };
        let (asked, until) = self.ask_for_name(lookup).await;
        match asked.and_then(found) {
            Ok((file, at)) => node.cached().see(&file.inode, at),
            // It is open, or the kernel has not looked its name up again yet.
            Err(why) if is_absent(&why) => node.cached().removed(),
            Err(why) => return Err(why),
        }
        Ok(self.told(&node, until))
    }

    fn told(&self, node: &Node, until: Instant) -> Attributes {
        Attributes {
            attributes: self.attributes(node),
            ttl: left(until),
        }
    }

    /// SETATTR.
    pub async fn setattr(
        self: &Arc<Self>,
        number: u64,
        changes: &Changes,
    ) -> Result<Attributes, Failure> {
        let node = self.node(number)?;
        self.may_write()?;
        let owner = (changes.uid, changes.gid);
        let is_own = |(uid, gid): (Option<u32>, Option<u32>)| {
            uid.is_none_or(|uid| uid == self.owner.0) && gid.is_none_or(|gid| gid == self.owner.1)
        };
        if !is_own(owner) {
            return Err(Error::NotPermitted.into());
        }
        if let Some(len) = changes.size {
            self.truncate(&node, len, changes.handle.map(|handle| handle.0))
                .await?;
        }
        let set = Set {
            mode: changes.mode.map(|mode| (mode & 0o7777) as u16),
            mtime: changes.mtime.map(mtime),
            owner: None,
            xattrs: Vec::new(),
        };
        if set != Set::default() {
            // What is local gets its time when it is committed: that must not come after this one.
            self.committed(&node, None).await?;
            self.change(set_attributes(&node, set)).await?;
        }
        // Before the look: what it shows is no older.
        let until = self.fresh_until();
        self.see(&node).await?;
        Ok(self.told(&node, until))
    }

    /// Looks at a file, without a question to the server.
    async fn see(&self, node: &Node) -> Result<(), Failure> {
        let place = place_of(node.id());
        let follow = false;
        match self
            .look(Call::Lookup { place, follow })
            .await
            .and_then(found)
        {
            Ok((file, at)) => node.cached().see(&file.inode, at),
            Err(why) if is_absent(&why) => node.cached().removed(),
            Err(why) => return Err(why),
        }
        Ok(())
    }

    /// Makes a file of any kind under a free name. Gives until when the kernel may keep it.
    ///
    /// # Errors
    /// EEXIST; those of the log.
    pub async fn make(
        &self,
        parent: u64,
        name: &[u8],
        (mode, content): (u32, Content),
    ) -> Result<(Arc<Node>, Instant), Failure> {
        let until = self.asked_now();
        let parent = self.node(parent)?;
        let (place, name) = place(parent.id(), name)?;
        let mut inode = Inode::new((mode & 0o7777) as u16, Core::now(), content);
        // What the log gives it: programs keep the times that they see.
        inode.ctime = Some(inode.mtime);
        let file = NewFile {
            place,
            inode: inode.clone(),
            owner: None,
            replace: Replace::Nothing,
        };
        let (id, at) = self.create(file).await?;
        self.own_names.changed(parent.id(), &name, at);
        let file = share::files::File {
            id,
            inode: Arc::new(inode),
        };
        Ok((self.nodes.found(file, at, (&parent, &name)), until))
    }

    /// LINK.
    pub async fn link(&self, number: u64, parent: u64, name: &[u8]) -> Result<Entry, Failure> {
        let (node, parent) = (self.node(number)?, self.node(parent)?);
        let (to, name) = place(parent.id(), name)?;
        let file = FileRef::File(node.id());
        let (_, at) = self.change(Call::Link { file, to }).await?;
        self.own_names.changed(parent.id(), &name, at);
        let place = place_of(node.id());
        let follow = false;
        let until = self.fresh_until();
        let (file, at) = found(self.look(Call::Lookup { place, follow }).await?)?;
        let node = self.nodes.found(file, at, (&parent, &name));
        Ok(self.entry(&node, until))
    }

    /// UNLINK and RMDIR.
    pub async fn remove(
        &self,
        parent: u64,
        name: &[u8],
        is_directory: bool,
    ) -> Result<(), Failure> {
        let parent = self.node(parent)?;
        let (place, name) = place(parent.id(), name)?;
        let call = match is_directory {
            true => Call::Rmdir { place },
            false => Call::Unlink { place },
        };
        let (_, at) = self.change(call).await?;
        self.own_names.changed(parent.id(), &name, at);
        Ok(())
    }

    /// RENAME.
    pub async fn rename(
        &self,
        (parent, name): (u64, &[u8]),
        (new_parent, new_name): (u64, &[u8]),
        flags: RenameFlags,
    ) -> Result<(), Failure> {
        let over = match flags {
            RenameFlags::RENAME_NOREPLACE => Over::Refuse,
            RenameFlags::RENAME_EXCHANGE => Over::Exchange,
            flags if flags.is_empty() => Over::Replace,
            _ => return Err(Error::InvalidArgument.into()),
        };
        let (parent, new_parent) = (self.node(parent)?, self.node(new_parent)?);
        let (from, old) = place(parent.id(), name)?;
        let (to, new) = place(new_parent.id(), new_name)?;
        let rename = |from: Place, to: Place| Call::Rename {
            from,
            to,
            over: over.clone(),
        };
        let renamed = match self.change(rename(from, to)).await {
            // A directory goes to another one: the log must know the way from the root.
            Err(Failure::Refused(Refused::NeedsPath)) => {
                let from = self.way(&parent, &old).await?;
                let to = self.way(&new_parent, &new).await?;
                self.change(rename(from, to)).await?
            }
            renamed => renamed?,
        };
        let (moved, at) = done(renamed)?;
        let was_there = |node: &Node| {
            let place = node.place();
            place.is_some_and(|(at, name)| at.number() == parent.number() && name == old)
        };
        // The kernel moves what it knows under the old name. Another device may have put another file there.
        let is_same = self.nodes.of(&moved).is_some_and(|node| was_there(&node));
        match is_same && !matches!(over, Over::Exchange) {
            true => {
                self.own_names.changed(parent.id(), &old, at);
                self.own_names.changed(new_parent.id(), &new, at);
            }
            false => self.forget_names(),
        }
        self.nodes.moved(&moved, (&new_parent, &new));
        Ok(())
    }

    /// The place of a name by its path from the root.
    ///
    /// # Errors
    /// ESTALE if the path of the directory leads elsewhere now.
    async fn way(&self, parent: &Node, name: &Name) -> Result<Place, Failure> {
        let stale = || Failure::Plain(Error::StaleInode);
        let mut path = parent.path().ok_or_else(stale)?;
        let start = self.volume.client().root();
        let place = Place {
            start,
            path: path.clone(),
        };
        let follow = false;
        let (above, _) = found(self.ask(Call::Lookup { place, follow }).await?)?;
        if above.id != parent.id() {
            return Err(stale());
        }
        path.push(name.clone());
        Ok(Place { start, path })
    }

    /// READLINK.
    pub fn target(&self, number: u64) -> Result<Bytes, Failure> {
        match &self.node(number)?.cached().inode().content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::InvalidArgument.into()),
        }
    }

    /// The value of an extended attribute.
    pub async fn xattr(&self, number: u64, name: &[u8]) -> Result<Bytes, Failure> {
        let xattrs = self.xattrs(number).await?;
        let found = xattrs.into_iter().find(|(known, _)| known == name);
        let (_, value) = found.ok_or(Failure::Plain(Error::NoSuchAttribute))?;
        Ok(value)
    }

    /// The names of the extended attributes, each ended by a NUL.
    pub async fn xattr_names(&self, number: u64) -> Result<Vec<u8>, Failure> {
        let mut names = Vec::new();
        for (name, _) in self.xattrs(number).await? {
            names.extend_from_slice(&name);
            names.push(0);
        }
        Ok(names)
    }

    async fn xattrs(&self, number: u64) -> Result<Vec<(Bytes, Bytes)>, Failure> {
        let node = self.node(number)?;
        self.see(&node).await?;
        let inode = node.cached().inode().clone();
        let xattrs = self.contents.xattrs(&inode, self.how()).await?;
        let own = |(name, _): &(Bytes, Bytes)| name.starts_with(USER);
        Ok(xattrs.into_iter().filter(own).collect())
    }

    /// SETXATTR, and REMOVEXATTR if there is no value.
    pub async fn set_xattr(
        self: &Arc<Self>,
        number: u64,
        name: &[u8],
        value: Option<&[u8]>,
        how: SetXattr,
    ) -> Result<(), Failure> {
        if !name.starts_with(USER) {
            return Err(Error::NotSupported.into());
        }
        let node = self.node(number)?;
        let is_there = self
            .xattrs(number)
            .await?
            .iter()
            .any(|(known, _)| known == name);
        match (how, is_there) {
            (SetXattr::Create, true) => return Err(Error::AlreadyExists.into()),
            (SetXattr::Replace, false) => return Err(Error::NoSuchAttribute.into()),
            _ => {}
        }
        let value = value.map(Bytes::copy_from_slice);
        let attributes = Set {
            xattrs: vec![(Bytes::copy_from_slice(name), value)],
            ..Set::default()
        };
        self.change(set_attributes(&node, attributes)).await?;
        Ok(())
    }
}

fn set_attributes(node: &Node, attributes: Set) -> Call {
    Call::SetAttributes {
        file: FileRef::File(node.id()),
        attributes,
        expect: None,
    }
}

/// Time that is left.
fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// The content of a new file of this type.
///
/// # Errors
/// EPERM for devices.
pub fn content_of(mode: u32) -> Result<Content, Failure> {
    match mode & libc::S_IFMT {
        libc::S_IFREG | 0 => Ok(Content::Regular(FileContent::Empty)),
        libc::S_IFIFO => Ok(Content::Fifo),
        libc::S_IFSOCK => Ok(Content::Socket),
        libc::S_IFCHR | libc::S_IFBLK => Err(Error::NotPermitted.into()),
        _ => Err(Error::InvalidArgument.into()),
    }
}

/// A time as inodes have it.
fn mtime(time: TimeOrNow) -> Time {
    match time {
        TimeOrNow::Now => Time::from(SystemTime::now()),
        TimeOrNow::SpecificTime(time) => Time {
            seconds: time.seconds,
            nanos: time.nanoseconds,
        },
    }
}
