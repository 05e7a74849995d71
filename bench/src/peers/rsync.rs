//! rsync's daemon on the loopback, serving a directory as the module `tree` (figures 3 and 27).

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::field::Field;
use crate::process::{self, Daemon};

/// A running daemon. It reads only, and serves without a chroot.
pub struct Rsync {
    /// Its port.
    pub port: u16,
    _daemon: Daemon,
}

impl Rsync {
    /// Serves `root`. The configuration is in `home`.
    pub fn start(field: &Field, home: &Path, root: &Path) -> Result<Rsync> {
        let port = process::free_port()?;
        let configuration = home.join("rsyncd.conf");
        fs::write(
            &configuration,
            format!(
                "use chroot = no\nuid = root\ngid = root\nread only = yes\n[tree]\npath = {}\n",
                root.display()
            ),
        )?;
        let mut serve = Command::new("rsync");
        serve.args(["--daemon", "--no-detach", "--address=127.0.0.1"]);
        serve
            .arg(format!("--port={port}"))
            .arg("--config")
            .arg(&configuration);
        let mut daemon = Daemon::start("rsync --daemon", &mut serve, &field.log("rsyncd"))?;
        daemon.wait_for_port(port)?;
        Ok(Rsync {
            port,
            _daemon: daemon,
        })
    }
}
