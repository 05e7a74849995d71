//! Tests of admission: lines, messages, and somebody in between.

use proptest::prelude::*;

use super::super::samples::{VOLUME, device, refuses_cuts, refuses_flips};
use super::*;

fn invitation() -> Invitation {
    Invitation {
        volume: VOLUME,
        policy: [4; 32],
        epoch: 1,
        prefix: Prefix {
            size: 300,
            root: [9; 32],
        },
        server: "bulla://files.example:7600".to_owned(),
        secret: Secret::from_bytes([5; 16]),
    }
}

fn joiner(number: u8) -> Joiner {
    Joiner::new(invitation(), device(number), [number; 32])
}

fn pending(request: &Request) -> Pending {
    request.challenge(&invitation(), [8; 32]).unwrap()
}

#[test]
fn joiner_and_inviter_see_the_same_words() {
    let joiner = joiner(1);
    let request = Request::decode(&joiner.request().encode()).unwrap();
    assert_eq!(request.invitation(), &invitation().id());
    let pending = pending(&request);
    let challenge = Challenge::decode(&pending.challenge().encode()).unwrap();
    let (opening, words) = joiner.open(&challenge).unwrap();
    let opening = Opening::decode(&opening.encode()).unwrap();
    assert_eq!(pending.device(&opening, &words), Ok(Some(device(1))));
    let other = Words::of(&[1; 32]);
    assert_eq!(pending.device(&opening, &other), Ok(None));
}

/// Somebody who has read the line sits in between, with a device of his own.
#[test]
fn somebody_in_between_gets_other_words() {
    let (honest, evil) = (joiner(1), joiner(2));
    let mut seen = Vec::new();
    for guess in 0..50 {
        // The inviter is shown his request. The joiner gets a challenge of his choice.
        let pending = pending(&evil.request());
        let to_joiner = honest.request().challenge(&invitation(), [guess; 32]);
        let (_, said) = honest.open(to_joiner.unwrap().challenge()).unwrap();
        let (opening, _) = evil.open(pending.challenge()).unwrap();
        assert_eq!(pending.device(&opening, &said), Ok(None));
        seen.push(said.to_string());
    }
    seen.dedup();
    assert_eq!(seen.len(), 50, "each challenge gives other words");
}

#[test]
fn number_that_was_not_committed_to_opens_nothing() {
    let joiner = joiner(1);
    let pending = pending(&joiner.request());
    let (opening, words) = joiner.open(pending.challenge()).unwrap();
    for change in [
        Opening {
            random: [2; 32],
            ..opening
        },
        Opening {
            request: [2; 32],
            ..opening
        },
    ] {
        assert!(pending.device(&change, &words).is_err());
    }
}

#[test]
fn request_without_the_secret_is_refused() {
    let request = joiner(1).request();
    let with = |change: fn(&mut Invitation)| {
        let mut other = invitation();
        change(&mut other);
        request.challenge(&other, [8; 32]).map(drop)
    };
    assert_eq!(with(|_| ()), Ok(()));
    assert!(with(|other| other.secret = Secret::from_bytes([6; 16])).is_err());
    // The MAC covers what the invitation says.
    assert!(with(|other| other.volume = VolumeId::from_bytes([8; 32])).is_err());
    assert!(with(|other| other.policy = [5; 32]).is_err());
    assert!(with(|other| other.epoch = 2).is_err());
    assert!(with(|other| other.prefix.size = 301).is_err());
    assert!(with(|other| other.prefix.root = [8; 32]).is_err());
    refuses_flips(&request.encode(), |bytes| {
        let request = Request::decode(bytes)?;
        request.challenge(&invitation(), [8; 32]).map(drop)
    });
    let no_key = Joiner::new(invitation(), DeviceKey::from_bytes([0; 32]), [1; 32]);
    let refused = no_key.request().challenge(&invitation(), [8; 32]);
    assert!(matches!(refused, Err(Reject::Malformed { .. })));
}

#[test]
fn challenge_of_another_request_or_by_somebody_else_is_refused() {
    let joiner = joiner(1);
    let pending = pending(&joiner.request());
    refuses_flips(&pending.challenge().encode(), |bytes| {
        joiner.open(&Challenge::decode(bytes)?).map(drop)
    });
    let other = Joiner::new(invitation(), device(2), [2; 32]);
    assert!(other.open(pending.challenge()).is_err());
}

#[test]
fn messages_have_one_encoding() {
    let joiner = joiner(1);
    let request = joiner.request();
    let pending = pending(&request);
    let (opening, _) = joiner.open(pending.challenge()).unwrap();
    refuses_cuts(&request.encode(), |b| Request::decode(b).map(drop));
    refuses_cuts(&pending.challenge().encode(), |b| {
        Challenge::decode(b).map(drop)
    });
    refuses_cuts(&opening.encode(), |b| Opening::decode(b).map(drop));
    let mut later = opening.encode();
    later[0] = 1;
    assert!(matches!(
        Opening::decode(&later),
        Err(Reject::Unsupported { .. })
    ));
}

#[test]
fn line_with_any_letter_changed_is_refused() {
    let line = invitation().to_line().unwrap();
    assert!(line.starts_with("inv1"), "{}", *line);
    assert_eq!(Invitation::from_line(&line).unwrap(), invitation());
    for at in 0..line.len() {
        let mut changed = line.as_bytes().to_vec();
        changed[at] = if changed[at] == b'q' { b'p' } else { b'q' };
        let changed = String::from_utf8(changed).unwrap();
        assert!(Invitation::from_line(&changed).is_err(), "at {at}");
        assert!(Invitation::from_line(&line[..at]).is_err(), "cut at {at}");
    }
    assert!(Invitation::from_line(&format!("{}q", *line)).is_err());
    assert!(Invitation::from_line(&line.to_uppercase()).is_err());
}

#[test]
fn line_with_a_good_checksum_over_something_else_is_refused() {
    let line = |bytes: &[u8]| Invitation::from_line(&text::write_long(HRP, bytes));
    let bytes = text::read_long(HRP, &invitation().to_line().unwrap()).unwrap();
    refuses_cuts(&bytes, |bytes| Invitation::decode(bytes).map(drop));
    let mut later = bytes.clone();
    later[0] = 1;
    assert!(matches!(
        line(&later),
        Err(BadLine::Content(Reject::Unsupported { .. }))
    ));
    let mut server = bytes.clone();
    let at = bytes.windows(8).position(|w| w == b"bulla://").unwrap();
    server[at] = b' ';
    assert!(matches!(line(&server), Err(BadLine::Content(_))));
}

#[test]
fn server_that_is_not_printable_has_no_line() {
    let longest = "a".repeat(MAX_SERVER_BYTES);
    let with = |server: &str| {
        let server = server.to_owned();
        Invitation {
            server,
            ..invitation()
        }
        .to_line()
        .is_ok()
    };
    assert!(with(&longest) && !with(&format!("{longest}a")));
    assert!(!with("") && !with("a b") && !with("ü"));
    let line = Invitation {
        server: longest,
        epoch: u64::MAX,
        ..invitation()
    };
    let read = Invitation::from_line(&line.to_line().unwrap());
    assert_eq!(read.unwrap(), line);
}

#[test]
fn secret_is_not_printed() {
    assert!(!format!("{:?}", invitation()).contains('5'));
}

proptest! {
    #[test]
    fn invitations_have_one_line(volume: [u8; 32], policy: [u8; 32], epoch: u64, size: u64, root: [u8; 32], server in "[!-~]{1,60}", secret: [u8; 16]) {
        let made = Invitation {
            volume: VolumeId::from_bytes(volume),
            policy,
            epoch,
            prefix: Prefix { size, root },
            server,
            secret: Secret::from_bytes(secret),
        };
        let read = Invitation::from_line(&made.to_line().unwrap());
        prop_assert_eq!(read.unwrap(), made);
    }
}
