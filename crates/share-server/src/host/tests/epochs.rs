//! The owners let a prefix of the log stand, and the directory goes on with it: at every crash with the old epoch or the
//! new one, and with nothing lost of what stands.

use std::sync::Arc;

use sim::device::Stop;
use trust::policy::Successor;
use trust::signatures::Signatures;
use trust::statement::Signed;
use trust_shared::entry::Prefix;
use trust_shared::genesis::{self, Policies, SharedRoles};

use super::super::{Core, HostError, epochs};
use super::devices::{Device, admit, nonce};
use super::world::{World, genesis_policy, key, orderer};
use ordering::engine::Request;
use ordering::orderer::Turned;

/// The most outcomes of one stop, for the temporary log and for each disk.
const LOG_OUTCOMES: u64 = 4;
const DISK_OUTCOMES: usize = 4;

pub struct Rules {
    start: Prefix,
    orderer: u8,
    owner: u8,
    lower: bool,
}

impl Rules {
    pub fn of(start: Prefix) -> Rules {
        Rules {
            start,
            orderer: 200,
            owner: 100,
            lower: true,
        }
    }

    /// All policies of the volume: the genesis, and one that begins the next epoch.
    pub fn signed(&self) -> Vec<Signed> {
        let (volume, first) = genesis_policy();
        let known = Policies::begin(volume, &first, &mut Signatures::new(4)).unwrap();
        let newest = known.chain().newest();
        let successor = Successor {
            number: 1,
            previous: known.chain().newest_hash(),
            not_after: newest.not_after(),
            log_epoch: 1,
            roles: newest.roles().clone(),
            last: Some(genesis::standing(0, &self.start)),
            lower: self.lower,
            revoked: None,
            refused: Vec::new(),
        };
        let roles = SharedRoles {
            orderer: key(self.orderer).public(),
            founder: None,
            ..known.roles().clone()
        };
        let next = genesis::successor(volume, &successor, &roles).sign(&[&key(self.owner)]);
        vec![first, next]
    }
}

pub fn verified(rules: &[Signed]) -> Policies {
    Policies::verify(genesis_policy().0, rules, &mut Signatures::new(8)).unwrap()
}

pub fn send(core: &Arc<Core>, device: &mut Device, request: &Request<ordering::roster::Product>) {
    device.session.receive(request).unwrap();
    core.pump();
    device.draw().unwrap();
}

/// A server with some leaves in files and some in the temporary log. Gives the prefix that is to stand, which ends in
/// the temporary log, its leaves, and an entry that names it.
pub fn written(world: &World) -> (Prefix, Vec<Vec<u8>>, Request<ordering::roster::Product>) {
    let core = world.open().unwrap();
    let mut one = Device::connect(&core, 1).unwrap();
    one.draw().unwrap();
    let resume = one.resume(1);
    send(&core, &mut one, &resume);
    let entry = one.entry(vec![admit(2)]);
    send(&core, &mut one, &entry);
    core.move_leaves().unwrap();
    for number in 0..3 {
        one.session.receive(&Request::Mark(nonce(number))).unwrap();
        let entry = one.change();
        send(&core, &mut one, &entry);
    }
    let (start, leaves) = (one.seen(), one.leaves.clone());
    let lost = one.change();
    send(&core, &mut one, &lost);
    let more = one.change();
    send(&core, &mut one, &more);
    (start, leaves, lost)
}

pub fn renew(world: &World, rules: &[Signed]) -> Result<(), HostError> {
    let place = world.place()?;
    epochs::renew(&place, rules, &orderer().public()).map(drop)
}

#[test]
fn log_begins_again_with_the_prefix_and_takes_nothing_of_the_old_epoch() {
    let world = World::new();
    let (start, leaves, lost) = written(&world);
    let rules = Rules::of(start).signed();
    renew(&world, &rules).unwrap();
    renew(&world, &rules).unwrap();
    renew(&world, &rules[..1]).unwrap();
    let core = world.open().unwrap();
    assert_eq!((core.epoch, core.status().leaves), (1, start.size));
    let mut one = Device::connect(&core, 1).unwrap();
    one.follow(1, &verified(&rules));
    one.draw().unwrap();
    assert_eq!((one.seen(), &one.leaves), (start, &leaves));
    // An entry that was ordered in the old epoch, directly after the prefix.
    send(&core, &mut one, &lost);
    assert_eq!(one.seen(), start);
    // The note of a device that has not gone over.
    let (volume, key) = (genesis_policy().0, orderer());
    let log = start.in_epoch(0);
    let note = trust_shared::note::Note { log, time_ms: 1 }.sign(volume, &key);
    let refused = one.session.receive(&Request::Open(Some(note)));
    assert!(matches!(
        refused,
        Err(HostError::Turned(Turned::OtherEpoch))
    ));
    let resume = one.resume(9);
    send(&core, &mut one, &resume);
    assert_eq!(one.seen().size, start.size + 1);
    core.move_leaves().unwrap();
    drop(one);
    drop(core);
    assert_eq!(world.open().unwrap().status().leaves, start.size + 1);
}

#[test]
fn rules_that_do_not_fit_change_nothing() {
    let world = World::new();
    let (start, ..) = written(&world);
    let size = world.open().unwrap().status().leaves;
    let refused = |rules: Rules, what: &str| {
        let error = renew(&world, &rules.signed()).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
        let core = world.open().unwrap();
        assert_eq!((core.epoch, core.status().leaves), (0, size), "{what}");
    };
    let other = Prefix {
        root: [9; 32],
        ..start
    };
    let longer = Prefix {
        size: size + 1,
        ..start
    };
    refused(Rules::of(other), "not those");
    refused(Rules::of(longer), "not those");
    // Nobody gives anything up.
    let keeps = Rules {
        lower: false,
        ..Rules::of(start)
    };
    refused(keeps, "not those");
    let another = Rules {
        orderer: 201,
        ..Rules::of(start)
    };
    refused(another, "orderer");
    let stranger = Rules {
        owner: 101,
        ..Rules::of(start)
    };
    refused(stranger, "refused");
    // The owners have signed two rules with one number: the first that the server knows counts.
    let first = Rules::of(start).signed();
    renew(&world, &first).unwrap();
    let empty = Prefix {
        size: 0,
        root: trust::history::Frontier::new().root(),
    };
    let second = renew(&world, &Rules::of(empty).signed()).unwrap_err();
    assert!(
        matches!(second, HostError::OtherPolicies { .. }),
        "{second}"
    );
    assert_eq!(world.open().unwrap().epoch, 1);
}

/// What a server may be after a crash: in the old epoch with all its leaves, or in the new one with those that stand.
/// The same rules again lead to the new one.
fn check(world: &World, rules: &[Signed], leaves: &[Vec<u8>], place: &str) {
    let core = world.open();
    let core = core.unwrap_or_else(|error| panic!("{place}: {error}"));
    let size = leaves.len() as u64;
    match core.epoch {
        0 => assert_eq!(core.status().leaves, size + 2, "{place}"),
        _ => assert_eq!(core.status().leaves, size, "{place}"),
    }
    drop(core);
    renew(world, rules).unwrap_or_else(|error| panic!("{place}: {error}"));
    for round in 0..2 {
        let core = world.open();
        let core = core.unwrap_or_else(|error| panic!("{place}, again: {error}"));
        let mut one = Device::connect(&core, 1).unwrap();
        one.follow(1, &verified(rules));
        one.draw().unwrap();
        assert!(one.leaves.starts_with(leaves), "{place}: other leaves");
        assert_eq!(one.leaves.len() as u64, size + round, "{place}");
        let resume = one.resume(100 + round as u8);
        send(&core, &mut one, &resume);
        core.move_leaves().unwrap();
    }
}

#[test]
fn crash_leaves_the_old_epoch_or_the_new_one() {
    let operations = |world: &World| {
        [
            world.machine.operations(),
            world.disk.operations(),
            world.blocks.operations(),
        ]
    };
    let work = |world: &World, rules: &[Signed]| {
        let done = renew(world, rules).and_then(|()| world.open().map(drop));
        if done.is_err() {
            world.stop();
        }
        done
    };
    let whole = World::new();
    let (start, leaves, _) = written(&whole);
    let rules = Rules::of(start).signed();
    let from = operations(&whole);
    work(&whole, &rules).unwrap();
    let to = operations(&whole);
    let mut checked = 0;
    for storage in 0..3 {
        for operation in from[storage]..to[storage] {
            let world = World::new();
            written(&world);
            match storage {
                0 => world.machine.stop_at(operation + 1),
                1 => world.disk.crash_at(operation),
                _ => world.blocks.crash_at(operation),
            }
            // The snapshot may fail unseen.
            let _ = work(&world, &rules);
            for stop in [Stop::Kill, Stop::Power] {
                let logs: Vec<_> = world.machine.outcomes(stop, 2, LOG_OUTCOMES, 7).collect();
                let files = world.disk.outcomes(DISK_OUTCOMES);
                let segments = world.blocks.outcomes(DISK_OUTCOMES);
                for number in 0..logs.len().max(files.len()) {
                    let restarted = World::of(
                        world.machine.restart(stop, 2, &logs[number % logs.len()]),
                        world.disk.reborn(&files[number % files.len()]),
                        world.blocks.reborn(&segments[number % segments.len()]),
                    );
                    let place = format!("storage {storage}, operation {operation}, {stop:?}");
                    check(&restarted, &rules, &leaves, &place);
                    checked += 1;
                }
            }
        }
    }
    println!("{checked} crashes");
    assert!(checked > 50, "{checked} crashes are too few");
}
