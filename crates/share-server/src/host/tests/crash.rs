//! Kill and power cut at every write of the temporary log, of the server's files and of the segments: what was
//! acknowledged is there afterwards, under the same notes, and the server goes on.

use std::sync::Arc;
use std::time::Duration;

use sim::device::{Fault, Lie, Stop};
use sim::disk::CrashDisk;
use trust::frame::Packer;
use trust::{Hasher, Kind, Record};
use trust_shared::note::SignedNote;

use super::super::{Core, HostError};
use super::devices::{Device, admit, lock, nonce};
use super::world::{World, genesis_policy};
use crate::blocks::Receipt;
use ordering::engine::Request;

/// The most outcomes of one stop, for the temporary log and for each disk.
const LOG_OUTCOMES: u64 = 6;
const DISK_OUTCOMES: usize = 5;

/// What devices were told.
#[derive(Default)]
struct Acknowledged {
    leaves: Vec<Vec<u8>>,
    note: Option<SignedNote>,
    blocks: Vec<Record>,
}

fn block(number: u64) -> Record {
    let plain = sim::random::noise(number + 1, 3000);
    let policies = trust_shared::genesis::Policies::begin(
        genesis_policy().0,
        &genesis_policy().1,
        &mut trust::signatures::Signatures::new(4),
    );
    let hasher: Hasher = policies.unwrap().chain().hasher();
    Record {
        handle: hasher.name(Kind::Data, &plain),
        frame: Packer::new().pack(Kind::Data, &plain).unwrap(),
    }
}

/// Sends a message, makes it durable, and notes what the device is told.
fn send(
    core: &Arc<Core>,
    device: &mut Device,
    request: &Request<ordering::roster::Product>,
    told: &mut Acknowledged,
) -> Result<(), HostError> {
    device.session.receive(request)?;
    core.pump();
    device.draw()?;
    told.leaves.clone_from(&device.leaves);
    told.note = device.note;
    Ok(())
}

fn store(
    core: &Arc<Core>,
    device: &Device,
    block: &Record,
    told: &mut Acknowledged,
) -> Result<(), HostError> {
    let (send, receive) = std::sync::mpsc::channel::<Result<Receipt, _>>();
    let done = Box::new(move |answer| drop(send.send(answer)));
    device.session.store(vec![block.clone()], done);
    core.pump();
    if receive.try_recv().is_ok_and(|answer| answer.is_ok()) {
        told.blocks.push(block.clone());
    }
    Ok(())
}

/// Everything that the server does, until the first error.
fn work(world: &World, told: &mut Acknowledged) -> Result<(), HostError> {
    let result = world.open().and_then(|core| steps(&core, world, told));
    if result.is_err() {
        world.stop();
    }
    result
}

fn steps(core: &Arc<Core>, world: &World, told: &mut Acknowledged) -> Result<(), HostError> {
    let mut one = Device::connect(core, 1)?;
    one.draw()?;
    let resume = one.resume(1);
    send(core, &mut one, &resume, told)?;
    for ops in [vec![admit(2)], vec![lock(1)]] {
        let entry = one.entry(ops);
        send(core, &mut one, &entry, told)?;
    }
    store(core, &one, &block(1), told)?;
    core.move_leaves()?;
    for number in 0..3 {
        let entry = one.change();
        one.session.receive(&Request::Mark(nonce(number)))?;
        send(core, &mut one, &entry, told)?;
    }
    world.pass(Duration::from_secs(200));
    core.blocks.storage().settle()?;
    core.move_leaves()?;
    store(core, &one, &block(2), told)?;
    let entry = one.change();
    send(core, &mut one, &entry, told)
}

/// Checks what a restarted server has, and that it goes on.
fn check(world: &World, told: &Acknowledged, place: &str) -> Result<(), String> {
    let fails = |what: &str, error: HostError| format!("{place}: {what}: {error}");
    for round in 0..2 {
        let core = world.open().map_err(|e| fails("cannot be opened", e))?;
        let published = core.status().leaves;
        if published < told.leaves.len() as u64 {
            return Err(format!(
                "{place}: {published} leaves, and {} were acknowledged: lost",
                told.leaves.len()
            ));
        }
        let mut one = Device::connect(&core, 1).map_err(|e| fails("no session", e))?;
        one.draw().map_err(|e| fails("no leaves", e))?;
        if !one.leaves.starts_with(&told.leaves) {
            return Err(format!("{place}: other leaves than before: lost"));
        }
        // The orderer leads to its own note: it is not restored.
        let open = one.session.receive(&Request::Open(told.note));
        open.map_err(|e| fails("its own note", e))?;
        one.session
            .receive(&Request::Open(None))
            .map_err(|e| fails("again", e))?;
        one = Device::connect(&core, 1).map_err(|e| fails("no session", e))?;
        one.draw().map_err(|e| fails("no leaves", e))?;
        for block in &told.blocks {
            let found = one.session.retrieve(&block.handle);
            if found.map_err(|e| fails("block", e))?.as_ref() != Some(block) {
                return Err(format!("{place}: block {} is lost", block.handle));
            }
        }
        let resume = one.resume(100 + round);
        let mut after = Acknowledged::default();
        send(&core, &mut one, &resume, &mut after).map_err(|e| fails("goes not on", e))?;
        if after.leaves.len() as u64 <= published {
            return Err(format!("{place}: the server takes no entries"));
        }
        core.move_leaves().map_err(|e| fails("moves nothing", e))?;
    }
    Ok(())
}

/// Checks outcomes of a stop now.
fn outcomes(world: &World, told: &Acknowledged, place: &str) -> Result<usize, String> {
    let mut checked = 0;
    let files = world.disk.outcomes(DISK_OUTCOMES);
    let segments = world.blocks.outcomes(DISK_OUTCOMES);
    for stop in [Stop::Kill, Stop::Power] {
        let logs: Vec<_> = world.machine.outcomes(stop, 2, LOG_OUTCOMES, 7).collect();
        let most = logs.len().max(files.len()).max(segments.len());
        // Each outcome of each, with others of the others.
        for number in 0..most {
            let log = &logs[number % logs.len()];
            let files = &files[number % files.len()];
            let segments = &segments[number % segments.len()];
            let restarted = World::of(
                world.machine.restart(stop, 2, log),
                world.disk.reborn(files),
                world.blocks.reborn(segments),
            );
            let place = format!("{place}, {stop:?} {log}, {files:?}, {segments:?}");
            check(&restarted, told, &place)?;
            checked += 1;
        }
    }
    Ok(checked)
}

/// Stops at every operation.
fn sweep(new: &dyn Fn() -> World) -> Result<usize, String> {
    let whole = new();
    let operations = |world: &World| {
        [
            world.machine.operations(),
            world.disk.operations(),
            world.blocks.operations(),
        ]
    };
    let from = operations(&whole);
    let mut told = Acknowledged::default();
    work(&whole, &mut told).unwrap();
    let to = operations(&whole);
    println!("operations {from:?} to {to:?}");
    assert_eq!((told.leaves.len(), told.blocks.len()), (10, 2));
    let mut checked = outcomes(&whole, &told, "at the end")?;
    for storage in 0..3 {
        for operation in from[storage]..to[storage] {
            let world = new();
            match storage {
                0 => world.machine.stop_at(operation + 1),
                1 => world.disk.crash_at(operation),
                _ => world.blocks.crash_at(operation),
            }
            let mut told = Acknowledged::default();
            // The removal of an old file may fail unseen.
            let _ = work(&world, &mut told);
            let place = format!("storage {storage}, operation {operation}");
            checked += outcomes(&world, &told, &place)?;
        }
    }
    Ok(checked)
}

#[test]
fn no_crash_loses_an_acknowledged_leaf_or_block() {
    let checked = sweep(&World::new).unwrap_or_else(|why| panic!("{why}"));
    println!("{checked} crashes");
    assert!(checked > 500, "{checked} crashes are too few");
}

#[test]
fn files_of_leaves_without_syncs_are_found() {
    let ignoring = || {
        World::on(CrashDisk::ignoring_syncs(|name| {
            name.starts_with("leaves") && name.ends_with(".tmp")
        }))
    };
    let why = sweep(&ignoring).unwrap_err();
    assert!(why.contains("leaves/"), "{why}");
}

#[test]
fn names_of_files_of_leaves_without_syncs_are_found() {
    let ignoring = || World::on(CrashDisk::ignoring_syncs(|name| name == "leaves"));
    let why = sweep(&ignoring).unwrap_err();
    assert!(why.contains("missing") || why.contains("lost"), "{why}");
}

#[test]
fn temporary_log_without_syncs_is_found() {
    let ignoring = || {
        let world = World::new();
        let ring = world.machine.device("log");
        ring.inject(Fault::always(Lie::SyncIgnored));
        world
    };
    let why = sweep(&ignoring).unwrap_err();
    assert!(why.contains("lost") || why.contains("missing"), "{why}");
}

#[test]
fn snapshot_that_is_damaged_or_missing_costs_nothing_but_time() {
    let world = World::new();
    let mut told = Acknowledged::default();
    work(&world, &mut told).unwrap();
    let name = super::super::directory::SNAPSHOT;
    let disk: &dyn store::disk::Disk = &*world.disk;
    let whole = store::disk::read_whole(disk, name, 1 << 20).unwrap();
    for at in (0..whole.len()).step_by(7) {
        let mut bad = whole.clone();
        bad[at] ^= 1;
        store::disk::replace_file(disk, name, "snapshot.tmp", "", &bad).unwrap();
        check(&world, &told, &format!("byte {at} of the snapshot")).unwrap();
    }
    disk.remove(name).unwrap();
    check(&world, &told, "no snapshot").unwrap();
}
