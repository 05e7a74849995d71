//! Claims of hosts on a log, and the gap behind which a host begins that took it from another one.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sim::device::Machine;
use wal::claim::{WATCH, claim, is_answered};
use wal::{ClaimOptions, Device, Fenced, Host, Lease, Life, LogError, Process};

use crate::volume::{Hooked, ONE, PAGE, device, key, machine, open, open_at, put, record, seeds};

mod lease;

const AREA: std::ops::Range<u64> = 196 << 10..256 << 10;

type Hook = Box<dyn FnMut() + Send>;

/// A host whose clock moves when it waits.
struct TestHost {
    number: u8,
    now: Mutex<Duration>,
    life: Life,
    /// What happens while it waits.
    meanwhile: Mutex<Option<Hook>>,
}

impl TestHost {
    fn new(number: u8, life: Life) -> Arc<TestHost> {
        Arc::new(TestHost {
            number,
            now: Mutex::new(Duration::from_secs(1)),
            life,
            meanwhile: Mutex::new(None),
        })
    }

    fn waited(&self) -> Duration {
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) - Duration::from_secs(1)
    }
}

impl Host for TestHost {
    fn name(&self) -> String {
        format!("host-{}", self.number)
    }

    fn system(&self) -> Vec<u8> {
        vec![self.number]
    }

    fn process(&self) -> Process {
        Process {
            namespace: 1,
            pid: 2,
            started: 3,
        }
    }

    fn life(&self, process: &Process) -> Life {
        assert_eq!(*process, self.process());
        self.life
    }

    fn now(&self) -> Duration {
        *self.now.lock().unwrap()
    }

    fn wait(&self, time: Duration) {
        *self.now.lock().unwrap() += time;
        if let Some(meanwhile) = &mut *self.meanwhile.lock().unwrap() {
            meanwhile();
        }
    }
}

fn options(host: &Arc<TestHost>) -> ClaimOptions {
    ClaimOptions {
        host: Arc::clone(host) as _,
        force: false,
        keep: false,
    }
}

fn claim_at(machine: &Machine, host: &Arc<TestHost>) -> Result<Lease, LogError> {
    claim(device(machine), &key(), &options(host))
}

/// A host that claims the log and is never heard of again.
fn abandoned(machine: &Machine) {
    claim_at(machine, &TestHost::new(9, Life::Ended)).unwrap();
}

/// A host asks for the log, and is never heard of again.
fn abandoned_by_a_third(machine: &Machine) {
    abandoned_by(machine, 3);
}

fn abandoned_by(machine: &Machine, number: u8) {
    let host = TestHost::new(number, Life::Runs);
    // It comes, and stops while it waits.
    let stop: Hook = Box::new(|| {
        if !std::thread::panicking() {
            std::panic::resume_unwind(Box::new(()));
        }
    });
    *host.meanwhile.lock().unwrap() = Some(stop);
    let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        claim_at(machine, &host).map(drop)
    }));
    assert!(stopped.is_err());
}

/// Pages of the area that are not zeros.
fn pages(machine: &Machine) -> Vec<usize> {
    let contents = device(machine).contents();
    let area = contents[AREA.start as usize..AREA.end as usize].chunks(PAGE as usize);
    let used = area
        .enumerate()
        .filter(|(_, page)| page.iter().any(|byte| *byte != 0));
    used.map(|(number, _)| number).collect()
}

fn page_at(number: usize) -> u64 {
    AREA.start + number as u64 * PAGE
}

#[test]
fn free_log_is_claimed_without_a_wait_and_is_free_again_after_the_release() {
    let machine = machine(64);
    let host = TestHost::new(1, Life::Runs);
    for _ in 0..20 {
        let lease = claim_at(&machine, &host).unwrap();
        assert_eq!(pages(&machine).len(), 1);
        lease.check().unwrap();
        lease.release().unwrap();
        assert!(lease.check().is_err(), "it writes on");
        assert!(pages(&machine).is_empty());
    }
    assert_eq!(host.waited(), Duration::ZERO);
}

#[test]
fn claim_of_a_host_that_is_silent_is_taken_after_a_wait_and_its_owner_stops() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let fenced = Fenced::new(device(&machine), Arc::clone(&first));
    fenced
        .write(0, &device(&machine).contents()[..PAGE as usize])
        .unwrap();
    let host = TestHost::new(2, Life::Runs);
    let second = claim_at(&machine, &host).unwrap();
    assert!(host.waited() >= WATCH && second.took_over());
    second.has_opened([2; 16]);
    assert_eq!(pages(&machine).len(), 1, "the other claim is cleared");
    // Its own clock may have stood still. When it looks, it stops.
    first.look().unwrap_err();
    assert!(first.lost().is_some());
    for refused in [
        fenced.write(0, &[0; PAGE as usize]),
        fenced.zero(0, PAGE),
        fenced.sync(),
    ] {
        let why = refused.unwrap_err().to_string();
        assert!(why.contains("host-2"), "{why}");
    }
    second.check().unwrap();
    first.release().unwrap();
    second.look().unwrap();
}

#[test]
fn owner_that_answers_keeps_its_claim_and_the_other_one_leaves_no_trace() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let before = pages(&machine);
    let host = TestHost::new(2, Life::Runs);
    let looks = Arc::clone(&first);
    let mut polls = 0;
    *host.meanwhile.lock().unwrap() = Some(Box::new(move || {
        polls += 1;
        if polls == 30 {
            looks.look().unwrap();
        }
    }));
    let refused = claim_at(&machine, &host).map(drop).unwrap_err();
    assert!(
        matches!(&refused, LogError::Claimed { by } if by.host == "host-1"),
        "{refused}"
    );
    assert_eq!(host.waited(), Duration::from_secs(3));
    assert_eq!(pages(&machine), before);
    first.look().unwrap();
}

#[test]
fn answer_that_comes_after_the_watch_is_seen_before_the_log_is_taken() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let writes = Mutex::new(0);
    let looks = Arc::clone(&first);
    // The second write says that the log is taken.
    let hooked = Hooked {
        before_write: Box::new(move || {
            *writes.lock().unwrap() += 1;
            if *writes.lock().unwrap() == 2 {
                looks.look().unwrap();
            }
        }),
        ..Hooked::new(device(&machine))
    };
    let host = TestHost::new(2, Life::Runs);
    let refused = claim(Arc::new(hooked), &key(), &options(&host)).map(drop);
    assert!(
        matches!(refused, Err(LogError::Claimed { .. })),
        "{refused:?}"
    );
    assert!(host.waited() >= WATCH);
    first.look().unwrap();
}

#[test]
fn of_two_hosts_that_come_at_once_at_most_one_gets_the_log() {
    let orders = [
        (Life::Runs, 1, false),
        (Life::Ended, 1, false),
        (Life::Runs, 2, false),
        (Life::Runs, 1, true),
        (Life::Runs, 2, true),
    ];
    // Hosts draw their pages: two may draw the same one, where another rule holds.
    for (second_life, at, before_write) in orders.into_iter().cycle().take(40) {
        let machine = machine(64);
        if at == 2 {
            abandoned(&machine);
        }
        let got = Arc::new(Mutex::new(Vec::new()));
        let (own, all, calls) = (machine.clone(), Arc::clone(&got), Mutex::new(0));
        // The other one comes before this one's claim is written, or while it is on its way to the disk.
        let other_comes = Arc::new(move || {
            *calls.lock().unwrap() += 1;
            if *calls.lock().unwrap() == at {
                let other = TestHost::new(2, second_life);
                all.lock().unwrap().extend(claim_at(&own, &other));
            }
        });
        let mut hooked = Hooked::new(device(&machine));
        match before_write {
            true => hooked.before_write = Box::new(move || other_comes()),
            false => hooked.before_sync = Box::new(move || other_comes()),
        }
        let host = TestHost::new(1, Life::Runs);
        let first = claim(Arc::new(hooked), &key(), &options(&host));
        let mut leases = std::mem::take(&mut *got.lock().unwrap());
        leases.extend(first);
        leases.retain(|lease| lease.look().is_ok());
        assert!(leases.len() <= 1, "{} hosts have the log", leases.len());
        assert!(at == 2 || leases.len() == 1, "nobody has the log");
    }
}

#[test]
fn process_of_this_host_that_ended_needs_no_wait_and_one_that_runs_is_refused_at_once() {
    let machine = machine(64);
    let first = TestHost::new(1, Life::Ended);
    claim_at(&machine, &first).unwrap();
    let before = pages(&machine);
    for life in [Life::Ended, Life::Runs, Life::Unknown] {
        let host = TestHost::new(1, life);
        match (claim_at(&machine, &host), life) {
            (Ok(lease), Life::Ended) => assert!(!lease.took_over()),
            (Err(LogError::Claimed { .. }), Life::Runs) => {}
            (Ok(lease), Life::Unknown) => assert!(lease.took_over() && host.waited() >= WATCH),
            (other, _) => panic!("{life:?}: {:?}", other.map(drop)),
        }
        assert!(life == Life::Unknown || host.waited() == Duration::ZERO);
        assert!(
            life == Life::Unknown || pages(&machine) == before,
            "it took the same page"
        );
    }
}

#[test]
fn page_that_is_not_authentic_costs_one_wait_and_no_more() {
    for changes in [false, true] {
        let machine = machine(64);
        abandoned(&machine);
        let page = page_at(pages(&machine)[0]);
        let disk = device(&machine);
        disk.flip((page + 70) * 8);
        // Somebody who has no key changes it all the time.
        let host = TestHost::new(1, Life::Runs);
        let mut bit = 0;
        *host.meanwhile.lock().unwrap() = changes.then(|| {
            Box::new(move || {
                bit += 1;
                disk.flip((page + 100) * 8 + bit % 64);
            }) as Hook
        });
        let lease = claim_at(&machine, &host).unwrap();
        assert!(host.waited() >= WATCH);
        lease.has_opened([2; 16]);
        assert_eq!(pages(&machine).len(), 1, "it is cleared");
        lease.release().unwrap();
        let next = TestHost::new(1, Life::Runs);
        claim_at(&machine, &next).unwrap();
        assert_eq!(next.waited(), Duration::ZERO);
    }
}

#[test]
fn force_takes_the_log_from_a_host_that_answers() {
    let machine = machine(64);
    let first = Arc::new(claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap());
    let host = TestHost::new(2, Life::Runs);
    let looks = Arc::clone(&first);
    *host.meanwhile.lock().unwrap() = Some(Box::new(move || {
        let _ = looks.look();
    }));
    let options = ClaimOptions {
        force: true,
        ..options(&host)
    };
    let second = claim(device(&machine), &key(), &options).unwrap();
    assert!(host.waited() >= WATCH, "the other one may still write");
    let lost = first.lost().unwrap();
    assert!(lost.contains("host-2"), "{lost}");
    second.look().unwrap();
}

#[test]
fn host_that_ends_before_it_opened_the_log_leaves_the_takeover_to_the_next_one() {
    for (opens, releases) in [(false, false), (false, true), (true, false), (true, true)] {
        let machine = machine(64);
        abandoned(&machine);
        let second = claim_at(&machine, &TestHost::new(1, Life::Ended)).unwrap();
        assert!(second.took_over());
        if opens {
            second.has_opened([2; 16]);
        }
        if releases {
            second.release().unwrap();
        }
        let third = claim_at(&machine, &TestHost::new(1, Life::Ended)).unwrap();
        assert_eq!(third.took_over(), !opens, "releases: {releases}");
        third.look().unwrap();
        third.has_opened([3; 16]);
        assert_eq!(pages(&machine).len(), 1);
    }
}

/// A host that has just come is told to stop like one that was there before.
#[test]
fn force_takes_the_log_from_hosts_that_come_meanwhile_but_not_for_ever() {
    for comes in [1, 3, 4] {
        let machine = machine(64);
        abandoned(&machine);
        let host = TestHost::new(2, Life::Runs);
        let (disk, left) = (machine.clone(), Mutex::new(comes));
        let mut polls = 0;
        *host.meanwhile.lock().unwrap() = Some(Box::new(move || {
            polls += 1;
            let mut left = left.lock().unwrap();
            if polls % 30 == 0 && *left > 0 {
                *left -= 1;
                abandoned_by(&disk, 10 + *left as u8);
            }
        }));
        let options = ClaimOptions {
            force: true,
            ..options(&host)
        };
        let taken = claim(device(&machine), &key(), &options);
        match (comes, taken) {
            (4, Err(LogError::Claimed { .. })) => {}
            (1 | 3, Ok(lease)) => {
                // 3 s until each of them comes, and the whole time after the last one.
                assert!(host.waited() >= WATCH + Duration::from_secs(3 * comes));
                lease.has_opened([2; 16]);
                assert_eq!(pages(&machine).len(), 1);
                lease.look().unwrap();
            }
            (_, other) => panic!("{comes}: {:?}", other.map(drop)),
        }
    }
}

#[test]
fn of_two_hosts_that_use_force_at_once_at_most_one_gets_the_log() {
    for at in 1..4 {
        let machine = machine(64);
        abandoned(&machine);
        let got = Arc::new(Mutex::new(Vec::new()));
        let (own, all, calls) = (machine.clone(), Arc::clone(&got), Mutex::new(0));
        let forced = |host: &Arc<TestHost>| ClaimOptions {
            force: true,
            ..options(host)
        };
        let hooked = Hooked {
            before_write: Box::new(move || {
                *calls.lock().unwrap() += 1;
                if *calls.lock().unwrap() == at {
                    let other = TestHost::new(2, Life::Runs);
                    let other = claim(device(&own), &key(), &forced(&other));
                    all.lock().unwrap().extend(other);
                }
            }),
            ..Hooked::new(device(&machine))
        };
        let host = TestHost::new(1, Life::Runs);
        let first = claim(Arc::new(hooked), &key(), &forced(&host));
        let mut leases = std::mem::take(&mut *got.lock().unwrap());
        leases.extend(first);
        leases.retain(|lease| lease.look().is_ok());
        assert!(leases.len() <= 1, "{} hosts have the log", leases.len());
    }
}

/// A process that took the log seems to have ended, and another one of its host takes the log from a third host. The answer
/// of the first one comes late.
#[test]
fn term_is_above_those_of_processes_that_have_ended() {
    let machine = machine(64);
    abandoned(&machine);
    let (other, arms) = (machine.clone(), Arc::new(Mutex::new(false)));
    let is_armed = Arc::clone(&arms);
    let hooked = Hooked {
        before_write: Box::new(move || {
            if std::mem::take(&mut *is_armed.lock().unwrap()) {
                let next = claim_at(&other, &TestHost::new(1, Life::Ended)).unwrap();
                assert!(next.took_over());
            }
        }),
        ..Hooked::new(device(&machine))
    };
    let host = TestHost::new(1, Life::Ended);
    let first = claim(Arc::new(hooked), &key(), &options(&host)).unwrap();
    let recovery = open_at(&machine).unwrap();
    let session = recovery.session();
    recovery.finish(&[]).unwrap();
    first.has_opened(session);
    abandoned_by_a_third(&machine);
    *arms.lock().unwrap() = true;
    first.look().unwrap_err();
    assert!(first.lost().is_some());
}

/// A frame that was on its way when its host stopped reaches the disk after another host took the log and wrote on.
#[test]
fn late_frame_of_the_host_before_destroys_nothing_behind_a_gap() {
    for leaves_gap in [true, false] {
        let machine = machine(256);
        let other = machine.clone();
        let calls = Mutex::new(0);
        let hooked = Hooked {
            before_write: Box::new(move || {
                *calls.lock().unwrap() += 1;
                // The first calls begin the session.
                if *calls.lock().unwrap() == 7 {
                    let mut recovery = open_at(&other).unwrap();
                    if leaves_gap {
                        recovery.leave_gap();
                    }
                    let log = recovery.finish(&[]).unwrap();
                    for seed in 10..14 {
                        put(&log, ONE, record(seed, 1));
                    }
                }
            }),
            ..Hooked::new(device(&machine))
        };
        let log = open(&(Arc::new(hooked) as _)).unwrap().finish(&[]).unwrap();
        for seed in 1..=5 {
            put(&log, ONE, record(seed, 3));
        }
        let opened = open_at(&machine);
        match (leaves_gap, opened) {
            (true, Ok(recovery)) => {
                let found = seeds(&recovery, ONE);
                assert!(found.ends_with(&[10, 11, 12, 13]), "{found:?}");
                // It goes on, a checkpoint passes the gap, and the log is what it was.
                let log = recovery.finish(&[]).unwrap();
                let (at, _) = put(&log, ONE, record(20, 1));
                assert_eq!(seeds(&open_at(&machine).unwrap(), ONE).last(), Some(&20));
                log.checkpoint(ONE, at, b"").unwrap();
                log.checkpoint(crate::volume::TWO, at, b"").unwrap();
                assert_eq!(seeds(&open_at(&machine).unwrap(), ONE), [20]);
            }
            (false, Err(LogError::Integrity { .. } | LogError::Rollback { .. })) => {}
            (_, other) => panic!("gap {leaves_gap}: {:?}", other.map(|it| seeds(&it, ONE))),
        }
    }
}

/// The page with which it asks is gone then, and the owner goes on.
#[test]
fn host_that_uses_a_log_answers_one_without_its_key() {
    for full in [false, true] {
        let machine = machine(64);
        let asks = TestHost::new(2, Life::Runs);
        assert!(!is_answered(&*device(&machine), &*asks).unwrap());
        assert_eq!(asks.waited(), Duration::ZERO, "nobody uses it");
        let owner = claim_at(&machine, &TestHost::new(1, Life::Runs)).unwrap();
        if full {
            let own = pages(&machine)[0];
            for page in (0..15).filter(|page| *page != own) {
                device(&machine).plant(page_at(page), &[7; PAGE as usize]);
            }
            owner.look().unwrap();
        }
        let before = pages(&machine);
        let owner = Arc::new(owner);
        let looks = Arc::clone(&owner);
        *asks.meanwhile.lock().unwrap() = Some(Box::new(move || looks.look().unwrap()));
        assert!(is_answered(&*device(&machine), &*asks).unwrap());
        assert!(asks.waited() < Duration::from_secs(1));
        assert_eq!(pages(&machine), before);
        owner.look().unwrap();
        drop(owner);
        // It has ended, and its claim is there.
        let asks = TestHost::new(2, Life::Runs);
        let before = device(&machine).contents();
        assert!(!is_answered(&*device(&machine), &*asks).unwrap());
        assert!(asks.waited() >= WATCH && device(&machine).contents() == before);
    }
}
