//! `bulla extract VOLUME DIR` on a shared volume: copies all files that this user may read into a directory.
//!
//! Only directories that this command has made itself are written to, and nothing in them is replaced. So no name or
//! symbolic link of a member leads out of DIR.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::share::files::File;
use ::share::home::Home;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use serde_json::{Map, json};
use trust::inode::{Content, Inode, Mtime};
use trust::shared::principal::Name;

use crate::args::Extract;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::sharing::session::Shared;
use crate::sharing::walk::Walk;
use crate::text;

/// Content held in memory at a time, bytes.
const WINDOW_BYTES: u64 = 4 << 20;

/// A directory that is being filled. It gets its mode and time when that is done.
struct Open {
    path: PathBuf,
    mode: u16,
    mtime: Mtime,
    /// How many names its place has.
    depth: usize,
}

struct Extracting<'a> {
    shared: &'a Shared,
    output: &'a mut Output,
    bar: Progress,
    open: Vec<Open>,
    files: u64,
    directories: u64,
    other: u64,
    bytes: u64,
    skipped: u64,
}

/// Extracts.
pub fn run(args: &Extract, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    make_empty(&args.dir)?;
    let shared = Shared::start(config, home, args.reading.deadline)?.at(args.past.at);
    let mut extracting = Extracting {
        shared: &shared,
        bar: Progress::start(output, "extracting"),
        output,
        open: Vec::new(),
        files: 0,
        directories: 1,
        other: 0,
        bytes: 0,
        skipped: 0,
    };
    let extracted = shared.run(extracting.all(&args.dir));
    extracting.bar.end();
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
    shared.close(extracted, output)?;
    Ok(Done {
        exit,
        fields: fields(record),
    })
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    let shown = text::printable(path.as_os_str().as_bytes());
    Failure::io(format!("cannot write {shown}"), error)
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

impl Extracting<'_> {
    async fn all(&mut self, dir: &Path) -> Outcome<()> {
        let top = self.shared.place(OsStr::new(""))?;
        let mut walk = Walk::of(self.shared, top, true);
        while let Some((place, file)) = walk.next().await? {
            self.leave(place.path.len())?;
            let above = self.open.last().map_or(dir, |open| open.path.as_path());
            let name = place.path.last().map_or(&b""[..], Name::as_bytes);
            let path = above.join(OsStr::from_bytes(name));
            self.one(path, place.path.len(), &file).await?;
        }
        self.leave(0)
    }

    /// Ends the directories that the next file is not in.
    fn leave(&mut self, depth: usize) -> Outcome<()> {
        while let Some(open) = self.open.pop_if(|open| open.depth >= depth) {
            set(&open.path, open.mode, open.mtime)?;
        }
        Ok(())
    }

    async fn one(&mut self, path: PathBuf, depth: usize, file: &File) -> Outcome<()> {
        let inode = &file.inode;
        match &inode.content {
            Content::Directory { .. } => {
                make(&path).map_err(|e| failed(&path, &e))?;
                self.xattrs(&path, inode).await?;
                self.directories += 1;
                self.open.push(Open {
                    path,
                    mode: inode.mode,
                    mtime: inode.mtime,
                    depth,
                });
                Ok(())
            }
            Content::Regular(_) => {
                self.files += 1;
                self.content(&path, inode).await
            }
            Content::Symlink(target) => {
                self.other += 1;
                let made = symlink(OsStr::from_bytes(target), &path);
                made.map_err(|e| failed(&path, &e))
            }
            _ => self.skip(&path, "a device file, pipe or socket"),
        }
    }

    /// Writes a file. Holes are left out: a member can make one longer than any disk.
    async fn content(&mut self, path: &Path, inode: &Inode) -> Outcome<()> {
        let mut options = OpenOptions::new();
        let made = options.write(true).create_new(true).mode(0o600).open(path);
        let to = made.map_err(|e| failed(path, &e))?;
        let tree = self.shared.contents();
        let len = inode.content.size();
        let mut at = 0;
        while at < len {
            let (until, how) = (at.saturating_add(WINDOW_BYTES), self.shared.how());
            let runs = tree.data_runs(inode, at, until, how).await?;
            for run in runs.data {
                let (mut next, bytes) = (run.start, (run.end - run.start) as usize);
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
        to.set_len(len).map_err(|e| failed(path, &e))?;
        self.bytes = self.bytes.saturating_add(len);
        drop(to);
        self.xattrs(path, inode).await?;
        set(path, inode.mode, inode.mtime)
    }

    /// Sets extended attributes. Those of other names than `user.*` give rights, and no command puts them.
    async fn xattrs(&mut self, path: &Path, inode: &Inode) -> Outcome<()> {
        let tree = self.shared.contents();
        let xattrs = tree.xattrs(inode, self.shared.how()).await?;
        if xattrs.is_empty() {
            return Ok(());
        }
        let file = fs::File::open(path).map_err(|e| failed(path, &e))?;
        for (name, value) in xattrs {
            if !name.starts_with(b"user.") {
                self.skip(path, "an extended attribute that is not user.*")?;
                continue;
            }
            match rustix::fs::fsetxattr(&file, &*name, &value, XattrFlags::empty()) {
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

/// Makes a directory that others cannot enter. It gets its own mode when it is filled: until then, and when the command
/// is interrupted, its files are as private as they may have to be.
fn make(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().mode(0o700).create(path)
}

/// Sets time and permissions. Bits that give a program the rights of its owner are left out.
fn set(path: &Path, mode: u16, mtime: Mtime) -> Outcome<()> {
    let since = Duration::new(mtime.seconds.unsigned_abs(), mtime.nanos);
    let time = match mtime.seconds {
        0.. => UNIX_EPOCH.checked_add(since),
        _ => UNIX_EPOCH.checked_sub(Duration::from_secs(since.as_secs())),
    };
    let write = || {
        let file = fs::File::open(path)?;
        file.set_modified(time.unwrap_or(SystemTime::UNIX_EPOCH))?;
        file.set_permissions(Permissions::from_mode(u32::from(mode & 0o1777)))
    };
    write().map_err(|e| failed(path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_that_is_being_filled_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("private");
        make(&path).unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}
