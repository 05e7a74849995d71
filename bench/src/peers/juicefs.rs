//! JuiceFS over PostgreSQL and a directory: each commit of the database waits for its sync, and a file is in the directory
//! when `close` returns. It runs in a network namespace that has only a loopback.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::postgres::Postgres;
use super::view::mount_point;
use crate::field::Field;
use crate::mounts::Mounted;
use crate::process;

/// Its program (`peers.sh` installs it).
const PROGRAM: &str = "juicefs";

/// A mounted JuiceFS.
pub struct Juicefs {
    // The mount goes before the database that it uses: fields are dropped in this order.
    _mount: Mounted,
    _database: Postgres,
    dir: PathBuf,
}

impl Juicefs {
    /// Makes a file system and mounts it.
    pub fn start(field: &Field) -> Result<Juicefs> {
        let database = Postgres::start(field)?;
        let home = field.fresh("juicefs")?;
        let meta = database.address();
        let mut format = alone(&home);
        format.args(["format", "--no-color", "--storage", "file", "--bucket"]);
        format.arg(format!("{}/", home.join("objects").display()));
        process::short(format.arg(&meta).arg("bench"))?;
        let dir = mount_point(field)?;
        let mut mount = alone(&home);
        mount.args(["mount", "--no-usage-report", "--no-syslog", "--cache-dir"]);
        mount.arg(home.join("cache")).arg(&meta).arg(&dir);
        let mount = Mounted::start(PROGRAM, &mut mount, &dir, &field.log(PROGRAM))?;
        Ok(Juicefs {
            _mount: mount,
            _database: database,
            dir,
        })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

/// The program without a network.
fn alone(home: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--net", "--", "sh", "-c"]);
    command.args(["ip link set lo up && exec \"$@\"", "sh", PROGRAM]);
    command.env("HOME", home);
    command
}
