//! A temporary directory of which nothing is left behind, however its process ends: a second process waits until then,
//! and removes mounts below it, loop devices over its files, processes that know it, and the directory.

use std::io::{BufRead, BufReader, Error, Result, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

const SCRIPT: &str = include_str!("guarded.sh");

/// The directory. When it is dropped, or its process is killed, everything in it ends.
#[derive(Debug)]
pub struct GuardedDir {
    path: PathBuf,
    guard: Child,
}

impl GuardedDir {
    /// A new directory.
    ///
    /// # Errors
    /// When it cannot be made, or its guard does not start.
    pub fn new() -> Result<GuardedDir> {
        let directory = tempfile::Builder::new().prefix("guarded-").tempdir()?;
        let directory_path = directory.path().to_owned();
        let path = std::env::var_os("PATH").unwrap_or_default();
        // In a group of its own: Ctrl-C is for the test alone.
        let mut guard = Command::new("sh")
            .args(["-c", SCRIPT])
            .env_clear()
            .env("PATH", path)
            .env("LC_ALL", "C")
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        tell(&mut guard, directory)?;
        Ok(GuardedDir {
            path: directory_path,
            guard,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Gives the directory to its guard.
fn tell(guard: &mut Child, directory: TempDir) -> Result<()> {
    let (Some(input), Some(output)) = (guard.stdin.as_mut(), guard.stdout.take()) else {
        return Err(Error::other("no pipes"));
    };
    writeln!(input, "{}", directory.path().display())?;
    let mut answer = String::new();
    BufReader::new(output).read_line(&mut answer)?;
    if answer != "ready\n" {
        let place = directory.path().display();
        return Err(Error::other(format!("{place} cannot be guarded")));
    }
    let _ = directory.keep();
    Ok(())
}

impl Drop for GuardedDir {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}
