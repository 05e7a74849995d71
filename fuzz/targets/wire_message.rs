//! Arbitrary bytes from a peer, for both ends: hello, messages, requests, refusals, names of objects. They
//! are refused, or they are the canonical encoding.
#![no_main]

use bulla_fuzz::plant;
use bytes::{BufMut, BytesMut};
use libfuzzer_sys::fuzz_target;
use trust::Handle;
use trust::statement::VolumeId;
use wire::ObjectName;
use wire::frame::{HELLO, MAX_REQUEST_BYTES, PROTOCOL, check_hello, take};
use wire::mirror::Request;
use wire::refusal::{ErrorCode, MAX_ERROR_TEXT_BYTES, Refusal, put_error};

fn seeds() -> Vec<Vec<u8>> {
    let volume = VolumeId::from_bytes([7; 32]);
    let requests = [
        Request::Head {
            volume,
            around_bytes: 4096,
            known: None,
            toward: b"a/long name".to_vec(),
        },
        Request::Data {
            volume,
            around_bytes: 4096,
            want: vec![Handle::from_bytes([1; 32]); 2],
        },
        Request::Range {
            volume,
            object: ObjectName::Segment([5; 16]),
            offset: 3,
            len_bytes: 100,
        },
        Request::Range {
            volume,
            object: ObjectName::Log {
                epoch: 0,
                index: 12,
            },
            offset: 0,
            len_bytes: 1,
        },
    ];
    let mut all = BytesMut::new();
    let mut seeds = vec![
        HELLO.to_vec(),
        b"index/00112233445566778899aabbccddeeff.idx".to_vec(),
    ];
    for (id, request) in requests.iter().enumerate() {
        let mut one = BytesMut::new();
        request.put(id as u32, &mut one);
        all.put_slice(&one);
        seeds.push(one.to_vec());
    }
    put_error(&mut all, 1, ErrorCode::BUSY, "busy");
    seeds.push(all.to_vec());
    seeds
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Some(hello) = data.first_chunk::<8>()
        && check_hello(hello, PROTOCOL).is_ok()
    {
        assert_eq!(hello[..6], HELLO[..6]);
    }
    if let Ok(name) = ObjectName::from_bytes(data) {
        assert_eq!(name.to_string().as_bytes(), data);
        assert!(!data.windows(2).any(|w| w == b"..") && !data.starts_with(b"/"));
    }
    let mut rest = BytesMut::from(data);
    let mut again = BytesMut::new();
    while let Ok(Some((header, body))) = take(&mut rest, MAX_REQUEST_BYTES) {
        header.put(&mut again);
        again.put_slice(&body);
        if let Ok(request) = Request::decode(header.kind, &body) {
            let mut one = BytesMut::new();
            request.put(header.id, &mut one);
            assert!(again.ends_with(&one));
        }
        if let Ok(refusal) = Refusal::decode(&body) {
            assert!(refusal.text.len() <= MAX_ERROR_TEXT_BYTES);
            assert!(refusal.text.bytes().all(|b| (0x20..0x7f).contains(&b)));
        }
    }
    assert!(data.starts_with(&again));
});
