//! Pages with entries that nobody signed, or that lack a body: signatures are verified late, and before anything rests
//! on them (decision 0051).

use super::*;

/// Nothing of the page is taken: what was taken would be in no journal.
#[test]
fn page_that_lacks_a_body_in_its_middle_is_refused_as_a_whole() {
    let (_, mut log) = running();
    let Leaf::Entry(last) = &log[1] else {
        panic!("marks");
    };
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    let heading = Heading {
        n: Real::heading(last).n + 1,
        previous: leaf_hash(&log[1]),
        seen: Log::<Real>::point(&recent),
        ..Real::heading(last)
    };
    let add = Add {
        counter: 0,
        from: 1,
    };
    let lacking = real(0, 1).sign(heading, vec![add; 8]).expect("an entry");
    log.push(marks(7));
    log.push(Leaf::Entry(lacking));
    proves_nothing(&reply(&log, 2), "without their body");
}

/// An entry of device 1 after the last one of this log, which is its own.
fn next(log: &[Leaf<Real>], n: u64) -> Entry {
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    let Some(Leaf::Entry(first)) = log.get(2) else {
        panic!("device 1 has no Resume");
    };
    let heading = Heading {
        n,
        previous: leaf_hash(log.last().expect("a log")),
        seen: Log::<Real>::point(&recent),
        kept: log.len() as u64,
        resume: false,
        ..Real::heading(first)
    };
    let add = Add {
        counter: 3,
        from: n - 1,
    };
    real(1, 1).sign(heading, vec![add]).expect("an entry")
}

/// A Resume of device 1 after this log, in an incarnation that is new.
fn resumes_again(log: &[Leaf<Real>]) -> Entry {
    let mut recent = Recent::default();
    log.iter().for_each(|leaf| recent.push(leaf));
    let mut author = real(1, 1);
    // Its first Resume has this one.
    author.incarnation();
    let heading = Heading {
        incarnation: author.incarnation(),
        n: 0,
        previous: author.no_entry(),
        seen: Log::<Real>::point(&recent),
        kept: log.len() as u64,
        resume: true,
        alone: true,
    };
    author.sign(heading, Vec::new()).expect("an entry")
}

/// What [`running`] has, and the first page of more: device 1 resumes, and an entry follows that it did not sign.
fn deceived() -> (Client, Vec<Leaf<Real>>) {
    let (mut client, mut log) = running();
    log.push(Leaf::Entry(stranger(&log, 2, true)));
    log.push(Leaf::Entry(forged(&next(&log, 1))));
    let page = Reply {
        more: true,
        ..reply(&log, 2)
    };
    let journaled = client.deliver(&page);
    assert!(matches!(journaled.as_slice(), [Effect::Journal(_)]));
    assert_eq!(client.ledger().size(), 4);
    (client, log)
}

/// The only effect: the orderer is convicted of the forged entry, wherever it was noticed.
fn notices_the_forgery(effects: &Effects) {
    let [Effect::Stopped(StopReason::Evidence(Evidence::Form { at, malformed, .. }))] =
        effects.as_slice()
    else {
        panic!("{} effects", effects.len());
    };
    assert_eq!(*at, 3);
    assert!(malformed.is_some_and(|what| what.contains("signature")));
}

#[test]
fn forged_entry_in_a_page_convicts_the_orderer_before_anything_is_answered_or_signed() {
    type Step = fn(&mut Client, &[Leaf<Real>]) -> Effects;
    let steps: &[(&str, Step)] = &[
        ("look", |client, _| client.verify()),
        ("call", |client, _| client.issue([(2, Call::Read(3))])),
        ("attest", |client, _| client.ring(Timer::Attest)),
        ("connect", |client, _| client.connected()),
        ("last page", |client, log| client.deliver(&reply(log, 4))),
        // Its leaves are not journaled: they come after a forged entry.
        ("last page with leaves", |client, log| {
            let mut log = log.to_vec();
            log.push(marks(9));
            client.deliver(&reply(&log, 4))
        }),
        ("asked", |client, log| {
            let more = true;
            let asked = true;
            client.deliver(&Reply {
                more,
                asked,
                ..reply(log, 4)
            })
        }),
        ("next entry", |client, log| {
            let mut log = log.to_vec();
            log.push(Leaf::Entry(next(&log[..3], 1)));
            let more = true;
            client.deliver(&Reply {
                more,
                ..reply(&log, 4)
            })
        }),
        ("next incarnation", |client, log| {
            let mut log = log.to_vec();
            log.push(Leaf::Entry(resumes_again(&log)));
            let more = true;
            client.deliver(&Reply {
                more,
                ..reply(&log, 4)
            })
        }),
    ];
    for (name, step) in steps {
        println!("{name}");
        let (mut client, log) = deceived();
        notices_the_forgery(&step(&mut client, &log));
        assert!(client.is_stopped());
    }
    // Nobody counts what the forged entry attests.
    let (client, _) = deceived();
    assert!(!client.is_supported(device(1), 0));
}

#[test]
fn forged_entry_that_was_journaled_convicts_the_orderer_after_a_restart() {
    let (_, log) = deceived();
    let mut durable = Durable::new(genesis());
    durable.apply(&Record::Floor {
        leaves: log.clone(),
        note: note(&log),
    });
    let mut client: Client = Engine::start(real(0, 1), SETUP, durable);
    notices_the_forgery(&client.connected());
}

/// One signature vouches for all entries of its author before it: they are named by their hashes.
#[test]
fn entry_vouches_for_its_authors_entries_before_it() {
    let (mut client, mut log) = deceived();
    log.push(Leaf::Entry(next(&log, 2)));
    let told = client.deliver(&reply(&log, 4));
    assert!(
        !told
            .iter()
            .any(|effect| matches!(effect, Effect::Stopped(_)))
    );
    assert_eq!(client.ledger().size(), 5);
    assert!(client.is_supported(device(1), 0));
}
