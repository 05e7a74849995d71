//! The code writes the bytes of the example in `docs/formats/protocol.md`.

use bytes::{Bytes, BytesMut};
use trust::{Frame, Handle, Record};
use wire::frame::{HELLO, Header};
use wire::mirror::{Request, kind};

/// The two blocks of hexadecimal digits under "Example", comments left out.
fn documented() -> Vec<Vec<u8>> {
    let text = include_str!("../../../../docs/formats/protocol.md");
    let example = text.split("## Example").nth(1).unwrap();
    let blocks = example.split("```text\n").skip(1);
    let bytes = |block: &str| -> Vec<u8> {
        let block = block.split("```").next().unwrap().replace("hello", "");
        let digits: String = block.split_whitespace().collect();
        let pair = |i: usize| u8::from_str_radix(&digits[i..i + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(pair).collect()
    };
    blocks.map(bytes).collect()
}

#[test]
fn the_code_writes_the_documented_bytes() {
    let volume = trust::statement::VolumeId::from_bytes([0x11; 32]);
    let handle = Handle::from_bytes([0x22; 32]);
    let mut asked = BytesMut::from(&HELLO[..]);
    Request::Head {
        volume,
        around_bytes: 8192,
        known: None,
        toward: b"a/b".to_vec(),
    }
    .put(1, &mut asked);
    let want = vec![handle];
    let around_bytes = 4096;
    Request::Data {
        volume,
        around_bytes,
        want,
    }
    .put(2, &mut asked);
    let frame = Frame::parse(Bytes::from_static(b"\x01\x00\x02\0\0\0hi")).unwrap();
    let mut record = BytesMut::new();
    Record { handle, frame }.put(&mut record);
    let mut answered = BytesMut::from(&HELLO[..]);
    for (kind, id, body) in [
        (kind::HEAD, 1, &b"head!"[..]),
        (kind::RECORDS, 2, &record),
        (kind::DONE, 2, b""),
    ] {
        let body_bytes = body.len();
        Header {
            kind,
            id,
            body_bytes,
        }
        .put(&mut answered);
        answered.extend_from_slice(body);
    }
    assert_eq!(documented(), [asked.to_vec(), answered.to_vec()]);
}
