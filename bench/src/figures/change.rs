//! Figure 23: a small change that another device sees, 50 ms round trip.
//!
//! Two devices, each 25 ms away from the server (`network`). One closes a file of a few bytes; the other one waits until
//! its client has heard of something new, and reads the file until it has the new content. The volume is strict: a read
//! waits until the writer has attested. Time runs from the beginning of the call that closes the file.
//!
//! git works over the same delay, with its own protocol and without encryption: add, commit, push, and then at once
//! the pull of the other one, who need not find out that there is something. Syncthing has one relay between the two;
//! discovery and relays of its own are off. It collects changes for 10 s by default; another row has the shortest delay.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use share::client::Client;

use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::network::Far;
use crate::peers::syncthing::Pair;
use crate::process::{self, Daemon};
use crate::shared::volume::{FOUNDER, Volume};
use crate::shared::{device, server};
use crate::stats;

const BOUND: &str = "two and a half round trips";
const GIT: &str = "git push and pull, git daemon";
const SYNCTHING: &str = "Syncthing";
const SYNCTHING_FAST: &str = "Syncthing, shortest delay";
const UNPINNED: Placement = Placement::Unpinned;
const ONE_WAY_MS: u64 = 25;
const ROUND_TRIP_S: f64 = 0.05;
const NAME: &str = "note.txt";
/// Pause before a change: everything that the one before has caused is over.
const PAUSE: Duration = Duration::from_millis(300);
/// How often somebody looks whether there is something new.
const LOOK: Duration = Duration::from_micros(500);
/// How long a change may take.
const DEADLINE: Duration = Duration::from_secs(60);

const TRIPS: Metric = Metric::count("trips", "round trips");

/// One small change.
pub const FIGURE: Figure = Figure {
    number: 23,
    title: "a small change that another device sees, 50 ms round trip",
    rounds: (5, 1),
    placements: &[UNPINNED],
    metrics: &[
        Metric::WALL,
        TRIPS,
        Metric::count("slowest", "s, of all changes"),
        Metric::count("crossed", "bytes a change, both devices"),
    ],
    reaches: &[
        Reach::new("trips", UNPINNED, BOUND, Bound::AtMost(1.0)),
        Reach::new("wall", UNPINNED, GIT, Bound::AtMost(0.05)),
        Reach::new("wall", UNPINNED, SYNCTHING, Bound::AtMost(0.05)),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    let here = field.clone();
    line_up.add(OURS, Ok(move |_| ours(&here)));
    line_up.add(
        BOUND,
        Ok(|_| Ok(vec![("wall", 2.5 * ROUND_TRIP_S), ("trips", 2.5)])),
    );
    line_up.add(GIT, Git::new(field).map(|mut git| move |_| git.measure()));
    for (name, delay_s) in [(SYNCTHING, 10), (SYNCTHING_FAST, 1)] {
        let pair = Pair::start(field, delay_s, ONE_WAY_MS);
        let changes = field.pick((3, 1));
        let measured = pair.map(|mut pair| {
            let mut count = 0;
            move |_| {
                let change = || {
                    count += 1;
                    pair.change(&format!("change {count}"))
                };
                measured(changes, None, change)
            }
        });
        line_up.add(name, measured);
    }
    Ok(line_up)
}

/// Runs changes. Each says how many seconds it took.
fn measured(
    changes: usize,
    fars: Option<&[Far]>,
    mut change: impl FnMut() -> Result<f64>,
) -> Result<Vec<Reading>> {
    let crossed = || fars.map(|fars| fars.iter().map(Far::bytes).sum::<u64>());
    let mut times = Vec::new();
    let mut bytes = Vec::new();
    for _ in 0..changes {
        process::check_stop()?;
        sleep(PAUSE);
        let before = crossed();
        times.push(change()?);
        bytes.extend(
            crossed()
                .zip(before)
                .map(|(now, before)| (now - before) as f64),
        );
    }
    let wall_s = stats::median(&times).context("no change")?;
    let mut readings = vec![
        ("wall", wall_s),
        (TRIPS.name, wall_s / ROUND_TRIP_S),
        ("slowest", times.iter().copied().fold(0.0, f64::max)),
    ];
    readings.extend(stats::median(&bytes).map(|bytes| ("crossed", bytes)));
    Ok(readings)
}

fn ours(field: &Field) -> Result<Vec<Reading>> {
    let volume = Volume::create(&field.fresh("change")?)?;
    let (_daemon, port) = server::start(field, &volume.server_dir())?;
    let fars = [Far::new(port, ONE_WAY_MS)?, Far::new(port, ONE_WAY_MS)?];
    let homes = [
        volume.home(FOUNDER, fars[0].port)?,
        volume.home(1, fars[1].port)?,
    ];
    let runtime = device::runtime()?;
    let (writer, reader) = runtime.block_on(async {
        let writer = device::start(&homes[0]).await?;
        let reader = device::start(&homes[1]).await?;
        writer.running(device::soon()).await?;
        device::admit(&writer, 1).await?;
        reader.running(device::soon()).await?;
        let new = device::create(&writer, NAME, 0o644, device::content(b"nothing"))?;
        device::call(&writer, new).await?;
        device::read(&reader, NAME).await?;
        anyhow::Ok((writer, reader))
    })?;
    let mut count = 0;
    let change = || {
        count += 1;
        runtime.block_on(one(&writer, &reader, format!("change {count}").into()))
    };
    let readings = measured(field.pick((30, 5)), Some(&fars), change)?;
    runtime.block_on(async {
        writer.close(device::soon()).await?;
        reader.close(device::soon()).await
    })?;
    Ok(readings)
}

/// One change. Returns the seconds until it was read.
async fn one(writer: &Client, reader: &Client, content: Bytes) -> Result<f64> {
    let (known, wanted) = (reader.view().size, content.clone());
    let reader = reader.clone();
    let reading = tokio::spawn(async move {
        let late = Instant::now() + DEADLINE;
        let mut seen = known;
        loop {
            ensure!(Instant::now() < late, "the change has not arrived");
            let size = reader.view().size;
            if size == seen {
                tokio::time::sleep(LOOK).await;
                continue;
            }
            seen = size;
            if device::read(&reader, NAME).await? == wanted {
                return anyhow::Ok(Instant::now());
            }
        }
    });
    let began = Instant::now();
    device::call(writer, device::write(writer, NAME, &content)?).await?;
    let read = reading.await??;
    Ok(read.duration_since(began).as_secs_f64())
}

/// Two clones of a repository, and its daemon.
struct Git {
    _daemon: Daemon,
    changes: usize,
    fars: Vec<Far>,
    writer: PathBuf,
    reader: PathBuf,
    count: u64,
}

impl Git {
    fn new(field: &Field) -> Result<Git> {
        let home = field.fresh("git")?;
        let shared = home.join("shared.git");
        git(
            &home,
            &[
                "init",
                "--quiet",
                "--bare",
                "--initial-branch=main",
                "shared.git",
            ],
        )?;
        let port = process::free_port()?;
        let mut serve = Command::new("git");
        serve.args([
            "daemon",
            "--reuseaddr",
            "--listen=127.0.0.1",
            "--export-all",
        ]);
        serve
            .arg(format!("--port={port}"))
            .arg("--enable=receive-pack");
        serve
            .arg(format!("--base-path={}", home.display()))
            .arg(&shared);
        let mut daemon = Daemon::start("git daemon", &mut serve, &field.log("git-daemon"))?;
        daemon.wait_for_port(port)?;
        let fars = vec![Far::new(port, ONE_WAY_MS)?];
        let url = format!("git://127.0.0.1:{}/shared.git", fars[0].port);
        git(&home, &["clone", "--quiet", &url, "writer"])?;
        let (writer, reader) = (home.join("writer"), home.join("reader"));
        fs::write(writer.join(NAME), "nothing")?;
        push(&writer)?;
        git(&home, &["clone", "--quiet", &url, "reader"])?;
        Ok(Git {
            _daemon: daemon,
            changes: field.pick((10, 2)),
            fars,
            writer,
            reader,
            count: 0,
        })
    }

    fn measure(&mut self) -> Result<Vec<Reading>> {
        let (writer, reader, count) = (&self.writer, &self.reader, &mut self.count);
        measured(self.changes, Some(&self.fars), || {
            *count += 1;
            let content = format!("change {count}");
            fs::write(writer.join(NAME), &content)?;
            let began = Instant::now();
            push(writer)?;
            git(reader, &["pull", "--quiet", "--ff-only"])?;
            let read = fs::read_to_string(reader.join(NAME))?;
            if read != content {
                bail!("the pull brought {read:?}");
            }
            Ok(began.elapsed().as_secs_f64())
        })
    }
}

fn push(dir: &Path) -> Result<()> {
    git(dir, &["add", NAME])?;
    git(dir, &["commit", "--quiet", "--message=a change"])?;
    git(dir, &["push", "--quiet", "origin", "HEAD:main"])
}

/// Runs git with a configuration that is the same on every machine.
fn git(dir: &Path, words: &[&str]) -> Result<()> {
    let mut command = Command::new("git");
    command.current_dir(dir).args(words);
    for (name, value) in [
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_AUTHOR_NAME", "bench"),
        ("GIT_AUTHOR_EMAIL", "bench@localhost"),
        ("GIT_COMMITTER_NAME", "bench"),
        ("GIT_COMMITTER_EMAIL", "bench@localhost"),
    ] {
        command.env(name, value);
    }
    process::short(&mut command).map(drop)
}
