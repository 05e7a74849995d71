//! An NBD client that sends arbitrary bytes: negotiation, then requests. The pieces in which the bytes arrive make no
//! difference, answers are whole, and every request that reaches the device lies within it.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use protect::nbd::{Command, Event, Export, Input, MAX_OPTIONS, Negotiation, Progress, Requests};

const DEVICE_BYTES: u64 = 1 << 20;
const LONGEST: u32 = 16 << 10;

fn export() -> Export {
    Export {
        name: "disk".to_owned(),
        bytes: DEVICE_BYTES,
        sector_bytes: 512,
        payload_bytes: LONGEST,
    }
}

/// What the client gets to read and what the device gets to do.
#[derive(Debug, PartialEq)]
struct Seen {
    answers: Vec<u8>,
    events: Vec<Event>,
    violation: Option<String>,
}

/// Lets the bytes arrive `piece` at a time.
fn talk(mut sent: &[u8], piece: usize) -> Seen {
    let mut seen = Seen {
        answers: Vec::new(),
        events: Vec::new(),
        violation: None,
    };
    let (mut negotiation, _) = Negotiation::new(export());
    let mut input = Input::default();
    loop {
        match negotiation.step(input.bytes(), &mut seen.answers) {
            Ok(Progress::More) if sent.is_empty() => return seen,
            Ok(Progress::More) => {
                let count = arrive(&mut sent, input.space(), piece);
                input.filled(count);
            }
            Ok(Progress::Took(bytes)) => input.consume(bytes),
            Ok(Progress::Transmission(bytes)) => {
                input.consume(bytes);
                break;
            }
            Ok(Progress::Ended) => return seen,
            Err(violation) => {
                seen.violation = Some(violation.to_string());
                return seen;
            }
        }
    }
    let mut requests = Requests::new(export(), input);
    loop {
        match requests.next() {
            Ok(Event::More) if sent.is_empty() => return seen,
            Ok(Event::More) => {
                let count = arrive(&mut sent, requests.space(), piece);
                requests.filled(count);
            }
            Ok(Event::Disconnect) => return seen,
            Ok(event) => seen.events.push(event),
            Err(violation) => {
                seen.violation = Some(violation.to_string());
                return seen;
            }
        }
    }
}

/// Moves at most `piece` bytes, at least one.
fn arrive(sent: &mut &[u8], space: &mut [u8], piece: usize) -> usize {
    let count = sent.len().min(space.len()).min(piece);
    assert!(count > 0, "no space for more");
    let (now, later) = sent.split_at(count);
    space[..count].copy_from_slice(now);
    *sent = later;
    count
}

fn check(seen: &Seen) {
    // An option has at most four answers, of at most 34 bytes each; EXPORT_NAME has 134 bytes.
    assert!(seen.answers.len() <= MAX_OPTIONS as usize * 4 * 40);
    for event in &seen.events {
        let (offset, bytes) = match event {
            Event::Payload(bytes) => {
                assert!(*bytes <= LONGEST);
                continue;
            }
            Event::Wants(_, Command::Read { offset, bytes }) => {
                assert!(*bytes <= LONGEST);
                (*offset, u64::from(*bytes))
            }
            Event::Wants(_, Command::Write { offset, data, .. }) => {
                assert!(data.len() <= LONGEST as usize);
                (*offset, data.len() as u64)
            }
            Event::Wants(_, Command::Zero { offset, bytes, .. }) => (*offset, u64::from(*bytes)),
            _ => continue,
        };
        assert!(bytes > 0 && offset % 512 == 0 && bytes % 512 == 0);
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= DEVICE_BYTES)
        );
    }
}

fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut sent = b"IHAVEOPT".to_vec();
    sent.extend(number.to_be_bytes());
    sent.extend((data.len() as u32).to_be_bytes());
    sent.extend(data);
    sent
}

fn request(kind: u16, flags: u16, offset: u64, bytes: u32) -> Vec<u8> {
    let mut sent = 0x2560_9513u32.to_be_bytes().to_vec();
    sent.extend(flags.to_be_bytes());
    sent.extend(kind.to_be_bytes());
    sent.extend(7u64.to_be_bytes());
    sent.extend(offset.to_be_bytes());
    sent.extend(bytes.to_be_bytes());
    sent
}

/// Whole conversations: by GO and by EXPORT_NAME, with every option and every request.
fn seeds() -> Vec<Vec<u8>> {
    let flags = [0, 0, 0, 3];
    let wish = b"\x00\x00\x00\x04disk\x00\x02\x00\x01\x00\x03";
    let options = [
        option(3, b""),
        option(8, b""),
        option(6, wish),
        option(7, wish),
    ]
    .concat();
    let write = [request(1, 1, 512, 512), vec![9; 512]].concat();
    let requests = [
        request(0, 0, 0, 4096),
        write,
        request(3, 0, 0, 0),
        request(4, 0, 0, 512),
        request(6, 3, 0, 1 << 20),
        request(1, 0, DEVICE_BYTES, 4),
        vec![1; 4],
        request(2, 0, 0, 0),
    ]
    .concat();
    vec![
        [&flags[..], &options, &requests].concat(),
        [&flags[..], &option(1, b"disk"), &requests].concat(),
        [&flags[..], &option(7, b""), &option(2, b"")].concat(),
    ]
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let whole = talk(data, usize::MAX);
    check(&whole);
    assert_eq!(talk(data, 1), whole);
    assert_eq!(talk(data, 29), whole);
});
