//! Wrong clocks: a process whose wall clock is shifted. The monotonic clock, by which processes wait, stays as it is.
//!
//! A small library in C (`clock.c`) is loaded before the program's own; it needs gcc.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library, built in a directory.
pub struct ShiftedClock {
    library: PathBuf,
}

impl ShiftedClock {
    /// Builds the library in this directory.
    ///
    /// # Errors
    /// Without gcc.
    pub fn build(dir: &Path) -> io::Result<ShiftedClock> {
        let (source, library) = (dir.join("clock.c"), dir.join("clock.so"));
        std::fs::write(&source, include_str!("clock.c"))?;
        let gcc = Command::new("gcc")
            .args(["-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o"])
            .args([&library, &source])
            .status()?;
        match gcc.success() {
            true => Ok(ShiftedClock { library }),
            false => Err(io::Error::other("gcc cannot build clock.c")),
        }
    }

    /// Starts the command with a wall clock that is so many seconds ahead, or behind.
    pub fn shift<'a>(&self, command: &'a mut Command, seconds: i64) -> &'a mut Command {
        command
            .env("LD_PRELOAD", &self.library)
            .env("BULLA_TEST_CLOCK_S", seconds.to_string())
    }
}
