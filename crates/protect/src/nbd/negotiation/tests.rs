//! The handshake, by hand and in random pieces.

use proptest::prelude::*;

use super::*;

const GREETING_BYTES: usize = 18;

fn export() -> Export {
    Export {
        name: "disk".to_owned(),
        bytes: 1 << 30,
        sector_bytes: 512,
        payload_bytes: 4 << 20,
    }
}

/// An option as a client sends it.
fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut sent = b"IHAVEOPT".to_vec();
    sent.extend(number.to_be_bytes());
    sent.extend((data.len() as u32).to_be_bytes());
    sent.extend(data);
    sent
}

/// The data of `NBD_OPT_GO` and `NBD_OPT_INFO`.
fn wish(name: &[u8], kinds: &[u16]) -> Vec<u8> {
    let mut data = (name.len() as u32).to_be_bytes().to_vec();
    data.extend(name);
    data.extend((kinds.len() as u16).to_be_bytes());
    data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// Client flags and options back to back.
fn conversation(flags: u32, options: &[Vec<u8>]) -> Vec<u8> {
    let mut sent = flags.to_be_bytes().to_vec();
    sent.extend(options.concat());
    sent
}

/// What the client got, and where its bytes led to: the number of bytes that were used, and whether requests follow.
type Led = (Vec<u8>, Result<(usize, bool), Violation>);

/// Gives the bytes to a negotiation in pieces of these lengths, over and over.
fn led(sent: &[u8], pieces: &[usize], refusal: Option<&'static str>) -> Led {
    let (mut negotiation, greeting) = Negotiation::new(export());
    assert_eq!(greeting.len(), GREETING_BYTES);
    if let Some(reason) = refusal {
        negotiation.refuse(reason);
    }
    let mut out = Vec::new();
    let (mut used, mut here) = (0, 0);
    let mut pieces = pieces.iter().cycle();
    loop {
        match negotiation.step(&sent[used..here], &mut out) {
            Err(violation) => return (out, Err(violation)),
            Ok(Progress::Ended) => return (out, Ok((used, false))),
            Ok(Progress::Transmission(took)) => return (out, Ok((used + took, true))),
            Ok(Progress::Took(took)) => used += took,
            Ok(Progress::More) if here == sent.len() => return (out, Ok((used, false))),
            Ok(Progress::More) => here = sent.len().min(here + pieces.next().unwrap()),
        }
    }
}

fn at_once(sent: &[u8]) -> Led {
    led(sent, &[usize::MAX >> 1], None)
}

/// Option, kind and data of each answer.
fn answers(mut out: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut answers = Vec::new();
    while !out.is_empty() {
        let mut fields = Fields(out);
        assert_eq!(fields.u64(), Some(0x0003_e889_0455_65a9));
        let (option, kind) = (fields.u32().unwrap(), fields.u32().unwrap());
        let bytes = fields.u32().unwrap() as usize;
        answers.push((option, kind, fields.bytes(bytes).unwrap().to_vec()));
        out = fields.0;
    }
    answers
}

fn kinds(out: &[u8]) -> Vec<u32> {
    answers(out).into_iter().map(|(_, kind, _)| kind).collect()
}

#[test]
fn greeting_is_that_of_the_document() {
    let (_, greeting) = Negotiation::new(export());
    assert_eq!(greeting, b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn go_answers_size_flags_and_block_sizes() {
    let sent = conversation(3, &[option(7, &wish(b"disk", &[1, 3]))]);
    let (out, end) = at_once(&sent);
    assert_eq!(end, Ok((sent.len(), true)));
    let answers = answers(&out);
    let export = [&[0, 0][..], &(1u64 << 30).to_be_bytes(), &[0x01, 0x6d]].concat();
    let sizes = b"\x00\x03\x00\x00\x02\x00\x00\x00\x10\x00\x00\x40\x00\x00".to_vec();
    let expected = [
        (7, 3, export),
        (7, 3, b"\x00\x01disk".to_vec()),
        (7, 3, sizes),
        (7, 1, vec![]),
    ];
    assert_eq!(answers, expected);
}

#[test]
fn info_answers_the_same_and_the_negotiation_goes_on() {
    let info = option(6, &wish(b"disk", &[3]));
    let go = option(7, &wish(b"disk", &[3]));
    let sent = conversation(1, &[info, option(3, b""), go]);
    let (out, end) = at_once(&sent);
    assert_eq!(end, Ok((sent.len(), true)));
    let answers = answers(&out);
    assert_eq!(kinds(&out), [3, 3, 1, 2, 1, 3, 3, 1]);
    assert_eq!(answers[3], (3, 2, b"\x00\x00\x00\x04disk".to_vec()));
    assert_eq!(answers[0].2, answers[5].2);
}

#[test]
fn export_name_is_answered_with_and_without_zeros() {
    for (flags, zeros) in [(1, 124), (3, 0)] {
        let sent = conversation(flags, &[option(1, b"disk")]);
        let (out, end) = at_once(&sent);
        assert_eq!(end, Ok((sent.len(), true)));
        let mut expected = (1u64 << 30).to_be_bytes().to_vec();
        expected.extend([0x01, 0x6d]);
        expected.extend(vec![0; zeros]);
        assert_eq!(out, expected);
    }
}

#[test]
fn unknown_name_is_told_and_ends_only_the_option_that_has_no_errors() {
    let go = option(7, &wish(b"", &[]));
    let (out, end) = at_once(&conversation(3, &[go, option(2, b"")]));
    assert_eq!(kinds(&out), [(1 << 31) + 6, 1]);
    assert_eq!(end.map(|(_, transmission)| transmission), Ok(false));
    let (out, end) = at_once(&conversation(3, &[option(1, b"")]));
    assert_eq!((out.len(), end), (0, Ok((4, false))));
}

#[test]
fn unknown_options_are_unsupported_and_the_next_one_is_understood() {
    // STARTTLS, STRUCTURED_REPLY, LIST_META_CONTEXT, SET_META_CONTEXT, EXTENDED_HEADERS, and nobody's.
    let unknown = [5, 8, 9, 10, 11, 0, 4, u32::MAX];
    let mut options: Vec<_> = unknown.map(|number| option(number, &[7; 300])).into();
    options.push(option(7, &wish(b"disk", &[])));
    let sent = conversation(3, &options);
    let (out, end) = at_once(&sent);
    assert_eq!(end, Ok((sent.len(), true)));
    let mut expected = vec![(1 << 31) + 1; unknown.len()];
    expected.extend([3, 3, 1]);
    assert_eq!(kinds(&out), expected);
}

#[test]
fn malformed_wishes_are_invalid() {
    let whole = wish(b"disk", &[3]);
    let mut cases = vec![
        vec![],
        [&whole[..], &[0]].concat(),
        [&whole[..], &[0, 3]].concat(),
        [&[0xff; 4][..], b"disk\x00\x00"].concat(),
        b"\x00\x00\x00\x05disk\x00\x00".to_vec(),
    ];
    cases.extend((0..whole.len()).map(|cut| whole[..cut].to_vec()));
    for data in cases {
        for number in [6, 7] {
            let (out, end) = at_once(&conversation(3, &[option(number, &data)]));
            assert_eq!(kinds(&out), [(1 << 31) + 3], "{data:?}");
            assert!(matches!(end, Ok((_, false))));
        }
    }
    let (out, _) = at_once(&conversation(3, &[option(3, b"x")]));
    assert_eq!(kinds(&out), [(1 << 31) + 3]);
}

#[test]
fn client_that_breaks_the_protocol_is_told_nothing() {
    let go = option(7, &wish(b"disk", &[]));
    let cases = [
        (conversation(4, &[]), Violation::ClientFlags(4)),
        (conversation(1 << 16, &[]), Violation::ClientFlags(1 << 16)),
        (conversation(3, &[b"IHAVEOPX".to_vec()]), Violation::Magic),
        (
            conversation(
                3,
                &[[&b"IHAVEOPT"[..], &[0, 0, 0, 9, 0, 0, 0x40, 1]].concat()],
            ),
            Violation::OptionTooLong,
        ),
        (
            conversation(3, &[[&b"IHAVEOPT"[..], &[0xff; 8]].concat()]),
            Violation::OptionTooLong,
        ),
    ];
    for (mut sent, violation) in cases {
        sent.extend(&go);
        assert_eq!(at_once(&sent), (vec![], Err(violation)));
    }
}

#[test]
fn longest_option_is_read_and_skipped() {
    let long = option(99, &vec![0; MAX_OPTION_DATA_BYTES]);
    let (out, end) = at_once(&conversation(3, &[long, option(2, b"")]));
    assert_eq!(kinds(&out), [(1 << 31) + 1, 1]);
    assert!(end.is_ok());
}

#[test]
fn options_end_at_their_number() {
    let list = option(3, b"");
    let most = vec![list.clone(); MAX_OPTIONS as usize];
    assert!(at_once(&conversation(3, &most)).1.is_ok());
    let more = vec![list; MAX_OPTIONS as usize + 1];
    let end = at_once(&conversation(3, &more)).1;
    assert_eq!(end, Err(Violation::TooManyOptions));
}

#[test]
fn refused_client_is_told_the_reason_by_every_way_in() {
    let [info, go] = [6, 7].map(|number| option(number, &wish(b"disk", &[])));
    let sent = conversation(3, &[info, go, option(1, b"disk")]);
    let (out, end) = led(&sent, &[1000], Some("full"));
    let told = ((1 << 31) + 2, b"full".to_vec());
    let answers = answers(&out);
    let answers: Vec<_> = answers
        .into_iter()
        .map(|(_, kind, data)| (kind, data))
        .collect();
    assert_eq!(answers, [told.clone(), told]);
    assert!(matches!(end, Ok((_, false))));
}

/// Options of all kinds, some of them broken.
fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let name = prop_oneof![
        Just(b"disk".to_vec()),
        prop::collection::vec(any::<u8>(), 0..8)
    ];
    let kinds = prop::collection::vec(0u16..5, 0..4);
    let data = prop_oneof![
        (name, kinds).prop_map(|(name, kinds)| wish(&name, &kinds)),
        Just(b"disk".to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    (0u32..13, data).prop_map(|(number, data)| option(number, &data))
}

proptest! {
    #[test]
    fn pieces_in_which_bytes_arrive_make_no_difference(
        flags in 0u32..5,
        options in prop::collection::vec(some_option(), 0..8),
        tail in prop::collection::vec(any::<u8>(), 0..20),
        pieces in prop::collection::vec(1usize..50, 1..8),
    ) {
        let mut sent = conversation(flags, &options);
        sent.extend(tail);
        let whole = at_once(&sent);
        prop_assert_eq!(&led(&sent, &pieces, None), &whole);
        prop_assert_eq!(&led(&sent, &[1], None), &whole);
    }

    #[test]
    fn any_bytes_are_answered_with_whole_answers(sent in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut begun = vec![0, 0, 0, 3];
        begun.extend(sent);
        let (out, end) = at_once(&begun);
        if !matches!(end, Ok((_, true))) {
            answers(&out);
        }
    }
}
