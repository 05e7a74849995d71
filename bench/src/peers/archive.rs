//! Archivers and repositories that store a tree, bulla among them (figures 1 and 2).
//!
//! Each keeps its output in `repo/` below its directory, and caches and keys beside it. Setting up a
//! repository is not timed; storing is, until the data are on the disk.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::field::{self, Field};
use crate::figure::{Build, OURS};
use crate::process::{self, Cost};
use crate::subject;

/// How one program stores a tree.
#[derive(Clone, Copy)]
pub struct Archiver {
    /// Row in the table, without the suffix of the build.
    pub name: &'static str,
    /// The build of bulla; none for a peer.
    pub build: Option<Build>,
    /// Makes an empty repository.
    setup: fn(&Job) -> Vec<Command>,
    /// Stores the tree; `0` is the first time.
    store: fn(&Job, u32) -> Command,
}

/// The builds of bulla and, unless this is a gate, the peers; tar in the form that fits the figure.
pub fn contestants(field: &Field, tar: Archiver) -> Vec<Archiver> {
    let builds = field.builds().into_iter().map(|build| Archiver {
        build: Some(build),
        ..BULLA
    });
    let peers = [tar, SQUASHFS, RESTIC, BORG, OSTREE, CASYNC];
    let peers = peers.into_iter().filter(|_| !field.gate());
    builds.chain(peers).collect()
}

/// An archiver with its repository and a tree.
pub struct Job {
    archiver: Archiver,
    tree: PathBuf,
    home: PathBuf,
    bulla: PathBuf,
    disk: PathBuf,
    stored: u32,
}

/// The whole tree through tar and zstd: the speed of just reading and compressing it.
pub const TAR: Archiver = Archiver {
    name: "tar | zstd -1 -T2",
    build: None,
    setup: |_| Vec::new(),
    store: |job, number| {
        let script = r#"set -o pipefail; tar -C "$1" -cf - . | zstd -q -1 -T2 -o "$2/$3.tar.zst""#;
        shell(script, job, number)
    },
};

/// The same with tar's option for incremental archives.
pub const TAR_INCREMENTAL: Archiver = Archiver {
    name: "tar -g | zstd -1 -T2",
    build: None,
    setup: |_| Vec::new(),
    store: |job, number| {
        let script = r#"set -o pipefail; tar -C "$1" -g "$2/../snar" -cf - . |
            zstd -q -1 -T2 -o "$2/$3.tar.zst""#;
        shell(script, job, number)
    },
};

/// A compressed image, built again each time, because files cannot be removed from it.
pub const SQUASHFS: Archiver = Archiver {
    name: "mksquashfs",
    build: None,
    setup: |_| Vec::new(),
    store: |job, number| {
        let mut command = Command::new("mksquashfs");
        command
            .arg(&job.tree)
            .arg(job.repo().join(format!("{number}.sqfs")));
        command.args(["-comp", "zstd", "-Xcompression-level", "1"]);
        command.args(["-no-progress", "-quiet"]);
        command
    },
};

/// Always encrypts; zstd at its default level.
pub const RESTIC: Archiver = Archiver {
    name: "restic",
    build: None,
    setup: |job| vec![restic(job, &["init"])],
    store: |job, _| {
        let mut command = restic(job, &["backup", "--host", "bench", "."]);
        command.current_dir(&job.tree);
        command
    },
};

/// Without encryption, zstd 1.
pub const BORG: Archiver = Archiver {
    name: "borg",
    build: None,
    setup: |job| vec![borg(job, &["init", "--encryption", "none"])],
    store: |job, number| {
        let mut command = borg(job, &["create", "--compression", "zstd,1"]);
        command.arg(format!("::{number}")).arg(".");
        command.current_dir(&job.tree);
        command
    },
};

/// In `archive` mode, the one that is served over HTTP.
pub const OSTREE: Archiver = Archiver {
    name: "ostree commit",
    build: None,
    setup: |job| vec![ostree(job, &["init", "--mode=archive"])],
    store: |job, number| {
        let mut command = ostree(job, &["commit", "--branch=main"]);
        command.arg(format!("--subject={number}"));
        command.arg(format!("--tree=dir={}", job.tree.display()));
        command
    },
};

/// Content-defined chunks in a directory store.
pub const CASYNC: Archiver = Archiver {
    name: "casync",
    build: None,
    setup: |_| Vec::new(),
    store: |job, number| {
        let mut command = Command::new("casync");
        command.arg("make").arg(format!(
            "--store={}",
            job.repo().join("store.castr").display()
        ));
        command
            .arg(job.repo().join(format!("{number}.caidx")))
            .arg(&job.tree);
        command
    },
};

/// Ours.
const BULLA: Archiver = Archiver {
    name: OURS,
    build: None,
    setup: |job| vec![subject::new_key(&job.bulla, &job.home)],
    store: |job, _| subject::publish(&job.bulla, &job.home, &job.tree, &job.repo()),
};

impl Archiver {
    /// Its row in the table.
    pub fn row(&self) -> String {
        self.build.unwrap_or(Build::Now).row(self.name)
    }
}

impl Job {
    /// Gives an archiver an empty repository and a tree.
    pub fn new(field: &Field, archiver: Archiver, tree: &Path) -> Result<Job> {
        let bulla = match archiver.build {
            Some(build) => field.binary(build)?.to_owned(),
            None => PathBuf::new(),
        };
        let name = archiver.row().replace([' ', '|', ','], "");
        let home = field.fresh(&format!("archive-{name}"))?;
        std::fs::create_dir(home.join("repo"))?;
        let job = Job {
            archiver,
            tree: tree.to_owned(),
            home,
            bulla,
            disk: field.work().to_owned(),
            stored: 0,
        };
        for mut command in (archiver.setup)(&job) {
            process::run(&mut command, &job.disk)?;
        }
        Ok(job)
    }

    /// Stores the tree as it is now. Also returns the growth of the repository, bytes.
    pub fn store(&mut self) -> Result<(Cost, u64)> {
        let before_bytes = field::disk_bytes(&self.repo())?;
        let mut command = (self.archiver.store)(self, self.stored);
        let cost = process::run(&mut command, &self.disk)?;
        self.stored += 1;
        let grown_bytes = field::disk_bytes(&self.repo())?.saturating_sub(before_bytes);
        Ok((cost, grown_bytes))
    }

    fn repo(&self) -> PathBuf {
        self.home.join("repo")
    }
}

/// `script` sees the tree as `$1`, the output directory as `$2`, the number as `$3`.
fn shell(script: &str, job: &Job, number: u32) -> Command {
    let mut command = Command::new("bash");
    command.args(["-c", script, "bash"]);
    command
        .arg(&job.tree)
        .arg(job.repo())
        .arg(number.to_string());
    command
}

fn restic(job: &Job, arguments: &[&str]) -> Command {
    let mut command = Command::new("restic");
    command.arg("--cache-dir").arg(job.home.join("cache"));
    command.arg("--repo").arg(job.repo()).args(arguments);
    command.env("RESTIC_PASSWORD", "bench");
    command
}

fn borg(job: &Job, arguments: &[&str]) -> Command {
    let mut command = Command::new("borg");
    command.args(arguments);
    command.env("BORG_REPO", job.repo());
    command.env("BORG_BASE_DIR", job.home.join("base"));
    command.env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes");
    command
}

fn ostree(job: &Job, arguments: &[&str]) -> Command {
    let mut command = Command::new("ostree");
    command
        .arg(format!("--repo={}", job.repo().display()))
        .args(arguments);
    command
}
