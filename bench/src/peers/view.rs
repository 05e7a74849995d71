//! Views of a tree as a file system: mounts of bulla and of its peers (figures 4 to 8).
//!
//! Servers and images are in the page cache: the path from there to the reader is compared, not the
//! disk. A new view has nothing of the tree in the *client's* caches.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::dataset;
use crate::field::Field;
use crate::figure::Build;
use crate::mounts::Mounted;
use crate::process::{self, Daemon};
use crate::subject::Published;

/// A tree that can be read at a path until this is dropped.
pub struct View {
    // The mount goes before the server that it reads from: fields are dropped in this order.
    mount: Option<Mounted>,
    server: Option<Daemon>,
    dir: PathBuf,
}

impl View {
    /// The path of the tree.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Processor seconds that mount and server have used so far.
    pub fn cpu_s(&self) -> Result<f64> {
        let mount_s = self.mount.as_ref().map_or(Ok(0.0), Mounted::cpu_s)?;
        let server_s = self.server.as_ref().map_or(Ok(0.0), Daemon::cpu_s)?;
        Ok(mount_s + server_s)
    }
}

/// Opens views of one tree, each with empty caches.
pub enum Viewer {
    /// bulla, from a server on the loopback.
    Bulla(Published),
    /// The same with a disk cache in this directory, which keeps the blocks of earlier views.
    BullaCached(Published, PathBuf),
    /// An SSH server on the loopback, with the keys for its client.
    Sshfs(Ssh),
    /// A local image.
    Squashfuse(PathBuf),
    /// A local encrypted directory.
    Gocryptfs(PathBuf),
    /// The directory itself.
    Local(PathBuf),
}

/// Keys and configuration of an SSH server of our own.
pub struct Ssh {
    home: PathBuf,
    tree: PathBuf,
}

impl Viewer {
    /// Publishes the tree with a build of bulla, which also serves and mounts it.
    pub fn bulla(field: &Field, build: Build, name: &str, tree: &Path) -> Result<Viewer> {
        Ok(Viewer::Bulla(Published::by(field, build, name, tree)?))
    }

    /// Views of our tree that share a disk cache, empty now.
    ///
    /// # Errors
    /// If this is not a view of bulla.
    pub fn with_disk_cache(&self, field: &Field, name: &str) -> Result<Viewer> {
        let Viewer::Bulla(published) = self else {
            bail!("only bulla has a disk cache");
        };
        let cache = field.fresh(&format!("cache-{name}"))?;
        Ok(Viewer::BullaCached(published.clone(), cache))
    }

    /// Makes keys for a server and a client.
    pub fn sshfs(field: &Field, name: &str, tree: &Path) -> Result<Viewer> {
        let home = field.fresh(&format!("sshfs-{name}"))?;
        for key in ["host", "user"] {
            let mut command = Command::new("ssh-keygen");
            command
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(home.join(key));
            process::run(&mut command, field.work())?;
        }
        Ok(Viewer::Sshfs(Ssh {
            home,
            tree: tree.to_owned(),
        }))
    }

    /// Builds an image.
    pub fn squashfuse(field: &Field, name: &str, tree: &Path) -> Result<Viewer> {
        let image = field.fresh(&format!("squashfuse-{name}"))?.join("image");
        let mut command = Command::new("mksquashfs");
        command.arg(tree).arg(&image);
        command.args(["-comp", "zstd", "-Xcompression-level", "1"]);
        process::run(command.args(["-no-progress", "-quiet"]), field.work())?;
        Ok(Viewer::Squashfuse(image))
    }

    /// Makes an encrypted directory and copies the tree into it.
    pub fn gocryptfs(field: &Field, name: &str, tree: &Path) -> Result<Viewer> {
        let home = field.fresh(&format!("gocryptfs-{name}"))?;
        fs::write(home.join("password"), "bench")?;
        fs::create_dir(home.join("cipher"))?;
        let mut command = Command::new("gocryptfs");
        command.args(["-q", "-init", "-scryptn", "10", "-passfile"]);
        command.arg(home.join("password")).arg(home.join("cipher"));
        process::run(&mut command, field.work())?;
        let viewer = Viewer::Gocryptfs(home);
        let view = viewer.open(field)?;
        let mut copy = Command::new("cp");
        process::run(
            copy.arg("-a").arg(tree.join(".")).arg(view.dir()),
            field.work(),
        )?;
        Ok(viewer)
    }

    /// Opens a view of the tree with nothing of it in the client's caches, or in its memory if it has a
    /// cache on the disk.
    pub fn open(&self, field: &Field) -> Result<View> {
        match self {
            Viewer::Bulla(published) => {
                dataset::warm(&published.repo)?;
                let dir = mount_point(field)?;
                let (server, port) = published.serve(field)?;
                let mount = published.mount(field, port, &dir)?;
                Ok(View {
                    mount: Some(mount),
                    server: Some(server),
                    dir,
                })
            }
            Viewer::BullaCached(published, cache) => {
                dataset::warm(&published.repo)?;
                let dir = mount_point(field)?;
                let (server, port) = published.serve(field)?;
                let place = format!("bulla://127.0.0.1:{port}");
                let options = ["--cache".as_ref(), cache.as_os_str()];
                let mount = published.mount_from(field, &place, &options, &dir)?;
                Ok(View {
                    mount: Some(mount),
                    server: Some(server),
                    dir,
                })
            }
            Viewer::Sshfs(ssh) => ssh.open(field),
            Viewer::Squashfuse(image) => {
                dataset::warm(image)?;
                let mut command = Command::new("squashfuse");
                command.arg("-f").arg(image);
                local_mount(field, "squashfuse", command)
            }
            Viewer::Gocryptfs(home) => {
                dataset::warm(&home.join("cipher"))?;
                let mut command = Command::new("gocryptfs");
                command
                    .args(["-q", "-fg", "-passfile"])
                    .arg(home.join("password"));
                command.arg(home.join("cipher"));
                local_mount(field, "gocryptfs", command)
            }
            Viewer::Local(dir) => Ok(View {
                mount: None,
                server: None,
                dir: dir.clone(),
            }),
        }
    }
}

impl Ssh {
    fn open(&self, field: &Field) -> Result<View> {
        self.open_through(field, Ok)
    }

    /// The same through the relay that `way` puts before the server's port.
    pub fn open_through(&self, field: &Field, way: impl Fn(u16) -> Result<u16>) -> Result<View> {
        dataset::warm(&self.tree)?;
        let dir = mount_point(field)?;
        let port = process::free_port()?;
        let config = self.configuration(port)?;
        let mut command = Command::new("/usr/sbin/sshd");
        command.arg("-D").arg("-e").arg("-f").arg(config);
        let mut server = Daemon::start("sshd", &mut command, &field.log("sshd"))?;
        server.wait_for_port(port)?;
        let port = way(port)?;
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        let mut command = Command::new("sshfs");
        command.arg("-f");
        command
            .arg(format!("{user}@127.0.0.1:{}", self.tree.display()))
            .arg(&dir);
        for option in [
            format!("port={port}"),
            format!("IdentityFile={}", self.home.join("user").display()),
            "StrictHostKeyChecking=no".to_owned(),
            "UserKnownHostsFile=/dev/null".to_owned(),
            "IdentitiesOnly=yes".to_owned(),
            "ssh_command=ssh -F /dev/null".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        let mount = Mounted::start("sshfs", &mut command, &dir, &field.log("sshfs"))?;
        Ok(View {
            mount: Some(mount),
            server: Some(server),
            dir,
        })
    }

    /// A server that listens on the loopback only and lets in only the one key.
    fn configuration(&self, port: u16) -> Result<PathBuf> {
        // The daemon requires this directory, which is missing on machines without a running daemon.
        fs::create_dir_all("/run/sshd").context("sshd needs /run/sshd")?;
        fs::set_permissions(&self.home, fs::Permissions::from_mode(0o700))?;
        let home = self.home.display();
        let text = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {home}/host\nPidFile none\n\
             AuthorizedKeysFile {home}/user.pub\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nPermitRootLogin prohibit-password\nUseDNS no\n\
             Subsystem sftp internal-sftp\n"
        );
        let path = self.home.join("sshd_config");
        fs::write(&path, text)?;
        Ok(path)
    }
}

fn local_mount(field: &Field, name: &str, mut command: Command) -> Result<View> {
    let dir = mount_point(field)?;
    command.arg(&dir);
    let mount = Mounted::start(name, &mut command, &dir, &field.log(name))?;
    Ok(View {
        mount: Some(mount),
        server: None,
        dir,
    })
}

/// An empty directory that no other view uses.
pub fn mount_point(field: &Field) -> Result<PathBuf> {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    field.fresh(&format!("mnt-{}", NEXT.fetch_add(1, Ordering::Relaxed)))
}
