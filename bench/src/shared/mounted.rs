//! A shared volume that the binary under test mounts.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::server;
use super::volume::{FOUNDER, NAME, Volume};
use crate::field::Field;
use crate::mounts::Mounted;
use crate::network::Far;
use crate::peers::view::mount_point;
use crate::process::Daemon;
use crate::subject;

/// A mounted shared volume, and its server.
pub struct MountedVolume {
    // The mount goes before the server: fields are dropped in this order.
    _mount: Mounted,
    _server: Daemon,
    dir: PathBuf,
}

impl MountedVolume {
    /// A new volume with a server that is so far away, one way, milliseconds.
    pub fn start(field: &Field, name: &str, one_way_ms: Option<u64>) -> Result<MountedVolume> {
        let volume = Volume::create(&field.fresh(name)?)?;
        let (server, port) = server::start(field, &volume.server_dir())?;
        let port = match one_way_ms {
            Some(one_way_ms) => Far::new(port, one_way_ms)?.port,
            None => port,
        };
        volume.home(FOUNDER, port)?;
        let dir = mount_point(field)?;
        let state = volume.machine(FOUNDER);
        let mut command = subject::bulla(field.bulla()?, &state);
        command.env("BULLA_STATE_DIR", &state);
        command.env("BULLA_RUNTIME_DIR", state.join("run"));
        command.args(["mount", NAME]).arg(&dir).arg("--foreground");
        let mount = Mounted::start(name, &mut command, &dir, &field.log(name))?;
        Ok(MountedVolume {
            _mount: mount,
            _server: server,
            dir,
        })
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}
