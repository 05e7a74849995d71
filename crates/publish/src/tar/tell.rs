//! The second half of publishing an archive: sends its members, in the order of the walk, to the assembler.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Sender, bounded};
use trust::Hasher;
use trust::inode::{Content, Inode, Time, link_group};

use super::{Unpacked, refused};
use crate::assemble::{Assembler, Tree};
use crate::destination::Destination;
use crate::publish_error::PublishError;
use crate::reading;
use crate::work::{Done, Event, FileId, JOB_FILES, Link, What};

/// Mode of a directory that is not in the archive.
const IMPLICIT_MODE: u16 = 0o755;
/// Events that wait for the assembler.
const EVENTS: usize = 16;

/// Assembles an unpacked archive.
pub(crate) fn assemble<D: Destination>(
    unpacked: Unpacked,
    hasher: &Hasher,
    cancel: &AtomicBool,
    assembler: Assembler<'_, D>,
) -> Result<Tree, PublishError> {
    let (events, told) = bounded(EVENTS);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let teller = Teller {
                unpacked,
                hasher,
                cancel,
                events: events.clone(),
                stack: Vec::new(),
                batch: Vec::new(),
                met: HashMap::new(),
            };
            let last = match teller.run() {
                Ok(()) => Event::End(Vec::new()),
                Err(e) => Event::Failed(e),
            };
            // If the receiver is gone, the assembler has failed and reports why.
            drop(events.send(last));
        });
        let tree = assembler.run(&told);
        drop(told);
        tree
    })
}

/// The second half: tells the assembler the tree in the order of the walk.
struct Teller<'a> {
    unpacked: Unpacked,
    hasher: &'a Hasher,
    cancel: &'a AtomicBool,
    events: Sender<Event>,
    stack: Vec<Level>,
    batch: Vec<Done>,
    /// Linked files that were sent: how many of their names, and the link.
    met: HashMap<u64, (u32, Link)>,
}

/// A directory on the way down.
struct Level {
    path: Vec<u8>,
    name: Vec<u8>,
    told: usize,
    opened: bool,
    below: HashSet<Box<[u8]>>,
    inode: Option<Inode>,
}

impl Level {
    fn new(above: Option<&Level>, name: &[u8]) -> Level {
        let path = match above {
            Some(above) if !above.path.is_empty() => [&above.path, &b"/"[..], name].concat(),
            _ => name.to_vec(),
        };
        Level {
            path,
            name: name.to_vec(),
            told: 0,
            opened: false,
            below: HashSet::new(),
            inode: None,
        }
    }
}

impl Teller<'_> {
    fn run(mut self) -> Result<(), PublishError> {
        self.stack.push(Level::new(None, b""));
        while let Some(row) = self.unpacked.rows.next()? {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(PublishError::Interrupted);
            }
            let (above, name) = row.place.components();
            self.go_to(&above)?;
            match name {
                Some(name) => self.entry(name, row.at)?,
                None => {
                    let inode = self.read(row.at)?;
                    if let Some(level) = self.stack.last_mut() {
                        level.inode = Some(inode);
                    }
                }
            }
        }
        while !self.stack.is_empty() {
            self.leave()?;
        }
        Ok(())
    }

    fn read(&self, at: u64) -> Result<Inode, PublishError> {
        Ok(Inode::decode(&self.unpacked.spool.read(at)?)?)
    }

    fn send(&self, event: Event) -> Result<(), PublishError> {
        // If the receiver is gone, the assembler has failed, and its error is the one that is reported.
        self.events
            .send(event)
            .map_err(|_| PublishError::WorkerDied)
    }

    /// Leaves directories and enters others until the open one is that of these names.
    fn go_to(&mut self, names: &[&[u8]]) -> Result<(), PublishError> {
        let open = self.stack.iter().skip(1);
        let same = open
            .zip(names)
            .take_while(|(level, name)| level.name == **name);
        let same = same.count();
        while self.stack.len() > same + 1 {
            self.leave()?;
        }
        for name in names.iter().skip(same) {
            self.stack.push(Level::new(self.stack.last(), name));
        }
        Ok(())
    }

    fn open(&mut self) -> Result<(), PublishError> {
        let Some(level) = self.stack.last_mut() else {
            return Err(PublishError::WorkerDied);
        };
        if level.opened {
            return Ok(());
        }
        level.opened = true;
        let event = Event::Open {
            path: level.path.clone().into(),
            subdirectories: level.told,
        };
        self.send(event)
    }

    fn entry(&mut self, name: &[u8], at: u64) -> Result<(), PublishError> {
        self.open()?;
        let mut path = Vec::new();
        if let Some(level) = self.stack.last() {
            path.clone_from(&level.path);
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            if level.below.contains(name) {
                return Err(refused(&path, "both a directory and something else"));
            }
        }
        let what = self.what(&path, at)?;
        self.batch.push(Done {
            name: name.into(),
            what,
            stamp: None,
        });
        if self.batch.len() >= JOB_FILES {
            self.flush()?;
        }
        Ok(())
    }

    fn what(&mut self, path: &[u8], at: u64) -> Result<What, PublishError> {
        let names = self.unpacked.names.get(&at).copied().unwrap_or(1);
        if let Some((met, link)) = self.met.get_mut(&at) {
            *met += 1;
            let mut link = *link;
            link.last = *met >= names;
            return Ok(What::Link(link));
        }
        let mut inode = self.read(at)?;
        let link = (names > 1).then(|| Link {
            file: linked_file(at),
            group: link_group(self.hasher, path),
            names,
            last: false,
        });
        if let Some(link) = link {
            self.met.insert(at, (1, link));
        }
        reading::name_link(&mut inode, link.as_ref());
        Ok(What::File {
            inode: Box::new(inode),
            blocks: Vec::new(),
            link,
        })
    }

    fn flush(&mut self) -> Result<(), PublishError> {
        if self.batch.is_empty() {
            return Ok(());
        }
        let batch = std::mem::take(&mut self.batch);
        self.send(Event::Entries(batch))
    }

    /// Finishes the directory at the top of the stack.
    fn leave(&mut self) -> Result<(), PublishError> {
        self.open()?;
        self.flush()?;
        let Some(level) = self.stack.pop() else {
            return Ok(());
        };
        let implicit = || {
            let empty = Content::Directory {
                map: None,
                opaque: false,
            };
            Inode::new(IMPLICIT_MODE, Time::default(), empty)
        };
        self.send(Event::Close {
            inode: Box::new(level.inode.unwrap_or_else(implicit)),
            blocks: Vec::new(),
        })?;
        if let Some(above) = self.stack.last_mut() {
            above.told += 1;
            above.below.insert(level.name.into());
        }
        Ok(())
    }
}

/// Replaces device and inode number, which an archive does not have.
fn linked_file(at: u64) -> FileId {
    (u64::MAX, at)
}
