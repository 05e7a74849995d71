//! Two hosts that share both devices and have no other channel. Each runs in a thread of its own; one of them runs at a
//! time, and a schedule says at which operation one stops for a while, as a machine does that is suspended.
//!
//! What a host acknowledged must be there in the end, whoever attaches then, and no host acknowledges anything after
//! another one has attached.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use protect::{Admission, BlockError, Engine, Limits, Redos};
use sim::device::Machine;
use sim::random::Random;
use wal::{ClaimOptions, Device, Host};

use crate::hosts::{OTHER, OWNER, Scheduler, Seen, SimHost, Stall};
use crate::protected::{Alarms, key, machine};

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 20;
const RING_BYTES: u64 = 1 << 20;
/// Claims on the log's device.
const CLAIMS: Range<u64> = 196 << 10..256 << 10;
const SECOND: Duration = Duration::from_secs(1);
/// Written by both hosts.
const SHARED: u64 = 9;

/// How hosts keep each other away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// By the session in the superblock alone.
    Sessions,
    Claims,
    /// The other host takes the device.
    Force,
}

/// A write: the block, what it holds then, whether it was acknowledged.
#[derive(Clone, Copy, Debug)]
struct Write {
    block: u64,
    byte: u8,
    acknowledged: bool,
}

/// What happened.
#[derive(Default, Debug)]
struct Story {
    writes: Vec<Write>,
    /// The other host has attached; so many writes had begun, and how long it took.
    attached: Option<usize>,
    owner_came_first: bool,
    refused: Option<String>,
    took: Duration,
    /// Acknowledged by the owner after that.
    late: Vec<Write>,
    operations: [usize; 2],
    late_writes: usize,
    owner_failed: Option<String>,
}

type Shared = Arc<Mutex<Story>>;

fn told(story: &Shared) -> MutexGuard<'_, Story> {
    story.lock().unwrap_or_else(PoisonError::into_inner)
}

fn attach(machine: &Machine, host: &SimHost, rule: Rule) -> Result<Engine, String> {
    attach_with(machine, host, rule, Arc::new(Alarms::default()))
}

fn attach_with(
    machine: &Machine,
    host: &SimHost,
    rule: Rule,
    alarms: Arc<Alarms>,
) -> Result<Engine, String> {
    let limits = Limits {
        hash_run_blocks: u64::MAX,
        ..Limits::default()
    };
    let device = |name| {
        let device = machine.device(name);
        let end = device.bytes();
        Arc::new(Seen {
            guarded: match name {
                "L" => [CLAIMS, end - RING_BYTES..end],
                _ => [0..0, 0..0],
            },
            device,
            host: host.clone(),
        })
    };
    let attach = protect::Attach {
        data: device("D"),
        log: device("L"),
        key: key(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim: (rule != Rule::Sessions).then(|| ClaimOptions {
            host: Arc::new(host.clone()),
            force: rule == Rule::Force,
            keep: false,
        }),
        limits,
        map_cache_bytes: 1 << 20,
        watch: alarms,
    };
    let attached = attach.attach();
    attached
        .map(|(engine, _)| engine)
        .map_err(|e| e.to_string())
}

/// Writes a block and commits it. False: the device takes nothing more.
fn write(engine: &Engine, story: &Shared, host: usize, block: u64) -> bool {
    let number = {
        let mut story = told(story);
        let byte = story.writes.len() as u8 + 1;
        story.writes.push(Write {
            block,
            byte,
            acknowledged: false,
        });
        story.writes.len() - 1
    };
    let byte = told(story).writes[number].byte;
    match engine.write(block * BLOCK, &[byte; BLOCK as usize]) {
        Ok(Admission::Accepted) => {}
        Ok(Admission::Wait) => return true,
        Err(_) => return false,
    }
    let Some(commit) = engine.commit_begin(None) else {
        return true;
    };
    match engine.commit_run(&commit) {
        Ok(done) => {
            engine.commit_end(&done);
            let mut story = told(story);
            story.writes[number].acknowledged = true;
            if host == OWNER && story.owner_came_first && story.attached.is_some() {
                let late = story.writes[number];
                story.late.push(late);
            }
            true
        }
        Err(error) => {
            engine.commit_abort(&commit);
            engine.fail(&error);
            false
        }
    }
}

/// Writes home, settles, and moves the tail.
fn tidy(engine: &Engine) -> bool {
    while let Some(homing) = engine.home_begin(Redos::All) {
        let homed = engine.home_run(&homing);
        engine.home_end(&homing, homed.as_ref().ok());
        if homed.is_err() {
            return false;
        }
    }
    if let Some(settling) = engine.settle_begin() {
        match engine.settle_run(&settling) {
            Ok(done) => engine.settle_end(&done),
            Err(_) => return false,
        }
    }
    engine.checkpoint().is_ok()
}

/// What a thread of its own does in a real attachment.
fn look(engine: &Engine) -> bool {
    let claims = engine.lease().map_or(Ok(()), |lease| lease.look());
    claims.is_ok() && engine.log().check_session().is_ok()
}

/// The owner writes, looks, and writes things home, for some seconds.
fn own(engine: &Engine, story: &Shared, host: &SimHost) -> bool {
    for round in 0..6 {
        if !look(engine) {
            return false;
        }
        for part in 0..4 {
            let goes_on = write(engine, story, OWNER, round)
                && write(engine, story, OWNER, SHARED)
                && (part != 1 || round % 3 != 1 || tidy(engine));
            if !goes_on {
                return false;
            }
            host.wait(SECOND / 4);
        }
    }
    true
}

/// The other one attaches, as soon as it can, and writes.
fn come(machine: &Machine, story: &Shared, host: &SimHost, rule: Rule) {
    let began = host.now();
    let attached = attach(machine, host, rule);
    told(story).took = host.now() - began;
    let engine = match attached {
        Ok(engine) => engine,
        Err(why) => {
            told(story).refused = Some(why);
            return;
        }
    };
    // A host that was paused with its clock while it attached may have lost the devices already.
    if !look(&engine) {
        told(story).refused = Some("it had to stop at once".to_owned());
        return;
    }
    {
        let mut story = told(story);
        story.attached = Some(story.writes.len());
    }
    for round in 0..4 {
        let goes_on = look(&engine)
            && write(&engine, story, OTHER, 10 + round)
            && write(&engine, story, OTHER, SHARED)
            && (round != 2 || tidy(&engine));
        if !goes_on {
            told(story).refused = Some(format!("it had to stop in round {round}"));
            break;
        }
        host.wait(SECOND);
    }
}

/// Runs both hosts by a schedule. The owner has attached and written before.
fn run(start: &Machine, rule: Rule, stalls: &[Stall]) -> (Machine, Story) {
    let machine = start.fork();
    let scheduler = Scheduler::new(stalls);
    let host = |number| SimHost {
        scheduler: Arc::clone(&scheduler),
        number,
    };
    let story = Shared::default();
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| {
            let host = host(OWNER);
            host.scheduler.enter(OWNER);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let by = match rule {
                    Rule::Sessions => Rule::Sessions,
                    Rule::Claims | Rule::Force => Rule::Claims,
                };
                let engine = match attach(&machine, &host, by) {
                    Ok(engine) => engine,
                    Err(why) => {
                        // It stopped before it had the device.
                        told(&story).owner_failed = Some(why);
                        return;
                    }
                };
                let comes_first = told(&story).attached.is_none();
                told(&story).owner_came_first = comes_first;
                if !own(&engine, &story, &host) {
                    let lost = engine.lease().and_then(|lease| lease.lost());
                    let why = lost.map_or("it stopped".to_owned(), |why| why.to_string());
                    told(&story).owner_failed = Some(why);
                }
            }));
            host.scheduler.end(OWNER);
            ended.unwrap();
        });
        let other = scope.spawn(|| {
            let host = host(OTHER);
            // The owner has attached by then.
            host.scheduler.turns().wakes[OTHER] = Duration::from_millis(1_001_400);
            host.scheduler.enter(OTHER);
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                come(&machine, &story, &host, rule);
            }));
            host.scheduler.end(OTHER);
            ended.unwrap();
        });
        owner.join().unwrap();
        other.join().unwrap();
    });
    told(&story).operations = scheduler.turns().operations;
    told(&story).late_writes = scheduler.turns().late_writes;
    let story = std::mem::take(&mut *told(&story));
    (machine, story)
}

/// The next host that attaches finds what was acknowledged. After a late write to the data device, the map or a superblock some
/// of it may be lost, and is an error.
fn check(machine: &Machine, rule: Rule, story: &Story) -> Result<(), String> {
    let scheduler = Scheduler::new(&[]);
    scheduler.turns().ended = [true, false];
    scheduler.turns().running = OTHER;
    let host = SimHost {
        scheduler,
        number: OTHER,
    };
    match attach(machine, &host, rule) {
        Ok(engine) => compare(&engine, story)?,
        Err(_) if story.late_writes > 0 => {}
        Err(error) => return Err(format!("cannot be attached: {error}")),
    }
    match story.late.first() {
        None => Ok(()),
        Some(late) => Err(format!(
            "{late:?} was acknowledged although the other host had attached"
        )),
    }
}

fn compare(engine: &Engine, story: &Story) -> Result<(), String> {
    for block in 0..BLOCKS {
        let mut page = [0; BLOCK as usize];
        match engine.read(block * BLOCK, &mut page) {
            Ok(()) => {}
            Err(_) if story.late_writes > 0 => continue,
            Err(error) => return Err(format!("block {block} cannot be read: {error}")),
        }
        let writes = story.writes.iter().filter(|write| write.block == block);
        let mut may = vec![0];
        for write in writes {
            if write.acknowledged {
                may.clear();
            }
            may.push(write.byte);
        }
        if !may.contains(&page[0]) {
            return Err(format!("block {block} has {}, not one of {may:?}", page[0]));
        }
    }
    Ok(())
}

fn tried(start: &Machine, rule: Rule, stalls: &[Stall]) -> Result<Story, String> {
    let (machine, story) = run(start, rule, stalls);
    match check(&machine, rule, &story) {
        Ok(()) => Ok(story),
        Err(why) => Err(format!("{rule:?} {stalls:?}: {why}; {story:?}")),
    }
}

/// Each single stop of one host, at each of its operations.
fn single_stalls(operations: [usize; 2], times: &[Duration]) -> Vec<Vec<Stall>> {
    let mut all = Vec::new();
    for host in [OWNER, OTHER] {
        for at in 1..=operations[host] {
            all.extend(times.iter().map(|time| {
                vec![Stall {
                    host,
                    at,
                    time: *time,
                    pauses: false,
                }]
            }));
        }
    }
    all
}

fn start() -> Machine {
    machine(BLOCKS, RING_BYTES)
}

/// What the explorer is for: without claims it finds the loss.
#[test]
fn without_claims_two_hosts_destroy_what_was_acknowledged() {
    let start = start();
    let mut lost = 0;
    let stalls = single_stalls([60, 60], &[Duration::ZERO, SECOND]);
    for stalls in &stalls {
        lost += usize::from(tried(&start, Rule::Sessions, stalls).is_err());
    }
    assert!(
        lost > 100,
        "{lost} of {} schedules lose something",
        stalls.len()
    );
}

#[test]
fn owner_that_answers_keeps_the_device_and_the_other_host_is_refused_in_time() {
    let story = tried(&start(), Rule::Claims, &[]).unwrap();
    assert!(story.attached.is_none(), "{story:?}");
    let why = story.refused.unwrap();
    assert_eq!(why, "host host-0 (process 1) uses the log");
    assert!(story.took < 2 * SECOND, "{:?}", story.took);
    assert!(story.owner_failed.is_none() && story.writes.iter().all(|it| it.acknowledged));
}

#[test]
fn host_that_stops_at_any_operation_costs_nothing_that_was_acknowledged() {
    for rule in [Rule::Claims, Rule::Force] {
        let start = start();
        let operations = tried(&start, rule, &[]).unwrap().operations;
        let times = [Duration::from_millis(1), 5 * SECOND, 9 * SECOND];
        let (mut taken, mut refused, mut late) = (0, 0, 0);
        let mut failures = Vec::new();
        for stalls in single_stalls(operations, &times) {
            match tried(&start, rule, &stalls) {
                Ok(story) => {
                    taken += usize::from(story.attached.is_some());
                    refused += usize::from(story.attached.is_none());
                    late += usize::from(story.late_writes > 0);
                }
                Err(why) => failures.push(why),
            }
        }
        println!("{rule:?}: {taken} taken, {refused} refused, {late} with late writes");
        assert!(
            failures.is_empty(),
            "{} failures: {}",
            failures.len(),
            failures[0]
        );
        assert!(taken > 50, "{taken}");
        assert!(rule == Rule::Force || refused > 50, "{refused}");
    }
}

/// The clock of a host that a hypervisor pauses does not count: when it goes on, its lease seems to last.
#[test]
fn host_that_is_paused_with_its_clock_acknowledges_nothing_after_a_takeover() {
    for rule in [Rule::Claims, Rule::Force] {
        let start = start();
        let operations = tried(&start, rule, &[]).unwrap().operations;
        let (mut taken, mut failures) = (0, Vec::new());
        for mut stalls in single_stalls(operations, &[5 * SECOND, 9 * SECOND]) {
            stalls[0].pauses = true;
            match tried(&start, rule, &stalls) {
                Ok(story) => taken += usize::from(story.attached.is_some()),
                Err(why) => failures.push(why),
            }
        }
        assert!(
            failures.is_empty(),
            "{} failures: {}",
            failures.len(),
            failures[0]
        );
        assert!(taken > 50, "{taken}");
    }
}

/// Both stop, at two operations each.
#[test]
fn hosts_that_stop_again_and_again_cost_nothing_that_was_acknowledged() {
    let start = start();
    let operations = tried(&start, Rule::Claims, &[]).unwrap().operations;
    let mut taken = 0;
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let stalls: Vec<Stall> = (0..4)
            .map(|n| Stall {
                host: n % 2,
                at: random.below(operations[n % 2] as u64 + 40) as usize,
                time: Duration::from_millis(random.below(9000)),
                pauses: seed % 2 == 0,
            })
            .collect();
        let rule = if seed % 3 == 0 {
            Rule::Force
        } else {
            Rule::Claims
        };
        let story = tried(&start, rule, &stalls).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        taken += usize::from(story.attached.is_some());
    }
    assert!(taken > 50, "{taken}");
}

/// Frames that the host before still has on their way must not hit those of the new one.
#[test]
fn host_that_takes_over_begins_a_window_behind_the_end() {
    let machine = start();
    let scheduler = Scheduler::new(&[]);
    let come = |number: usize| {
        let mut turns = scheduler.turns();
        turns.ended = [number != OWNER, number != OTHER];
        turns.running = number;
        drop(turns);
        let scheduler = Arc::clone(&scheduler);
        let engine = attach(&machine, &SimHost { scheduler, number }, Rule::Claims).unwrap();
        engine.log().end().0
    };
    let (first, second) = (come(OWNER), come(OTHER));
    assert!(second - first >= RING_BYTES / 4, "{first}, then {second}");
    // A process of the same host that has ended has nothing on its way.
    let third = come(OTHER);
    assert!(third - second < RING_BYTES / 4, "{second}, then {third}");
}

/// What another host wrote is no damage.
#[test]
fn host_that_lost_the_devices_raises_no_alarm_for_what_the_other_one_wrote() {
    let machine = start();
    let scheduler = Scheduler::new(&[]);
    scheduler.turns().ended = [false, true];
    let host = |number| SimHost {
        scheduler: Arc::clone(&scheduler),
        number,
    };
    let story = Shared::default();
    let alarms = Arc::new(Alarms::default());
    let first = attach_with(&machine, &host(OWNER), Rule::Claims, Arc::clone(&alarms)).unwrap();
    assert!(write(&first, &story, OWNER, SHARED) && tidy(&first));
    scheduler.turns().ended = [true, false];
    scheduler.turns().running = OTHER;
    let second = attach(&machine, &host(OTHER), Rule::Claims).unwrap();
    assert!(write(&second, &story, OTHER, SHARED) && tidy(&second));
    scheduler.turns().ended = [false, true];
    scheduler.turns().running = OWNER;
    let error = first.read(SHARED * BLOCK, &mut [0; BLOCK as usize]);
    let error = error.unwrap_err();
    assert!(
        matches!(&error, BlockError::ReadOnly { why } if why.contains("host-1")),
        "{error}"
    );
    assert!(alarms.all().is_empty(), "{:?}", alarms.all());
}

#[test]
fn attachment_that_fails_gives_its_claim_back() {
    let other = machine(BLOCKS + 1, RING_BYTES);
    let start = start();
    // A device of another length.
    let machine = Machine::new(&[
        ("D", other.device("D").bytes()),
        ("L", start.device("L").bytes()),
    ]);
    machine.device("L").plant(0, &start.device("L").contents());
    let scheduler = Scheduler::new(&[]);
    scheduler.turns().ended = [false, true];
    let host = SimHost {
        scheduler,
        number: OWNER,
    };
    assert!(attach(&machine, &host, Rule::Claims).is_err());
    let contents = machine.device("L").contents();
    let claims = &contents[196 << 10..256 << 10];
    assert!(claims.iter().all(|byte| *byte == 0));
}
