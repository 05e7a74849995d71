//! Kill and power cut at every write of the log and of the segments, with every outcome or a sample: what was
//! acknowledged is there afterwards, and the server goes on.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use share_server::blocks::{Error, Options, Session, Storage};
use sim::device::{Fault, Lie, Machine, Stop};
use sim::disk::CrashDisk;
use store::Repository;
use trust::{Handle, Record};

use crate::support::{self, DEVICE_BYTES, Time, answered, block, entry, much, session, submit};

/// The most outcomes of one stop, for the log and for the segments.
const LOG_OUTCOMES: u64 = 8;
const DISK_OUTCOMES: usize = 6;

/// What clients were told.
#[derive(Default)]
struct Acknowledged {
    blocks: BTreeMap<Handle, Record>,
    entries: Vec<u8>,
}

/// The devices of one run.
struct World {
    machine: Machine,
    disk: Arc<CrashDisk>,
    time: Time,
}

impl World {
    fn new(formatted: &Machine, disk: Arc<CrashDisk>) -> World {
        Repository::create_on(disk.clone()).unwrap();
        World {
            machine: formatted.fork(),
            disk,
            time: Time::default(),
        }
    }

    fn open(&self, entries: &mut dyn FnMut(wal::Entry)) -> Result<Storage, Error> {
        let repository = Repository::open_on(self.disk.clone())?;
        let device = self.machine.device("log");
        support::open_with(device, repository, &self.time, Options::default(), entries)
    }

    fn pass(&self, seconds: u64) {
        self.time.pass(Duration::from_secs(seconds));
    }
}

fn formatted() -> Machine {
    let machine = Machine::new(&[("log", DEVICE_BYTES)]);
    support::format(&*machine.device("log"));
    machine
}

/// Stores blocks and entries in one batch; notes them when they are acknowledged.
fn store(
    storage: &Storage,
    session: Session,
    blocks: &[Record],
    entries: &[u8],
    told: &mut Acknowledged,
) -> Result<(), Error> {
    let records = entries.iter().map(|number| entry(*number)).collect();
    let answer = submit(storage, session, blocks.to_vec(), records);
    if storage.has_direct() {
        storage.advance()?;
    }
    storage.commit();
    answered(&answer).expect("an answer")?;
    told.entries.extend(entries);
    let named = blocks.iter().map(|block| (block.handle, block.clone()));
    told.blocks.extend(named);
    Ok(())
}

/// Everything that the server does: until the first error.
fn work(world: &World, told: &mut Acknowledged) -> Result<(), Error> {
    let storage = world.open(&mut |_| {})?;
    let result = steps(&storage, world, told);
    if result.is_err() {
        // Nothing happens after the stop.
        world.machine.stop();
        world.disk.crash_at(world.disk.operations());
    }
    result
}

fn steps(storage: &Storage, world: &World, told: &mut Acknowledged) -> Result<(), Error> {
    let (one, other) = (session(storage, 1), session(storage, 2));
    let (short_lived, shared) = (block(1, 8192), block(2, 3000));
    store(
        storage,
        one,
        &[short_lived.clone(), shared.clone()],
        &[1],
        told,
    )?;
    store(storage, other, std::slice::from_ref(&shared), &[2], told)?;
    store(
        storage,
        one,
        &[block(3, 64 << 10), block(4, 20)],
        &[3],
        told,
    )?;
    // More than 1 MiB: straight to the segments, and then the entry.
    store(storage, one, &much(20), &[4], told)?;
    told.blocks.remove(&short_lived.handle);
    assert!(storage.decref(one, &short_lived.handle)?);
    assert!(!storage.decref(one, &shared.handle)?);
    world.pass(61);
    store(storage, one, &[block(5, 9000)], &[], told)?;
    world.pass(61);
    storage.advance()?;
    // The dropped block comes again, and others after it.
    store(storage, other, &[short_lived, block(6, 50_000)], &[5], told)?;
    world.pass(200);
    storage.advance()?;
    store(
        storage,
        other,
        &[block(7, 1), block(3, 64 << 10)],
        &[6],
        told,
    )?;
    // What is there already, and what the log has, too.
    let again = [much(20), vec![block(7, 1), block(8, 5000)]].concat();
    store(storage, other, &again, &[], told)?;
    storage.settle().map(drop)
}

/// Checks what a restarted server has.
fn check(world: &World, told: &Acknowledged, place: &str) -> Result<(), String> {
    let mut entries = Vec::new();
    let storage = world.open(&mut |entry| entries.push(entry.body[0]));
    let storage = storage.map_err(|error| format!("{place}: cannot be opened: {error}"))?;
    if !entries.starts_with(&told.entries) {
        return Err(format!(
            "{place}: entries {entries:?} instead of {:?}",
            told.entries
        ));
    }
    let one = session(&storage, 1);
    let new = block(99, 4000);
    for round in ["at once", "after it stored and moved more"] {
        for (handle, block) in &told.blocks {
            let found = storage
                .retrieve(one, handle)
                .map_err(|e| format!("{place}: {e}"))?;
            if found.as_ref() != Some(block) {
                return Err(format!("{place}, {round}: {handle} is lost"));
            }
            // Nobody can dereference what was there before the crash.
            assert!(!storage.decref(one, handle).unwrap());
        }
        support::store(&storage, one, std::slice::from_ref(&new))
            .map_err(|e| format!("{place}: {e}"))?;
        world.pass(200);
        storage.settle().map_err(|e| format!("{place}: {e}"))?;
    }
    match storage.temporary_blocks() {
        0 => Ok(()),
        left => Err(format!("{place}: {left} blocks do not leave the log")),
    }
}

/// Checks all outcomes of a stop now.
fn outcomes(world: &World, told: &Acknowledged, place: &str) -> Result<usize, String> {
    let mut checked = 0;
    for stop in [Stop::Kill, Stop::Power] {
        for (number, log) in world.machine.outcomes(stop, 2, LOG_OUTCOMES, 7).enumerate() {
            for (which, disk) in world.disk.outcomes(DISK_OUTCOMES).iter().enumerate() {
                // Every outcome of either with two of the other, and the newest of both.
                if number > 1 && which > 1 && number != which {
                    continue;
                }
                let restarted = World {
                    machine: world.machine.restart(stop, 2, &log),
                    disk: world.disk.reborn(disk),
                    time: Time::default(),
                };
                check(
                    &restarted,
                    told,
                    &format!("{place}, {stop:?} {log}, {disk:?}"),
                )?;
                checked += 1;
            }
        }
    }
    Ok(checked)
}

/// Stops at every operation of the log and of the segments.
fn sweep(formatted: &Machine, disk: &dyn Fn() -> Arc<CrashDisk>) -> Result<usize, String> {
    let whole = World::new(formatted, disk());
    let (log_from, disk_from) = (whole.machine.operations(), whole.disk.operations());
    let mut told = Acknowledged::default();
    work(&whole, &mut told).unwrap();
    let (log_to, disk_to) = (whole.machine.operations(), whole.disk.operations());
    println!(
        "{} operations of the log, {} of the segments",
        log_to - log_from,
        disk_to - disk_from
    );
    let mut checked = outcomes(&whole, &told, "at the end")?;
    for operation in log_from + 1..=log_to {
        let world = World::new(formatted, disk());
        world.machine.stop_at(operation);
        let mut told = Acknowledged::default();
        assert!(
            work(&world, &mut told).is_err(),
            "operation {operation} fails"
        );
        checked += outcomes(&world, &told, &format!("log operation {operation}"))?;
    }
    for operation in disk_from..disk_to {
        let world = World::new(formatted, disk());
        world.disk.crash_at(operation);
        let mut told = Acknowledged::default();
        // The removal of an old file may fail unseen.
        let _ = work(&world, &mut told);
        checked += outcomes(&world, &told, &format!("disk operation {operation}"))?;
    }
    Ok(checked)
}

#[test]
fn no_crash_loses_an_acknowledged_block_or_entry() {
    let checked = sweep(&formatted(), &CrashDisk::new).unwrap_or_else(|why| panic!("{why}"));
    println!("{checked} crashes");
    assert!(checked > 300, "{checked} crashes are too few");
}

#[test]
fn segments_without_syncs_are_found() {
    let ignoring =
        || CrashDisk::ignoring_syncs(|name| name.ends_with(".tmp") && name.starts_with("segments"));
    let why = sweep(&formatted(), &ignoring).unwrap_err();
    assert!(why.contains("lost") || why.contains("damaged"), "{why}");
}

#[test]
fn log_without_syncs_is_found() {
    let machine = formatted();
    machine
        .device("log")
        .inject(Fault::always(Lie::SyncIgnored));
    let why = sweep(&machine, &CrashDisk::new).unwrap_err();
    assert!(why.contains("lost") || why.contains("entries"), "{why}");
}
