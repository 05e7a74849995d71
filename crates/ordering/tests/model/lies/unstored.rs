//! Entries that come before their blocks: what the server says, and what a device does.

use super::*;

#[test]
fn entry_before_its_blocks_is_sent_again_with_the_same_bytes() {
    let (mut client, log) = running();
    let id = |effects: &[Effect<Real, Tally, u64>]| {
        let again = effects.iter().find_map(|effect| match effect {
            Effect::Again(entry) => Some(leaf_hash(&Leaf::Entry(entry.clone()))),
            _ => None,
        });
        (again, effects.len())
    };
    let effects = client.issue([(2, Call::Add(0))]);
    let sent = entries(&effects);
    let hash = leaf_hash(&sent[0]);
    let mut denied = reply(&log, log.len());
    for _ in 0..3 {
        denied.unstored = Some(hash);
        assert_eq!(id(&client.deliver(&denied)), (Some(hash), 1));
    }
    // Of an entry that is not in flight nothing follows, and none of the call has got lost.
    denied.unstored = Some([7; 32]);
    assert_eq!(id(&client.deliver(&denied)), (None, 0));
    let mut log = log;
    log.extend(sent);
    let mut ordered = reply(&log, log.len() - 1);
    ordered.unstored = Some(hash);
    let effects = client.deliver(&ordered);
    assert_eq!(id(&effects).0, None, "it is in the log");
    let done = |effect: &Effect<_, _, _>| matches!(effect, Effect::Answer { ticket: 2, .. });
    assert!(effects.iter().any(done));
}

#[test]
fn orderer_tells_only_the_author_of_an_entry_before_its_blocks() {
    let (_, log) = running();
    let mut server = server(&log, Limits::default());
    let resume = stranger(&log, 2, true);
    assert_eq!(server.unstored(device(1), &resume), Err(Turned::NoSession));
    for number in [0, 1] {
        let open = Request::Open(Some(note(&log)));
        assert_eq!(server.receive(device(number), &open), Ok(()));
        server.draw(device(number));
    }
    assert_eq!(server.unstored(device(0), &resume), Err(Turned::Forged));
    assert_eq!(server.unstored(device(1), &resume), Ok(true));
    assert!(server.has_news(device(1)) && !server.has_news(device(0)));
    let told = server.draw(device(1)).expect("an answer");
    let hash = leaf_hash(&Leaf::Entry(resume.clone()));
    assert_eq!((told.leaves, told.unstored), (2..2, Some(hash)));
    assert!(server.draw(device(1)).is_none(), "it is told once");
    let entry = Request::Entry(resume.clone());
    assert_eq!(server.receive(device(1), &entry), Ok(()));
    assert_eq!(server.unstored(device(1), &resume), Ok(false));
    assert_eq!(commit(&mut server), 1);
    let delivery = server.draw(device(1)).expect("the entry");
    assert_eq!((delivery.leaves, delivery.unstored), (2..3, None));
}

/// The tickets that were taken back.
fn withdrawn(effects: &Effects) -> Vec<u64> {
    let back = effects.iter().filter_map(|effect| match effect {
        Effect::Withdrawn(ticket) => Some(*ticket),
        _ => None,
    });
    back.collect()
}

#[test]
fn call_that_is_taken_back_waits_until_its_entry_cannot_be_ordered_any_more() {
    let (mut client, mut log) = running();
    let sent = entries(&client.issue([(2, Call::Add(0)), (3, Call::Add(1))]));
    assert_eq!(sent.len(), 1);
    client.issue([(4, Call::Add(2))]);
    // One that is in no entry is taken back at once.
    assert_eq!(withdrawn(&client.withdraw(|of, _| of == Some(4))), [4]);
    let effects = client.withdraw(|of, _| of == Some(2));
    assert_eq!(withdrawn(&effects), [0u64; 0], "it may be ordered");
    let resume = entries(&client.ring(Timer::Resume));
    assert_eq!(resume.len(), 1);
    log.extend(resume);
    let effects = client.deliver(&reply(&log, 2));
    assert_eq!(withdrawn(&effects), [2]);
    let again = entries(&effects);
    assert_eq!(again.len(), 1, "the other call goes on");
    log.extend(again);
    let effects = client.deliver(&reply(&log, 3));
    let done = |effect: &Effect<_, _, _>| matches!(effect, Effect::Answer { ticket: 3, .. });
    assert!(effects.iter().any(done));
    assert_eq!(client.ledger().volume().sum(0), 1, "that of the beginning");
}

#[test]
fn entry_that_was_ordered_all_the_same_counts() {
    let (mut client, mut log) = running();
    log.extend(entries(&client.issue([(2, Call::Add(0))])));
    client.withdraw(|of, _| of == Some(2));
    log.extend(entries(&client.ring(Timer::Resume)));
    let effects = client.deliver(&reply(&log, 2));
    let done = |effect: &Effect<_, _, _>| matches!(effect, Effect::Answer { ticket: 2, .. });
    assert!(effects.iter().any(done) && withdrawn(&effects).is_empty());
}

#[test]
fn device_does_not_resume_before_it_may() {
    let mut client = client(0);
    client.wait_to_resume();
    assert!(!client.armed(Timer::Resume));
    assert!(entries(&client.ring(Timer::Resume)).is_empty());
    client.may_resume();
    assert_eq!(entries(&client.ring(Timer::Resume)).len(), 1);
}
