//! `bulla put FILE... VOLUME [PATH]`: files of this machine into a shared volume. A file that is there already is
//! replaced in one step: other devices see the old content or the new one. Modes, modification times, hard links and
//! `user.*` attributes are put, as `publish` publishes them.
//!
//! Directories of the volume that files go into are known by their numbers, and not by their paths. A member that makes
//! the name of one a symbolic link meanwhile does not lead the command elsewhere.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use ::share::files::{Call, Over, Place, Which};
use ::share::home::Home;
use futures_util::stream::{FuturesUnordered, StreamExt};
use publish::access::Access;
use publish::attributes::XattrReader;
use publish::publish_error::PublishError;
use serde_json::{Map, json};
use state::own_files;
use trust::inode::{
    Content, FileContent, FileKind, Inode, MAX_INLINE_XATTR_BYTES, MAX_TARGET_BYTES, Xattrs,
    encode_xattrs,
};
use trust::shared::principal::{FileId, Name};

use super::local::{Attributes, Directory, Entry, Found, Linked};
use super::names::{directory, ensure};
use super::words::Words;
use crate::args::Put;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::places::Address;
use crate::sharing::session::{Shared, defect, now};
use crate::sharing::source::{Begun, Source, Sparse, Stream};
use crate::{sharing, text};

/// Files of a directory tree that are put at a time. Each takes some MiB of memory.
const AT_ONCE: usize = 16;
/// Stands for the standard input.
const STDIN: &str = "-";
/// Permissions of a file that comes from there.
const STDIN_MODE: u16 = 0o644;
/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// Puts the files.
pub fn run(args: &Put, config: &Config, output: &mut Output) -> Outcome<Done> {
    let state = config.path("state-dir").unwrap_or_default();
    let find = |name: &str| Ok(Home::find(&state, name)?);
    let words = Words::of(&args.words, find)?;
    let shared = Shared::start(config, words.home, args.waiting.deadline)?;
    let putting = Putting {
        shared: &shared,
        is_recursive: args.recursive,
        publish_keys: args.publish_keys,
        bar: Progress::start(output, "putting"),
        output: RefCell::new(output),
        totals: RefCell::default(),
        linked: RefCell::default(),
    };
    let put = shared.run(async {
        let place = Address::of(shared.place(&words.path)?);
        let ends_with_slash = words.path.as_bytes().ends_with(b"/");
        putting.all(&words.files, place, ends_with_slash).await
    });
    putting.bar.end();
    let (totals, output) = (putting.totals.into_inner(), putting.output.into_inner());
    shared.close(put, output)?;
    tell(&totals)
}

fn tell(totals: &Totals) -> Outcome<Done> {
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
    });
    Ok(Done {
        exit,
        fields: fields(record),
    })
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
    shared: &'a Shared,
    is_recursive: bool,
    /// Whether files of bulla's own are put too.
    publish_keys: bool,
    bar: Progress,
    output: RefCell<&'o mut Output>,
    totals: RefCell<Totals>,
    /// Files of this machine with several names: the file in the volume, as soon as it is there.
    linked: RefCell<HashMap<Linked, Option<FileId>>>,
}

/// Another name of a file that is put.
struct Link {
    file: Linked,
    from: PathBuf,
    to: Address,
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let shown = text::printable(path.as_os_str().as_bytes());
    let mut failure = Failure::io(format!("cannot read {shown}"), error);
    if !matches!(failure.kind, Kind::NoFile) {
        failure = failure.with_hint("make the file readable, or leave it out");
    }
    failure
}

/// A directory of this machine that is to be put.
struct Pending {
    /// Its names below the directory that the user has named.
    names: Vec<OsString>,
    to: Address,
}

impl Putting<'_, '_> {
    /// Puts each file into the directory at `place`, or one file at `place` itself.
    async fn all(&self, files: &[PathBuf], place: Address, needs_directory: bool) -> Outcome<()> {
        let there = self.shared.look(&place.name, true).await?;
        let is_directory = |file: &::share::files::File| file.inode.kind() == FileKind::Directory;
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
        let mut links = Vec::new();
        // What cannot be put is refused before the first change.
        for (path, is_directory, to) in self.destinations(files, &place, into)? {
            match is_directory {
                true => self.tree(path, to, &mut links).await?,
                false => links.extend(self.one(Entry::named(path), to).await?),
            }
        }
        for link in links {
            self.link(link).await?;
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
        let content = Content::Regular(self.content(stdin, from).await?);
        let inode = Inode::new(STDIN_MODE, now(), content);
        self.shared.create(&to, inode, None, true).await.map(drop)
    }

    /// Puts a directory with all that is in it.
    async fn tree(&self, path: &Path, to: Address, links: &mut Vec<Link>) -> Outcome<()> {
        let top = Directory::named(path).map_err(|e| unreadable(path, &e))?;
        let mut under_way = FuturesUnordered::new();
        let names = Vec::new();
        let mut pending = vec![Pending { names, to }];
        while let Some(Pending { names, to }) = pending.pop() {
            let path = names.iter().fold(path.to_owned(), |at, name| at.join(name));
            if to.path.path.len() > MAX_DEPTH {
                let error = format!("{} is nested too deeply", path.display());
                return Err(Failure::new(Kind::Misfit, error));
            }
            let opened = top.below(&names).map_err(|e| unreadable(&path, &e))?;
            let into = self.directory(&opened, &to).await?;
            for name in opened.names().map_err(|e| unreadable(&path, &e))? {
                let entry = opened.entry(&name);
                let to = to.inside(into, &valid(name.as_bytes(), entry.path())?);
                let is_directory = entry.is_directory();
                if is_directory.map_err(|e| unreadable(entry.path(), &e))? {
                    let names = [names.as_slice(), &[name]].concat();
                    pending.push(Pending { names, to });
                    continue;
                }
                if under_way.len() >= AT_ONCE {
                    links.extend(under_way.next().await.unwrap_or(Ok(None))?);
                }
                under_way.push(self.one(entry, to));
            }
        }
        while let Some(done) = under_way.next().await {
            links.extend(done?);
        }
        Ok(())
    }

    /// Gives a file that was put another name.
    async fn link(&self, link: Link) -> Outcome<()> {
        let file = self.linked.borrow().get(&link.file).copied().flatten();
        let Some(file) = file.map(Which::File) else {
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
        if self.shared.look(place, false).await?.is_none() {
            self.shared.change(to(place), &shown).await?;
        } else {
            // A program that opens the name meanwhile finds the old file or the new one.
            let beside = beside(place)?;
            self.shared.change(to(&beside), &shown).await?;
            let renamed = Call::Rename {
                from: beside,
                to: place.clone(),
                over: Over::Replace,
            };
            self.shared.change(renamed, &shown).await?;
        }
        self.totals.borrow_mut().files += 1;
        Ok(())
    }

    /// The directory of the volume for a directory of this machine. A link that a member left in its place is refused.
    async fn directory(&self, from: &Directory, to: &Address) -> Outcome<FileId> {
        let there = self.shared.look(&to.name, false).await?;
        let (xattrs, access) = self.xattrs(from.path(), from.fd()).await?;
        let mut inode = directory(access.narrow(from.attributes.mode));
        inode.mtime = from.attributes.mtime;
        inode.xattrs = xattrs;
        let (id, _) = ensure(self.shared, to, there, inode, None).await?;
        self.totals.borrow_mut().directories += 1;
        Ok(id)
    }

    /// Puts a file that is no directory. If it is another name of a file that this command puts already, the link is
    /// made when that file is there.
    async fn one(&self, entry: Entry, to: Address) -> Outcome<Option<Link>> {
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
        let (content, xattrs, attributes) = match found {
            Found::File(opened, attributes) => {
                let (xattrs, access) = self.xattrs(path, &opened).await?;
                let mode = access.narrow(attributes.mode);
                let attributes = Attributes { mode, ..attributes };
                let from = Sparse::of(File::from(opened));
                let content = self.content(path, from).await?;
                (Content::Regular(content), xattrs, attributes)
            }
            Found::Symlink(target, _) if target.len() > MAX_TARGET_BYTES => {
                return self.skip(path, "its target is too long");
            }
            Found::Symlink(target, attributes) => {
                self.totals.borrow_mut().other += 1;
                (Content::Symlink(target.into()), Xattrs::None, attributes)
            }
            Found::Directory => {
                return self.skip(path, "it has become a directory meanwhile");
            }
            Found::Other => {
                return self.skip(path, "neither a file, nor a directory, nor a symbolic link");
            }
        };
        let mut inode = Inode::new(attributes.mode, attributes.mtime, content);
        inode.xattrs = xattrs;
        let id = self.shared.create(&to, inode, None, true).await?;
        if let Some(file) = linked {
            self.linked.borrow_mut().insert(file, Some(id));
        }
        Ok(None)
    }

    /// The extended attributes of a file; a long list is stored.
    async fn xattrs(&self, path: &Path, file: &OwnedFd) -> Outcome<(Xattrs, Access)> {
        let list = XattrReader::default().read(file, false);
        let (list, access) = list.map_err(|why| PublishError::Unreadable {
            path: path.to_owned(),
            why,
        })?;
        if list.is_empty() {
            return Ok((Xattrs::None, access));
        }
        let encoded = encode_xattrs(&list);
        if encoded.len() <= MAX_INLINE_XATTR_BYTES {
            return Ok((Xattrs::Inline(list), access));
        }
        let sink = self.shared.sink();
        let hasher = self.shared.client().hasher();
        let mut upload = sharing::upload::Upload::new(hasher, &sink);
        let stored = upload.content(Stream(&*encoded), |e| unreadable(path, e), |_| {});
        match stored.await? {
            FileContent::Array(root) => Ok((Xattrs::Stored(root), access)),
            // Content that is longer than an inode holds is an array.
            _ => Err(defect()),
        }
    }

    /// Stores the content of a file.
    async fn content(&self, path: &Path, file: impl Source) -> Outcome<FileContent> {
        let file = Begun::of(file).map_err(|e| unreadable(path, &e))?;
        if let Some(what) = own_files::what(file.start()).filter(|_| !self.publish_keys) {
            let path = path.to_owned();
            return Err(PublishError::OwnFile { path, what }.into());
        }
        let mut known = 0;
        let sink = self.shared.sink();
        let hasher = self.shared.client().hasher();
        let mut upload = sharing::upload::Upload::new(hasher, &sink);
        let told = |bytes: u64| {
            let mut totals = self.totals.borrow_mut();
            totals.bytes = totals.bytes.saturating_add(bytes - known);
            known = bytes;
            self.bar.at(totals.bytes, totals.files);
        };
        let content = upload.content(file, |e| unreadable(path, e), told).await?;
        self.totals.borrow_mut().files += 1;
        Ok(content)
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
    getrandom::fill(&mut random).map_err(|_| defect())?;
    let name = format!(".bulla-put-{:016x}", u64::from_le_bytes(random));
    let mut beside = place.clone();
    beside.path.pop();
    beside
        .path
        .push(Name::new(name.as_bytes()).map_err(|_| defect())?);
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

fn valid(name: &[u8], path: &Path) -> Outcome<Name> {
    let shown = path.display();
    Name::new(name).map_err(|why| Failure::of(Kind::BadPath, format!("{shown}"), &why))
}
