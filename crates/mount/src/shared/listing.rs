//! OPENDIR and READDIR.

use std::sync::Arc;

use share::files::{Answer, Call, FileRef, Listed, MAX_LISTED};
use trust_shared::principal::{FileId, Name};

use super::core::{Core, defect};
use super::directory::OpenDirectory;
use super::failure::Failure;
use super::spool::Nodes;
use crate::attributes;
use crate::fuse::{AddName, FileType, INodeNo};

/// Names, and the one after which more follow.
type Page = (Vec<Listed>, Option<Name>);

/// Positions of `.` and `..`, before the first entry.
const DOTS: u64 = 2;

impl Core {
    /// OPENDIR: the names.
    ///
    /// # Errors
    /// As the log says.
    pub async fn list(&self, number: u64) -> Result<u64, Failure> {
        let node = self.node(number)?;
        let (at, page) = self.first_page(node.id()).await?;
        Ok(self.open_directory(OpenDirectory::new(node, at, page)))
    }

    async fn first_page(&self, id: FileId) -> Result<(u64, Page), Failure> {
        let (listed, _) = self.ask_for_name(listing(id, None)).await;
        match listed? {
            (Answer::Listed { names, next, .. }, at) => Ok((at, (names, next))),
            _ => Err(defect()),
        }
    }

    /// READDIR: entries from a position on.
    ///
    /// # Errors
    /// As the log says.
    pub async fn names_from(&self, handle: u64, offset: u64) -> Result<Entries, Failure> {
        let directory = self.opened_directory(handle)?;
        let index = offset.saturating_sub(DOTS);
        if offset == 0 && directory.rewinds() {
            let (at, page) = self.first_page(directory.node.id()).await?;
            directory.begin_again(at, page);
        }
        loop {
            let (first, page, next) = directory.pages().last.clone();
            let end = first + page.len() as u64;
            if index >= first && (index < end || next.is_none()) {
                return Ok(Entries {
                    directory,
                    offset,
                    first,
                    page,
                });
            }
            // The page after the last one, or the nearest remembered one before the position.
            let (from, after) = match index >= end {
                true => (end, next),
                false => directory.pages().nearest(index),
            };
            let list = listing(directory.node.id(), after.clone());
            let size = directory.pages().at;
            let (answer, _) = self.look_back(size, list).await?;
            let Answer::Listed { names, next, .. } = answer else {
                return Err(defect());
            };
            directory.pages().keep(from, after, (names, next));
        }
    }
}

fn listing(directory: FileId, after: Option<Name>) -> Call {
    Call::List {
        directory: FileRef::File(directory),
        after,
        most: MAX_LISTED,
        inodes: false,
    }
}

/// Entries for the answer to one READDIR.
pub struct Entries {
    directory: Arc<OpenDirectory>,
    offset: u64,
    /// Index of the first name of the page.
    first: u64,
    page: Arc<Vec<Listed>>,
}

impl Entries {
    /// Adds names to an answer until it is full.
    pub fn fill(self, nodes: &Nodes, add: AddName<'_>) {
        let own = self.directory.node.number();
        let above = self.directory.node.place();
        let above = above.map_or(own, |(parent, _)| parent.number());
        let dots: [(&[u8], u64); 2] = [(b".", own), (b"..", above)];
        for (place, (name, number)) in (0u64..).zip(dots) {
            if place >= self.offset && add(place + 1, name, INodeNo(number), FileType::Directory) {
                return;
            }
        }
        let index = self.offset.saturating_sub(DOTS);
        let skip = usize::try_from(index - self.first).unwrap_or(usize::MAX);
        for (index, listed) in (index..).zip(self.page.iter().skip(skip)) {
            let number = nodes.number_of(&listed.target.file);
            let kind = attributes::kind(listed.target.kind);
            let name = listed.name.as_bytes();
            if add(index + DOTS + 1, name, INodeNo(number), kind) {
                return;
            }
        }
    }
}
