//! Schedules that a walk seldom meets, on one file.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use share::writeback::{
    Cached, Changed, Effect, Found, Nodes, NotSent, NotStored, Opens, ROOT, Timer,
};
use trust::inode::{Inode, Time};

use super::layer::{Effects, File, Loss, Simulated, content_of, read};

fn inode(bytes: &[u8], seconds: i64) -> Arc<Inode> {
    let time = Time { seconds, nanos: 0 };
    let mut inode = Inode::new(0o644, time, content_of(bytes));
    inode.ctime = Some(time);
    Arc::new(inode)
}

/// A file with the content `base`, which handles 1 and 2 have open.
fn file() -> File {
    let mut file = Cached::new(inode(b"base", 1), 5);
    file.opened();
    file.opened();
    file
}

/// A handle overwrites the beginning.
fn write(file: &mut File, handle: u64, text: &[u8]) -> Effects {
    let place = || Ok(Rc::new(RefCell::new(vec![0; 64])));
    let time = Time {
        seconds: 10,
        nanos: 0,
    };
    let (changed, effects) = file
        .change((Some(handle), time, 0), place, |local| {
            local.bytes.borrow_mut()[..text.len()].copy_from_slice(text);
            local.overlay.write(0..text.len() as u64);
            Ok::<(), Loss>(())
        })
        .unwrap();
    assert_eq!(changed, Changed::Made(()));
    effects
}

/// The only effect of a kind that is looked for.
macro_rules! only {
    ($effects:expr, $pattern:pat => $value:expr) => {{
        let effects = $effects;
        let mut found = effects.into_iter().filter_map(|effect| match effect {
            $pattern => Some($value),
            _ => None,
        });
        let first = found.next().expect("the effect is there");
        assert!(found.next().is_none());
        first
    }};
}

/// What waiters are told.
fn answers(effects: Effects) -> Vec<(u64, Result<(), Loss>)> {
    let answers = effects.into_iter().filter_map(|effect| match effect {
        Effect::Answer(waiter, told) => Some((waiter, told)),
        _ => None,
    });
    answers.collect()
}

fn sends(file: &mut File, text: &[u8]) {
    let effects = file.cut(Ok((content_of(text), Vec::new())));
    only!(effects, Effect::Send { .. } => ());
}

/// Nobody knows what became of a commit of "mine", for which request 100 waits. The file is looked at now.
fn with_unknown_commit() -> File {
    let mut file = file();
    write(&mut file, 1, b"mine");
    file.commit(Some(1), 100);
    sends(&mut file, b"mine");
    only!(file.sent(Err(NotSent::Unknown)), Effect::Wait(Timer::Again) => ());
    only!(file.rang(Timer::Again), Effect::Look => ());
    file
}

#[test]
fn changes_are_committed_without_a_close() {
    let mut file = file();
    let effects = write(&mut file, 1, b"new");
    only!(effects, Effect::Wait(Timer::Dirty) => ());
    only!(file.rang(Timer::Dirty), Effect::Cut { .. } => ());
}

#[test]
fn answer_that_comes_late_does_not_show_an_older_version() {
    let mut file = file();
    file.see(&inode(b"second", 2), 9);
    file.see(&inode(b"first", 1), 7);
    assert_eq!(shown(&file), b"second");
}

#[test]
fn each_handle_that_wrote_is_told_once_of_lost_bytes() {
    let mut file = file();
    write(&mut file, 1, b"one");
    write(&mut file, 2, b"two");
    let (_, effects) = file.commit(Some(1), 100);
    only!(effects, Effect::Cut { .. } => ());
    let effects = file.cut(Err(NotStored::Ever("full")));
    assert_eq!(answers(effects), [(100, Err("full"))]);
    // The other one has not been told, although this commit has no fault.
    let (_, effects) = file.commit(Some(2), 200);
    only!(effects, Effect::Cut { .. } => ());
    sends(&mut file, b"twoe");
    assert_eq!(answers(file.sent(Ok(8))), [(200, Err("full"))]);
    for handle in [1, 2] {
        let (_, effects) = file.commit(Some(handle), 300);
        assert_eq!(answers(effects), [(300, Ok(()))]);
    }
}

#[test]
fn bytes_that_were_given_up_do_not_go_over_what_others_wrote_since() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    let (ticket, _) = file.commit(Some(1), 100);
    let effects = file.expired(ticket, "too late");
    assert_eq!(answers(effects), [(100, Err("too late"))]);
    sends(&mut file, b"mine");
    only!(file.sent(Err(NotSent::Stale)), Effect::Look => ());
    let found = Found::File(inode(b"theirs", 7), 9);
    only!(file.found(found), Effect::Copy(_) => ());
    file.copied(Ok("copied"));
    assert_eq!(shown(&file), b"theirs");
}

#[test]
fn bytes_that_were_given_up_go_onto_content_that_nobody_changed() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    let (ticket, _) = file.commit(Some(1), 100);
    file.expired(ticket, "too late");
    sends(&mut file, b"mine");
    only!(file.sent(Ok(9)), Effect::Clean => ());
    assert_eq!(shown(&file), b"mine");
}

#[test]
fn content_that_came_back_is_not_taken_for_a_commit_without_effect() {
    let mut file = with_unknown_commit();
    // Another device saw the commit, and took it back.
    let found = Found::File(inode(b"base", 8), 9);
    only!(file.found(found), Effect::Copy(_) => ());
    assert_eq!(answers(file.copied(Ok("copied"))), [(100, Err("copied"))]);
}

#[test]
fn commit_that_had_effect_is_recognised() {
    let mut file = with_unknown_commit();
    let effects = file.found(Found::File(inode(b"mine", 8), 9));
    assert_eq!(answers(effects), [(100, Ok(()))]);
    assert_eq!(file.dirty(), None);
}

#[test]
fn commit_without_effect_is_begun_again() {
    let mut file = with_unknown_commit();
    only!(file.found(Found::File(inode(b"base", 1), 9)), Effect::Cut { .. } => ());
}

#[test]
fn commit_whose_outcome_nobody_knows_is_not_taken_for_what_was_written_later() {
    let mut file = with_unknown_commit();
    let effects = file.found(Found::Failed("gone"));
    assert_eq!(answers(effects), [(100, Err("gone"))]);
    write(&mut file, 2, b"more");
    only!(file.begin(), Effect::Cut { .. } => ());
    sends(&mut file, b"more");
    only!(file.sent(Err(NotSent::Stale)), Effect::Look => ());
    let found = Found::File(inode(b"mine", 8), 9);
    only!(file.found(found), Effect::Copy(_) => ());
}

#[test]
fn open_does_not_move_bytes_that_were_told_lost_onto_what_others_wrote() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    file.commit(Some(1), 100);
    file.cut(Err(NotStored::Ever("full")));
    assert!(file.show(&inode(b"theirs", 7), 9).is_empty());
    only!(file.rang(Timer::Retry), Effect::Cut { .. } => ());
    let effects = file.cut(Ok((content_of(b"mine"), Vec::new())));
    let expect = only!(effects, Effect::Send { expect, .. } => expect);
    assert_eq!(expect, content_of(b"base"));
}

#[test]
fn name_that_is_gone_is_looked_up_again_once() {
    let root = crate::net::Net::founded(1, 1 << 20).root();
    let layer_root = share::files::File {
        id: root,
        inode: Arc::new(crate::asks::directory()),
    };
    let nodes: Nodes<Simulated> = Nodes::new([1; 32], layer_root);
    let parent = nodes.get(ROOT).unwrap();
    let mut id = root;
    id.number.counter += 1;
    let found = || share::files::File {
        id,
        inode: inode(b"base", 1),
    };
    let name = crate::asks::name("f");
    let node = nodes.found(found(), 5, (&parent, &name));
    let first = nodes.opening(&node, 7, root);
    assert_eq!((first.place.start, first.place.path.len()), (root, 1));
    assert_eq!(nodes.opened(&first, (&node, 7), None), Opens::Stale);
    // The look-up after it has found it once more; then it went.
    nodes.found(found(), 6, (&parent, &name));
    let second = nodes.opening(&node, 7, root);
    assert_eq!((second.place.start, second.place.path.len()), (id, 0));
    assert_eq!(nodes.opened(&second, (&node, 7), None), Opens::Known);
    // The next OPEN of the thread asks by the name again.
    let third = nodes.opening(&node, 7, root);
    assert_eq!(nodes.opened(&third, (&node, 7), None), Opens::Stale);
}

/// What programs read.
fn shown(file: &File) -> Vec<u8> {
    read(&crate::net::Net::founded(1, 1 << 20), file)
}

/// Handle 1 appends.
fn append(file: &mut File, text: &[u8]) {
    let place = || Ok(Rc::new(RefCell::new(vec![0; 64])));
    let changed = file.change((Some(1), Time::default(), 0), place, |local| {
        let at = local.overlay.append(text.len() as u64) as usize;
        local.bytes.borrow_mut()[at..at + text.len()].copy_from_slice(text);
        Ok::<(), Loss>(())
    });
    assert_eq!(changed.unwrap().0, Changed::Made(()));
}

#[test]
fn close_during_the_move_of_an_open_commits_after_it() {
    let mut file = file();
    append(&mut file, b"mine");
    // Another program opens the file, which is longer now.
    let effects = file.show(&inode(b"base and theirs", 7), 9);
    let bytes = only!(effects, Effect::Move { from, .. } => from);
    let (_, effects) = file.commit(Some(1), 100);
    assert!(effects.is_empty());
    only!(file.moved(Ok(bytes)), Effect::Cut { .. } => ());
}

#[test]
fn old_changes_are_committed_after_the_move_of_an_open() {
    let mut file = file();
    append(&mut file, b"mine");
    let effects = file.show(&inode(b"base and theirs", 7), 9);
    only!(effects, Effect::Move { .. } => ());
    assert!(file.rang(Timer::Dirty).is_empty());
    only!(file.moved(Err("full")), Effect::Cut { .. } => ());
}

#[test]
fn commit_whose_outcome_nobody_knows_is_looked_for_at_the_retry() {
    let mut file = with_unknown_commit();
    file.found(Found::File(inode(b"theirs", 8), 9));
    let effects = file.copied(Err("no room"));
    assert_eq!(answers(effects), [(100, Err("no room"))]);
    only!(file.rang(Timer::Retry), Effect::Look => ());
}

#[test]
fn loss_that_a_killed_program_was_to_be_told_is_told_to_the_next_one() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    file.commit(Some(1), 100);
    let effects = file.cut(Err(NotStored::Ever("full")));
    assert_eq!(answers(effects), [(100, Err("full"))]);
    file.not_told(Some(1));
    let (_, effects) = file.commit(Some(1), 200);
    only!(effects, Effect::Cut { .. } => ());
    sends(&mut file, b"mine");
    assert_eq!(answers(file.sent(Ok(9))), [(200, Err("full"))]);
    // And a program that is gone takes nothing with it.
    write(&mut file, 1, b"more");
    let (ticket, _) = file.commit(Some(1), 300);
    file.cancel(ticket);
    assert!(answers(file.cut(Err(NotStored::Ever("full")))).is_empty());
    assert!(file.owes(1));
}

#[test]
fn bytes_that_were_told_lost_of_a_file_without_a_name_become_a_copy() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    let (ticket, _) = file.commit(Some(1), 100);
    file.expired(ticket, "too late");
    sends(&mut file, b"mine");
    only!(file.sent(Err(NotSent::Stale)), Effect::Look => ());
    only!(file.found(Found::Nothing), Effect::Copy(_) => ());
    // Who has it open keeps it.
    file.copied(Ok("copied"));
    assert_eq!(shown(&file), b"mine");
}

#[test]
fn open_whose_answer_comes_late_moves_nothing() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    file.show(&inode(b"second", 7), 9);
    file.show(&inode(b"first", 6), 8);
    let taken = file.taken().unwrap();
    assert_eq!(taken.base.content, content_of(b"second"));
}

#[test]
fn commit_keeps_attributes_that_another_device_has_set() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    let mut other = Inode::clone(&inode(b"base", 1));
    other.mode = 0o600;
    file.see(&Arc::new(other), 7);
    file.begin();
    sends(&mut file, b"mine");
    file.sent(Ok(9));
    assert_eq!(
        (file.inode().mode, shown(&file).as_slice()),
        (0o600, &b"mine"[..])
    );
}

#[test]
fn open_of_another_version_than_the_last_one_is_told_apart() {
    let root = crate::net::Net::founded(1, 1 << 20).root();
    let inode_of_root = Arc::new(crate::asks::directory());
    let root = share::files::File {
        id: root,
        inode: inode_of_root,
    };
    let nodes: Nodes<Simulated> = Nodes::new([1; 32], root);
    let node = nodes.get(ROOT).unwrap();
    node.cached().see(&inode(b"first", 1), 5);
    // The kernel may have learnt an older version by a look-up.
    assert!(!node.shows_same_as_last_open());
    assert!(node.shows_same_as_last_open());
    node.cached().see(&inode(b"second", 2), 6);
    assert!(!node.shows_same_as_last_open());
}

#[test]
fn removed_file_keeps_what_a_program_wrote_until_the_last_one_closes_it() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    file.removed();
    assert!(!file.closed(1));
    assert_eq!(shown(&file), b"mine");
    assert_eq!(file.shown().links, 0);
    assert!(file.closed(2));
    assert_eq!(file.dirty(), None);
}

#[test]
fn open_waits_for_a_commit_under_way_and_reads_go_on() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    file.commit(Some(1), 100);
    assert!(file.settle(200).is_ok());
    assert_eq!(shown(&file), b"mine");
    sends(&mut file, b"mine");
    assert_eq!(answers(file.sent(Ok(9))), [(100, Ok(())), (200, Ok(()))]);
    assert_eq!(file.settle(300), Err(300));
}

#[test]
fn steps_that_nobody_asked_for_change_nothing() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    assert!(file.cut(Ok((content_of(b"other"), Vec::new()))).is_empty());
    assert!(file.sent(Ok(9)).is_empty());
    assert!(file.found(Found::Nothing).is_empty());
    assert!(file.copied(Ok("copied")).is_empty());
    assert!(file.moved(Err("full")).is_empty());
    assert!(file.rang(Timer::Again).is_empty());
    assert_eq!(shown(&file), b"mine");
}

#[test]
fn commit_whose_blocks_were_refused_stores_them_before_the_next_op() {
    let mut file = file();
    write(&mut file, 1, b"mine");
    let (_, effects) = file.commit(Some(1), 100);
    assert!(!only!(effects, Effect::Cut { stored, .. } => stored));
    sends(&mut file, b"mine");
    let refused = NotSent::Unstored(NotStored::Now("refused"));
    only!(file.sent(Err(refused)), Effect::Wait(Timer::Again) => ());
    let effects = file.rang(Timer::Again);
    assert!(only!(effects, Effect::Cut { stored, .. } => stored));
    sends(&mut file, b"mine");
    assert_eq!(answers(file.sent(Ok(9))), [(100, Ok(()))]);
    // The next commit tries its luck again.
    write(&mut file, 1, b"more");
    let effects = file.begin();
    assert!(!only!(effects, Effect::Cut { stored, .. } => stored));
    sends(&mut file, b"more");
    // A server without room is told at once.
    file.commit(Some(1), 200);
    let full = NotSent::Unstored(NotStored::Ever("full"));
    assert_eq!(answers(file.sent(Err(full))), [(200, Err("full"))]);
    assert_eq!(shown(&file), b"more");
}
