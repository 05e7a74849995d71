//! A protected device whose daemon is killed at random moments, while programs write and while it attaches. What was
//! synced is there, and what one session has read stays in the next.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sim::random::Random;

use crate::lab::{BLOCK, Lab, can_mount, kill};
use crate::support::noise;

const BLOCKS: u64 = 256;

const WRITERS: u64 = 2;

/// Versions of a block, which count its writes.
#[derive(Clone, Copy, Debug, Default)]
struct Versions {
    /// The newest that was synced, or that was there after a kill.
    synced: u64,
    /// Newer ones up to this were not there after a kill.
    lost: u64,
    /// The newest whose write began.
    begun: u64,
}

type Blocks = Arc<Mutex<Vec<Versions>>>;

fn content(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    let mut bytes = noise(version * BLOCKS + block, BLOCK as usize);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

/// Writes its own blocks and syncs them until the device is gone.
fn write_until_killed(device: &Path, blocks: &Blocks, writer: u64, mut random: Random) {
    let Ok(file) = OpenOptions::new().write(true).open(device) else {
        return;
    };
    let own = |block: usize| block as u64 % WRITERS == writer;
    loop {
        for _ in 0..random.below(12) {
            let block = random.below(BLOCKS / WRITERS) * WRITERS + writer;
            let version = {
                let versions = &mut blocks.lock().unwrap()[block as usize];
                versions.begun += 1;
                versions.begun
            };
            let written = file.write_all_at(&content(block, version), block * BLOCK);
            if written.is_err() {
                return;
            }
        }
        if file.sync_data().is_err() {
            return;
        }
        let mut blocks = blocks.lock().unwrap();
        for (_, versions) in blocks
            .iter_mut()
            .enumerate()
            .filter(|(block, _)| own(*block))
        {
            // What was lost before was not written again.
            if versions.begun > versions.lost {
                versions.synced = versions.begun;
            }
        }
    }
}

/// Each block has a version that it may have, whole. That one is its only version from now on.
fn check(device: &Path, blocks: &Blocks, round: u64) {
    let file = File::open(device).unwrap();
    for (block, versions) in (0..).zip(blocks.lock().unwrap().iter_mut()) {
        let mut found = vec![0; BLOCK as usize];
        file.read_exact_at(&mut found, block * BLOCK).unwrap();
        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
        let unsynced = versions.synced.max(versions.lost) + 1..=versions.begun;
        let is_right = version == versions.synced || unsynced.contains(&version);
        assert!(
            is_right && found == content(block, version),
            "round {round}: block {block} has version {version}: {versions:?}"
        );
        versions.synced = version;
        versions.lost = versions.begun;
    }
}

/// Kills an attachment somewhere on its way.
fn kill_attaching(lab: &Lab, after: Duration) {
    let args = [
        "protect",
        "attach",
        "d",
        "--log",
        "l",
        "--key-file",
        "k",
        "--anchor",
        "a",
        "--file",
        "m",
        "--foreground",
    ];
    let mut command = lab.home.command(&args);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
}

/// 300 kills with BULLA_LONG.
#[test]
fn killed_daemon_of_a_device_loses_nothing_that_was_synced() {
    if !can_mount() {
        return;
    }
    let kills = match std::env::var_os("BULLA_LONG") {
        Some(_) => 300,
        None => 8,
    };
    let lab = Lab::new(4);
    // Short, so that it wraps.
    lab.enrol_of("d", "l", &["--ring", "2MiB", "--anchor", "a"])
        .ends(0);
    let blocks: Blocks = Arc::new(Mutex::new(vec![Versions::default(); BLOCKS as usize]));
    let mut random = Random::new(kills);
    let device = lab.path("m/device");
    for round in 0..kills {
        if random.below(3) == 0 {
            kill_attaching(&lab, Duration::from_millis(random.below(120)));
        }
        let attached = lab.attach(&["--anchor", "a"]).ends(0);
        check(&device, &blocks, round);
        let pid = attached.field("pid").as_u64().unwrap();
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (device, blocks) = (device.clone(), blocks.clone());
                let random = Random::new(round * WRITERS + writer);
                std::thread::spawn(move || write_until_killed(&device, &blocks, writer, random))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(random.below(250)));
        kill(pid);
        writers
            .into_iter()
            .for_each(|writer| writer.join().unwrap());
    }
    let written: u64 = blocks.lock().unwrap().iter().map(|it| it.begun).sum();
    assert!(written > kills * 10, "{written} writes in {kills} sessions");
    lab.attach(&["--anchor", "a"]).ends(0);
    check(&device, &blocks, kills);
    lab.detach().ends(0);
    check(&lab.path("d"), &blocks, kills + 1);
    eprintln!("{kills} kills, {written} writes");
}
