//! What devices cannot do: speak for others, send what is malformed, fill the memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use bytes::Bytes;
use store::disk::Disk;
use trust_shared::entry::SignedEntry;
use trust_shared::evidence::{self, Convicted};

use super::super::mailbox::Refused;
use super::super::rate::Rate;
use super::super::{Core, Host, HostError, HostOptions};
use super::devices::{Device, admit, lock, nonce};
use super::world::World;
use ordering::engine::Request;
use ordering::orderer::Turned;
use ordering::signed::Entry;

fn begun(world: &World, options: HostOptions) -> (Arc<Core>, Device) {
    let core = world.open_with(options).unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    let resume = device.resume(1);
    device.session.receive(&resume).unwrap();
    core.pump();
    device.draw().unwrap();
    for ops in [vec![admit(2)], vec![lock(1)]] {
        let entry = device.entry(ops);
        device.session.receive(&entry).unwrap();
        core.pump();
        device.draw().unwrap();
    }
    (core, device)
}

fn turned(result: Result<(), HostError>) -> Option<Turned> {
    match result {
        Err(HostError::Turned(turned)) => Some(turned),
        _ => None,
    }
}

#[test]
fn message_of_another_device_is_forged() {
    let world = World::new();
    let (core, mut one) = begun(&world, HostOptions::default());
    let two = Device::connect(&core, 2).unwrap();
    let entry = one.change();
    assert_eq!(turned(two.session.receive(&entry)), Some(Turned::Forged));
    let attest = one.attest();
    assert_eq!(turned(two.session.receive(&attest)), Some(Turned::Forged));
    let Request::Entry(entry) = entry else {
        unreachable!()
    };
    let mut bytes = entry.signed().bytes().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    let signed = SignedEntry::decode(bytes.into()).unwrap();
    let forged = Entry::with_body(signed, entry.body().unwrap().clone()).unwrap();
    let sent = one.session.receive(&Request::Entry(forged));
    assert_eq!(turned(sent), Some(Turned::Forged));
    core.pump();
    assert_eq!(core.status().leaves, 3);
}

/// A copy of a device that runs on signs other entries with numbers that the device has used.
#[test]
fn device_that_signs_twice_is_convicted_by_a_file() {
    let world = World::new();
    let (core, mut one) = begun(&world, HostOptions::default());
    let files = |core: &Arc<Core>| {
        core.accuse();
        world.disk.list("evidence").unwrap_or_default()
    };
    let copy = one.copy();
    let (entry, other) = (one.change(), copy.entry(vec![lock(77)]));
    one.session.receive(&entry).unwrap();
    // The same bytes again are no other entry.
    one.session.receive(&entry).unwrap();
    core.pump();
    assert!(files(&core).is_empty());
    one.session.receive(&other).unwrap();
    core.pump();
    let found = files(&core);
    let [name] = found.as_slice() else {
        panic!("{found:?}");
    };
    let file = world.disk.open(&format!("evidence/{name}")).unwrap();
    let mut bytes = vec![0; file.len_bytes().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    let verdict = evidence::verify(&bytes).unwrap();
    let device = Convicted::Device(one.session.device());
    assert_eq!((verdict.convicted, verdict.epoch), (device, 0));
    // The entry is refused, nobody else is concerned, and one file is enough.
    let delivery = one.draw().unwrap().remove(0);
    assert!(delivery.refused.is_some());
    for number in 80..90 {
        let entry = copy.entry(vec![lock(number)]);
        one.session.receive(&entry).unwrap();
    }
    assert_eq!(files(&core).len(), 1);
    let mut two = Device::connect(&core, 2).unwrap();
    two.draw().unwrap();
    let resume = two.resume(2);
    two.session.receive(&resume).unwrap();
    core.pump();
    assert_eq!(core.status().leaves, 5);
}

/// The other entry may be on its way to the disk.
#[test]
fn second_entry_that_comes_at_once_is_evidence_when_the_first_is_durable() {
    let world = World::new();
    let (core, mut one) = begun(&world, HostOptions::default());
    let copy = one.copy();
    let (entry, other) = (one.change(), copy.entry(vec![lock(77)]));
    one.session.receive(&entry).unwrap();
    one.session.receive(&other).unwrap();
    core.accuse();
    assert!(world.disk.list("evidence").is_err());
    core.pump();
    core.accuse();
    assert_eq!(world.disk.list("evidence").unwrap().len(), 1);
}

#[test]
fn entry_without_its_body_is_refused() {
    let world = World::new();
    let (core, mut one) = begun(&world, HostOptions::default());
    let Request::Entry(entry) = one.change() else {
        unreachable!()
    };
    let bare = Entry::new(entry.signed().clone());
    one.session.receive(&Request::Entry(bare)).unwrap();
    core.pump();
    let delivery = one.draw().unwrap().remove(0);
    assert_eq!(delivery.refused, Some(entry.signed().hash()));
    assert!(delivery.leaves.is_empty());
}

#[test]
fn device_that_writes_too_many_entries_is_told_so() {
    let world = World::new();
    let options = HostOptions {
        entries: Rate {
            per_second: 1,
            burst: 20,
        },
        ..HostOptions::default()
    };
    let (core, mut one) = begun(&world, options);
    let mut written = 0;
    let refused = loop {
        let entry = one.change();
        match one.session.receive(&entry) {
            Ok(()) if written < 100 => written += 1,
            refused => break refused,
        }
        core.pump();
        one.draw().unwrap();
    };
    assert_eq!(turned(refused), Some(Turned::Quota));
    assert!((10..20).contains(&written), "{written}");
    // Marks are no entries, and another device has its own account.
    for number in 0..50 {
        one.session.receive(&Request::Mark(nonce(number))).unwrap();
    }
    let mut two = Device::connect(&core, 2).unwrap();
    core.pump();
    two.draw().unwrap();
    let resume = two.resume(1);
    two.session.receive(&resume).unwrap();
}

#[test]
fn device_rests_for_the_bytes_that_it_has_caused_over_all_its_connections() {
    let world = World::new();
    let options = HostOptions {
        bytes: Rate {
            per_second: 1 << 20,
            burst: 4 << 20,
        },
        ..HostOptions::default()
    };
    let (core, one) = begun(&world, options);
    assert_eq!(one.session.pay(4 << 20), Duration::ZERO);
    let rest = one.session.pay(1 << 20);
    assert!(rest > Duration::from_millis(500) && rest <= Duration::from_secs(1));
    drop(one);
    let again = Device::connect(&core, 1).unwrap();
    assert!(again.session.pay(0) > Duration::from_millis(200));
    let two = Device::connect(&core, 2).unwrap();
    assert_eq!(two.session.pay(1 << 20), Duration::ZERO);
}

#[test]
fn devices_are_sent_heartbeats_after_the_pauses_that_they_wish_for() {
    let world = World::new();
    let (core, mut one) = begun(&world, HostOptions::default());
    let mut two = Device::connect(&core, 2).unwrap();
    two.draw().unwrap();
    one.draw().unwrap();
    one.session.set_heartbeat(Duration::from_millis(250));
    let now = Instant::now();
    let woken = |device: &Device| device.woken.load(Ordering::Relaxed);
    let before = (woken(&one), woken(&two));
    let next = core.beat(now + Duration::from_millis(100));
    assert_eq!((woken(&one), woken(&two)), before);
    assert!(
        next <= now + Duration::from_millis(300),
        "the first that is due"
    );
    core.beat(now + Duration::from_millis(300));
    assert_eq!((woken(&one), woken(&two)), (before.0 + 1, before.1));
    assert!(one.draw().unwrap().remove(0).leaves.is_empty());
    core.beat(now + Duration::from_secs(11));
    assert_eq!((woken(&one), woken(&two)), (before.0 + 2, before.1 + 1));
}

#[test]
fn device_that_was_just_sent_something_is_sent_no_heartbeat() {
    let world = World::new();
    let (core, mut one) = begun(&world, HostOptions::default());
    one.draw().unwrap();
    one.session.set_heartbeat(Duration::from_millis(250));
    let began = Instant::now();
    std::thread::sleep(Duration::from_millis(150));
    one.session.receive(&Request::Mark(nonce(1))).unwrap();
    core.pump();
    one.draw().unwrap();
    let woken = one.woken.load(Ordering::Relaxed);
    core.beat(began + Duration::from_millis(300));
    assert_eq!(one.woken.load(Ordering::Relaxed), woken);
    core.beat(Instant::now() + Duration::from_millis(600));
    assert_eq!(one.woken.load(Ordering::Relaxed), woken + 1);
}

#[test]
fn device_that_writes_too_many_bytes_is_told_so() {
    let world = World::new();
    let options = HostOptions {
        entry_bytes: Rate {
            per_second: 1 << 10,
            burst: 100 << 10,
        },
        ..HostOptions::default()
    };
    let (core, mut one) = begun(&world, options);
    let mut taken = 0;
    let refused = loop {
        let entry = one.entry((0..1000).map(lock).collect());
        match one.session.receive(&entry) {
            Ok(()) if taken < 100 => taken += 1,
            refused => break refused,
        }
        core.pump();
        one.draw().unwrap();
    };
    assert_eq!(turned(refused), Some(Turned::Quota));
    assert!((2..50).contains(&taken), "{taken}");
    one.session.receive(&Request::Mark(nonce(1))).unwrap();
}

#[test]
fn entries_and_marks_that_wait_are_bounded() {
    let world = World::new();
    let mut options = HostOptions::default();
    options.limits.waiting = 100;
    let (core, mut one) = begun(&world, options);
    let mut taken = 0;
    // The first is under way.
    while let Ok(()) = one.session.receive(&Request::Mark(nonce(taken))) {
        taken += 1;
    }
    assert_eq!(taken, 101);
    let more = one.session.receive(&Request::Mark(nonce(taken)));
    assert_eq!(turned(more), Some(Turned::Busy));
    core.pump();
    // Proofs that the device does not fetch are bounded too.
    let more = one.session.receive(&Request::Mark(nonce(taken)));
    assert_eq!(turned(more), Some(Turned::Busy));
    let delivery = one.draw().unwrap().remove(0);
    assert_eq!(delivery.proofs.len(), 101);
    one.session.receive(&Request::Mark(nonce(taken))).unwrap();
}

#[test]
fn entry_that_a_busy_server_turns_away_is_not_charged() {
    let world = World::new();
    let mut options = HostOptions {
        entry_bytes: Rate {
            per_second: 1 << 10,
            burst: 8 << 10,
        },
        ..HostOptions::default()
    };
    options.limits.waiting = 100;
    let (core, mut one) = begun(&world, options);
    let entry = one.change();
    (0..101).for_each(|mark| one.session.receive(&Request::Mark(nonce(mark))).unwrap());
    for _ in 0..50 {
        let again = one.session.receive(&entry);
        assert_eq!(turned(again), Some(Turned::Busy));
    }
    core.pump();
    one.session.receive(&entry).unwrap();
}

#[test]
fn same_entry_again_and_again_does_not_make_the_server_busy() {
    let world = World::new();
    let options = HostOptions {
        entries: Rate {
            per_second: 1_000_000,
            burst: 1_000_000,
        },
        entry_bytes: Rate {
            per_second: 1 << 40,
            burst: 1 << 40,
        },
        ..HostOptions::default()
    };
    let (core, mut one) = begun(&world, options);
    let long: Vec<_> = (0..1000).map(lock).collect();
    let entry = one.entry(long);
    one.session.receive(&entry).unwrap();
    core.pump();
    for _ in 0..10_000 {
        one.session.receive(&entry).unwrap();
    }
    assert_eq!(core.status().leaves, 4);
}

#[test]
fn guest_posts_where_a_member_waits_and_all_waits_end() {
    let world = World::new();
    let (core, one) = begun(&world, HostOptions::default());
    let host = Host::run(core).unwrap();
    let (id, message) = ([3; 16], Bytes::from_static(b"request"));
    let posted = host.post(&id, 0, message.clone());
    assert!(matches!(posted, Err(HostError::Mailbox(Refused::NoBox))));
    let (send, receive) = std::sync::mpsc::channel();
    let listener = || {
        let send = send.clone();
        Box::new(move |message: Option<Bytes>| drop(send.send(message)))
    };
    let soon = Instant::now() + Duration::from_millis(50);
    let late = Instant::now() + Duration::from_secs(100);
    host.take(Some(&one.session), &id, 0, soon, listener())
        .unwrap();
    let wait = Duration::from_secs(20);
    assert_eq!(receive.recv_timeout(wait).unwrap(), None);
    host.take(Some(&one.session), &id, 0, late, listener())
        .unwrap();
    host.post(&id, 0, message.clone()).unwrap();
    assert_eq!(receive.recv_timeout(wait).unwrap(), Some(message));
    host.take(None, &id, 1, late, listener()).unwrap();
    drop((one, host));
    assert_eq!(receive.recv_timeout(wait).unwrap(), None);
}
