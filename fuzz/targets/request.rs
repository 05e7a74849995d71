//! Any bytes as the body of a request: refused, or encoded again to the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::message::Request;

fuzz_target!(|data: &[u8]| {
    let Some((kind, body)) = data.split_first() else {
        return;
    };
    if let Ok(request) = Request::decode(*kind, body) {
        let mut out = bytes::BytesMut::new();
        request.put(1, &mut out);
        assert!(out.ends_with(body));
    }
});
