//! `bulla extract VOLUME DIR [PATH]` on a shared volume: copies all files that this user may read, or those at PATH, into
//! a directory.
//!
//! Only directories that this command has made itself are written to, and nothing in them is replaced. They are opened
//! from DIR on, without following a link. So no name or symbolic link of a member leads out of DIR, and none that another
//! program of this machine puts there meanwhile.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use ::share::files::{File, Place};
use ::share::home::Home;
use content::local::{Directory, timestamps};
use content::room::Room;
use reader::Tree;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Map, json};
use trust::inode::{Content, Inode, Mtime};
use trust_shared::principal::{FileId, Name};

use crate::args::Extract;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::reading::Opening;
use crate::sharing::session::SharedVolume;
use crate::sharing::walk::Walk;
use crate::text;

/// Content held in memory at a time, bytes.
const WINDOW_BYTES: u64 = 4 << 20;

/// Entries between two checks of the free space.
const ROOM_EVERY: u64 = 64;

/// A directory that is being filled. It gets its mode and time when that is done.
struct Open {
    /// Its names from DIR on.
    names: Vec<OsString>,
    mode: u16,
    mtime: Mtime,
}

/// DIR, and the directory below it that is written to now.
struct Target {
    top: Directory,
    names: Vec<OsString>,
    here: Directory,
}

impl Target {
    fn of(dir: &Path) -> std::io::Result<Target> {
        let top = Directory::named(dir)?;
        let here = top.below(&[])?;
        let names = Vec::new();
        Ok(Target { top, names, here })
    }

    /// The directory with these names from DIR on.
    fn directory(&mut self, names: &[OsString]) -> Outcome<&Directory> {
        if self.names != names {
            let opened = self.top.below(names);
            let path = || {
                names
                    .iter()
                    .fold(self.top.path().to_owned(), |at, name| at.join(name))
            };
            self.here = opened.map_err(|e| failed(&path(), &e))?;
            self.names = names.to_owned();
        }
        Ok(&self.here)
    }
}

struct Extracting<'a> {
    shared: &'a SharedVolume,
    contents: Tree,
    output: &'a mut Output,
    bar: Progress,
    open: Vec<Open>,
    /// The first name of each file that has several.
    linked: HashMap<FileId, Vec<OsString>>,
    files: u64,
    directories: u64,
    other: u64,
    bytes: u64,
    skipped: u64,
}

/// Extracts.
pub fn run(args: &Extract, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    make_empty(&args.dir)?;
    let opening = Opening::of(config, home, &args.reading).at(args.past.entry()?);
    let bar = Progress::start(output, "extracting");
    let extracted = opening.read(output, async |shared, output| {
        let mut target = Target::of(&args.dir).map_err(|e| failed(&args.dir, &e))?;
        check_room(target.top.fd(), &args.dir, 0)?;
        let mut extracting = Extracting {
            shared,
            contents: shared.contents(),
            bar: bar.clone(),
            output,
            open: Vec::new(),
            linked: HashMap::new(),
            files: 0,
            directories: 0,
            other: 0,
            bytes: 0,
            skipped: 0,
        };
        extracting.all(&args.path, &mut target).await?;
        let exit = match extracting.skipped {
            0 => Exit::Ok,
            _ => Exit::Partial,
        };
        let record = json!({
            "files": extracting.files,
            "directories": extracting.directories,
            "other": extracting.other,
            "bytes": extracting.bytes,
            "skipped": extracting.skipped,
        });
        Ok(Done {
            exit,
            fields: fields(record),
        })
    });
    bar.end();
    extracted
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    let shown = text::printable(path.as_os_str().as_bytes());
    Failure::io(format!("cannot write {shown}"), error)
}

/// Fails before the disk is full: few blocks can describe a tree that is larger than any disk.
fn check_room(file: &impl AsFd, path: &Path, more: u64) -> Outcome<()> {
    let is_left = Room::default().is_left(file.as_fd(), more);
    if is_left.map_err(|errno| failed(path, &errno.into()))? {
        return Ok(());
    }
    let shown = text::printable(path.as_os_str().as_bytes());
    let error = format!("{shown}: the target's file system is nearly full; 64 MiB of it stay free");
    let hint = "free some space on that disk, remove the directory, and run the same command again";
    Err(Failure::new(Kind::DiskFull, error).with_hint(hint))
}

/// Makes DIR, or takes an empty one.
fn make_empty(dir: &Path) -> Outcome<()> {
    fs::create_dir_all(dir).map_err(|e| failed(dir, &e))?;
    let mut entries = fs::read_dir(dir).map_err(|e| failed(dir, &e))?;
    match entries.next() {
        None => Ok(()),
        Some(_) => {
            let error = format!("{} is not empty", dir.display());
            Err(Failure::new(Kind::Exists, error))
        }
    }
}

/// The names of a place, as this machine has them.
fn names_of(place: &Place) -> Vec<OsString> {
    let name = |name: &Name| OsStr::from_bytes(name.as_bytes()).to_owned();
    place.path.iter().map(name).collect()
}

impl Extracting<'_> {
    /// Extracts what is in the directory at `path`, or the file there.
    async fn all(&mut self, path: &OsStr, target: &mut Target) -> Outcome<()> {
        let top = self.shared.place(path)?;
        let file = self.shared.find(&top, false).await?;
        if !matches!(file.inode.content, Content::Directory { .. }) {
            let name = names_of(&top).pop();
            return self.one(name.into_iter().collect(), &file, target).await;
        }
        self.directories += 1;
        let above = top.path.len();
        let (mut walk, contents) = Walk::with_contents(self.shared, top, &file.inode);
        self.contents = contents;
        while let Some((place, file)) = walk.next().await? {
            let names = names_of(&place).split_off(above);
            self.leave(names.len(), target)?;
            self.one(names, &file, target).await?;
        }
        self.leave(0, target)
    }

    /// Ends the directories that the next file, of this many names, is not in.
    fn leave(&mut self, depth: usize, target: &mut Target) -> Outcome<()> {
        while let Some(open) = self.open.pop_if(|open| open.names.len() >= depth) {
            let directory = target.directory(&open.names)?;
            set(directory.fd(), directory.path(), open.mode, open.mtime)?;
        }
        Ok(())
    }

    /// Makes a file. `names`: those from DIR on.
    async fn one(&mut self, names: Vec<OsString>, file: &File, target: &mut Target) -> Outcome<()> {
        let inode = &file.inode;
        let Some((name, above)) = names.split_last() else {
            return Ok(());
        };
        let directory = target.directory(above)?;
        let path = directory.path().join(name);
        if (self.files + self.directories + self.other).is_multiple_of(ROOM_EVERY) {
            check_room(directory.fd(), &path, 0)?;
        }
        self.output.lasts();
        match &inode.content {
            Content::Directory { .. } => {
                let made = directory.make_directory(name);
                made.map_err(|e| failed(&path, &e))?;
                let made = target.directory(&names)?;
                self.xattrs(made.fd(), made.path(), inode).await?;
                self.directories += 1;
                self.open.push(Open {
                    names,
                    mode: inode.mode,
                    mtime: inode.mtime,
                });
                Ok(())
            }
            _ if self.link(&names, file, target)? => Ok(()),
            Content::Regular(_) => {
                let directory = target.directory(above)?;
                let made = directory.make_file(name);
                let made = made.map_err(|e| failed(&path, &e))?;
                let made = fs::File::from(made);
                let len = inode.content.size();
                match made.set_len(len) {
                    Err(error) if is_too_long(&error) => {
                        directory.remove(name).map_err(|e| failed(&path, &e))?;
                        self.linked.remove(&file.id);
                        let why = format!("the file system takes no file of {len} bytes");
                        return self.skip(&path, &why);
                    }
                    set => set.map_err(|e| failed(&path, &e))?,
                }
                self.files += 1;
                self.content(made, &path, inode).await
            }
            Content::Symlink(leads_to) => {
                self.other += 1;
                let directory = target.directory(above)?;
                let made = directory.make_symlink(name, leads_to);
                let made = made.and_then(|()| directory.set_time(name, inode.mtime));
                made.map_err(|e| failed(&path, &e))
            }
            _ => self.skip(&path, "a device file, pipe or socket"),
        }
    }

    /// Makes another name of a file that was made before. False if this is its first name, or the file system refuses.
    fn link(&mut self, names: &[OsString], file: &File, target: &mut Target) -> Outcome<bool> {
        let Some((name, above)) = names.split_last() else {
            return Ok(false);
        };
        if file.inode.links < 2 {
            return Ok(false);
        }
        let first = match self.linked.entry(file.id) {
            Entry::Vacant(free) => {
                free.insert(names.to_owned());
                return Ok(false);
            }
            Entry::Occupied(first) => first.get().clone(),
        };
        let Some((old, first_above)) = first.split_last() else {
            return Ok(false);
        };
        let path = |directory: &Directory, name: &OsStr| directory.path().join(name);
        let from = target.directory(first_above)?;
        let made = from.made(old).map_err(|e| failed(&path(from, old), &e))?;
        let to = target.directory(above)?;
        match to.make_link(name, &made) {
            Ok(()) => {}
            Err(error) if is_refusal(&error) => return Ok(false),
            Err(error) => return Err(failed(&path(to, name), &error)),
        }
        match file.inode.content {
            Content::Regular(_) => self.files += 1,
            _ => self.other += 1,
        }
        Ok(true)
    }

    /// Writes a file that has its length already. Holes are left out: a member can make one longer than any disk.
    async fn content(&mut self, to: fs::File, path: &Path, inode: &Inode) -> Outcome<()> {
        let tree = self.contents.clone();
        let len = inode.content.size();
        let mut at = 0;
        while at < len {
            let (until, how) = (at.saturating_add(WINDOW_BYTES), self.shared.how());
            let runs = tree.data_runs(inode, at, until, how).await?;
            for run in runs.data {
                let (mut next, bytes) = (run.start, (run.end - run.start) as usize);
                check_room(&to, path, bytes as u64)?;
                let how = self.shared.how();
                for piece in tree.read(inode, run.start, bytes, how).await? {
                    to.write_all_at(&piece, next)
                        .map_err(|e| failed(path, &e))?;
                    next += piece.len() as u64;
                }
            }
            at = runs.until;
            self.bar.at(self.bytes.saturating_add(at), self.files);
        }
        self.bytes = self.bytes.saturating_add(len);
        let to = OwnedFd::from(to);
        self.xattrs(&to, path, inode).await?;
        set(&to, path, inode.mode, inode.mtime)
    }

    /// Sets extended attributes. Those of other names than `user.*` give rights, and no command puts them.
    async fn xattrs(&mut self, file: &OwnedFd, path: &Path, inode: &Inode) -> Outcome<()> {
        let how = self.shared.how();
        let xattrs = self.contents.xattrs(inode, how).await?;
        if xattrs.is_empty() {
            return Ok(());
        }
        for (name, value) in xattrs {
            if !name.starts_with(b"user.") {
                self.skip(path, "an extended attribute that is not user.*")?;
                continue;
            }
            match rustix::fs::fsetxattr(file, &*name, &value, XattrFlags::empty()) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSPC) => {
                    self.skip(path, "an extended attribute that the file system refuses")?;
                }
                Err(errno) => return Err(failed(path, &errno.into())),
            }
        }
        Ok(())
    }

    fn skip(&mut self, path: &Path, why: &str) -> Outcome<()> {
        self.skipped += 1;
        let name = path.as_os_str().as_bytes();
        if !self.output.json() {
            let name = text::printable(name);
            self.output.warn(&format!("left out: {name}: {why}"));
            return Ok(());
        }
        let mut one = Map::new();
        text::put_name(&mut one, "path", name);
        one.insert("why".to_owned(), why.into());
        self.output.record("skipped", one)
    }
}

/// Whether a file system has no hard links, or no more for this file.
fn is_refusal(error: &std::io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::PERM | Errno::OPNOTSUPP | Errno::MLINK))
}

/// Whether a file system takes no file of this length.
fn is_too_long(error: &std::io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::FBIG)
}

/// Sets time and permissions of an open file. Bits that give a program the rights of its owner are left out. Until then,
/// and when the command is interrupted, files are as private as they may have to be.
fn set(file: &OwnedFd, path: &Path, mode: u16, mtime: Mtime) -> Outcome<()> {
    let write = || {
        rustix::fs::futimens(file, &timestamps(mtime))?;
        let file = fs::File::from(file.try_clone()?);
        file.set_permissions(Permissions::from_mode(u32::from(mode & 0o1777)))
    };
    write().map_err(|e| failed(path, &e))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn directory_that_is_being_filled_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::of(dir.path()).unwrap();
        let name = OsStr::new("private");
        target.here.make_directory(name).unwrap();
        let file = target.here.make_file(OsStr::new("file")).unwrap();
        let mode = |name: &str| {
            let metadata = fs::metadata(dir.path().join(name)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        assert_eq!((mode("private"), mode("file")), (0o700, 0o600));
        set(&file, dir.path(), 0o6755, Mtime::default()).unwrap();
        assert_eq!(mode("file"), 0o755);
    }

    #[test]
    fn nothing_is_written_through_a_link_in_the_place_of_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("to")).unwrap();
        fs::create_dir(at("elsewhere")).unwrap();
        let mut target = Target::of(&at("to")).unwrap();
        target.here.make_directory(OsStr::new("d")).unwrap();
        fs::remove_dir(at("to/d")).unwrap();
        symlink("../elsewhere", at("to/d")).unwrap();
        let failed = target.directory(&["d".into()]).unwrap_err();
        assert!(failed.error.contains("to/d"), "{failed}");
    }
}
