//! Arbitrary bytes as the body of a record of blocks in the temporary log of a block server. They are refused, or are
//! exactly what an encoder makes of what was decoded, and the blocks lie back to back in the record's pages.
#![no_main]

use libfuzzer_sys::fuzz_target;
use share_server::blocks::record::Body;
use trust::encode::Encoder;

const PAGE_BYTES: usize = 4096;

fn encode(body: &Body) -> Vec<u8> {
    let mut out = Encoder::new();
    out.varint(body.devices.len() as u64);
    for device in &body.devices {
        out.raw(&device.0);
    }
    out.varint(body.blocks.len() as u64);
    for block in &body.blocks {
        out.varint(block.device as u64);
        out.raw(block.handle.as_bytes());
        out.varint(u64::from(block.length));
    }
    out.finish()
}

fuzz_target!(|data: &[u8]| {
    let Some((pages, bytes)) = data.split_first() else {
        return;
    };
    // A record has up to 256 pages.
    let payload_bytes = (usize::from(*pages) + 1) * PAGE_BYTES;
    let Ok(body) = Body::decode(bytes, payload_bytes) else {
        return;
    };
    assert_eq!(encode(&body), bytes);
    let mut end = 0;
    for block in &body.blocks {
        assert_eq!(block.offset as usize, end);
        assert!(block.device < body.devices.len());
        end += block.length as usize;
    }
    assert_eq!(end.div_ceil(PAGE_BYTES) * PAGE_BYTES, payload_bytes);
});
