//! Figure 30 (SUNDR Fig. 9): 1,000 files of 1 KB made, read, read again, removed, by one program in one directory.
//!
//! Server and client are on this machine; for the distant rows a path of 10 ms is between them (`network`). They differ in
//! what is durable when a call returns: with bulla a file is in the log and on the server's disk when `close` returns, and a name when `open` or
//! `unlink` returns. JuiceFS has the name in its database and the content in its directory then. sshfs and ext4 promise
//! nothing before `fsync`. *Read* is the first time after they were made, *again* the second.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};

use super::reading::{LOCAL, SSHFS};
use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::network::Far;
use crate::peers::juicefs::Juicefs;
use crate::peers::view::Viewer;
use crate::shared::mounted::MountedVolume;

const JUICEFS: &str = "JuiceFS";
const FILE_BYTES: usize = 1 << 10;
/// One way of the distant rows, milliseconds.
const ONE_WAY_MS: u64 = 5;
const UNPINNED: Placement = Placement::Unpinned;

/// Names of the metrics of one distance.
struct Names {
    create: &'static str,
    fsync: &'static str,
    read: &'static str,
    again: &'static str,
    unlink: &'static str,
}

const HERE: Names = Names {
    create: "create",
    fsync: "fsync",
    read: "read",
    again: "again",
    unlink: "unlink",
};
const FAR: Names = Names {
    create: "far-create",
    fsync: "far-fsync",
    read: "far-read",
    again: "far-again",
    unlink: "far-unlink",
};

/// Small files on a disk for a team.
pub const FIGURE: Figure = Figure {
    number: 30,
    title: "1,000 files of 1 KB on a disk for a team: made, made with fsync, read, read again, removed",
    rounds: (5, 1),
    placements: &[UNPINNED],
    metrics: &[
        each(HERE.create),
        each(HERE.fsync),
        each(HERE.read),
        each(HERE.again),
        each(HERE.unlink),
        each(FAR.create),
        each(FAR.fsync),
        each(FAR.read),
        each(FAR.again),
        each(FAR.unlink),
    ],
    reaches: &[
        reach(HERE.create, JUICEFS, 1.0),
        reach(HERE.again, JUICEFS, 1.0),
        reach(HERE.unlink, JUICEFS, 1.0),
        reach(FAR.create, SSHFS, 0.45),
        reach(FAR.fsync, SSHFS, 0.25),
        reach(FAR.again, SSHFS, 0.4),
    ],
    derive: nothing,
    line_up,
};

const fn each(name: &'static str) -> Metric {
    Metric::time(name, "ms a file")
}

const fn reach(metric: &'static str, peer: &'static str, at_most: f64) -> Reach {
    Reach::new(metric, UNPINNED, peer, Bound::AtMost(at_most))
}

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    let files = field.pick((1000, 30));
    let ours = MountedVolume::start(field, "team", None);
    line_up.add(
        OURS,
        ours.map(|on| move |round| measure(on.dir(), round, files, &HERE)),
    );
    let juicefs = Juicefs::start(field);
    line_up.add(
        JUICEFS,
        juicefs.map(|on| move |round| measure(on.dir(), round, files, &HERE)),
    );
    let sshfs = sshfs(field, "team-sshfs", None);
    line_up.add(
        SSHFS,
        sshfs.map(|on| move |round| measure(on.dir(), round, files, &HERE)),
    );
    let local = field.fresh("team-local");
    line_up.add(
        LOCAL,
        local.map(|dir| move |round| measure(&dir, round, files, &HERE)),
    );
    // A second is enough at this distance.
    let files = field.pick((100, 10));
    let ours = MountedVolume::start(field, "team-far", Some(ONE_WAY_MS));
    line_up.add(
        OURS,
        ours.map(|on| move |round| measure(on.dir(), round, files, &FAR)),
    );
    let sshfs = self::sshfs(field, "team-sshfs-far", Some(ONE_WAY_MS));
    line_up.add(
        SSHFS,
        sshfs.map(|on| move |round| measure(on.dir(), round, files, &FAR)),
    );
    Ok(line_up)
}

fn sshfs(field: &Field, name: &str, way: Option<u64>) -> Result<crate::peers::view::View> {
    let tree = field.fresh(name)?;
    let Viewer::Sshfs(ssh) = Viewer::sshfs(field, name, &tree)? else {
        anyhow::bail!("sshfs has another view");
    };
    ssh.open_through(field, |port| match way {
        Some(one_way_ms) => Ok(Far::new(port, one_way_ms)?.port),
        None => Ok(port),
    })
}

/// Milliseconds a file.
fn timed(files: u32, mut work: impl FnMut(u32) -> Result<()>) -> Result<f64> {
    let began = Instant::now();
    for file in 0..files {
        work(file)?;
    }
    Ok(began.elapsed().as_secs_f64() * 1000.0 / f64::from(files))
}

fn measure(on: &Path, round: u32, files: u32, names: &Names) -> Result<Vec<Reading>> {
    let dir = on.join(format!("round-{round}"));
    fs::create_dir(&dir).context("making a directory")?;
    let synced = dir.join("synced");
    fs::create_dir(&synced)?;
    let content = |file: u32| vec![file as u8; FILE_BYTES];
    let make = |dir: &Path, file: u32, sync: bool| -> Result<()> {
        let mut made = File::create_new(dir.join(file.to_string()))?;
        made.write_all(&content(file))?;
        if sync {
            made.sync_all()?;
        }
        Ok(())
    };
    let read = |file: u32| -> Result<()> {
        let mut got = Vec::with_capacity(FILE_BYTES + 1);
        File::open(dir.join(file.to_string()))?.read_to_end(&mut got)?;
        ensure!(got == content(file), "file {file} has other content");
        Ok(())
    };
    let create_ms = timed(files, |file| make(&dir, file, false))?;
    let fsync_ms = timed(files, |file| make(&synced, file, true))?;
    let read_ms = timed(files, read)?;
    let again_ms = timed(files, read)?;
    let unlink_ms = timed(files, |file| {
        Ok(fs::remove_file(dir.join(file.to_string()))?)
    })?;
    ensure!(fs::read_dir(&dir)?.count() == 1, "not all files are gone");
    Ok(vec![
        (names.create, create_ms),
        (names.fsync, fsync_ms),
        (names.read, read_ms),
        (names.again, again_ms),
        (names.unlink, unlink_ms),
    ])
}
