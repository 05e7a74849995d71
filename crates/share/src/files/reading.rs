//! Listings, and attributes that a call sets.

use bytes::Bytes;
use trust::tree::inode::{Inode, MAX_INLINE_XATTR_BYTES, Xattrs, decode_xattrs, encode_xattrs};
use trust_shared::effect::Missing;
use trust_shared::principal::{Name, Target};

use super::answer::{Answer, File, Listed, Refused};
use super::call::{Attributes, FileRef, MAX_LISTED, MAX_LISTED_INODES};
use super::plan::Plan;
use super::sight::{Halt, Sight};

impl Sight<'_> {
    /// The names of a directory.
    pub(super) fn listing(
        &mut self,
        directory: &FileRef,
        after: Option<&Name>,
        most: u32,
        inodes: bool,
    ) -> Result<Plan, Halt> {
        let directory = self.file(directory)?;
        self.is_directory(&directory)?;
        let limit = if inodes {
            MAX_LISTED_INODES
        } else {
            MAX_LISTED
        };
        let most = most.clamp(1, limit) as usize;
        let found = self.list(&directory, after, most)?;
        let mut names = Vec::with_capacity(found.names.len());
        let mut missing = Missing::default();
        for (name, target) in found.names {
            let file = match inodes {
                true => self.listed(&target, &mut missing)?,
                false => None,
            };
            names.push(Listed { name, target, file });
        }
        if !missing.blocks.is_empty() || !missing.bodies.is_empty() {
            return Err(Halt::Missing(missing));
        }
        Ok(Plan::Says(Answer::Listed {
            directory,
            names,
            next: found.next,
        }))
    }

    /// The file of a name, if this device may read it. What is missing is gathered, to be fetched together.
    fn listed(&mut self, target: &Target, missing: &mut Missing) -> Result<Option<File>, Halt> {
        let id = target.file;
        match self.shown(&id) {
            Ok(inode) => Ok(inode.map(|inode| File { id, inode })),
            Err(Halt::Missing(more)) => {
                missing.add(more);
                Ok(None)
            }
            Err(Halt::Refused(Refused::NotPermitted | Refused::Damaged(_))) => Ok(None),
            Err(halt) => Err(halt),
        }
    }
}

impl Attributes {
    /// An inode with these attributes, but for the time of modification.
    pub(super) fn apply(&self, inode: &Inode) -> Result<Inode, Refused> {
        let mut inode = inode.clone();
        if let Some(mode) = self.mode {
            inode.mode = mode & 0o7777;
        }
        if let Some(owner) = self.owner {
            inode.owner = Some(owner);
        }
        if !self.xattrs.is_empty() {
            inode.xattrs = self.edited(&inode.xattrs)?;
        }
        Ok(inode)
    }

    fn edited(&self, xattrs: &Xattrs) -> Result<Xattrs, Refused> {
        let mut list: Vec<(Bytes, Bytes)> = match xattrs {
            Xattrs::None => Vec::new(),
            Xattrs::Inline(list) => list.clone(),
            // A long list lies in blocks that this bulla does not edit.
            Xattrs::Stored(_) => return Err(Refused::TooLarge),
        };
        for (name, value) in &self.xattrs {
            let place = list.binary_search_by(|(other, _)| other.cmp(name));
            match (place, value) {
                (Ok(at), Some(value)) => {
                    if let Some(row) = list.get_mut(at) {
                        row.1 = value.clone();
                    }
                }
                (Ok(at), None) => drop(list.remove(at)),
                (Err(at), Some(value)) => list.insert(at, (name.clone(), value.clone())),
                (Err(_), None) => return Err(Refused::NotFound),
            }
        }
        if list.is_empty() {
            return Ok(Xattrs::None);
        }
        let bytes = encode_xattrs(&list);
        if bytes.len() > MAX_INLINE_XATTR_BYTES || decode_xattrs(&bytes).is_err() {
            return Err(Refused::TooLarge);
        }
        Ok(Xattrs::Inline(list))
    }
}
