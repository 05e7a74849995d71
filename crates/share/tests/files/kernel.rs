//! The same calls on a directory of this machine. The kernel is the judge of what POSIX says.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use share::files::Refused;
use tempfile::TempDir;

/// A call with paths.
#[derive(Clone, Debug)]
pub enum Told {
    Create(String),
    Put(String, String),
    Mkdir(String),
    Symlink(String, String),
    Write(String, String),
    Chmod(String, u16),
    Link(String, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String),
    Read(String),
    Look(String, bool),
    List(String),
}

/// What a program sees of a file, or of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Nothing,
    Text(String),
    /// Kind, permission bits, number of names (1 for directories), text or target.
    File(char, u16, u64, String),
    Names(Vec<String>),
}

pub struct Kernel {
    root: TempDir,
}

impl Kernel {
    pub fn new() -> Kernel {
        Kernel {
            root: TempDir::new().unwrap(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    pub fn run(&self, told: &Told) -> Result<Seen, Refused> {
        self.make(told).map_err(|error| named(&error, told))
    }

    fn make(&self, told: &Told) -> io::Result<Seen> {
        match told {
            Told::Create(path) => {
                let mut options = OpenOptions::new();
                let file = options.write(true).create_new(true).open(self.path(path))?;
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
            }
            Told::Put(path, text) => {
                let new = self.path(".put");
                let mut file = File::create(&new)?;
                file.write_all(text.as_bytes())?;
                file.set_permissions(fs::Permissions::from_mode(0o644))?;
                if let Err(error) = fs::rename(&new, self.path(path)) {
                    fs::remove_file(&new)?;
                    return Err(error);
                }
            }
            Told::Mkdir(path) => {
                fs::create_dir(self.path(path))?;
                let mode = fs::Permissions::from_mode(0o755);
                fs::set_permissions(self.path(path), mode)?;
            }
            Told::Symlink(target, path) => symlink(target, self.path(path))?,
            Told::Write(path, text) => {
                let mut options = OpenOptions::new();
                let mut file = options.write(true).truncate(true).open(self.path(path))?;
                file.write_all(text.as_bytes())?;
            }
            Told::Chmod(path, mode) => {
                let mode = fs::Permissions::from_mode(u32::from(*mode));
                fs::set_permissions(self.path(path), mode)?;
            }
            Told::Link(file, to) => fs::hard_link(self.path(file), self.path(to))?,
            Told::Unlink(path) => fs::remove_file(self.path(path))?,
            Told::Rmdir(path) => fs::remove_dir(self.path(path))?,
            Told::Rename(from, to) => fs::rename(self.path(from), self.path(to))?,
            Told::Read(path) => return Ok(Seen::Text(fs::read_to_string(self.path(path))?)),
            Told::Look(path, follow) => return look(&self.path(path), *follow),
            Told::List(path) => {
                let names = fs::read_dir(self.path(path))?;
                let names = names.map(|name| Ok(name?.file_name().into_string().unwrap()));
                let mut names: Vec<String> = names.collect::<io::Result<_>>()?;
                names.sort();
                return Ok(Seen::Names(names));
            }
        }
        Ok(Seen::Nothing)
    }
}

fn look(path: &Path, follow: bool) -> io::Result<Seen> {
    let found = match follow {
        true => fs::metadata(path)?,
        false => fs::symlink_metadata(path)?,
    };
    let mode = (found.mode() & 0o7777) as u16;
    Ok(if found.is_dir() {
        Seen::File('d', mode, 1, String::new())
    } else if found.is_symlink() {
        let target = fs::read_link(path)?.into_os_string().into_string().unwrap();
        Seen::File('l', 0o777, found.nlink(), target)
    } else {
        Seen::File('f', mode, found.nlink(), fs::read_to_string(path)?)
    })
}

/// The error's name. `link` of a directory is refused with EPERM.
fn named(error: &io::Error, told: &Told) -> Refused {
    match (error.raw_os_error().unwrap(), told) {
        (1, Told::Link(..)) => Refused::IsADirectory,
        (2, _) => Refused::NotFound,
        (17, _) => Refused::Exists,
        (20, _) => Refused::NotADirectory,
        (21, _) => Refused::IsADirectory,
        (22, _) => Refused::BelowItself,
        (39, _) => Refused::NotEmpty,
        (40, _) => Refused::Loop,
        (other, _) => panic!("{told:?}: errno {other}"),
    }
}
