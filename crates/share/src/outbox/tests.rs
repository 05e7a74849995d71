//! What may be sent when, on one connection and over the next.

use super::*;
use trust::device::DeviceKey;
use trust::device::Incarnation;
use trust::key::SecretKey;
use trust::volume_id::VolumeId;
use trust::{Handle, frame::Packer};
use trust_shared::entry::{Content, Entry, Ops, Prefix};

fn signed(content: Content) -> Request<Product> {
    let key = SecretKey::from_seed(&[1; 32]);
    let seen = Prefix {
        size: 0,
        root: [0; 32],
    };
    let entry = Entry {
        epoch: 0,
        device: DeviceKey::from(&key.public()),
        incarnation: Incarnation::from_bytes([2; 16]),
        seen,
        kept: 0,
        content,
    };
    let signed = entry.sign(VolumeId::from_bytes([3; 32]), &key).unwrap();
    Request::Entry(ordering::signed::Entry::new(signed))
}

fn entry() -> Request<Product> {
    numbered(1)
}

fn numbered(n: u64) -> Request<Product> {
    signed(Content::Ops(Ops {
        n,
        previous: [0; 32],
        outline: bytes::Bytes::new(),
        body_hash: [0; 32],
    }))
}

fn resume() -> Request<Product> {
    signed(Content::Resume)
}

fn block(number: u8) -> Record {
    sized(number, 1)
}

fn sized(number: u8, bytes: usize) -> Record {
    let mut noise = sim::random::noise(u64::from(number), bytes);
    noise.push(number);
    let packed = Packer::new().pack(trust::handle::Kind::Data, &noise);
    Record {
        handle: Handle::from_bytes([number; 32]),
        frame: packed.unwrap(),
    }
}

fn flight(numbers: &[u8]) -> Flight {
    Flight::of(numbers.iter().copied().map(block).collect(), None)
}

/// The numbers of the blocks that are stored now, all on the wire, in one batch.
fn flies(outbox: &mut Outbox) -> (u64, Vec<u8>) {
    let (batch, blocks) = outbox.begin().expect("something is stored");
    outbox.flies(batch);
    let numbers = blocks.iter().map(|block| block.handle.as_bytes()[0]);
    (batch, numbers.collect())
}

#[test]
fn entry_is_sent_behind_its_blocks_without_an_answer() {
    let mut outbox = Outbox::default();
    assert!(outbox.send(entry()).is_some());
    outbox.keep(7, flight(&[1, 2]));
    outbox.store(vec![block(3)]);
    assert!(outbox.send(entry()).is_none(), "its blocks come first");
    assert!(outbox.send(Request::Open(None)).is_some());
    let (batch, blocks) = outbox.begin().unwrap();
    assert_eq!(blocks.len(), 3);
    assert!(
        outbox.ready().is_none(),
        "they wait for a place on the wire"
    );
    outbox.flies(batch);
    assert!(outbox.ready().is_some());
    assert!(outbox.begin().is_none(), "they are under way");
    assert!(outbox.ready().is_none(), "it is sent once");
}

#[test]
fn blocks_that_cannot_go_on_the_wire_at_once_hold_the_entry_until_they_are_durable() {
    let mut outbox = Outbox::default();
    outbox.store(vec![block(1)]);
    let (batch, _) = outbox.begin().unwrap();
    assert!(outbox.send(entry()).is_none());
    outbox.stored(batch);
    assert!(outbox.ready().is_some());
}

#[test]
fn new_connection_stores_all_again_until_the_call_is_answered() {
    let mut outbox = Outbox::default();
    outbox.keep(7, flight(&[1]));
    outbox.store(vec![block(2)]);
    let (first, _) = flies(&mut outbox);
    outbox.stored(first);
    assert!(outbox.send(entry()).is_some());
    outbox.disconnected();
    assert!(outbox.send(entry()).is_none());
    let (second, numbers) = flies(&mut outbox);
    assert_eq!(numbers, [1, 2]);
    assert!(outbox.ready().is_some());
    // An answer over the connection before says nothing.
    outbox.disconnected();
    assert!(outbox.send(entry()).is_none());
    outbox.stored(second);
    assert!(outbox.ready().is_none());
    flies(&mut outbox);
    assert!(outbox.ready().is_some());
    outbox.settled();
    outbox.disconnected();
    assert_eq!(flies(&mut outbox).1, [1], "its call has no answer");
    outbox.answered(7);
    outbox.disconnected();
    assert!(outbox.begin().is_none());
    assert!(outbox.send(entry()).is_some());
}

#[test]
fn entry_that_was_before_its_blocks_goes_after_them_again() {
    let mut outbox = Outbox::default();
    outbox.keep(7, flight(&[1]));
    outbox.store(vec![block(2)]);
    let (first, _) = flies(&mut outbox);
    assert!(outbox.send(entry()).is_some());
    assert_eq!(outbox.again(entry()), Duration::ZERO);
    assert!(outbox.begin().is_none(), "it waits for its time");
    outbox.retry();
    assert!(outbox.ready().is_none(), "its blocks go first");
    outbox.stored(first);
    assert!(outbox.ready().is_none(), "they count as refused");
    let (second, numbers) = flies(&mut outbox);
    assert_eq!(numbers, [1, 2]);
    assert!(outbox.ready().is_some());
    outbox.stored(second);
    // It was another block of this device that was missing: there is nothing to be stored.
    assert!(outbox.again(entry()) > Duration::ZERO);
    outbox.retry();
    assert!(outbox.begin().is_none());
    assert!(outbox.ready().is_some());
    assert!(outbox.send(entry()).is_some());
    assert_eq!(outbox.again(entry()), Duration::ZERO, "it is another entry");
    let pauses: Vec<Duration> = (0..40).map(|_| outbox.again(entry())).collect();
    assert!(pauses.is_sorted());
    assert_eq!(pauses.last(), Some(&PAUSES.1));
    outbox.disconnected();
    outbox.retry();
    assert!(outbox.ready().is_none(), "the engine sends it again");
}

#[test]
fn server_without_room_is_asked_for_each_call_alone_and_then_its_blocks_are_given_up() {
    let mut outbox = Outbox::default();
    outbox.keep(7, flight(&[1]));
    outbox.keep(8, flight(&[2]));
    let (both, _) = flies(&mut outbox);
    assert!(outbox.send(entry()).is_some());
    assert_eq!(outbox.unstored(both, Unstored::Full), [0u64; 0]);
    let (first, numbers) = flies(&mut outbox);
    assert_eq!(numbers, [1]);
    let (second, numbers) = flies(&mut outbox);
    assert_eq!(numbers, [2]);
    outbox.stored(second);
    assert_eq!(outbox.unstored(first, Unstored::Full), [7]);
    // The server has told of the missing block, and would order the entry now.
    outbox.again(entry());
    outbox.retry();
    assert!(outbox.begin().is_none(), "it is not stored any more");
    assert!(outbox.ready().is_none());
    // The engine resumes, and takes the call back.
    assert!(outbox.send(resume()).is_some());
    outbox.again(resume());
    outbox.retry();
    assert!(outbox.ready().is_some(), "the same of a Resume");
    assert!(outbox.send(entry()).is_none());
    outbox.answered(7);
    assert!(outbox.ready().is_some());
}

#[test]
fn blocks_that_are_refused_again_and_again_are_given_up_and_those_of_a_lost_connection_are_not() {
    let mut outbox = Outbox::default();
    outbox.keep(7, flight(&[1]));
    for _ in 0..9 {
        let (batch, _) = flies(&mut outbox);
        assert!(outbox.unstored(batch, Unstored::Now).is_empty());
        assert!(outbox.begin().is_none(), "it rests");
        assert!(outbox.send(entry()).is_none());
        outbox.retry();
    }
    for _ in 1..TRIES {
        let (batch, _) = flies(&mut outbox);
        assert!(outbox.unstored(batch, Unstored::Refused).is_empty());
        outbox.retry();
    }
    let (batch, _) = flies(&mut outbox);
    assert_eq!(outbox.unstored(batch, Unstored::Refused), [7]);
    outbox.disconnected();
    assert!(outbox.begin().is_none());
    assert!(outbox.send(entry()).is_none(), "no entry may name it");
}

#[test]
fn entry_waits_while_much_has_no_answer() {
    let mut outbox = Outbox::default();
    for ticket in 0..3 {
        let most = vec![sized(ticket, FLIGHT_BYTES * 3 / 4)];
        outbox.keep(ticket.into(), Flight::of(most, None));
    }
    let (first, second) = (flies(&mut outbox).0, flies(&mut outbox).0);
    assert!(outbox.begin().is_none(), "enough is on the wire");
    assert!(outbox.send(entry()).is_none());
    outbox.stored(first);
    assert!(outbox.ready().is_none(), "the third is not on the wire");
    let (third, _) = flies(&mut outbox);
    assert!(outbox.ready().is_none());
    outbox.stored(second);
    assert!(outbox.ready().is_some());
    outbox.stored(third);
}

#[test]
fn refusal_counts_when_the_entry_was_told_of_before_it() {
    for goes_again in [false, true] {
        let mut outbox = Outbox::default();
        outbox.keep(7, flight(&[1]));
        let (first, _) = flies(&mut outbox);
        assert!(outbox.send(entry()).is_some());
        outbox.again(entry());
        let second = goes_again.then(|| {
            outbox.retry();
            flies(&mut outbox).0
        });
        assert_eq!(outbox.unstored(first, Unstored::Full), [7]);
        outbox.retry();
        assert!(outbox.begin().is_none(), "it is given up");
        if let Some(second) = second {
            assert_eq!(outbox.unstored(second, Unstored::Full), [0u64; 0]);
        }
    }
    // Of several in one batch, each is stored alone afterwards. What an earlier connection says counts no more.
    let mut outbox = Outbox::default();
    outbox.keep(7, flight(&[1]));
    outbox.keep(8, flight(&[2]));
    let (first, _) = flies(&mut outbox);
    assert!(outbox.send(entry()).is_some());
    outbox.again(entry());
    assert!(outbox.unstored(first, Unstored::Full).is_empty());
    outbox.retry();
    let (second, numbers) = flies(&mut outbox);
    assert_eq!(numbers, [1]);
    assert_eq!(flies(&mut outbox).1, [2]);
    outbox.disconnected();
    assert!(outbox.unstored(second, Unstored::Full).is_empty());
    assert_eq!(flies(&mut outbox).1, [1]);
    assert_eq!(outbox.unstored(second, Unstored::Full), [0u64; 0]);
}

#[test]
fn blocks_that_an_entry_made_are_given_up_until_there_is_another_entry() {
    let mut outbox = Outbox::default();
    outbox.store(vec![block(1)]);
    let (batch, _) = flies(&mut outbox);
    assert!(outbox.send(entry()).is_some());
    assert!(!outbox.has_lost_the_entry());
    assert_eq!(outbox.unstored(batch, Unstored::Full), [0u64; 0]);
    assert!(outbox.has_lost_the_entry());
    outbox.again(entry());
    outbox.retry();
    assert!(outbox.begin().is_none());
    assert!(outbox.ready().is_none());
    outbox.disconnected();
    assert!(outbox.send(entry()).is_none(), "the same entry");
    assert!(outbox.send(resume()).is_some());
    // The next entry leaves in the step in which the Resume has its place.
    assert!(outbox.send(numbered(2)).is_some());
    assert!(!outbox.has_lost_the_entry());
}

#[test]
fn blocks_that_travel_together_fit_into_one_message() {
    let mut outbox = Outbox::default();
    for ticket in 0..3 {
        let many = vec![block(1); FLIGHT_BLOCKS / 2];
        outbox.keep(ticket, Flight::of(many, None));
    }
    assert_eq!(flies(&mut outbox).1.len(), FLIGHT_BLOCKS);
    assert_eq!(flies(&mut outbox).1.len(), FLIGHT_BLOCKS / 2);
}

/// An earlier connection had sent the first entry. It is in the log while its blocks are stored once more.
#[test]
fn entry_does_not_go_when_the_blocks_of_the_one_before_it_are_stored() {
    let mut outbox = Outbox::default();
    outbox.store(vec![block(1)]);
    let (first, _) = outbox.begin().unwrap();
    outbox.settled();
    outbox.store(vec![block(2), block(3)]);
    assert!(outbox.send(entry()).is_none());
    outbox.stored(first);
    assert!(outbox.ready().is_none());
    let (second, _) = outbox.begin().unwrap();
    outbox.stored(first);
    assert!(outbox.ready().is_none(), "it is an answer for others");
    outbox.unstored(first, Unstored::Now);
    assert!(outbox.begin().is_none(), "it is under way");
    outbox.stored(second);
    assert!(outbox.ready().is_some());
}
