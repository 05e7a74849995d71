//! The stream of requests, by hand and in random pieces.

use proptest::prelude::*;

use super::*;

const END: u64 = 1 << 20;
const LONGEST: u32 = 128 << 10;

fn export() -> Export {
    Export {
        name: String::new(),
        bytes: END,
        sector_bytes: 512,
        payload_bytes: LONGEST,
    }
}

/// A request as a client sends it.
fn request(kind: u16, flags: u16, cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
    let mut sent = 0x2560_9513u32.to_be_bytes().to_vec();
    sent.extend(flags.to_be_bytes());
    sent.extend(kind.to_be_bytes());
    sent.extend(cookie.to_be_bytes());
    sent.extend(offset.to_be_bytes());
    sent.extend(bytes.to_be_bytes());
    sent
}

fn write(cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut sent = request(1, 0, cookie, offset, data.len() as u32);
    sent.extend(data);
    sent
}

/// All events of the bytes, which arrive in pieces of these lengths, over and over; without [`Event::More`].
fn events(sent: &[u8], pieces: &[usize]) -> (Vec<Event>, Result<(), Violation>) {
    let mut requests = Requests::new(export(), Input::default());
    let mut events = Vec::new();
    let mut left = sent;
    let mut pieces = pieces.iter().cycle();
    loop {
        match requests.next() {
            Err(violation) => return (events, Err(violation)),
            Ok(Event::More) if left.is_empty() => return (events, Ok(())),
            Ok(Event::More) => {
                let space = requests.space();
                assert!(!space.is_empty(), "no space for more");
                let count = left.len().min(space.len()).min(*pieces.next().unwrap());
                let (now, later) = left.split_at(count);
                space[..count].copy_from_slice(now);
                requests.filled(count);
                left = later;
            }
            Ok(Event::Disconnect) => {
                events.push(Event::Disconnect);
                return (events, Ok(()));
            }
            Ok(event) => events.push(event),
        }
    }
}

fn at_once(sent: &[u8]) -> (Vec<Event>, Result<(), Violation>) {
    events(sent, &[usize::MAX])
}

#[test]
fn every_request_is_understood() {
    let sent = [
        request(0, 0, 1, 512, 4096),
        write(2, 1024, &[9; 512]),
        request(3, 0, 3, 0, 0),
        request(4, 1, 4, 0, 512),
        request(6, 2, 5, 0, 1 << 20),
        request(2, 0, 6, 0, 0),
        request(0, 0, 7, 0, 512),
    ];
    let expected = [
        Event::Wants(
            1,
            Command::Read {
                offset: 512,
                bytes: 4096,
            },
        ),
        Event::Payload(512),
        Event::Wants(
            2,
            Command::Write {
                offset: 1024,
                data: vec![9; 512],
                durable: false,
            },
        ),
        Event::Wants(3, Command::Flush),
        Event::Wants(
            4,
            Command::Zero {
                offset: 0,
                bytes: 512,
                durable: true,
            },
        ),
        Event::Wants(
            5,
            Command::Zero {
                offset: 0,
                bytes: 1 << 20,
                durable: false,
            },
        ),
        Event::Disconnect,
    ];
    assert_eq!(at_once(&sent.concat()), (expected.into(), Ok(())));
}

#[test]
fn refused_writes_are_skipped_and_the_next_request_is_understood() {
    let long = write(1, 0, &vec![0x25; LONGEST as usize + 512]);
    let beyond = write(2, END, &[0x25; 4096]);
    let crooked = write(3, 1, &[0x25; 513]);
    let empty = write(4, 0, &[]);
    let sent = [long, beyond, crooked, empty, request(3, 0, 5, 0, 0)].concat();
    let expected = [
        Event::Refused(1, NbdError::Inval),
        Event::Refused(2, NbdError::NoSpc),
        Event::Refused(3, NbdError::Inval),
        Event::Refused(4, NbdError::Inval),
        Event::Wants(5, Command::Flush),
    ];
    assert_eq!(at_once(&sent), (expected.into(), Ok(())));
}

#[test]
fn wrong_magic_and_endless_payload_end_the_connection() {
    for byte in 0..4 {
        let mut sent = request(0, 0, 1, 0, 512);
        sent[byte] ^= 1;
        assert_eq!(at_once(&sent), (vec![], Err(Violation::Magic)));
    }
    let sent = request(1, 0, 1, 0, (32 << 20) + 1);
    let violation = Violation::PayloadTooLong((32 << 20) + 1);
    assert_eq!(at_once(&sent), (vec![], Err(violation)));
}

#[test]
fn memory_for_a_write_is_announced_before_it_is_taken() {
    let mut requests = Requests::new(export(), Input::default());
    let header = request(1, 0, 1, 0, LONGEST);
    requests.space()[..header.len()].copy_from_slice(&header);
    requests.filled(header.len());
    assert!(requests.is_within_a_request());
    assert_eq!(requests.next(), Ok(Event::Payload(LONGEST)));
    assert!(matches!(requests.state, State::Promised(_, LONGEST)));
    assert_eq!(requests.next(), Ok(Event::More));
    assert_eq!(requests.space().len(), LONGEST as usize);
    assert!(requests.is_within_a_request());
}

#[test]
fn payload_does_not_take_the_bytes_of_the_next_request() {
    let mut requests = Requests::new(export(), Input::default());
    let sent = [write(1, 0, &[7; 512]), request(3, 0, 2, 0, 0)].concat();
    requests.space()[..sent.len()].copy_from_slice(&sent);
    requests.filled(sent.len());
    assert_eq!(requests.next(), Ok(Event::Payload(512)));
    assert!(matches!(requests.next(), Ok(Event::Wants(1, _))));
    assert!(requests.is_within_a_request());
    assert_eq!(requests.next(), Ok(Event::Wants(2, Command::Flush)));
    assert!(!requests.is_within_a_request());
    assert_eq!(requests.next(), Ok(Event::More));
}

fn some_request() -> impl Strategy<Value = Vec<u8>> {
    let offset = prop_oneof![(0u64..2100).prop_map(|n| n * 512), any::<u64>()];
    let bytes = prop_oneof![(0u32..300).prop_map(|n| n * 512), 0u32..200_000];
    let flags = prop_oneof![Just(0u16), 0u16..8];
    let fields = (0u16..9, flags, any::<u64>(), offset, bytes);
    fields.prop_map(|(kind, flags, cookie, offset, bytes)| {
        let mut sent = request(kind, flags, cookie, offset, bytes);
        if kind == 1 {
            sent.extend((0..bytes).map(|n| n as u8));
        }
        sent
    })
}

proptest! {
    #[test]
    fn pieces_in_which_bytes_arrive_make_no_difference(
        requests in prop::collection::vec(some_request(), 0..8),
        tail in prop::collection::vec(any::<u8>(), 0..40),
        pieces in prop::collection::vec(1usize..3000, 1..8),
    ) {
        let mut sent = requests.concat();
        sent.extend(tail);
        prop_assert_eq!(events(&sent, &pieces), at_once(&sent));
    }

    #[test]
    fn what_is_wanted_lies_within_the_device(sent in prop::collection::vec(some_request(), 0..20)) {
        for event in at_once(&sent.concat()).0 {
            let (offset, bytes) = match event {
                Event::Wants(_, Command::Read { offset, bytes }) => {
                    prop_assert!(bytes <= LONGEST);
                    (offset, u64::from(bytes))
                }
                Event::Wants(_, Command::Write { offset, data, .. }) => {
                    prop_assert!(data.len() <= LONGEST as usize);
                    (offset, data.len() as u64)
                }
                Event::Wants(_, Command::Zero { offset, bytes, .. }) => (offset, u64::from(bytes)),
                _ => continue,
            };
            prop_assert!(bytes > 0 && offset % 512 == 0 && bytes % 512 == 0);
            prop_assert!(offset.checked_add(bytes).is_some_and(|end| end <= END));
        }
    }
}
