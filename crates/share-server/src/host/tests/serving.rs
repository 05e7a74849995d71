//! What devices get.

use std::sync::atomic::Ordering;
use std::time::Duration;

use trust::device::DeviceKey;
use trust_shared::mark::Marks;

use super::super::{Host, HostError, HostOptions, Session};
use super::devices::{Device, admit, lock, nonce, remove};
use super::world::{RING_BYTES, World, genesis_policy, key, orderer};
use ordering::engine::Request;
use ordering::orderer::Turned;

/// A server with one device that has resumed.
fn begun(world: &World) -> (std::sync::Arc<super::super::Core>, Device) {
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    let resume = device.resume(1);
    device.session.receive(&resume).unwrap();
    core.pump();
    device.draw().unwrap();
    (core, device)
}

/// Admits a device: the decision, and the next entry of its author.
fn admitted(core: &std::sync::Arc<super::super::Core>, by: &mut Device, number: u8) {
    for ops in [vec![admit(number)], vec![lock(1)]] {
        let entry = by.entry(ops);
        by.session.receive(&entry).unwrap();
        core.pump();
        by.draw().unwrap();
    }
}

#[test]
fn directory_of_a_server_is_closed_to_other_users() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (_, genesis) = genesis_policy();
    let server = dir.path().join("above/server");
    Host::create(&server, &genesis, &orderer().public(), RING_BYTES).unwrap();
    let mode = server.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn entry_is_delivered_after_it_is_durable() {
    let world = World::new();
    let (core, mut device) = begun(&world);
    assert_eq!(device.leaves.len(), 1);
    let woken = device.woken.load(Ordering::Relaxed);
    let entry = device.change();
    device.session.receive(&entry).unwrap();
    assert!(device.draw().unwrap().is_empty(), "it is not durable");
    core.pump();
    core.bells_of_news().iter().for_each(|bell| bell.ring());
    assert_eq!(device.woken.load(Ordering::Relaxed), woken + 1);
    device.draw().unwrap();
    assert_eq!(device.leaves.len(), 2);
    // The same bytes again have the place that they have.
    device.session.receive(&entry).unwrap();
    core.pump();
    assert!(device.draw().unwrap().is_empty());
    assert_eq!(core.status().leaves, 2);
}

#[test]
fn what_comes_during_a_sync_is_one_commit() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    admitted(&core, &mut one, 2);
    let mut two = Device::connect(&core, 2).unwrap();
    two.draw().unwrap();
    let resume = two.resume(1);
    // The first begins a commit; the others wait for the next one.
    one.session.receive(&Request::Mark(nonce(1))).unwrap();
    two.session.receive(&resume).unwrap();
    let entry = one.change();
    one.session.receive(&entry).unwrap();
    for number in 2..10 {
        two.session.receive(&Request::Mark(nonce(number))).unwrap();
    }
    core.pump();
    let deliveries = two.draw().unwrap();
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0].leaves.len(), 4);
    let marks: Vec<_> = deliveries[0].proofs.iter().collect();
    assert_eq!(marks.len(), 8, "the device's own marks");
    for (at, nonce, proof) in marks {
        let leaf = &deliveries[0].leaves[(at - deliveries[0].from) as usize];
        let leaf = Marks::decode(&leaf.leaf).unwrap();
        assert!(leaf.contain(nonce, proof));
    }
    let proofs = one.draw().unwrap().remove(0).proofs;
    assert_eq!(proofs.len(), 1);
    assert_eq!(one.leaves, two.leaves);
}

#[test]
fn body_that_changes_members_is_delivered_and_a_long_one_is_fetched() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    admitted(&core, &mut one, 2);
    let long: Vec<_> = (0..200).map(lock).collect();
    let entry = one.entry(long);
    one.session.receive(&entry).unwrap();
    core.pump();
    let mut two = Device::connect(&core, 2).unwrap();
    let delivery = two.draw().unwrap().remove(0);
    assert_eq!(delivery.leaves.len(), 4);
    assert!(delivery.leaves[1].decides && delivery.leaves[1].body.is_some());
    assert!(delivery.leaves[2].body.is_some());
    assert_eq!(delivery.leaves[3].body, None);
    let bodies = two.session.bodies(&[3, 0, 2]).unwrap();
    let Request::Entry(entry) = entry else {
        unreachable!()
    };
    assert_eq!(bodies[0].as_ref(), entry.body());
    assert_eq!(bodies[1], None);
    assert_eq!(bodies[2], delivery.leaves[2].body);
    let missing = two.session.bodies(&[4]);
    assert!(matches!(
        missing,
        Err(HostError::NoLeaf { position: 4, .. })
    ));
    let leaves = two.session.leaves(2..4).unwrap();
    assert_eq!(leaves[1].body.as_ref(), entry.body());
    assert!(two.session.leaves(2..5).is_err() && two.session.leaves(3..3).is_err());
}

#[test]
fn only_members_have_sessions() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    // It takes no session from members, whatever it would send later.
    let stranger = DeviceKey::from(&key(2).public());
    let refused = Session::begin(&core, stranger, std::sync::Arc::new(|| {})).err();
    assert!(matches!(refused, Some(HostError::NoMember)));
    admitted(&core, &mut one, 2);
    let mut two = Device::connect(&core, 2).unwrap();
    two.draw().unwrap();
    for ops in [vec![remove(2)], vec![lock(1)]] {
        let entry = one.entry(ops);
        one.session.receive(&entry).unwrap();
        core.pump();
        one.draw().unwrap();
    }
    assert!(matches!(two.draw(), Err(HostError::NoMember)));
    let mark = two.session.receive(&Request::Mark(nonce(1)));
    assert!(matches!(mark, Err(HostError::NoMember)));
    assert!(two.session.leaves(0..1).is_err());
    let handle = trust::Hasher::new(&[1; 32]).name(trust::Kind::Data, b"block");
    assert!(matches!(
        two.session.retrieve(&handle),
        Err(HostError::NoMember)
    ));
    assert!(two.session.cstore(&handle).is_err() && two.session.decref(&handle).is_err());
    let (send, receive) = std::sync::mpsc::channel();
    let done = Box::new(move |stored: Result<_, _>| send.send(stored.is_ok()).unwrap());
    two.session.store(Vec::new(), done);
    assert!(!receive.recv().unwrap());
    assert!(Device::connect(&core, 2).is_err());
}

#[test]
fn later_session_of_a_device_ends_the_earlier_one() {
    let world = World::new();
    let (core, mut first) = begun(&world);
    let mut second = Device::connect(&core, 1).unwrap();
    assert!(first.woken.load(Ordering::Relaxed) > 0);
    assert!(matches!(first.draw(), Err(HostError::Superseded)));
    assert_eq!(second.draw().unwrap().len(), 1);
    drop(first);
    assert_eq!(core.status().sessions, 1);
    let entry = second.resume(2);
    second.session.receive(&entry).unwrap();
    core.pump();
    second.draw().unwrap();
    assert_eq!(second.leaves.len(), 2);
    drop(second);
    assert_eq!(core.status().sessions, 0);
}

#[test]
fn attest_and_question_reach_the_other_device() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    admitted(&core, &mut one, 2);
    let mut two = Device::connect(&core, 2).unwrap();
    two.draw().unwrap();
    let woken = one.woken.load(Ordering::Relaxed);
    let first = DeviceKey::from(&key(1).public());
    two.session.receive(&Request::Ask(first)).unwrap();
    assert_eq!(one.woken.load(Ordering::Relaxed), woken + 1);
    assert!(one.draw().unwrap().remove(0).asked);
    one.session.receive(&one.attest()).unwrap();
    let attests = two.draw().unwrap().remove(0).attests;
    assert_eq!(attests.len(), 1);
    assert_eq!(attests[0].attest().device, first);
}

#[test]
fn older_attest_of_a_device_does_not_take_the_place_of_a_newer_one() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    admitted(&core, &mut one, 2);
    let old = one.attest();
    one.session.receive(&Request::Mark(nonce(1))).unwrap();
    core.pump();
    one.draw().unwrap();
    let new = one.attest();
    one.session.receive(&new).unwrap();
    one.session.receive(&old).unwrap();
    let mut two = Device::connect(&core, 2).unwrap();
    let attests = two.draw().unwrap().into_iter().flat_map(|one| one.attests);
    let attests: Vec<_> = attests.map(|attest| attest.attest().seen).collect();
    let Request::Attest(new) = new else { panic!() };
    assert_eq!(attests, [new.attest().seen]);
}

#[test]
fn device_far_behind_is_sent_pages_from_files_and_memory() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    for round in 0..7 {
        for number in 0..100 {
            one.session
                .receive(&Request::Mark(nonce(1000 * round + number)))
                .unwrap();
            core.pump();
            one.draw().unwrap();
        }
        if round < 6 {
            core.move_leaves().unwrap();
        }
    }
    assert_eq!(core.leaves.end(), 601);
    assert_eq!(core.leaves.files(), 1, "short files are repeated");
    let sent = one.leaves.clone();
    let mut again = Device::connect(&core, 1).unwrap();
    assert_eq!(again.draw().unwrap().len(), 3);
    assert_eq!(again.leaves, sent);
    assert_eq!(again.session.leaves(0..701).unwrap().len(), 256);
    // Only what comes after its note.
    let open = Request::Open(again.note);
    again.session.receive(&open).unwrap();
    assert!(again.draw().unwrap().remove(0).leaves.is_empty());
}

#[test]
fn restarted_server_goes_on_with_the_same_log() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    admitted(&core, &mut one, 2);
    core.move_leaves().unwrap();
    let entry = one.change();
    one.session.receive(&entry).unwrap();
    core.pump();
    one.draw().unwrap();
    let note = one.note;
    drop((core, one.session));
    let core = world.open().unwrap();
    assert_eq!((core.leaves.end(), core.status().leaves), (3, 4));
    let mut one = Device::connect(&core, 1).unwrap();
    one.session.receive(&Request::Open(note)).unwrap();
    assert!(one.session.draw().unwrap().unwrap().leaves.is_empty());
    one.session.receive(&Request::Open(None)).unwrap();
    one.draw().unwrap();
    assert_eq!(
        one.note.unwrap().note().prefix(),
        note.unwrap().note().prefix()
    );
    // Members, and what the log says of its authors, are as before.
    let resume = one.resume(1);
    one.session.receive(&resume).unwrap();
    assert!(one.draw().unwrap().remove(0).refused.is_some());
    let resume = one.resume(2);
    one.session.receive(&resume).unwrap();
    core.pump();
    one.draw().unwrap();
    assert_eq!(one.leaves.len(), 5);
    Device::connect(&core, 2).unwrap();
}

#[test]
fn orderer_that_meets_its_own_later_note_signs_nothing_any_more() {
    let world = World::new();
    let (core, mut device) = begun(&world);
    // The directory is copied here.
    let copy = World::of(
        world.machine.fork(),
        world.disk.reborn(&world.disk.outcomes(1)[0]),
        world.blocks.reborn(&world.blocks.outcomes(1)[0]),
    );
    let entry = device.change();
    device.session.receive(&entry).unwrap();
    core.pump();
    device.draw().unwrap();
    let restored = copy.open().unwrap();
    assert_eq!(restored.status().leaves, 1);
    let mut other = Device::connect(&restored, 1).unwrap();
    other.draw().unwrap();
    let opened = other.session.receive(&Request::Open(device.note));
    assert!(
        matches!(opened, Err(HostError::Restored { .. })),
        "{opened:?}"
    );
    assert!(matches!(other.draw(), Err(HostError::Restored { .. })));
    let stopped = restored.status().stopped;
    assert!(matches!(stopped, Some(HostError::Restored { .. })));
    // Nor after a restart.
    drop((restored, other.session));
    let again = copy.open().map(|_| ());
    assert!(
        matches!(again, Err(HostError::Restored { .. })),
        "{again:?}"
    );
}

#[test]
fn session_that_did_not_open_is_turned_away_and_sessions_are_bounded() {
    let world = World::new();
    let (core, mut one) = begun(&world);
    admitted(&core, &mut one, 2);
    drop((core, one.session));
    let mut options = HostOptions::default();
    options.limits.sessions = 1;
    let core = world.open_with(options).unwrap();
    let me = DeviceKey::from(&key(1).public());
    let session = super::super::Session::begin(&core, me, std::sync::Arc::new(|| {})).unwrap();
    let early = session.receive(&Request::Mark(nonce(1)));
    assert!(matches!(early, Err(HostError::Turned(Turned::NoSession))));
    let full = Device::connect(&core, 2).err();
    assert!(matches!(full, Some(HostError::Turned(Turned::Busy))));
    drop(session);
    Device::connect(&core, 2).unwrap();
}

/// A process that the server before was starting has its lock for a moment.
#[test]
fn server_waits_a_moment_for_the_lock_of_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("host");
    Host::create(&at, &genesis_policy().1, &orderer().public(), RING_BYTES).unwrap();
    for name in ["lock", "log"] {
        let file = std::fs::File::open(at.join(name)).unwrap();
        file.lock().unwrap();
        let freed = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            drop(file);
        });
        drop(Host::open(&at, orderer(), HostOptions::default()).unwrap());
        freed.join().unwrap();
    }
    let file = std::fs::File::open(at.join("lock")).unwrap();
    file.lock().unwrap();
    let refused = Host::open(&at, orderer(), HostOptions::default());
    let Err(HostError::Disk(why)) = refused else {
        panic!("two servers of one directory");
    };
    assert!(matches!(&*why, store::StoreError::Locked { .. }), "{why}");
}

#[test]
fn delivery_is_at_hand_while_its_leaves_are_in_memory() {
    let world = World::new();
    let (core, mut device) = begun(&world);
    let one_more = |device: &mut Device| {
        let entry = device.change();
        device.session.receive(&entry).unwrap();
        core.pump();
        device.session.draft().unwrap().unwrap()
    };
    let Ok(delivery) = one_more(&mut device).at_hand() else {
        panic!("it is in memory");
    };
    assert_eq!((delivery.from, delivery.leaves.len()), (1, 1));
    assert!(device.session.draft().unwrap().is_none());
    let again = Device::connect(&core, 1).unwrap();
    core.move_leaves().unwrap();
    let Err(draft) = again.session.draft().unwrap().unwrap().at_hand() else {
        panic!("it is on the disk");
    };
    assert_eq!(draft.read().unwrap().leaves.len(), 2);
}
