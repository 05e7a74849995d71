//! A device that catches up, as a process of its own, so that its memory is its own.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use share::client::{Begun, Options, begin};
use trust_shared::checkpoint::Posted;
use trust_shared::note::Note;

use super::author::file_of;
use super::device;
use super::volume::{FOUNDER, home_at, key, orderer};
use crate::field::Field;
use crate::process;

/// The subcommand that [`measure`] calls.
pub const SUBCOMMAND: &str = "catch-up";
/// Says that the device begins with a checkpoint.
const BEGINS: &str = "from-checkpoint";

/// What the process says.
#[derive(Debug, Serialize, Deserialize)]
pub struct Caught {
    /// Seconds until the device has the log, and its Resume is in it.
    pub running_s: f64,
    /// Seconds of the first look at a file after that.
    pub first_look_s: f64,
    /// Seconds of the second look.
    pub look_s: f64,
    /// Leaves of the log then.
    pub leaves: u64,
    /// Processor seconds of all this.
    #[serde(default)]
    pub cpu_s: f64,
    /// Largest resident memory, bytes.
    #[serde(default)]
    pub peak_bytes: u64,
}

/// Runs the client of a machine in a process, once. `begins`: with the newest checkpoint.
pub fn measure(field: &Field, state: &Path, begins: bool) -> Result<Caught> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(SUBCOMMAND).arg(state);
    if begins {
        command.arg(BEGINS);
    }
    let (cost, peak_bytes) = process::run_watched(&mut command, field.work())?;
    let said: Caught = serde_json::from_str(cost.stdout.trim()).context("what it said")?;
    Ok(Caught {
        cpu_s: cost.cpu_s,
        peak_bytes,
        ..said
    })
}

/// What the process does.
pub fn run(state: &Path, how: Option<&str>) -> Result<()> {
    let home = home_at(state)?;
    device::runtime()?.block_on(async {
        let began = Instant::now();
        if how == Some(BEGINS) {
            let own = key(FOUNDER).public();
            let begun = begin(&home, &Options::default(), Some(&own), device::soon()).await?;
            ensure!(matches!(begun, Begun::Checkpoint { .. }), "{begun:?}");
        }
        let client = device::start(&home).await?;
        let late = Instant::now() + std::time::Duration::from_secs(3600);
        client.running(late).await?;
        let running_s = began.elapsed().as_secs_f64();
        let (first_look_s, look_s) = (look(&client).await?, look(&client).await?);
        let said = Caught {
            running_s,
            first_look_s,
            look_s,
            leaves: client.view().size,
            cpu_s: 0.0,
            peak_bytes: 0,
        };
        client.close(device::soon()).await?;
        println!("{}", serde_json::to_string(&said)?);
        Ok(())
    })
}

/// Makes a checkpoint of all but the last `tail` leaves, as a device that has replayed the log, and gives it to the
/// server. Seconds that it took to compute and store.
pub fn checkpoint(state: &Path, tail: u64) -> Result<f64> {
    let home = home_at(state)?;
    device::runtime()?.block_on(async {
        let client = device::start(&home).await?;
        let late = Instant::now() + Duration::from_secs(3600);
        client.running(late).await?;
        let size = client.view().size.saturating_sub(tail);
        let began = Instant::now();
        let patience = Duration::from_secs(600);
        let made = client.state_at(&home, size, true, patience, |_| ()).await?;
        let took = began.elapsed().as_secs_f64();
        // The orderer's note of that size is long gone: this one says the same.
        let note = Note {
            log: made.log,
            time_ms: 0,
        };
        let posted = Posted {
            note: note.sign(home.volume(), &orderer()),
            signed: made.statement(home.volume()).sign(&[&key(FOUNDER)]),
        };
        client.post_checkpoint(&posted, device::soon()).await?;
        client.close(device::soon()).await?;
        Ok(took)
    })
}

async fn look(client: &share::client::Client) -> Result<f64> {
    let began = Instant::now();
    device::read(client, &file_of(FOUNDER)).await?;
    Ok(began.elapsed().as_secs_f64())
}
