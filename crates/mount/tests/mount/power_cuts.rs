//! File systems on a protected device while the power is cut and its process is killed: real loop devices, a process
//! that serves the device from files with O_DIRECT, and disks behind these files that lose what was not synced.
//!
//! After each crash the device is attached again, the file system recovers, its checker finds nothing, and all that
//! programs were told to be durable is there. The control is a disk that ignores syncs: the same rounds must fail.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sim::device::{Fault, Lie};
use sim::random::Random;

use crate::crashing::{World, is_ready};
use crate::fixture::noise;
use crate::looped::{BTRFS, EXT4, Kind, Loop, XFS, sh};

const BLOCK: usize = 4096;

/// What programs were told to be durable.
#[derive(Default)]
struct Durable {
    /// Size and seed of each file that was synced.
    files: BTreeMap<u64, usize>,
    /// For each block of the file that is overwritten in place: the version that was synced, the last that was begun.
    blocks: BTreeMap<u64, (u64, u64)>,
    version: u64,
    next_file: u64,
}

/// The programs that write until the device fails.
struct Writers {
    durable: Arc<Mutex<Durable>>,
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<()>>,
    sqlite: Child,
}

const IN_PLACE: usize = 64;
/// Older ones are removed, so that the disk has space for any number of crashes.
const FILES: usize = 800;

fn version_block(block: u64, version: u64) -> Vec<u8> {
    let mut bytes = noise(version * 1000 + block, BLOCK);
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn write_file(files: &Path, number: u64, random: &mut Random) -> io::Result<usize> {
    let size = random.below(300_000) as usize;
    let mut file = File::create(files.join(format!("f{number}")))?;
    file.write_all(&noise(number, size))?;
    file.sync_all()?;
    File::open(files)?.sync_all()?;
    Ok(size)
}

fn overwrite(file: &File, durable: &Mutex<Durable>, random: &mut Random) -> io::Result<()> {
    let block = random.below(IN_PLACE as u64);
    let version = {
        let mut durable = durable.lock().unwrap();
        durable.version += 1;
        let version = durable.version;
        durable.blocks.entry(block).or_default().1 = version;
        version
    };
    file.write_all_at(&version_block(block, version), block * BLOCK as u64)?;
    file.sync_data()?;
    durable.lock().unwrap().blocks.entry(block).or_default().0 = version;
    Ok(())
}

impl Writers {
    fn start(world: &World, seed: u64, durable: Arc<Mutex<Durable>>) -> Writers {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for job in 0..3 {
            let (files, stop, durable) = (world.at("files"), stop.clone(), durable.clone());
            let mut random = Random::new(seed * 3 + job);
            threads.push(std::thread::spawn(move || {
                let in_place = OpenOptions::new().write(true).open(files.join("in-place"));
                let in_place = in_place.unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let done = match job {
                        0 => {
                            let (number, oldest) = {
                                let mut durable = durable.lock().unwrap();
                                durable.next_file += 1;
                                let is_full = durable.files.len() > FILES;
                                let oldest = is_full.then(|| durable.files.pop_first()).flatten();
                                (durable.next_file - 1, oldest)
                            };
                            if let Some((oldest, _)) = oldest {
                                let _ = fs::remove_file(files.join(format!("f{oldest}")));
                            }
                            write_file(&files, number, &mut random).map(|size| {
                                durable.lock().unwrap().files.insert(number, size);
                            })
                        }
                        1 => overwrite(&in_place, &durable, &mut random),
                        // Nobody waits for these bytes: they fill the log, and what is removed is trimmed.
                        _ => {
                            let name = files.join(format!("bulk{}", random.below(4)));
                            let bulk = noise(random.below(1000), 64 << 10).repeat(16);
                            std::thread::sleep(Duration::from_millis(40));
                            fs::write(&name, bulk).and_then(|()| match random.below(3) {
                                0 => fs::remove_file(&name),
                                _ => Ok(()),
                            })
                        }
                    };
                    if done.is_err() {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(random.below(4)));
                }
            }));
        }
        let script = "cd \"$1/sql\"; i=$(sqlite3 db 'SELECT coalesce(max(n), 0) FROM t'); \
            while :; do i=$((i+1)); echo \"INSERT INTO t VALUES($i, hex(randomblob(700))); SELECT $i;\"; done \
            | stdbuf -oL sqlite3 -bail db >> \"$2\" 2>/dev/null";
        let sqlite = Command::new("bash")
            .args(["-c", script, "sh", &world.files()])
            .arg(world.at("rows"))
            .spawn()
            .unwrap();
        Writers {
            durable,
            stop,
            threads,
            sqlite,
        }
    }

    fn finish(mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().unwrap();
        }
        // Its pipe breaks when SQLite's commit fails.
        self.sqlite.wait().unwrap();
        drop(self.durable);
    }
}

fn prepare(world: &World) -> Result<(), String> {
    fs::write(world.at("rows"), "").unwrap();
    let in_place = world.at("files/in-place");
    fs::write(&in_place, vec![0; IN_PLACE * BLOCK]).map_err(|error| error.to_string())?;
    let script = "mkdir $1/sql; cd $1/sql; sqlite3 db 'PRAGMA journal_mode=wal; \
        CREATE TABLE t(n INTEGER PRIMARY KEY, x TEXT)'; sync $1/in-place; sync -f $1";
    sh(script, &world.files()).map(drop)
}

/// Compares what is on the file system with what programs were told.
fn check(world: &World, durable: &mut Durable) -> Result<(), String> {
    let files = world.at("files");
    let tell = |what: &str, error: io::Error| format!("{what}: {error}");
    for (number, size) in &durable.files {
        let name = format!("f{number}");
        let found = fs::read(files.join(&name)).map_err(|error| tell(&name, error))?;
        if found != noise(*number, *size) {
            return Err(format!("{name} of {size} bytes differs"));
        }
    }
    let in_place = fs::read(files.join("in-place")).map_err(|error| tell("in-place", error))?;
    for (block, (synced, begun)) in &mut durable.blocks {
        let found = &in_place[*block as usize * BLOCK..][..BLOCK];
        let version = u64::from_le_bytes(found[..8].try_into().unwrap());
        let known = version >= *synced && version <= *begun;
        if !known || (version > 0 && found != version_block(*block, version)) {
            return Err(format!(
                "block {block} has version {version}, not {synced} to {begun}"
            ));
        }
        *synced = version;
    }
    let told = fs::read_to_string(world.at("rows")).unwrap();
    // The last line may be cut.
    let rows = told.matches('\n').count() as u64;
    let query = "cd $1/sql; sqlite3 db 'SELECT count(*), coalesce(max(n), 0) FROM t; PRAGMA integrity_check'";
    let found = sh(query, &world.files())?;
    let (counts, integrity) = found.split_once('\n').unwrap_or_default();
    let count: u64 = counts.split('|').next().unwrap().parse().unwrap_or(0);
    if integrity != "ok" || count < rows || counts != format!("{count}|{count}") {
        return Err(format!("{rows} rows were committed; found: {found}"));
    }
    // A row whose commit was not told may be there: later numbers go on after it.
    fs::write(
        world.at("rows"),
        (1..=count).map(|n| format!("{n}\n")).collect::<String>(),
    )
    .unwrap();
    Ok(())
}

/// One crash, and everything after it.
fn round(
    world: &mut World,
    kind: &Kind,
    number: u64,
    durable: &Arc<Mutex<Durable>>,
    nothing_is_left: bool,
) -> Result<(), String> {
    let mut random = Random::new(number);
    // Every third crash is of the process alone.
    let outcome = (number % 3 != 2).then(|| if nothing_is_left { 0 } else { random.number() });
    let writers = Writers::start(world, number, durable.clone());
    std::thread::sleep(Duration::from_millis(300 + random.below(900)));
    // A disk that ignores syncs would keep every version of what is trimmed.
    if !nothing_is_left && random.below(2) == 0 {
        let _ = sh("fstrim $1", &world.files());
    }
    world.crash(outcome);
    writers.finish();
    world.clear(outcome)?;
    world.attach()?;
    // Its journal is replayed before it is checked.
    world.mount()?;
    world.unmount()?;
    let what = format!("{} after crash {number}", kind.name);
    sh(kind.check, &world.path()).map_err(|told| format!("{what}: {told}"))?;
    world.mount()?;
    let mut durable = durable.lock().unwrap();
    check(world, &mut durable).map_err(|told| format!("{what}: {told}"))?;
    let (files, blocks) = (durable.files.len(), durable.version);
    let rows = fs::read_to_string(world.at("rows"))
        .unwrap()
        .lines()
        .count();
    eprintln!("{what} ({outcome:?}): {files} files, {blocks} overwritten blocks, {rows} rows");
    match world.told() {
        told if told.contains("ALARM") => Err(told),
        _ => Ok(()),
    }
}

/// Crashes, and at the end the device is detached and the disk is what a raw disk would be.
async fn crashes(kind: Kind, rounds: u64, lie: Option<Lie>) -> Result<(), String> {
    let mut world = World::new().await;
    tokio::task::spawn_blocking(move || {
        world.attach()?;
        let told = |error| format!("{error}; the server: {}", world.told());
        kind.make_on(&world.path()).map_err(told)?;
        world.mount().map_err(told)?;
        prepare(&world)?;
        let durable = Arc::new(Mutex::new(Durable::default()));
        for number in 0..rounds {
            if let Some(lie) = lie {
                let data = world.power.now("D");
                data.heal();
                data.inject(Fault::always(lie));
            }
            let survived = round(&mut world, &kind, number, &durable, lie.is_some());
            // Told now: what is left mounted may make the end of the test fail too.
            survived.inspect_err(|told| eprintln!("crash {number}: {told}"))?;
        }
        world.unmount()?;
        world.detach()?;
        let raw = world.at("disks/D/D");
        world.device = Some(Loop::new(&raw, 512));
        sh(kind.check, &world.path())?;
        world.mount()?;
        let checked = check(&world, &mut durable.lock().unwrap());
        world.unmount()?;
        checked.map_err(|told| format!("{} on the raw disk: {told}", kind.name))
    })
    .await
    .unwrap()
}

fn rounds(short: u64) -> u64 {
    if std::env::var_os("BULLA_LONG").is_some() {
        60
    } else {
        short
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ext4_loses_nothing_that_was_synced() {
    if is_ready(&["mkfs.ext4", "sqlite3"]) {
        crashes(EXT4, rounds(3), None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn xfs_loses_nothing_that_was_synced() {
    if is_ready(&["mkfs.xfs", "sqlite3"]) {
        crashes(XFS, rounds(1), None).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn btrfs_loses_nothing_that_was_synced() {
    if is_ready(&["mkfs.btrfs", "sqlite3"]) {
        crashes(BTRFS, rounds(1), None).await.unwrap();
    }
}

/// The control: the same rounds find a data disk that loses what was synced.
#[tokio::test(flavor = "multi_thread")]
async fn disk_that_ignores_syncs_is_found() {
    if is_ready(&["mkfs.ext4", "sqlite3"]) {
        let told = crashes(EXT4, 2, Some(Lie::SyncIgnored)).await.unwrap_err();
        eprintln!("as it should: {told}");
    }
}
