//! `bulla put FILE... VOLUME [PATH]`: files of this machine into a shared volume. A file that is there already is
//! replaced in one step: other devices see the old content or the new one. Modes, modification times and `user.*`
//! attributes are put, as `publish` publishes them.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ::share::files::Place;
use ::share::home::Home;
use futures_util::stream::{FuturesUnordered, StreamExt};
use publish::attributes::XattrReader;
use publish::publish_error::PublishError;
use rustix::fs::{Mode, OFlags};
use serde_json::{Map, json};
use trust::inode::{
    Content, FileContent, FileKind, Inode, MAX_INLINE_XATTR_BYTES, MAX_TARGET_BYTES, Mtime, Xattrs,
    encode_xattrs,
};
use trust::shared::principal::Name;

use super::names::{directory, ensure};
use super::words::Words;
use crate::args::Put;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::places::{below, shown};
use crate::sharing::session::{Shared, defect, now};
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
        bar: Progress::start(output, "putting"),
        output: RefCell::new(output),
        totals: RefCell::default(),
    };
    let put = shared.run(async {
        let place = shared.place(&words.path)?;
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
    bar: Progress,
    output: RefCell<&'o mut Output>,
    totals: RefCell<Totals>,
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    let shown = text::printable(path.as_os_str().as_bytes());
    let mut failure = Failure::io(format!("cannot read {shown}"), error);
    if !matches!(failure.kind, Kind::NoFile) {
        failure = failure.with_hint("make the file readable, or leave it out");
    }
    failure
}

impl Putting<'_, '_> {
    /// Puts each file into the directory at `place`, or one file at `place` itself.
    async fn all(&self, files: &[PathBuf], place: Place, needs_directory: bool) -> Outcome<()> {
        let there = self.shared.look(&place, true).await?;
        let is_directory = there
            .as_ref()
            .is_some_and(|file| file.inode.kind() == FileKind::Directory);
        if !is_directory && (needs_directory || files.len() > 1) {
            let error = format!("there is no directory {} in the volume", shown(&place));
            let hint = "make it with `bulla mkdir VOLUME PATH`";
            return Err(Failure::new(Kind::NotFound, error).with_hint(hint));
        }
        let from_stdin = |path: &PathBuf| path.as_path() == Path::new(STDIN);
        if files.iter().any(from_stdin) {
            return self.stdin(files.len(), place, is_directory).await;
        }
        for path in files {
            // A symbolic link that is named itself is followed.
            let metadata = std::fs::metadata(path).map_err(|e| unreadable(path, &e))?;
            let to = match is_directory {
                true => below(&place, &base_name(path)?),
                false => place.clone(),
            };
            if metadata.is_dir() && !self.is_recursive {
                let error = format!("{} is a directory", path.display());
                let hint = "give -r to put it with all that is in it";
                return Err(Failure::new(Kind::Misfit, error).with_hint(hint));
            }
            self.tree(path, &metadata, to).await?;
        }
        Ok(())
    }

    /// Puts what comes from the standard input.
    async fn stdin(&self, count: usize, to: Place, is_directory: bool) -> Outcome<()> {
        if count > 1 || is_directory {
            let error = "what comes from stdin needs a name";
            let hint = "write `bulla put - VOLUME PATH`; a file of the name `-` is ./-";
            return Err(Failure::new(Kind::Usage, error).with_hint(hint));
        }
        let stdin = Path::new("stdin");
        let content = Content::Regular(self.content(stdin, std::io::stdin().lock()).await?);
        let inode = Inode::new(STDIN_MODE, now(), content);
        self.shared.create(&to, inode, None, true).await
    }

    /// Puts a file, or a directory with all that is in it.
    async fn tree(&self, path: &Path, metadata: &Metadata, to: Place) -> Outcome<()> {
        if !metadata.is_dir() {
            let follow = OFlags::empty();
            return self
                .one(path.to_owned(), metadata.clone(), to, follow)
                .await;
        }
        let mut under_way = FuturesUnordered::new();
        let mut pending = vec![(path.to_owned(), to)];
        while let Some((path, to)) = pending.pop() {
            if to.path.len() > MAX_DEPTH {
                let error = format!("{} is nested too deeply", path.display());
                return Err(Failure::new(Kind::Misfit, error));
            }
            let metadata = std::fs::metadata(&path).map_err(|e| unreadable(&path, &e))?;
            let mode = (metadata.mode() & 0o7777) as u16;
            // A link that a member left in this place would lead the files elsewhere.
            let there = self.shared.look(&to, false).await?;
            let mut inode = directory(mode);
            let opened = File::open(&path).map_err(|e| unreadable(&path, &e))?;
            inode.xattrs = self.xattrs(&path, &opened.into()).await?;
            ensure(self.shared, &to, there, inode, None).await?;
            self.totals.borrow_mut().directories += 1;
            for name in names(&path)? {
                let inside = path.join(&name);
                let metadata = inside.symlink_metadata();
                let metadata = metadata.map_err(|e| unreadable(&inside, &e))?;
                let to = below(&to, &valid(name.as_bytes(), &inside)?);
                if metadata.is_dir() {
                    pending.push((inside, to));
                    continue;
                }
                if under_way.len() >= AT_ONCE {
                    under_way.next().await.unwrap_or(Ok(()))?;
                }
                under_way.push(self.one(inside, metadata, to, OFlags::NOFOLLOW));
            }
        }
        while let Some(done) = under_way.next().await {
            done?;
        }
        Ok(())
    }

    /// Puts a file that is no directory. `how`: flags to open it.
    async fn one(&self, path: PathBuf, metadata: Metadata, to: Place, how: OFlags) -> Outcome<()> {
        let path = path.as_path();
        let mut xattrs = Xattrs::None;
        let content = if metadata.is_file() {
            let file = open(path, how).map_err(|e| unreadable(path, &e))?;
            let opened = OwnedFd::from(file);
            xattrs = self.xattrs(path, &opened).await?;
            Content::Regular(self.content(path, File::from(opened)).await?)
        } else if metadata.is_symlink() {
            let target = std::fs::read_link(path).map_err(|e| unreadable(path, &e))?;
            let target = target.into_os_string().into_encoded_bytes();
            if target.len() > MAX_TARGET_BYTES {
                return self.skip(path, "its target is too long");
            }
            self.totals.borrow_mut().other += 1;
            Content::Symlink(target.into())
        } else {
            return self.skip(path, "neither a file, nor a directory, nor a symbolic link");
        };
        let mtime = Mtime {
            seconds: metadata.mtime(),
            nanos: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
        };
        let mode = (metadata.mode() & 0o7777) as u16;
        let mut inode = Inode::new(mode, mtime, content);
        inode.xattrs = xattrs;
        self.shared.create(&to, inode, None, true).await
    }

    /// The extended attributes of a file; a long list is stored.
    async fn xattrs(&self, path: &Path, file: &OwnedFd) -> Outcome<Xattrs> {
        let list = XattrReader::default().read(file, false);
        let list = list.map_err(|why| PublishError::Unreadable {
            path: path.to_owned(),
            why,
        })?;
        if list.is_empty() {
            return Ok(Xattrs::None);
        }
        let encoded = encode_xattrs(&list);
        if encoded.len() <= MAX_INLINE_XATTR_BYTES {
            return Ok(Xattrs::Inline(list));
        }
        let sink = self.shared.sink();
        let hasher = self.shared.client().hasher();
        let mut upload = sharing::upload::Upload::new(hasher, &sink);
        let stored = upload.content(&*encoded, |e| unreadable(path, e), |_| {});
        match stored.await? {
            FileContent::Array(root) => Ok(Xattrs::Stored(root)),
            // Content that is longer than an inode holds is an array.
            _ => Err(defect()),
        }
    }

    /// Stores the content of a file.
    async fn content(&self, path: &Path, file: impl Read) -> Outcome<FileContent> {
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

    fn skip(&self, path: &Path, why: &str) -> Outcome<()> {
        self.totals.borrow_mut().skipped += 1;
        let name = path.as_os_str().as_bytes();
        let mut output = self.output.borrow_mut();
        if !output.json() {
            let name = text::printable(name);
            output.warn(&format!("left out: {name}: {why}"));
            return Ok(());
        }
        let mut one = Map::new();
        text::put_name(&mut one, "path", name);
        one.insert("why".to_owned(), why.into());
        output.record("skipped", one)
    }
}

/// Opens a regular file. Somebody may have put a pipe in its place a moment ago: the call does not wait for one.
fn open(path: &Path, how: OFlags) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | how;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(std::io::Error::other("it is no regular file any more")),
    }
}

/// The names of a directory, sorted.
fn names(path: &Path) -> Outcome<Vec<std::ffi::OsString>> {
    let entries = std::fs::read_dir(path).map_err(|e| unreadable(path, &e))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let names: std::io::Result<Vec<_>> = names.collect();
    let mut names = names.map_err(|e| unreadable(path, &e))?;
    names.sort();
    Ok(names)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_became_a_link_or_a_pipe_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, pipe) = (
            dir.path().join("file"),
            dir.path().join("link"),
            dir.path().join("pipe"),
        );
        std::fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("file", &link).unwrap();
        let (mode, kind) = (Mode::RUSR | Mode::WUSR, rustix::fs::FileType::Fifo);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, kind, mode, 0).unwrap();
        assert!(open(&file, OFlags::NOFOLLOW).is_ok());
        assert!(open(&link, OFlags::NOFOLLOW).is_err());
        // One that the user names is followed.
        assert!(open(&link, OFlags::empty()).is_ok());
        for how in [OFlags::empty(), OFlags::NOFOLLOW] {
            assert!(open(&pipe, how).is_err());
        }
    }
}
