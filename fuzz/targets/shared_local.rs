//! Arbitrary bytes as messages between programs of one machine about a shared volume, in both directions. They are
//! refused, or they are read, and written again within the bounds.
#![no_main]

use bulla_fuzz::{plant, shared_vectors};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use share::client::local::{Asked, HELLO_BYTES, Hello, MAX_HANDLES, Query, Response, Told, Want};
use share::files::Call;
use trust::Handle;

fn seeds() -> Vec<Vec<u8>> {
    let handles = vec![Handle::from_bytes([1; 32]); 3];
    let mut seeds = vec![
        Asked::Call(Call::Members.into()).encode(1),
        Asked::Look(Call::Root { size: 9 }).encode(2),
        Asked::Query(Query::Status).encode(3),
        Asked::Blocks(Want::Get(handles.clone())).encode(4),
        Asked::Cancel.encode(5),
        Told::Leaving(9).encode(),
        Told::Response(4, Response::Done(Ok(handles))).encode(),
        Hello::own().encode().to_vec(),
        // VIEW: offline, stopped. ANSWER: an error; members. STATUS.
        [
            &[1, 2, 3, 2][..],
            b"no",
            &[3, 2, 3],
            b"lie",
            &[1, 2],
            b"/x",
            &[7],
        ]
        .concat(),
        vec![2, 9, 1, 5],
        vec![2, 9, 0, 7, 11, 0],
        [&[2, 9, 0, 3, 7][..], &[1; 32], &[0, 0, 0, 0, 11, 0]].concat(),
        [&[3, 1, 1, 2][..], &[0; 33], &[0, 5, 6, 0, 0, 0, 0]].concat(),
    ];
    for note in shared_vectors("note") {
        seeds.push([&[4, 1][..], &note].concat());
    }
    seeds
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    if let Ok(hello) = <&[u8; HELLO_BYTES]>::try_from(data) {
        let _ = Hello::decode(hello);
    }
    let data = Bytes::copy_from_slice(data);
    if let Ok((id, asked)) = Asked::decode(&data) {
        assert_eq!(asked.encode(id), data);
        if let Asked::Blocks(Want::Get(handles) | Want::Touch(handles)) = &asked {
            assert!(handles.len() <= MAX_HANDLES);
        }
    }
    if let Ok(told) = Told::decode(&data) {
        // Lists of positions come back in order, and without repetitions.
        let again = Bytes::from(told.encode());
        let read = Told::decode(&again);
        assert!(read.is_ok_and(|read| read.encode() == again));
    }
});
