//! Fills the log of a shared volume: devices without an engine, whose entries go to the server's host by calls.
//!
//! A real client would take hours to write a million entries alone. These authors sign what a client signs, and the host
//! judges and stores it as always. In each batch every author writes one entry. One of them reads what the others wrote;
//! the newest note is what all of them have seen.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use ordering::engine::Request;
use ordering::roster::Product;
use ordering::scheme::{DeviceScheme, Scheme};
use ordering::signed::{Entry, Signed, Source};
use share_server::host::{Host, HostOptions, Session};
use trust::device::{DeviceKey, Incarnation};
use trust::tree::inode::Inode;
use trust_shared::calls::{self, Calls, Directory, Held, Spot, Turn};
use trust_shared::change::Change;
use trust_shared::decision::Decision;
use trust_shared::effect::Volume as Effects;
use trust_shared::entry::Prefix;
use trust_shared::form::Heading;
use trust_shared::ops::Op;
use trust_shared::principal::{Device, FileId, INumber, Name, Principal};

use super::device::{TIME, content};
use super::volume::{FOUNDER, Volume, key, orderer, user};
use crate::process;

/// Most devices that write. Those after them are admitted only.
pub const AUTHORS: u32 = 64;
/// How long the host may take for a batch.
const DEADLINE: Duration = Duration::from_secs(60);

/// The name of an author's file.
pub fn file_of(author: u32) -> String {
    format!("file-{author}")
}

struct NoSource;

impl Source for NoSource {
    fn draw(&self) -> [u8; 32] {
        [9; 32]
    }
}

/// One device.
struct Author {
    number: u32,
    session: Session,
    scheme: Product,
    incarnation: Incarnation,
    n: u64,
    previous: [u8; 32],
    file: FileId,
    inode: Option<Arc<Inode>>,
}

impl Author {
    fn connect(
        host: &Host,
        number: u32,
        wake: impl Fn() + Send + Sync + 'static,
    ) -> Result<Author> {
        let key = key(number);
        let device = DeviceKey::from(&key.public());
        let session = host.connect(device, Arc::new(wake))?;
        session.receive(&Request::Open(None))?;
        Ok(Author {
            number,
            session,
            scheme: Signed::new(host.volume(), 0, *host.orderer(), key, Arc::new(NoSource)),
            incarnation: Incarnation::from_bytes([1; 16]),
            n: 0,
            previous: [0; 32],
            file: FileId {
                principal: Principal::from_bytes(*host.volume().as_bytes()),
                number: INumber {
                    device: Device(number),
                    counter: 1 << 20,
                },
            },
            inode: None,
        })
    }

    /// Signs and sends an entry; without ops the one that begins the incarnation.
    fn send(&mut self, seen: Prefix, ops: Vec<Op>) -> Result<()> {
        let heading = Heading {
            incarnation: self.incarnation,
            n: self.n,
            previous: self.previous,
            seen,
            kept: seen.size,
            resume: ops.is_empty(),
            alone: true,
        };
        let entry: Entry = self
            .scheme
            .sign(heading, ops)
            .context("an entry is too long")?;
        self.n += 1;
        self.previous = Product::id(&entry);
        self.session.receive(&Request::Entry(entry))?;
        Ok(())
    }

    /// Makes a file under a new name.
    fn create(&self, effects: &Effects, name: &str, file: FileId, inode: Inode) -> Result<Op> {
        let spot = Spot {
            directory: Directory {
                id: effects.root,
                path: Vec::new(),
            },
            name: Name::new(name.as_bytes())?,
            found: None,
        };
        let calls = Calls {
            volume: effects,
            time: inode.mtime,
        };
        let made = calls.create(&spot, file, inode);
        made.map_err(|why| anyhow::anyhow!("{why}"))
    }

    /// Something else than its file, which says that it has seen its last version in the log. Without it, who reads that
    /// version would wait for the author.
    fn rest(&self, effects: &Effects) -> Result<Op> {
        let mut file = self.file;
        file.number.counter += 1;
        let inode = Inode::new(0o644, TIME, content(b"over"));
        self.create(effects, &format!("over-{}", self.number), file, inode)
    }

    /// The next version of its file; the first one makes it.
    fn change(&mut self, effects: &Effects, version: u64) -> Result<Op> {
        let text = format!("version {version} of the file of author {}", self.number);
        let content = content(text.as_bytes());
        let Some(inode) = self.inode.take() else {
            let inode = Inode::new(0o644, TIME, content);
            let op = self.create(effects, &file_of(self.number), self.file, inode)?;
            self.inode = set_by(&op);
            return Ok(op);
        };
        let held = Held {
            file: self.file,
            inode,
            turn: Turn::Free,
        };
        let calls = Calls {
            volume: effects,
            time: TIME,
        };
        let op = calls.write(&held, content, TIME);
        self.inode = set_by(&op);
        Ok(op)
    }
}

/// The inode that an op sets.
fn set_by(op: &Op) -> Option<Arc<Inode>> {
    op.changes.iter().find_map(|change| match change {
        Change::Set { inode, .. } => Some(Arc::clone(inode)),
        _ => None,
    })
}

/// The newest note, as one author reads it.
struct Reader {
    woken: Receiver<()>,
    seen: Prefix,
}

impl Reader {
    /// Reads until the log has this size.
    fn until(&mut self, founder: &Author, size: u64) -> Result<()> {
        while self.seen.size < size {
            match founder.session.draw()? {
                Some(delivery) => self.seen = delivery.note.note().prefix(),
                None => {
                    let woken = self.woken.recv_timeout(DEADLINE);
                    woken.context("the host has not ordered an entry in time")?;
                }
            }
        }
        Ok(())
    }
}

/// Writes a log of at least `entries` entries, of which the last of each author leaves its file alone, and admits `readers` devices with the numbers from [`AUTHORS`] on.
pub fn fill(volume: &Volume, entries: u64, readers: u32) -> Result<()> {
    let host = Host::open(&volume.server_dir(), orderer(), HostOptions::default())?;
    let effects = Effects::new(volume.id, volume.hasher()?);
    let (wake, woken) = sync_channel(1);
    let wake = move || {
        // One that was not taken yet is enough.
        let _ = wake.try_send(());
    };
    let mut founder = Author::connect(&host, FOUNDER, wake)?;
    let mut reader = Reader {
        woken,
        seen: Prefix {
            size: 0,
            root: trust::history::Frontier::new().root(),
        },
    };
    founder.send(reader.seen, Vec::new())?;
    reader.until(&founder, 1)?;
    for number in 1..AUTHORS + readers {
        let decision = Decision::AdmitDevice {
            device: Device(number),
            key: key(number).public(),
            user: user(),
        };
        founder.send(reader.seen, vec![calls::decide(decision)])?;
        reader.until(&founder, reader.seen.size + 1)?;
    }
    let mut others = Vec::new();
    for number in 1..AUTHORS {
        others.push(Author::connect(&host, number, || ())?);
    }
    for author in &mut others {
        author.send(reader.seen, Vec::new())?;
    }
    reader.until(&founder, reader.seen.size + others.len() as u64)?;
    let mut version = 0;
    loop {
        process::check_stop()?;
        let before = reader.seen;
        let last = before.size + u64::from(AUTHORS) >= entries;
        for author in std::iter::once(&mut founder).chain(&mut others) {
            let op = match last {
                false => author.change(&effects, version)?,
                true => author.rest(&effects)?,
            };
            author.send(before, vec![op])?;
        }
        reader.until(&founder, before.size + u64::from(AUTHORS))?;
        version += 1;
        if last {
            break;
        }
    }
    if host.status().leaves < entries {
        bail!("the log has {} leaves", host.status().leaves);
    }
    Ok(())
}
