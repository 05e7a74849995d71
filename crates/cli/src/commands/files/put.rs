//! `bulla put FILE... VOLUME [PATH]`: files of this machine into a shared volume. A file that is there already is
//! replaced in one step: other devices see the old content or the new one. Modes, modification times, hard links and
//! `user.*` attributes are put, as `publish` publishes them.
//!
//! Directories of the volume that files go into are known by their numbers, and not by their paths. A member that makes
//! the name of one a symbolic link meanwhile does not lead the command elsewhere.
//!
//! Many files go at a time, so that they share entries of the log, requests and round trips ([`super::descent`],
//! [`content::gathering`]). A file of a directory is first compared with the one that is there: what is the same
//! stays, and nothing is stored.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ::share::client::Sink;
use ::share::files::{Attributes as Set, Call, File as FileThere, FileRef, Place, Refused};
use ::share::home::Home;
use content::access::Access;
use content::attributes::XattrReader;
use content::gathering::Gathering;
use content::local::{Attributes, Entry, Found, Linked};
use content::source::{Begun, Source, Sparse, Stream};
use content::upload::{Nowhere, Upload};
use futures_util::future::LocalBoxFuture;
use futures_util::stream::{self, FuturesUnordered, StreamExt};
use publish::publish_error::PublishError;
use serde_json::{Map, json};
use state::own_files;
use store::BlockSink;
use trust::change::alike;
use trust::inode::{
    Content, FileContent, FileKind, Inode, MAX_INLINE_XATTR_BYTES, MAX_TARGET_BYTES, Time, Xattrs,
    encode_xattrs,
};
use trust_shared::principal::{FileId, Name};

use super::descent::{Descent, Filling, Next, Old, Pending, There, ToPut, valid};
use super::names::{directory, ensure};
use super::overwriting::{Overwriting, Overwritten};
use super::words::Words;
use super::{not_uploaded, unreadable};
use crate::args::Put;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::session::Opened;
use crate::text;
use bulla::Error;
use bulla::shared::places::Address;
use bulla::shared::{SharedVolume, now};

/// A page of a directory is worth asking for if so many of its names may be wanted.
const NAMES_IN_PAGE: usize = 64;
/// Links that are made at a time.
const LINKS: usize = 64;
/// Stands for the standard input.
const STDIN: &str = "-";
/// Permissions of a file that comes from there.
const STDIN_MODE: u16 = 0o644;

/// Puts the files.
pub fn run(args: &Put, config: &Config, output: &mut Output) -> Outcome<Done> {
    let state = config.path("state-dir").unwrap_or_default();
    let find = |name: &str| Ok(Home::find(&state, name)?);
    let words = Words::of(&args.words, find)?;
    let shared = Opened::start(config, words.home, args.waiting.deadline)?;
    let putting = Putting {
        shared: &shared,
        is_recursive: args.recursive,
        publish_keys: args.publish_keys,
        sink: Gathering::of(shared.sink()),
        bar: Progress::start(output, "putting"),
        output: RefCell::new(output),
        totals: RefCell::default(),
        linked: RefCell::default(),
        made: RefCell::default(),
        overwriting: Overwriting::of(&shared, args.expect),
    };
    let put = shared.run(async {
        let place = Address::of(shared.place(words.path.as_encoded_bytes())?);
        putting.overwriting.check().await?;
        let ends_with_slash = words.path.as_bytes().ends_with(b"/");
        putting.all(&words.files, place, ends_with_slash).await
    });
    putting.bar.end();
    let (totals, output) = (putting.totals.into_inner(), putting.output.into_inner());
    let overwriting = putting.overwriting;
    let overwritten = overwriting.tell(output);
    shared.close(put, output)?;
    tell(&totals, &overwritten)
}

fn tell(totals: &Totals, overwritten: &Overwritten) -> Outcome<Done> {
    let exit = match totals.skipped {
        0 => Exit::Ok,
        _ => Exit::Partial,
    };
    let record = json!({
        "files": totals.files,
        "directories": totals.directories,
        "other": totals.other,
        "bytes": totals.bytes,
        "skipped": totals.skipped,
        "replaced": overwritten.replaced,
        "conflicts": overwritten.conflicts,
    });
    let fields = fields(record);
    match overwritten.failure(totals.files.saturating_add(totals.other)) {
        Some(failure) => Err(Failure { fields, ..failure }),
        None => Ok(Done { exit, fields }),
    }
}

/// What was put.
#[derive(Debug, Default)]
struct Totals {
    files: u64,
    directories: u64,
    other: u64,
    bytes: u64,
    skipped: u64,
}

struct Putting<'a, 'o> {
    shared: &'a SharedVolume,
    is_recursive: bool,
    /// Whether files of bulla's own are put too.
    publish_keys: bool,
    sink: Gathering<Sink>,
    bar: Progress,
    output: RefCell<&'o mut Output>,
    totals: RefCell<Totals>,
    /// Files of this machine with several names: the file in the volume, as soon as it is there.
    linked: RefCell<HashMap<Linked, Option<FileId>>>,
    /// Directories that were made, with the times of those on this machine.
    made: RefCell<Vec<(FileId, Time)>>,
    overwriting: Overwriting<'a>,
}

/// Another name of a file that is put.
struct Link {
    file: Linked,
    from: PathBuf,
    to: Address,
}

/// What came of a step.
enum Became {
    /// A directory is there.
    Filling(Box<Filling>),
    /// A file is put that took so much memory, or it gets its name when its other name is there.
    Put(u64, Option<Link>),
}

/// Whether a file of the volume is what a file would become that is put there.
fn is_same(there: &FileThere, to: &Address, inode: &Inode) -> bool {
    there.id.principal == to.name.start.principal && alike(&there.inode, inode)
}

impl Putting<'_, '_> {
    /// Puts each file into the directory at `place`, or one file at `place` itself.
    async fn all(&self, files: &[PathBuf], place: Address, needs_directory: bool) -> Outcome<()> {
        let there = self.shared.look(&place.name, true).await?;
        let is_directory = |file: &FileThere| file.inode.kind() == FileKind::Directory;
        let into = there.filter(is_directory).map(|file| file.id);
        if into.is_none() && (needs_directory || files.len() > 1) {
            let error = format!("there is no directory {} in the volume", place.shown());
            let hint = "make it with `bulla mkdir VOLUME PATH`";
            return Err(Failure::new(Kind::NotFound, error).with_hint(hint));
        }
        let from_stdin = |path: &PathBuf| path.as_path() == Path::new(STDIN);
        if files.iter().any(from_stdin) {
            return self.stdin(files.len(), place, into.is_some()).await;
        }
        let mut left = Descent::default();
        // What cannot be put is refused before the first change.
        for (path, is_directory, to) in self.destinations(files, &place, into)?.into_iter().rev() {
            match is_directory {
                true => left.directory(path, to),
                false => left.file(path, to)?,
            }
        }
        let links = self.everything(left).await?;
        let links = stream::iter(links).map(|link| self.link(link));
        let mut linked = links.buffer_unordered(LINKS);
        while let Some(linked) = linked.next().await {
            linked?;
        }
        self.set_times().await
    }

    /// Gives the directories that were made the times of those on this machine: their names have changed since.
    async fn set_times(&self) -> Outcome<()> {
        let set = |(directory, mtime)| async move {
            let call = Call::SetAttributes {
                file: FileRef::File(directory),
                attributes: Set {
                    mtime: Some(mtime),
                    ..Set::default()
                },
                expect: None,
            };
            let shown = || "the time of a directory".to_owned();
            match self.shared.change(call, &shown).await {
                // Somebody has removed it meanwhile.
                Err(Error::Refused {
                    why: Refused::Stale | Refused::NotFound,
                    ..
                }) => Ok(()),
                set => set,
            }
        };
        let sets = stream::iter(self.made.take()).map(set);
        let mut sets = sets.buffer_unordered(LINKS);
        while let Some(set) = sets.next().await {
            set?;
        }
        Ok(())
    }

    /// Where each file goes, and whether it is a directory. A symbolic link that is named itself is followed.
    fn destinations<'a>(
        &self,
        files: &'a [PathBuf],
        place: &Address,
        into: Option<FileId>,
    ) -> Outcome<Vec<(&'a Path, bool, Address)>> {
        let mut names = HashSet::new();
        let mut destinations = Vec::new();
        for path in files {
            let is_directory = Entry::named(path).is_directory();
            let is_directory = is_directory.map_err(|e| unreadable(path, &e))?;
            if is_directory && !self.is_recursive {
                let error = format!("{} is a directory", path.display());
                let hint = "give -r to put it with all that is in it";
                return Err(Failure::new(Kind::Misfit, error).with_hint(hint));
            }
            let to = match into {
                Some(into) => {
                    let name = base_name(path)?;
                    let to = place.inside(into, &name);
                    if !names.insert(name) {
                        let error = format!("two files would become {}", to.shown());
                        let hint = "put one of them under another name";
                        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
                    }
                    to
                }
                None => place.clone(),
            };
            destinations.push((path.as_path(), is_directory, to));
        }
        Ok(destinations)
    }

    /// Puts what comes from the standard input.
    async fn stdin(&self, count: usize, to: Address, is_directory: bool) -> Outcome<()> {
        if count > 1 || is_directory {
            let error = "what comes from stdin needs a name";
            let hint = "write `bulla put - VOLUME PATH`; a file of the name `-` is ./-";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let stdin = Path::new("stdin");
        let from = Stream(std::io::stdin().lock());
        let content = self.content(stdin, from, &self.sink).await?;
        let content = Content::Regular(content);
        let inode = Inode::new(STDIN_MODE, now(), content);
        if self.create(&to, inode).await?.is_some() {
            self.totals.borrow_mut().files += 1;
        }
        Ok(())
    }

    /// Puts what is left, many files at a time. Gives the names that files get when they are there.
    async fn everything(&self, mut left: Descent) -> Outcome<Vec<Link>> {
        let mut links = Vec::new();
        let mut under_way = FuturesUnordered::<LocalBoxFuture<'_, Outcome<Became>>>::new();
        loop {
            while let Some(next) = left.next()? {
                under_way.push(match next {
                    Next::Directory(pending) => Box::pin(self.directory(pending)),
                    Next::File(file) => Box::pin(self.file(file)),
                });
            }
            match under_way.next().await.transpose()? {
                None => return Ok(links),
                Some(Became::Filling(filling)) => left.filled(*filling),
                Some(Became::Put(bytes, link)) => {
                    left.put(bytes);
                    links.extend(link);
                }
            }
        }
    }

    async fn file(&self, file: ToPut) -> Outcome<Became> {
        let bytes = file.bytes;
        Ok(Became::Put(bytes, self.one(file).await?))
    }

    /// Gives a file that was put another name.
    async fn link(&self, link: Link) -> Outcome<()> {
        let file = self.linked.borrow().get(&link.file).copied().flatten();
        let Some(file) = file.map(FileRef::File) else {
            return self
                .skip(&link.from, "its other name was left out")
                .map(drop);
        };
        let shown = || link.to.shown();
        let to = |place: &Place| Call::Link {
            file: file.clone(),
            to: place.clone(),
        };
        let place = &link.to.name;
        let is_free =
            !self.overwriting.expects() && self.shared.look(place, false).await?.is_none();
        if is_free {
            self.shared.change(to(place), &shown).await?;
        } else {
            // A program that opens the name meanwhile finds the old file or the new one.
            let beside = beside(place)?;
            self.shared.change(to(&beside), &shown).await?;
            let renamed = self
                .overwriting
                .rename(beside.clone(), &link.to, &self.output);
            if !renamed.await? {
                let gone = Call::Unlink { place: beside };
                return Ok(self.shared.change(gone, &shown).await?);
            }
        }
        self.totals.borrow_mut().files += 1;
        Ok(())
    }

    /// The directory of the volume for a directory of this machine. A link that a member left in its place is refused.
    async fn directory(&self, pending: Pending) -> Outcome<Became> {
        let (from, to) = (pending.open()?, pending.to.clone());
        let there = self.old(&pending.old, &to).await?;
        let (xattrs, access) = self.xattrs(from.path(), from.fd()).await?;
        let mut inode = directory(access.narrow(from.attributes.mode));
        inode.mtime = from.attributes.mtime;
        inode.xattrs = xattrs;
        let (id, is_new) = ensure(self.shared, &to, there, inode, None).await?;
        self.totals.borrow_mut().directories += 1;
        if is_new {
            let mtime = from.attributes.mtime;
            self.made.borrow_mut().push((id, mtime));
        }
        let names = from.names();
        let names = names.map_err(|e| unreadable(from.path(), &e))?;
        let there = match is_new {
            true => There::nothing(),
            false => self.there(id, &to, &names).await?,
        };
        let filling = pending.filling(from, names, (id, there));
        Ok(Became::Filling(Box::new(filling)))
    }

    /// What a name of the volume leads to.
    async fn old(&self, old: &Old, at: &Address) -> Outcome<Option<FileThere>> {
        match old {
            Old::Known(file) => Ok(file.clone()),
            Old::Unknown => Ok(self.shared.look(&at.name, false).await?),
        }
    }

    /// Looks what is under these names in a directory of the volume. Of a directory that has many more names only the
    /// first ones are looked at.
    async fn there(&self, id: FileId, at: &Address, names: &[OsString]) -> Outcome<There> {
        let wanted: HashSet<&[u8]> = names.iter().map(|name| name.as_bytes()).collect();
        let mut there = There::default();
        for _ in 0..=names.len() / NAMES_IN_PAGE {
            let after = there.until.clone();
            let page = self.shared.names_in(id, &at.path, after, true).await?;
            there.is_whole = page.next.is_none();
            there.until = page.next;
            for listed in page.names {
                if wanted.contains(listed.name.as_bytes()) {
                    there.files.insert(listed.name, listed.file);
                }
            }
            if there.is_whole {
                break;
            }
        }
        Ok(there)
    }

    /// Puts a file that is no directory. If it is another name of a file that this command puts already, the link is
    /// made when that file is there.
    async fn one(&self, file: ToPut) -> Outcome<Option<Link>> {
        let (entry, to) = (file.entry, file.to);
        let there = self.old(&file.old, &to).await?;
        let path = entry.path();
        let found = entry.find().map_err(|e| unreadable(path, &e))?;
        let linked = match &found {
            Found::File(_, attributes) | Found::Symlink(_, attributes) => attributes.linked,
            _ => None,
        };
        if let Some(file) = linked {
            let mut known = self.linked.borrow_mut();
            if known.contains_key(&file) {
                let from = path.to_owned();
                return Ok(Some(Link { file, from, to }));
            }
            known.insert(file, None);
        }
        let id = match found {
            Found::File(opened, attributes) => {
                let id = self.regular(path, opened, attributes, (&to, there)).await?;
                self.totals.borrow_mut().files += u64::from(id.is_some());
                id
            }
            Found::Symlink(target, _) if target.len() > MAX_TARGET_BYTES => {
                return self.skip(path, "its target is too long");
            }
            Found::Symlink(target, attributes) => {
                let content = Content::Symlink(target.into());
                let inode = Inode::new(attributes.mode, attributes.mtime, content);
                let id = match there.filter(|there| is_same(there, &to, &inode)) {
                    Some(there) => Some(there.id),
                    None => self.create(&to, inode).await?,
                };
                self.totals.borrow_mut().other += u64::from(id.is_some());
                id
            }
            Found::Directory => {
                return self.skip(path, "it has become a directory meanwhile");
            }
            Found::Other => {
                return self.skip(path, "neither a file, nor a directory, nor a symbolic link");
            }
        };
        if let Some(file) = linked {
            self.linked.borrow_mut().insert(file, id);
        }
        Ok(None)
    }

    /// Makes a file, unless somebody else has changed what is there.
    async fn create(&self, to: &Address, inode: Inode) -> Outcome<Option<FileId>> {
        self.overwriting.create(to, inode, &self.output).await
    }

    /// Puts a regular file, unless it is there already. Gives the file of the volume. None: somebody else has changed what
    /// is there.
    async fn regular(
        &self,
        path: &Path,
        opened: OwnedFd,
        attributes: Attributes,
        (to, there): (&Address, Option<FileThere>),
    ) -> Outcome<Option<FileId>> {
        let (xattrs, access) = self.xattrs(path, &opened).await?;
        let from = File::from(opened);
        let mode = access.narrow(attributes.mode);
        let with = |content: Content| {
            let mut inode = Inode::new(mode, attributes.mtime, content);
            inode.xattrs = xattrs.clone();
            inode
        };
        if let Some(there) = there {
            let metadata = from.metadata().map_err(|e| unreadable(path, &e))?;
            let old = with(there.inode.content.clone());
            // Only then it is worth while to read the file before it is put.
            if old.size == metadata.len() && is_same(&there, to, &old) {
                let again = from.try_clone().map_err(|e| unreadable(path, &e))?;
                let content = self.content(path, Sparse::of(again), &Nowhere).await?;
                let inode = with(Content::Regular(content));
                if is_same(&there, to, &inode) {
                    return Ok(Some(there.id));
                }
                let mut totals = self.totals.borrow_mut();
                totals.bytes = totals.bytes.saturating_sub(inode.size);
            }
        }
        let content = self.content(path, Sparse::of(from), &self.sink).await?;
        let inode = with(Content::Regular(content));
        self.create(to, inode).await
    }

    /// The extended attributes of a file; a long list is stored.
    async fn xattrs(&self, path: &Path, file: &OwnedFd) -> Outcome<(Xattrs, Access)> {
        let list = XattrReader::default().read(file, false);
        let (list, access) = list.map_err(|why| PublishError::Unreadable {
            path: path.to_owned(),
            why: why.into(),
        })?;
        if list.is_empty() {
            return Ok((Xattrs::None, access));
        }
        let encoded = encode_xattrs(&list);
        if encoded.len() <= MAX_INLINE_XATTR_BYTES {
            return Ok((Xattrs::Inline(list), access));
        }
        let hasher = self.shared.client().hasher();
        let mut upload = Upload::new(hasher, &self.sink);
        let stored = upload.content(Stream(&*encoded), |_| {}).await;
        match stored.map_err(|why| not_uploaded(path, why))? {
            FileContent::Array(root) => Ok((Xattrs::Stored(root), access)),
            // Content that is longer than an inode holds is an array.
            _ => Err(Failure::from(bulla::Error::Defect)),
        }
    }

    /// Cuts the content of a file into blocks, and puts them into a sink.
    async fn content(
        &self,
        path: &Path,
        file: impl Source,
        sink: &dyn BlockSink,
    ) -> Outcome<FileContent> {
        let file = Begun::of(file).map_err(|e| unreadable(path, &e))?;
        if let Some(what) = own_files::what(file.start()).filter(|_| !self.publish_keys) {
            let path = path.to_owned();
            return Err(PublishError::OwnFile { path, what }.into());
        }
        let mut known = 0;
        let hasher = self.shared.client().hasher();
        let mut upload = Upload::new(hasher, sink);
        let told = |bytes: u64| {
            let mut totals = self.totals.borrow_mut();
            totals.bytes = totals.bytes.saturating_add(bytes - known);
            known = bytes;
            self.bar.at(totals.bytes, totals.files);
        };
        let uploaded = upload.content(file, told).await;
        uploaded.map_err(|why| not_uploaded(path, why))
    }

    fn skip(&self, path: &Path, why: &str) -> Outcome<Option<Link>> {
        self.totals.borrow_mut().skipped += 1;
        let name = path.as_os_str().as_bytes();
        let mut output = self.output.borrow_mut();
        if !output.json() {
            let name = text::printable(name);
            output.warn(&format!("left out: {name}: {why}"));
            return Ok(None);
        }
        let mut one = Map::new();
        text::put_name(&mut one, "path", name);
        one.insert("why".to_owned(), why.into());
        output.record("skipped", one)?;
        Ok(None)
    }
}

/// A name beside this one that nobody else uses, for a link that is then renamed.
fn beside(place: &Place) -> Outcome<Place> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(|_| Failure::from(bulla::Error::Defect))?;
    let name = format!(".bulla-put-{:016x}", u64::from_le_bytes(random));
    let mut beside = place.clone();
    beside.path.pop();
    beside
        .path
        .push(Name::new(name.as_bytes()).map_err(|_| Failure::from(bulla::Error::Defect))?);
    Ok(beside)
}

/// The name that a file gets in a directory of the volume.
fn base_name(path: &Path) -> Outcome<Name> {
    let whole;
    let name = match path.file_name() {
        Some(name) => name,
        None => {
            whole = path.canonicalize().map_err(|e| unreadable(path, &e))?;
            whole.file_name().unwrap_or_default()
        }
    };
    valid(name.as_bytes(), path)
}
