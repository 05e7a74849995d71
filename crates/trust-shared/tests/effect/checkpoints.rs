//! A replay that begins with the rows of a checkpoint gives the same answers to every question about later positions
//! as one that has the whole log; so do members.

use std::collections::BTreeSet;
use std::fmt::Write;

use proptest::prelude::*;
use trust_shared::checkpoint::Row;
use trust_shared::effect::Replay;
use trust_shared::effect::replay::{Base, Sources};
use trust_shared::fold;
use trust_shared::hold::Family;
use trust_shared::itable::Fold;
use trust_shared::members::{MemberRows, Members};
use trust_shared::ops::Body;
use trust_shared::outcome::{Outcome, Written};
use trust_shared::principal::{Device, FileId};

use crate::devices::{Client, NAMES, Step};
use crate::world::*;

pub type Rows = Vec<(Row, Vec<u8>)>;

/// A log of several devices, with folds among them that are wrong.
pub fn logged(steps: &[Step]) -> (World, BTreeSet<FileId>) {
    let mut world = World::new();
    let mut clients: Vec<Client> = (0..DEVICES).map(Client::new).collect();
    let mut files = BTreeSet::from([world.volume.root]);
    for step in steps {
        let client = &mut clients[usize::from(step.0) % DEVICES as usize];
        if step.4 >= 128 {
            client.catch_up(&world);
        }
        if step.4 % 32 == 7 {
            wrong_fold(&mut world, step.2);
            continue;
        }
        if let Some((call, Ok(Some(op)))) = client.call(&world.store, *step) {
            if let crate::posix::Call::Create { new, .. } = call {
                files.insert(new);
            }
            world.put_seen(client.device, client.seen(), op);
        }
    }
    (world, files)
}

/// A member folds one principal, and names the i-table of another.
fn wrong_fold(world: &mut World, choice: u8) {
    let (of, table) = match choice % 3 {
        0 => (EVERYBODY, TEAM),
        1 => (TEAM, EVERYBODY),
        _ => (EVERYBODY, user(0)),
    };
    let before = world.state.last_fold(of);
    let root = world.folded(table).root;
    let upto = world.end().saturating_sub(u64::from(choice) / 64);
    let fold = Fold { upto, root };
    world.put(0, trust_shared::calls::fold(of, before, fold));
}

pub fn push(replay: &mut Replay, world: &World, from: u64) {
    for entry in &world.log[(from - BEGIN) as usize..] {
        let outline = entry.body.outline();
        replay
            .push(&entry.written, &outline, &world.members)
            .unwrap();
    }
}

pub fn whole(world: &World) -> Replay {
    let mut replay = Replay::new(world.volume.clone());
    replay.grow(BEGIN);
    push(&mut replay, world, BEGIN);
    replay
}

/// The rows at a position, so many keys at a time, from a cache that has nothing at first.
pub fn rows(replay: &mut Replay, world: &World, at: u64, most: usize) -> Rows {
    let cache = Cache::new(&world.store);
    let from = Sources {
        members: &world.members,
        stored: &cache,
    };
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = cache.ask(|| replay.rows(at, after.as_ref(), most, from));
        for (handle, bytes) in page.blocks {
            world.store.keep(trust::Kind::Inode, handle.any(), &bytes);
        }
        all.extend(page.rows);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert!(all.is_sorted_by(|a, b| a.0.encode() < b.0.encode()));
    all
}

pub fn begun(world: &World, at: u64, rows: &Rows) -> Replay {
    let mut base = Base::default();
    for (row, value) in rows {
        assert_eq!(base.take(row, value, at), Ok(true), "{row:?}");
    }
    base.check().unwrap();
    Replay::resume(world.volume.clone(), at, base)
}

/// Everything that can be asked about a position.
pub fn answers(replay: &mut Replay, world: &World, files: &BTreeSet<FileId>, at: u64) -> String {
    let from = world.sources();
    let mut all = String::new();
    for file in files {
        let inode = replay.shown(at, file, from);
        let (entries, lock) = (replay.entries(at, file, from), replay.lock(at, file, from));
        let _ = writeln!(all, "{file:?}: {inode:?} {entries:?} {lock:?}");
        for device in 0..DEVICES {
            let hold = replay.hold(at, (file, Family::Fcntl, Device(device)), from);
            let _ = writeln!(all, "  {device}: {hold:?}");
        }
        for text in NAMES {
            let to = replay.entry(at, file, &name(text), from);
            let _ = writeln!(all, "  {text}: {to:?}");
        }
        for most in [1, 2, 10] {
            let names = replay.list(at, file, None, most, from);
            let _ = writeln!(all, "  {names:?}");
        }
        let names = replay.list(at, file, Some(&name("a")), 1, from);
        let _ = writeln!(all, "  {names:?}");
    }
    for owner in owners() {
        let fold = replay.last_fold(at, owner, from);
        let before = fold.as_ref().ok().copied().flatten();
        let root = before.and_then(|fold| fold.root);
        // Keys that ops without effect name are among the changes of one replay and not of another. The fold is one.
        let folded = replay.changes(at, owner, from).map(|changes| {
            let (hasher, store) = (&world.volume.hasher, &world.store);
            fold::fold(hasher, root.as_ref(), &changes, at, store, |_, _, _| {})
        });
        let _ = writeln!(all, "{owner:?}: {fold:?} {folded:?}");
    }
    all
}

fn outcome(replay: &mut Replay, world: &World, at: u64) -> Outcome {
    replay.outcome(at, 0, world.sources()).unwrap()
}

/// Starts from each position, and compares all later ones.
fn compare(steps: &[Step]) {
    let (world, files) = logged(steps);
    let mut full = whole(&world);
    let all: Vec<String> = (BEGIN..=world.end())
        .map(|at| answers(&mut full, &world, &files, at))
        .collect();
    for start in BEGIN..=world.end() {
        let at_start = rows(&mut full, &world, start, 3);
        let mut then = Replay::new(world.volume.clone());
        then.grow(BEGIN);
        let before = World {
            log: world.log[..(start - BEGIN) as usize].to_vec(),
            ..logged(&[]).0
        };
        push(&mut then, &before, BEGIN);
        assert_eq!(rows(&mut then, &world, start, 1000), at_start, "at {start}");
        let mut begun = begun(&world, start, &at_start);
        push(&mut begun, &world, start);
        for at in start..=world.end() {
            let found = answers(&mut begun, &world, &files, at);
            assert_eq!(found, all[(at - BEGIN) as usize], "{start} to {at}");
            assert_eq!(
                rows(&mut begun, &world, at, 2),
                rows(&mut full, &world, at, 7)
            );
        }
        for at in start..world.end() {
            let found = outcome(&mut begun, &world, at);
            assert_eq!(found, outcome(&mut full, &world, at), "{start} to {at}");
        }
        if start > BEGIN {
            let early = begun.inode(start - 1, &world.volume.root, world.sources());
            assert!(early.is_err());
        }
    }
}

fn steps(most: usize) -> impl Strategy<Value = Vec<Step>> {
    let step = (0u8..4, 0u8..17, any::<u8>(), any::<u8>(), any::<u8>());
    prop::collection::vec(step, 1..most)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn replay_from_a_checkpoint_answers_as_the_whole_log_does(steps in steps(24)) {
        compare(&steps);
    }
}

/// A replay that began with a checkpoint forgets what is folded, and goes on alike.
#[test]
fn checkpoint_is_forgotten_once_it_is_folded() {
    let steps: Vec<Step> = (0..40u8)
        .map(|n| {
            (
                n % 3,
                n.wrapping_mul(7) % 16,
                n.wrapping_mul(13),
                n.wrapping_mul(29),
                128 | (n % 7),
            )
        })
        .collect();
    let (mut world, files) = logged(&steps);
    let start = BEGIN + 12;
    let mut full = whole(&world);
    let at_start = rows(&mut full, &world, start, 5);
    let mut begun = begun(&world, start, &at_start);
    push(&mut begun, &world, start);
    let folds_from = world.end();
    for owner in owners() {
        let before = world.state.last_fold(owner);
        let fold = world.folded(owner);
        let device = (0..DEVICES).find(|device| crate::posix::writes(*device, owner));
        let op = trust_shared::calls::fold(owner, before, fold);
        assert_eq!(world.put(device.unwrap(), op), Outcome::Effect);
    }
    for replay in [&mut full, &mut begun] {
        push(replay, &world, folds_from);
        replay.forget_before(folds_from, world.sources()).unwrap();
    }
    let at = world.end();
    assert_eq!(
        answers(&mut begun, &world, &files, at),
        answers(&mut full, &world, &files, at)
    );
    let last = rows(&mut begun, &world, at, 4);
    assert_eq!(last, rows(&mut full, &world, at, 4));
    assert!(
        !last
            .iter()
            .any(|(row, _)| matches!(row, Row::Inode(_) | Row::Entry(..)))
    );
}

#[test]
fn rows_of_a_checkpoint_fit_into_a_tree_whatever_the_size_of_an_inode() {
    for target_bytes in 3980..=4095 {
        let (world, _) = linked(target_bytes);
        let end = world.end();
        for (row, value) in rows(&mut whole(&world), &world, end, 100) {
            let entry_bytes = row.encode().len() + value.len() + 4;
            assert!(entry_bytes <= 4096, "{target_bytes}: {entry_bytes}");
        }
    }
}

/// A world with a symbolic link.
fn linked(target_bytes: usize) -> (World, FileId) {
    let mut world = World::new();
    let new = file(EVERYBODY, 1, 1);
    let mut inode = regular("");
    let target = "t".repeat(target_bytes);
    inode.content = trust::inode::Content::Symlink(target.into_bytes().into());
    inode.size = inode.content.size();
    let op = world.create(&root(), "a", new, inode);
    assert_eq!(world.put(1, op), Outcome::Effect);
    (world, new)
}

#[test]
fn large_inode_of_a_checkpoint_lies_in_a_block() {
    let (world, new) = linked(4090);
    let end = world.end();
    let mut full = whole(&world);
    let made = rows(&mut full, &world, end, 100);
    let mut begun = begun(&world, end, &made);
    let cache = Cache::new(&world.store);
    let from = Sources {
        members: &world.members,
        stored: &cache,
    };
    let found = cache.ask(|| begun.inode(end, &new, from));
    assert_eq!(found, full.inode(end, &new, world.sources()).unwrap());
    assert_eq!(*cache.rounds.borrow(), 1);
    assert_eq!(rows(&mut begun, &world, end, 1), made);
    let fold = world.folded(EVERYBODY);
    let changes = begun.changes(end, EVERYBODY, world.sources()).unwrap();
    let (hasher, store) = (&world.volume.hasher, &world.store);
    let again = fold::fold(hasher, None, &changes, end, store, |_, _, _| {});
    assert_eq!(again, Ok(fold));
}

#[test]
fn rows_that_no_log_has_are_refused() {
    let steps: Vec<Step> = (0..60u8)
        .map(|n| {
            (
                n % 3,
                n.wrapping_mul(5) % 17,
                n.wrapping_mul(13),
                n.wrapping_mul(29),
                128 | (n % 7),
            )
        })
        .collect();
    let (world, _) = logged(&steps);
    let end = world.end();
    let all = rows(&mut whole(&world), &world, end, 5);
    for (row, value) in &all {
        let take = |value: &[u8], size| Base::default().take(row, value, size);
        assert!(take(value, 0).is_err(), "{row:?} of an empty log");
        let long = [value.clone(), vec![0]].concat();
        assert!(take(&long, end).is_err(), "{row:?}");
        assert!(take(&value[..value.len() - 1], end).is_err(), "{row:?}");
    }
    // A change that the last fold has already.
    let mut base = Base::default();
    let fold = |upto: u8| vec![upto, 0];
    base.take(&Row::Fold([1; 32]), &fold(9), 20).unwrap();
    base.take(&Row::Inode(world.volume.root.into()), &[8, 0], 20)
        .unwrap();
    assert!(base.check().is_err());
}

/// Entries that change members all the time.
fn decided(choices: &[(u8, u8, u8)]) -> Vec<(Written, Body)> {
    use trust_shared::calls::decide;
    use trust_shared::decision::{Decision, Label, Role};

    let entry = |(number, (what, who, how)): (usize, &(u8, u8, u8))| {
        let position = BEGIN + number as u64;
        let author = u32::from(*how) % 2;
        let (device, group) = (Device(1 + u32::from(*who) % 6), TEAM);
        let of = user(u32::from(*who) % 6);
        let decision = match what % 12 {
            0 => Decision::AdmitDevice {
                device,
                key: trust::key::SecretKey::from_seed(&[device.0 as u8; 32]).public(),
                user: of,
            },
            1 => Decision::RemoveDevice { device },
            2 => Decision::AddUser {
                user: of,
                label: Label::new(&format!("user {}", who % 6)).unwrap(),
            },
            3 => Decision::RemovePrincipal { principal: of },
            4 => Decision::Grant {
                group,
                user: of,
                role: [Role::Reader, Role::Writer, Role::Admin][usize::from(*how) % 3],
            },
            5 => Decision::Revoke { group, user: of },
            6 => Decision::Grant {
                group: EVERYBODY,
                user: user(1),
                role: Role::Admin,
            },
            7 => Decision::NameDevice {
                device,
                label: Label::new(["laptop", "desk"][usize::from(*how) % 2]).unwrap(),
            },
            8 => Decision::Pin {
                label: Label::new(["v1", "v2"][usize::from(*who) % 2]).unwrap(),
                size: u64::from(*how % 64).max(1),
            },
            9 => Decision::Unpin {
                label: Label::new(["v1", "v2"][usize::from(*who) % 2]).unwrap(),
            },
            10 => Decision::Retain {
                seconds: 86_400 + u64::from(*how),
            },
            _ => Decision::Accept { device },
        };
        let body = Body::new(vec![decide(decision)]).unwrap();
        // Some attest their decisions, others do not yet.
        let seen = if how % 4 == 0 { BEGIN } else { position };
        (written(author, position, seen), body)
    };
    choices.iter().enumerate().map(entry).collect()
}

fn take(members: &mut Members, (by, body): &(Written, Body)) {
    members.take_effect(by);
    members.propose(by, &body.outline(), body);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    #[test]
    fn members_from_a_checkpoint_are_those_of_the_whole_log(
        choices in prop::collection::vec((any::<u8>(), any::<u8>(), any::<u8>()), 1..40),
        cut in 0usize..40,
    ) {
        let entries = decided(&choices);
        let cut = cut % (entries.len() + 1);
        let mut members = members();
        entries[..cut].iter().for_each(|entry| take(&mut members, entry));
        let size = BEGIN + cut as u64;
        let given = |members: &Members| {
            let mut rows = members.rows();
            rows.extend(members.last_rows().unwrap());
            rows
        };
        let mut read = MemberRows::new(EVERYBODY, size);
        for (row, value) in given(&members) {
            prop_assert_eq!(read.take(&row, &value), Ok(true));
        }
        let mut begun = read.finish().unwrap();
        prop_assert_eq!(given(&begun), given(&members));
        // The rest of the log does the same to both.
        for entry in &entries[cut..] {
            take(&mut begun, entry);
            take(&mut members, entry);
            prop_assert_eq!(given(&begun), given(&members));
            let at = entry.0.position + 1;
            prop_assert_eq!(begun.pins(), members.pins());
            prop_assert_eq!(begun.retention_s(), members.retention_s());
            for device in (0..8).map(Device) {
                prop_assert_eq!(begun.active(device, at), members.active(device, at));
                prop_assert_eq!(begun.admitted(device), members.admitted(device));
                prop_assert_eq!(begun.accepted(device, at), members.accepted(device, at));
                prop_assert_eq!(begun.waits(device), members.waits(device));
                for owner in owners() {
                    prop_assert_eq!(begun.role(device, owner, at), members.role(device, owner, at));
                }
            }
        }
    }
}

#[test]
fn times_that_are_in_a_fold_are_refused() {
    let times = |at: u64| {
        let mut e = trust::encode::Encoder::new();
        e.varint(at);
        TIME.encode(&mut e);
        TIME.encode(&mut e);
        e.finish()
    };
    for (at, is_right) in [(4, false), (5, true)] {
        let mut base = Base::default();
        let fold = Row::Fold(*EVERYBODY.as_bytes());
        assert_eq!(base.take(&fold, &[5, 0], 9), Ok(true));
        let row = Row::Times(volume().root.into());
        assert_eq!(base.take(&row, &times(at), 9), Ok(true));
        assert_eq!(base.check().is_ok(), is_right, "{at}");
        // A position that the log does not have.
        assert!(base.take(&row, &times(9), 9).is_err());
    }
}
