//! Figure 26: a server that shows two devices two logs, and how long until they notice.
//!
//! Two devices write one volume. Then the server's directory is copied, both copies are served with the same key, one to
//! each device, and each goes on writing. Neither notices anything, because neither sees an operation of the other after
//! the copy; that is what the figure checks first. *compare*: one device is given the other one's newest note.
//! It must leave a file that the verifier of evidence accepts, and refuses when a byte of it is another one. *shown*: a
//! device is then connected to the other copy. That server is honest but for the copy: it meets a note of its own that its
//! log does not have, says so and signs nothing any more. The time includes the start of the device's client.
//! *beacon*: the other device is a beacon and writes each [`INTERVAL`]; the server forks while the first one runs. The time
//! is from the beacon's last entry that the first device has verified until its calls are refused.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use share::client::{Client, ClientError, Compared, Connection, Phase, Status, Trouble};
use share::files::Call;
use share::home::Home;
use trust::device::DeviceKey;
use trust_shared::evidence::{self, Convicted};

use crate::field::Field;
use crate::figure::{Bound, Figure, LineUp, Metric, OURS, Placement, Reach, Reading, nothing};
use crate::process;
use crate::shared::volume::{FOUNDER, Volume, orderer};
use crate::shared::{device, server};

const BOUND: &str = "at once";
const UNPINNED: Placement = Placement::Unpinned;
/// Files that both see, and that each makes afterwards. The two logs get different lengths.
const FILES: [(u64, u64); 2] = [(200, 20), (20, 5)];
const MORE: u64 = 7;
/// How often the beacon writes, and how long it may be silent.
const INTERVAL: Duration = Duration::from_secs(1);
const WITHIN: Duration = Duration::from_millis(1500);
const BEACON: &str = "its interval and half of it";
/// How often the state of a client is looked at.
const LOOK: Duration = Duration::from_millis(1);
/// Bytes of the evidence that are changed, one at a time.
const CHANGED: usize = 64;

/// A fork.
pub const FIGURE: Figure = Figure {
    number: 26,
    title: "a fork between two devices: time until it is noticed",
    rounds: (5, 1),
    placements: &[UNPINNED],
    metrics: &[
        Metric::time("compare", "s"),
        Metric::time("shown", "s, with the start"),
        Metric::time("beacon", "s, written each second"),
        Metric::count("evidence", "bytes, by compare"),
        Metric::count("one-log", "leaves"),
        Metric::count("other-log", "leaves"),
    ],
    reaches: &[
        Reach::new("compare", UNPINNED, BOUND, Bound::AtMost(1.0)),
        Reach::new("beacon", UNPINNED, BEACON, Bound::AtMost(1.2)),
    ],
    derive: nothing,
    line_up,
};

fn line_up(field: &Field) -> Result<LineUp> {
    let mut line_up = LineUp::new();
    // What a person calls at once.
    line_up.add(BOUND, Ok(|_| Ok(vec![("compare", 0.1)])));
    let here = field.clone();
    line_up.add(OURS, Ok(move |_| measure(&here)));
    let bound = WITHIN.as_secs_f64();
    line_up.add(BEACON, Ok(move |_| Ok(vec![("beacon", bound)])));
    line_up.missing(
        "by neither",
        "no device can notice it, as the figure checks",
    );
    Ok(line_up)
}

fn measure(field: &Field) -> Result<Vec<Reading>> {
    let (before, after) = field.pick((FILES[0], FILES[1]));
    let volume = Volume::create(&field.fresh("fork")?)?;
    let (server, port) = server::start(field, &volume.server_dir())?;
    let (one, mut other) = (volume.home(FOUNDER, port)?, volume.home(1, port)?);
    let runtime = device::runtime()?;
    runtime.block_on(together(&one, &other, before))?;
    drop(server);
    let copy = volume.server_dir().with_file_name("copy");
    let mut cp = Command::new("cp");
    process::short(cp.arg("-a").arg(volume.server_dir()).arg(&copy))?;
    let _first = server::start_at(field, &volume.server_dir(), port)?;
    let (_second, other_port) = server::start(field, &copy)?;
    other.set_server(&format!("bulla://127.0.0.1:{other_port}"))?;
    let mut readings = runtime.block_on(apart(one, &other, after, other_port))?;
    readings.push(("beacon", by_beacon(field)?));
    Ok(readings)
}

/// Seconds from the beacon's last entry on a device's branch until the device uses nothing any more.
fn by_beacon(field: &Field) -> Result<f64> {
    let volume = Volume::create(&field.fresh("beacon")?)?;
    let (server, port) = server::start(field, &volume.server_dir())?;
    let (one, mut other) = (volume.home(FOUNDER, port)?, volume.home(1, port)?);
    let runtime = device::runtime()?;
    runtime.block_on(together(&one, &other, 1))?;
    one.set_beacon(DeviceKey::from(other.device()), Some(WITHIN))?;
    runtime.block_on(async {
        let (first, beacon) = (device::start(&one).await?, device::start(&other).await?);
        first.running(device::soon()).await?;
        for n in 0..3 {
            if n > 0 {
                tokio::time::sleep(INTERVAL).await;
            }
            write_beacon(&beacon).await?;
            device::names_of_root(&first).await?;
        }
        beacon.close(device::soon()).await?;
        drop(server);
        let copy = volume.server_dir().with_file_name("copy");
        let mut cp = Command::new("cp");
        process::short(cp.arg("-a").arg(volume.server_dir()).arg(&copy))?;
        let _first = server::start_at(field, &volume.server_dir(), port)?;
        let (_second, other_port) = server::start(field, &copy)?;
        other.set_server(&format!("bulla://127.0.0.1:{other_port}"))?;
        let beacon = device::start(&other).await?;
        let writing = async {
            loop {
                if let Err(error) = write_beacon(&beacon).await {
                    return error;
                }
                tokio::time::sleep(INTERVAL).await;
            }
        };
        let age = tokio::select! {
            failed = writing => return Err(failed),
            age = overdue(&first) => age?,
        };
        first.close(device::soon()).await?;
        beacon.close(device::soon()).await?;
        Ok(age.as_secs_f64())
    })
}

async fn write_beacon(client: &Client) -> Result<()> {
    client.running(device::soon()).await?;
    device::call(client, device::write(client, "other-0", b"x")?).await?;
    Ok(())
}

/// Calls until the device misses its beacon. Gives how long it has missed it.
async fn overdue(client: &Client) -> Result<Duration> {
    loop {
        match client.call(Call::Members, device::soon()).await {
            Ok(_) => tokio::time::sleep(LOOK).await,
            Err(ClientError::Overdue { age, .. }) => return Ok(age),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Both write in one log.
async fn together(one: &Home, other: &Home, files: u64) -> Result<()> {
    let (one, other) = (device::start(one).await?, device::start(other).await?);
    one.running(device::soon()).await?;
    device::admit(&one, 1).await?;
    other.running(device::soon()).await?;
    for (client, name) in [(&one, "one"), (&other, "other")] {
        make(client, name, files).await?;
        // Both have seen everything.
        device::names_of_root(&one).await?;
        device::names_of_root(&other).await?;
    }
    one.close(device::soon()).await?;
    other.close(device::soon()).await?;
    Ok(())
}

async fn make(client: &Client, name: &str, files: u64) -> Result<()> {
    for n in 0..files {
        let new = device::create(client, &format!("{name}-{n}"), 0o644, device::content(b"x"))?;
        device::call(client, new).await?;
    }
    Ok(())
}

/// Each writes in a log of its own; then they compare, and then one is shown the other's log.
async fn apart(one: Home, other: &Home, files: u64, other_port: u16) -> Result<Vec<Reading>> {
    let (first, second) = (device::start(&one).await?, device::start(other).await?);
    for (client, name, files) in [(&first, "mine", files), (&second, "yours", files + MORE)] {
        client.running(device::soon()).await?;
        make(client, name, files).await?;
    }
    let status = (status(&first).await?, status(&second).await?);
    let note = status.0.note.context("a device has no note")?;

    let began = Instant::now();
    let compared = second.compare(note, device::soon()).await?;
    let compare_s = began.elapsed().as_secs_f64();
    let Compared::Fork { evidence } = compared else {
        bail!("comparing found no fork: {compared:?}");
    };
    let evidence = evidence.map_err(|why| anyhow::anyhow!("no evidence: {why}"))?;
    let bytes = convicts(&evidence)?;

    first.close(device::soon()).await?;
    let mut one = one;
    one.set_server(&format!("bulla://127.0.0.1:{other_port}"))?;
    let began = Instant::now();
    let first = device::start(&one).await?;
    refused(&first).await?;
    let shown_s = began.elapsed().as_secs_f64();
    first.close(device::soon()).await?;
    second.close(device::soon()).await?;
    Ok(vec![
        ("compare", compare_s),
        ("shown", shown_s),
        ("evidence", bytes as f64),
        ("one-log", status.0.log.size as f64),
        ("other-log", status.1.log.size as f64),
    ])
}

/// Waits until a device knows that its server does not have the log that it knows.
async fn refused(client: &Client) -> Result<()> {
    let late = device::soon();
    loop {
        let view = client.view();
        match &view.connection {
            Connection::Offline(lost)
                if matches!(lost.trouble, Trouble::Restored | Trouble::OtherLog) =>
            {
                return Ok(());
            }
            _ if matches!(view.phase, Phase::Stopped(_)) => return Ok(()),
            _ if Instant::now() > late => bail!("the other log was not noticed: {view:?}"),
            _ => tokio::time::sleep(LOOK).await,
        }
    }
}

/// The status of a device that has noticed nothing.
async fn status(client: &Client) -> Result<Status> {
    let status = client.status(device::soon()).await?;
    let quiet = matches!(status.phase, Phase::Running) && status.differing.is_empty();
    ensure!(quiet, "a device has noticed the fork by itself: {status:?}");
    Ok(status)
}

/// Verifies a file of evidence: it convicts the server, and no file with another byte does. Returns its length.
fn convicts(path: &Path) -> Result<usize> {
    let bytes = read(path)?;
    let verdict = evidence::verify(&bytes)?;
    let server = Convicted::Orderer(orderer().public());
    ensure!(
        verdict.convicted == server,
        "it convicts somebody else: {verdict}"
    );
    for n in 0..CHANGED {
        let mut changed = bytes.clone();
        let at = n * bytes.len() / CHANGED;
        if let Some(byte) = changed.get_mut(at) {
            *byte ^= 1 << (n % 8);
        }
        // With another volume in it the evidence may still be well-formed; it convicts nobody of this one.
        let same = evidence::verify(&changed).is_ok_and(|again| again == verdict);
        ensure!(!same, "evidence with another byte at {at} is accepted");
    }
    Ok(bytes.len())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}
