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
