//! `bulla share export VOLUME REPO [PATH]`: a snapshot of a shared volume becomes the next version of a published one.
//!
//! The files go as a tar stream to `publish`, in memory and never on disk. They are those after one entry of the log.
//! The root directory of the version has an extended attribute that names the shared volume, the entry, and the root
//! of its log there.

use std::collections::HashMap;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use ::share::files::{Answer, Call};
use bulla::walk::{MAX_DEPTH, Step};
use bulla::{Entry, Tree};
use bytes::Bytes;
use publish::pipeline::{self, Input, PublishOptions};
use publish::progress::{Published, Silent};
use publish::publish_error::PublishError;
use reader::Reads;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use trust::inode::{Content, Inode};
use trust::signer::Signer;
use trust_shared::principal::FileId;
use volume::VersionRef;

use crate::args::{Global, ShareExport};
use crate::commands::{key, publish as publishing};
use crate::config::Config;
use crate::entry;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output};
use crate::progress::Progress;
use crate::session::not_found;
use crate::sharing::archive::{Member, What, end, padding};
use crate::sharing::session::Opened;
use crate::text;
use bulla::shared::SharedVolume;

/// The attribute of the root directory that says what was exported.
const ORIGIN: &[u8] = b"user.bulla-export";
/// Pieces of the stream that wait for `publish`.
const WAITING: usize = 8;
/// Content held in memory at a time, bytes.
const WINDOW_BYTES: usize = 1 << 20;
/// Most files with several names whose first name is remembered. Others become files of their own.
const MAX_LINKED: usize = 1 << 16;
/// The largest number of a device file in a tar header.
const MAX_DEVICE: u32 = 0o7_777_777;

/// Exports.
pub fn run(
    args: &ShareExport,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let path = key::path(args.key.as_ref(), config)?;
    let key = key::signer(&path, &args.passphrase, global)?;
    let shared = Opened::named(config, &args.volume, &args.waiting)?;
    let options = options(args, config, &shared)?;
    let found = shared.run(origin(&shared, args.past.at.as_ref()));
    let origin = match found {
        Ok(origin) => origin,
        Err(why) => return shared.close(Err(why), output),
    };
    let bar = Progress::start(output, "exporting");
    let (to, from) = channel(WAITING);
    let mut sending = Sending {
        tree: Tree::shared(&shared, origin.entry).read_once(),
        to,
        bar: bar.clone(),
        linked: HashMap::new(),
        skipped: Vec::new(),
        bytes: 0,
        files: 0,
    };
    let exported = std::thread::scope(|scope| {
        let (repo, key, options) = (&args.repo, &*key, &options);
        let publishing = scope.spawn(move || published(Pipe::new(from), repo, key, options));
        let sent = shared.run(sending.all(args, &origin));
        if sent.is_err() {
            options.cancel.store(true, Ordering::Relaxed);
        }
        sending.close();
        let published = publishing.join();
        published.map_or_else(
            |_| Err(Failure::from(bulla::Error::Defect)),
            |published| ended(sent, published),
        )
    });
    bar.end();
    let skipped = std::mem::take(&mut sending.skipped);
    let published = shared.close(exported, output)?;
    tell(&published, &origin, &skipped, output)
}

/// Publishes what comes through the pipe. When it ends, the pipe is closed: who still sends is told.
fn published(
    pipe: Pipe,
    repo: &Path,
    key: &dyn Signer,
    options: &PublishOptions,
) -> Result<Published, PublishError> {
    let pipe = Mutex::new(Some(pipe));
    let stream = || -> Box<dyn Read> {
        let pipe = pipe.lock().ok().and_then(|mut pipe| pipe.take());
        match pipe {
            Some(pipe) => Box::new(pipe),
            None => Box::new(io::empty()),
        }
    };
    pipeline::publish(Input::Tar(&stream), repo, key, options, &Silent)
}

/// The failure that came first: a stream that breaks off fails in `publish` too.
fn ended(sent: Outcome<()>, published: Result<Published, PublishError>) -> Outcome<Published> {
    match (sent, published) {
        (Err(why), Err(_)) if why.kind != Kind::Defect => Err(why),
        (_, published) => Ok(published?),
    }
}

fn options(args: &ShareExport, config: &Config, shared: &SharedVolume) -> Outcome<PublishOptions> {
    Ok(PublishOptions {
        valid: match args.valid {
            Some(valid) => valid,
            None => config.duration("valid")?,
        },
        state_dir: config.path("state-dir"),
        name: match &args.name {
            Some(name) => name.clone(),
            None => shared.home().name().to_owned(),
        },
        publish_keys: args.publish_keys,
        ..PublishOptions::default()
    })
}

/// What is exported.
struct Origin {
    volume: String,
    /// Number of the last entry that the export has the effect of. None: the log has no entry.
    entry: Option<u64>,
    root: Option<[u8; 32]>,
}

impl Origin {
    fn root(&self) -> Option<String> {
        let root = self.root?;
        Some(root.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn attribute(&self) -> Bytes {
        let entry = self
            .entry
            .map_or("none".to_owned(), |entry| entry.to_string());
        let root = self.root().unwrap_or_else(|| "unknown".to_owned());
        format!("volume {}\nentry {entry}\nroot {root}\n", self.volume).into()
    }
}

/// The entry that is named, or the newest one.
async fn origin(shared: &SharedVolume, at: Option<&VersionRef>) -> Outcome<Origin> {
    // After this, the device has the newest state.
    shared.members().await?;
    let entry = match at {
        Some(at) => Some(shared.entry(at).await?),
        None => newest(shared).await?,
    };
    let root = match entry.map(|entry| entry.saturating_add(1)) {
        None => None,
        Some(size) => {
            let look = shared.client().look(Call::Root { size }, shared.until());
            match look.await?.answer {
                Answer::Root(root) => root,
                _ => return Err(Failure::from(bulla::Error::Defect)),
            }
        }
    };
    Ok(Origin {
        volume: shared.home().volume().to_string(),
        entry,
        root,
    })
}

async fn newest(shared: &SharedVolume) -> Outcome<Option<u64>> {
    let mut before = None;
    loop {
        let page = shared.history(before).await?;
        match (page.entries.first(), page.next) {
            (Some(entry), _) => return Ok(Some(entry.at)),
            (None, Some(next)) => before = Some(next),
            (None, None) => return Ok(None),
        }
    }
}

/// The stream as `publish` reads it.
struct Pipe {
    from: Receiver<Bytes>,
    piece: Bytes,
    /// The last piece has come: an empty one.
    is_done: bool,
}

impl Pipe {
    fn new(from: Receiver<Bytes>) -> Pipe {
        Pipe {
            from,
            piece: Bytes::new(),
            is_done: false,
        }
    }
}

impl Read for Pipe {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.is_done {
            let cut = || io::Error::other("the export was broken off");
            self.piece = self.from.blocking_recv().ok_or_else(cut)?;
            self.is_done = self.piece.is_empty();
        }
        let len = self.piece.len().min(to.len());
        let piece = self.piece.split_to(len);
        if let Some(to) = to.get_mut(..len) {
            to.copy_from_slice(&piece);
        }
        Ok(len)
    }
}

/// A file that was left out, and why.
type Skipped = (Vec<u8>, &'static str);

struct Sending<'a> {
    tree: Tree<'a>,
    to: Sender<Bytes>,
    bar: Progress,
    /// The first name of files that have several.
    linked: HashMap<FileId, Vec<u8>>,
    skipped: Vec<Skipped>,
    bytes: u64,
    files: u64,
}

impl Sending<'_> {
    /// Ends the stream for its reader, whether or not it is whole.
    fn close(&mut self) {
        let (closed, _) = channel(1);
        self.to = closed;
    }

    async fn send(&mut self, piece: Vec<u8>) -> Outcome<()> {
        if piece.is_empty() {
            return Ok(());
        }
        // `publish` has failed, and its own error says why.
        let gone = |_| Failure::new(Kind::Defect, "nobody reads the export");
        self.to.send(piece.into()).await.map_err(gone)
    }

    async fn all(&mut self, args: &ShareExport, origin: &Origin) -> Outcome<()> {
        let path = entry::clean(&args.path);
        let top = self.tree.follow(&path).await?;
        let top = top.ok_or_else(|| not_found(&path))?;
        if !top.is_directory() {
            let error = format!("{}: it is not a directory", text::printable(&path));
            return Err(Failure::new(Kind::Misfit, error));
        }
        let mut xattrs = self.xattrs(&top).await?;
        xattrs.retain(|(name, _)| name != ORIGIN);
        xattrs.push((Bytes::from_static(ORIGIN), origin.attribute()));
        let what = What::Directory;
        self.member(b"./", what, &top.inode, &xattrs).await?;
        let above = top.path.len() + usize::from(!top.path.is_empty());
        let tree = self.tree.read_once();
        let mut walk = tree.walk(&top, Reads::Everything);
        while let Some(step) = walk.next().await.map_err(|unlisted| unlisted.why)? {
            let Step::Entry(entry) = step else {
                continue;
            };
            self.one(entry.path.get(above..).unwrap_or_default(), &entry)
                .await?;
            if entry.is_directory() {
                if walk.depth() >= MAX_DEPTH {
                    let path = text::printable(&entry.path);
                    return Err(bulla::Error::TooDeep { path }.into());
                }
                walk.enter(entry);
            }
        }
        if walk.hidden() > 0 {
            let why = "files that this user may not read";
            self.skipped.push((walk.hidden().to_string().into(), why));
        }
        self.send(end()).await?;
        let gone = |_| Failure::new(Kind::Defect, "nobody reads the export");
        self.to.send(Bytes::new()).await.map_err(gone)
    }

    /// Sends an entry. `path`: from the directory that is exported.
    async fn one(&mut self, path: &[u8], entry: &Entry) -> Outcome<()> {
        let inode = &entry.inode;
        let first = entry.id().and_then(|id| self.linked.get(&id).cloned());
        if let Some(first) = first {
            return self.member(path, What::HardLink(&first), inode, &[]).await;
        }
        let what = match &inode.content {
            Content::Regular(_) => What::Regular(inode.content.size()),
            Content::Directory { .. } => What::Directory,
            Content::Symlink(target) => What::Symlink(target),
            Content::Fifo => What::Fifo,
            Content::CharDevice { major, minor } if fits(*major, *minor) => {
                What::CharDevice(*major, *minor)
            }
            Content::BlockDevice { major, minor } if fits(*major, *minor) => {
                What::BlockDevice(*major, *minor)
            }
            _ => {
                let why = "a socket, or a device file with too high a number";
                self.skipped.push((entry.path.to_vec(), why));
                return Ok(());
            }
        };
        let xattrs = self.xattrs(entry).await?;
        self.member(path, what, inode, &xattrs).await?;
        if let What::Regular(bytes) = what {
            self.content(entry, bytes).await?;
        }
        let is_linked = inode.links > 1 && what != What::Directory;
        if let (true, Some(id)) = (is_linked && self.linked.len() < MAX_LINKED, entry.id()) {
            self.linked.insert(id, path.to_vec());
        }
        Ok(())
    }

    /// The attributes that a published volume may have.
    async fn xattrs(&self, entry: &Entry) -> Outcome<Vec<(Bytes, Bytes)>> {
        let mut xattrs = self.tree.xattrs(entry).await?;
        xattrs.retain(|(name, _)| !name.starts_with(b"user.bulla."));
        Ok(xattrs)
    }

    async fn member(
        &mut self,
        path: &[u8],
        what: What<'_>,
        inode: &Inode,
        xattrs: &[(Bytes, Bytes)],
    ) -> Outcome<()> {
        let member = Member {
            path,
            what,
            mode: inode.mode,
            mtime: inode.mtime,
            xattrs,
        };
        self.send(member.head()).await
    }

    async fn content(&mut self, entry: &Entry, bytes: u64) -> Outcome<()> {
        let mut at = 0;
        while at < bytes {
            let pieces = self.tree.read(entry, at, WINDOW_BYTES).await?;
            let window = pieces.concat();
            if window.is_empty() {
                let error = "a file is shorter than its inode says";
                return Err(Failure::new(Kind::Malformed, error));
            }
            at += window.len() as u64;
            self.bytes = self.bytes.saturating_add(window.len() as u64);
            self.send(window).await?;
            self.bar.at(self.bytes, self.files);
        }
        self.files += 1;
        self.send(padding(bytes)).await
    }
}

fn fits(major: u32, minor: u32) -> bool {
    major <= MAX_DEVICE && minor <= MAX_DEVICE
}

fn tell(
    published: &Published,
    origin: &Origin,
    skipped: &[Skipped],
    output: &mut Output,
) -> Outcome<Done> {
    let how = publishing::How::default();
    let mut record = publishing::result_fields(published, how);
    record.insert("skipped".to_owned(), skipped.len().into());
    let root = origin.root().map_or(Value::Null, Value::from);
    let shared = json!({"volume": origin.volume, "entry": origin.entry, "root": root});
    record.insert("shared".to_owned(), shared);
    for (path, why) in skipped {
        if output.json() {
            let mut one = Map::new();
            text::put_name(&mut one, "path", path);
            one.insert("why".to_owned(), (*why).into());
            output.record("skipped", one)?;
        } else {
            output.warn(&format!("left out: {}: {why}", text::printable(path)));
        }
    }
    if !output.json() {
        publishing::print(published, how, output)?;
        output.line(&format!("shared   {}", origin.volume))?;
        let entry = origin.entry.map_or("none".to_owned(), |it| it.to_string());
        output.line(&format!("entry    {entry}"))?;
    }
    let exit = match skipped {
        [] => Exit::Ok,
        _ => Exit::Partial,
    };
    Ok(Done {
        exit,
        fields: record,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_that_breaks_off_is_an_error_and_no_short_archive() {
        let (to, from) = channel(WAITING);
        to.blocking_send(Bytes::from_static(b"abc")).unwrap();
        drop(to);
        let mut read = Vec::new();
        assert!(Pipe::new(from).read_to_end(&mut read).is_err());
        let (to, from) = channel(WAITING);
        to.blocking_send(Bytes::from_static(b"abc")).unwrap();
        to.blocking_send(Bytes::new()).unwrap();
        drop(to);
        let mut read = Vec::new();
        Pipe::new(from).read_to_end(&mut read).unwrap();
        assert_eq!(read, b"abc");
    }
}
