//! Replies and messages that are wrong, one at a time, with real hashes and signatures: what the product's machines say
//! to each, and that nothing else happens.

use ordering::engine::{
    Alarm, Delays, Durable, Effect, Engine, Evidence, Record, Reply, Request, Setup, StopReason,
    Timer,
};
use ordering::ledger::Ledger;
use ordering::orderer::{Limits, Orderer, Quotas, Turned, Unlimited};
use ordering::prefixes::{Recent, Rfc6962};
use ordering::read_rule::Silence;
use ordering::rows::Rows;
use ordering::scheme::{DeviceScheme, Leaf, Log, Notary, Scheme};
use ordering::signed::Entry;
use trust::device::DeviceKey;
use trust_shared::form::{Fault, Heading, Point};
use trust_shared::note::SignedNote;

use crate::real::{DEVICES, Real, device, forged, forged_attest, marks, nonce, real};
use crate::tally::{Add, Call, Tally};

mod pages;
mod unstored;

type Effects = Vec<Effect<Real, Tally, u64>>;
type Client = Engine<Real, Tally, u64>;

const SETUP: Setup = Setup {
    silence: Silence::Strict,
    calls: 4,
};

fn genesis() -> Ledger<Real, Tally> {
    Ledger::new(Recent::default(), Tally::complete())
}

fn client(device: u8) -> Client {
    Engine::start(real(device, 1), SETUP, Durable::new(genesis()))
}

/// The orderer's note of a log.
fn note(log: &[Leaf<Real>]) -> SignedNote {
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    real(DEVICES, 1).note(Log::<Real>::point(&recent))
}

fn noted(note: &SignedNote) -> Point<[u8; 32]> {
    Real::noted(note)
}

fn leaf_hash(leaf: &Leaf<Real>) -> [u8; 32] {
    <Real as Rfc6962>::leaf_hash(leaf)
}

/// A reply with all of a log from a position on.
fn reply(log: &[Leaf<Real>], from: usize) -> Reply<Real> {
    Reply {
        from: from as u64,
        leaves: log[from..].to_vec(),
        note: note(log),
        more: false,
        attests: Vec::new(),
        asked: false,
        refused: None,
        unstored: None,
    }
}

fn entries(effects: &Effects) -> Vec<Leaf<Real>> {
    let entries = effects.iter().filter_map(|effect| match effect {
        Effect::Send(Request::Entry(entry)) => Some(Leaf::Entry(entry.clone())),
        _ => None,
    });
    entries.collect()
}

/// Device 0 after its Resume and an addition, and the log.
fn running() -> (Client, Vec<Leaf<Real>>) {
    let mut client = client(0);
    let mut log = entries(&client.ring(Timer::Resume));
    client.deliver(&reply(&log, 0));
    log.extend(entries(&client.issue([(1, Call::Add(0))])));
    let told = client.deliver(&reply(&log, 1));
    let answered = |effect: &Effect<_, _, _>| matches!(effect, Effect::Answer { ticket: 1, .. });
    assert!(told.iter().any(answered));
    assert_eq!(client.ledger().size(), 2);
    (client, log)
}

/// The first entry of device 1 in this log: its Resume, as it should be, or another entry.
fn stranger(log: &[Leaf<Real>], seen: usize, resume: bool) -> Entry {
    let mut recent = Recent::default();
    log[..seen].iter().for_each(|leaf| recent.push(leaf));
    let mut author = real(1, 1);
    let heading = Heading {
        incarnation: author.incarnation(),
        n: u64::from(!resume),
        previous: author.no_entry(),
        seen: Log::<Real>::point(&recent),
        kept: seen as u64,
        resume,
        alone: true,
    };
    author.sign(heading, Vec::new()).expect("an entry")
}

/// The reply proves nothing: nothing happens, and the true reply is taken afterwards.
fn proves_nothing(wrong: &Reply<Real>, why: &str) {
    let (mut client, mut log) = running();
    match client.deliver(wrong).as_slice() {
        [Effect::Unfit(what)] => assert!(what.contains(why), "{what}"),
        effects => panic!("{} effects, not {why}", effects.len()),
    }
    assert_eq!(client.ledger().size(), 2);
    log.push(marks(1));
    client.deliver(&reply(&log, 2));
    assert_eq!(client.ledger().size(), 3);
}

/// The reply convicts the orderer: the engine stops, and keeps what it has.
fn convicts(wrong: &Reply<Real>) -> Evidence<Real> {
    let (mut client, _) = running();
    let mut effects = client.deliver(wrong);
    let Some(Effect::Stopped(StopReason::Evidence(evidence))) = effects.pop() else {
        panic!("the orderer is not convicted");
    };
    assert!(effects.is_empty() && client.is_stopped());
    let refused = client.issue([(2, Call::Add(0))]);
    assert!(matches!(refused.as_slice(), [Effect::Busy(2)]));
    assert!(client.deliver(wrong).is_empty());
    assert_eq!(client.ledger().volume().sum(0), 1);
    evidence
}

#[test]
fn reply_that_does_not_fit_proves_nothing() {
    let (_, mut log) = running();
    log.push(marks(7));
    log.push(marks(8));
    proves_nothing(&reply(&log, 3), "missing");
    let short = Reply {
        note: note(&log[..3]),
        ..reply(&log, 2)
    };
    proves_nothing(&short, "end where the note");
    let mut other = log.clone();
    other[3] = marks(9);
    let swapped = Reply {
        note: note(&other),
        ..reply(&log, 2)
    };
    proves_nothing(&swapped, "lead to the note");
    let mut forger = real(0, 1);
    let forged = Reply {
        note: forger.note(noted(&note(&log))),
        ..reply(&log, 2)
    };
    proves_nothing(&forged, "not the orderer's");
}

#[test]
fn second_log_convicts_the_orderer() {
    let (_, log) = running();
    let mut other = log.clone();
    other[1] = marks(5);
    assert!(matches!(
        convicts(&reply(&other, 1)),
        Evidence::Notes { .. }
    ));
    // The note alone, as a heartbeat.
    let beat = Reply {
        from: 2,
        leaves: Vec::new(),
        ..reply(&other, 1)
    };
    assert!(matches!(convicts(&beat), Evidence::Notes { .. }));
    // A longer log that differs in what the device has.
    other.push(marks(6));
    let Evidence::Notes { from, leaves, .. } = convicts(&reply(&other, 1)) else {
        panic!("other evidence");
    };
    assert_eq!((from, leaves.len()), (1, 2));
}

#[test]
fn entry_of_bad_form_under_a_note_convicts_the_orderer() {
    let (_, log) = running();
    let elsewhere = [log[0].clone(), marks(5)];
    let mut with = log.clone();
    with.push(Leaf::Entry(stranger(&elsewhere, 2, true)));
    let Evidence::Form { at, faults, .. } = convicts(&reply(&with, 2)) else {
        panic!("other evidence");
    };
    assert_eq!(at, 2);
    assert!(faults.contains(Fault::SeenElsewhere));
    with[2] = Leaf::Entry(stranger(&log, 2, false));
    let Evidence::Form { faults, .. } = convicts(&reply(&with, 2)) else {
        panic!("other evidence");
    };
    assert!(faults.contains(Fault::NoResume));
}

#[test]
fn entry_with_a_wrong_signature_or_too_large_convicts_the_orderer() {
    let (_, log) = running();
    let mut with = log.clone();
    with.push(Leaf::Entry(forged(&stranger(&log, 2, true))));
    let Evidence::Form { malformed, .. } = convicts(&reply(&with, 2)) else {
        panic!("other evidence");
    };
    assert!(malformed.is_some_and(|what| what.contains("signature")));
    let own = |leaf: &Leaf<Real>| match leaf {
        Leaf::Entry(entry) => Real::heading(entry),
        Leaf::Marks(_) => panic!("marks"),
    };
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    let heading = Heading {
        n: own(&log[1]).n + 1,
        previous: leaf_hash(&log[1]),
        seen: Log::<Real>::point(&recent),
        ..own(&log[1])
    };
    let add = Add {
        counter: 0,
        from: 1,
    };
    // Under its own name too, unless it has sent just that.
    let entry = real(0, 1).sign(heading, vec![add; 1]).expect("an entry");
    with[2] = Leaf::Entry(forged(&entry));
    let Evidence::Form { malformed, .. } = convicts(&reply(&with, 2)) else {
        panic!("other evidence");
    };
    assert!(malformed.is_some_and(|what| what.contains("signature")));
    let ops = vec![add; 9];
    with[2] = Leaf::Entry(real(0, 1).sign(heading, ops).expect("an entry"));
    let Evidence::Form {
        malformed, faults, ..
    } = convicts(&reply(&with, 2))
    else {
        panic!("other evidence");
    };
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(malformed, Some("too many operations"));
}

#[test]
fn attest_counts_only_when_its_device_signed_it_for_this_log() {
    let (mut client, mut log) = running();
    log.push(Leaf::Entry(stranger(&log, 2, true)));
    client.deliver(&reply(&log, 2));
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    let here = Log::<Real>::point(&recent);
    let good = real(1, 1).attest(here).expect("an attest");
    let elsewhere = real(1, 1).attest(Point {
        root: [3; 32],
        ..here
    });
    let elsewhere = elsewhere.expect("an attest");
    let with = |attests| Reply {
        attests,
        ..reply(&log, 3)
    };
    let effects = client.deliver(&with(vec![elsewhere.clone()]));
    assert!(matches!(effects.as_slice(), [Effect::Differs(_)]));
    assert!(client.deliver(&with(vec![forged_attest(&good)])).is_empty());
    assert!(!client.is_supported(device(1), 2));
    client.deliver(&with(vec![good]));
    assert!(client.is_supported(device(1), 2));
    // One of another log, also if it names no more than is attested here.
    let effects = client.deliver(&with(vec![elsewhere]));
    assert!(matches!(effects.as_slice(), [Effect::Differs(_)]));
}

/// Device 1 resumes, adds one to counter 0, keeps nothing and attests nothing.
fn silent(log: &mut Vec<Leaf<Real>>) {
    let resume = stranger(log, 2, true);
    log.push(Leaf::Entry(resume.clone()));
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    let heading = Heading {
        n: 1,
        previous: leaf_hash(&log[2]),
        seen: Log::<Real>::point(&recent),
        kept: 0,
        resume: false,
        ..Real::heading(&resume)
    };
    let ops = vec![Add {
        counter: 0,
        from: 1,
    }];
    let entry = real(1, 1).sign(heading, ops).expect("an entry");
    log.push(Leaf::Entry(entry));
}

/// A call that reads, and whose mark comes next in the log.
fn read(client: &mut Client, log: &mut Vec<Leaf<Real>>, ticket: u64) -> Effects {
    let sent = client.issue([(ticket, Call::Read(0))]);
    let [Effect::Send(Request::Mark(mark))] = sent.as_slice() else {
        panic!("no mark");
    };
    let server = real(DEVICES, 1);
    log.push(Leaf::Marks(server.marks(&[*mark]).expect("a mark")));
    client.deliver(&reply(log, log.len() - 1))
}

#[test]
fn call_gives_up_on_a_silent_author_at_its_own_deadline() {
    let (mut client, mut log) = running();
    silent(&mut log);
    client.deliver(&reply(&log, 2));
    let mut alarm = Alarm::new(Delays::default());
    let tickets = |effects: Effects| -> Vec<(u64, Result<u64, Vec<DeviceKey>>)> {
        let answers = effects.into_iter().filter_map(|effect| match effect {
            Effect::Answer { ticket, answer, .. } => Some((ticket, answer)),
            _ => None,
        });
        answers.collect()
    };
    for (ticket, now_ms) in [(5, 100), (6, 2000)] {
        let effects = read(&mut client, &mut log, ticket);
        let asks = |effect: &Effect<_, _, _>| matches!(effect, Effect::Send(Request::Ask(whom)) if *whom == device(1));
        assert!(effects.iter().any(asks) && tickets(effects).is_empty());
        alarm.set(now_ms, &client);
    }
    assert!(alarm.next(&client).is_some_and(|next| next <= 5100));
    for (now_ms, given_up) in [
        (5099, vec![]),
        (5100, vec![(5, Err(vec![device(1)]))]),
        (7000, vec![(6, Err(vec![device(1)]))]),
    ] {
        let effects = alarm.ring(now_ms, &mut client);
        assert_eq!(tickets(effects), given_up);
        alarm.set(now_ms, &client);
    }
}

#[test]
fn blocks_are_stored_before_the_entry_that_names_them() {
    let (mut client, mut log) = running();
    for sum in 2..8 {
        let effects = client.issue([(sum, Call::Add(0))]);
        let stores = |effect: &Effect<_, _, _>| matches!(effect, Effect::Store(_));
        assert!(!effects.iter().any(stores), "{sum} is in the first block");
        log.extend(entries(&effects));
        client.deliver(&reply(&log, log.len() - 1));
    }
    let effects = client.issue([(8, Call::Add(0))]);
    let [
        Effect::Store(blocks),
        Effect::Journal(Record::Sent(_)),
        Effect::Send(Request::Entry(_)),
    ] = effects.as_slice()
    else {
        panic!("{} effects", effects.len());
    };
    assert_eq!(*blocks, [(0, 1)]);
}

#[test]
fn calls_beyond_the_limit_are_refused_and_cancelled_ones_leave_room() {
    let (mut client, _) = running();
    let calls = (10..15).map(|ticket| (ticket, Call::Read(0)));
    let effects = client.issue(calls);
    assert!(matches!(
        effects.as_slice(),
        [Effect::Busy(14), Effect::Send(Request::Mark(_))]
    ));
    client.cancel(11);
    assert_eq!(client.calls().count(), 3);
    // A later read does not share the mark that is in flight.
    let effects = client.issue([(20, Call::Read(0))]);
    assert!(matches!(
        effects.as_slice(),
        [Effect::Send(Request::Mark(_))]
    ));
}

type Server<Q = Unlimited> = Orderer<Real, Tally, Q>;

fn server(log: &[Leaf<Real>], limits: Limits) -> Server {
    let mut ledger = genesis();
    log.iter().for_each(|leaf| ledger.extend(leaf));
    Orderer::start(real(DEVICES, 1), limits, Unlimited, ledger)
}

fn commit<Q: Quotas<DeviceKey>>(server: &mut Server<Q>) -> usize {
    let leaves = server.commit().map_or(0, |(_, leaves)| leaves.len());
    server.committed();
    leaves
}

#[test]
fn orderer_that_meets_its_own_later_note_signs_nothing_more() {
    let (_, log) = running();
    let mut restored = server(&log[..1], Limits::default());
    assert_eq!(restored.receive(device(1), &Request::Open(None)), Ok(()));
    assert_eq!(
        restored.receive(device(1), &Request::Mark(nonce(1))),
        Ok(())
    );
    let opened = restored.receive(device(0), &Request::Open(Some(note(&log))));
    assert_eq!(opened, Err(Turned::Restored));
    assert!(restored.commit().is_none() && restored.draw(device(1)).is_none());
    assert_eq!(
        restored.receive(device(1), &Request::Open(None)),
        Err(Turned::Restored)
    );
    let mut server = server(&log[..1], Limits::default());
    let strange = real(1, 1).note(noted(&note(&log)));
    let opened = server.receive(device(0), &Request::Open(Some(strange)));
    assert_eq!(opened, Err(Turned::OtherLog));
    assert_eq!(
        server.receive(device(0), &Request::Open(Some(note(&log[..1])))),
        Ok(())
    );
}

#[test]
fn orderer_shows_a_device_the_note_that_contradicts_its_own_and_goes_on_with_the_others() {
    let (_, log) = running();
    let mut server = server(&log, Limits::default());
    let mut other = log[..2].to_vec();
    other[0] = marks(4);
    let theirs = note(&other);
    assert_eq!(
        server.receive(device(0), &Request::Open(Some(theirs))),
        Ok(())
    );
    assert!(server.has_news(device(0)));
    let shown = server.draw(device(0)).unwrap();
    assert_eq!((shown.leaves, shown.more), (2..2, false));
    assert_eq!(noted(&shown.note), noted(&note(&log[..2])));
    // It is told nothing else.
    assert!(server.draw(device(0)).is_none());
    let asked = server.receive(device(0), &Request::Mark(nonce(1)));
    assert_eq!(asked, Err(Turned::NoSession));
    assert_eq!(server.receive(device(1), &Request::Open(None)), Ok(()));
    assert_eq!(server.receive(device(1), &Request::Mark(nonce(1))), Ok(()));
    assert_eq!(commit(&mut server), 1);
    assert!(server.draw(device(1)).is_some());
}

#[test]
fn orderer_takes_messages_of_the_sessions_device_alone() {
    let (_, log) = running();
    let mut server = server(&log, Limits::default());
    let resume = stranger(&log, 2, true);
    let entry = Request::Entry(resume.clone());
    assert_eq!(server.receive(device(1), &entry), Err(Turned::NoSession));
    for number in [0, 1] {
        assert_eq!(
            server.receive(device(number), &Request::Open(Some(note(&log)))),
            Ok(())
        );
    }
    assert_eq!(server.receive(device(0), &entry), Err(Turned::Forged));
    let forged = Request::Entry(forged(&resume));
    assert_eq!(server.receive(device(1), &forged), Err(Turned::Forged));
    let attest = real(0, 1).attest(noted(&note(&log)));
    let attest = attest.expect("an attest");
    assert_eq!(
        server.receive(device(1), &Request::Attest(attest.clone())),
        Err(Turned::Forged)
    );
    assert_eq!(
        server.receive(device(0), &Request::Attest(forged_attest(&attest))),
        Err(Turned::Forged)
    );
    assert!(!server.waits());
    // The same bytes twice have one place.
    assert_eq!(server.receive(device(1), &entry), Ok(()));
    assert_eq!(server.receive(device(1), &entry), Ok(()));
    assert_eq!(commit(&mut server), 1);
    assert_eq!(server.receive(device(1), &entry), Ok(()));
    assert_eq!(commit(&mut server), 0);
    let delivery = server.draw(device(1)).expect("the entry");
    assert_eq!((delivery.leaves, delivery.refused), (2..3, None));
}

#[test]
fn entry_of_bad_form_is_refused_and_ordered_by_nobody() {
    let (_, log) = running();
    let mut server = server(&log, Limits::default());
    assert_eq!(
        server.receive(device(1), &Request::Open(Some(note(&log)))),
        Ok(())
    );
    server.draw(device(1));
    let wrong = stranger(&log, 2, false);
    assert_eq!(
        server.receive(device(1), &Request::Entry(wrong.clone())),
        Ok(())
    );
    assert_eq!(commit(&mut server), 0);
    let delivery = server.draw(device(1)).expect("an answer");
    assert_eq!(delivery.refused, Some(leaf_hash(&Leaf::Entry(wrong))));
    assert!(server.draw(device(1)).is_none());
}

#[test]
fn nobody_hears_of_an_entry_before_it_is_durable() {
    let (_, log) = running();
    let mut server = server(&log, Limits::default());
    for number in [0, 1] {
        assert_eq!(
            server.receive(device(number), &Request::Open(Some(note(&log)))),
            Ok(())
        );
        assert!(server.draw(device(number)).is_some());
    }
    let resume = stranger(&log, 2, true);
    assert_eq!(server.receive(device(1), &Request::Entry(resume)), Ok(()));
    assert_eq!(server.receive(device(0), &Request::Mark(nonce(1))), Ok(()));
    assert!(server.draw(device(0)).is_none());
    let (from, leaves) = server.commit().expect("two leaves");
    assert_eq!((from, leaves.len()), (2, 2));
    assert!(server.draw(device(0)).is_none() && server.commit().is_none());
    server.committed();
    let delivery = server.draw(device(0)).expect("two leaves");
    assert_eq!((delivery.leaves, server.published()), (2..4, 4));
}

/// Takes three messages of each device.
struct Three(Rows<DeviceKey, u64>);

impl Quotas<DeviceKey> for Three {
    fn allows(&mut self, device: DeviceKey, cost: u64) -> bool {
        let used = self.0.get(device).copied().unwrap_or(0) + cost;
        self.0.insert(device, used);
        used <= 3
    }
}

#[test]
fn orderer_bounds_sessions_and_what_waits_and_asks_for_quotas() {
    let limits = Limits {
        sessions: 1,
        waiting: 2,
    };
    let mut server = server(&[], limits);
    assert_eq!(server.receive(device(0), &Request::Open(None)), Ok(()));
    assert_eq!(
        server.receive(device(1), &Request::Open(None)),
        Err(Turned::Busy)
    );
    assert_eq!(server.receive(device(0), &Request::Open(None)), Ok(()));
    assert_eq!(server.receive(device(0), &Request::Mark(nonce(1))), Ok(()));
    assert_eq!(server.receive(device(0), &Request::Mark(nonce(2))), Ok(()));
    assert_eq!(
        server.receive(device(0), &Request::Mark(nonce(3))),
        Err(Turned::Busy)
    );
    let scheme = real(DEVICES, 1);
    let quotas = Three(Rows::default());
    let mut server: Server<Three> = Orderer::start(scheme, Limits::default(), quotas, genesis());
    assert_eq!(server.receive(device(1), &Request::Open(None)), Ok(()));
    let entry = Request::Entry(stranger(&running().1, 2, true));
    for _ in 0..3 {
        assert_eq!(server.receive(device(1), &entry), Ok(()));
    }
    assert_eq!(server.receive(device(1), &entry), Err(Turned::Quota));
    assert_eq!(server.receive(device(1), &Request::Mark(nonce(9))), Ok(()));
}
