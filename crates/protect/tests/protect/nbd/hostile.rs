//! Clients that break the protocol, stall, flood or come in crowds. They end, cost a bounded amount, and hinder nobody.

use std::time::{Duration, Instant};

use protect::nbd::Limits;
use sim::block::Call;
use sim::time::wait_until;

use super::raw::{Client, READ, WRITE, go, option, request, write};
use super::{MIB, Served, short};

/// Far more than any limit of [`short`], far less than a test may take.
const LONG: Duration = Duration::from_secs(60);
const ERR_POLICY: u32 = (1 << 31) + 2;

/// The server has cut off so many clients, has no others, and serves a newcomer.
fn only_the_hostile_are_gone(served: &Served, hostile: u64) {
    wait_until("hostile clients gone", || {
        let totals = served.server.totals();
        totals.clients == 0 && totals.cut_off == hostile
    });
    assert_eq!(served.client().read(0, 512).unwrap(), [0; 512]);
}

#[test]
fn wrong_magic_ends_the_connection_at_once() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    let mut sent = request(READ, 0, 1, 0, 512);
    sent[0] ^= 1;
    client.send(&sent);
    assert_eq!(client.rest(), []);
    let mut client = Client::connect(served.server.address());
    client.send(&[0, 0, 0, 3]);
    client.send(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(client.rest(), []);
    let mut client = Client::connect(served.server.address());
    client.send(&[0x80, 0, 0, 3]);
    assert_eq!(client.rest(), []);
    only_the_hostile_are_gone(&served, 3);
}

#[test]
fn write_of_gigabytes_ends_the_connection_and_takes_no_memory() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    client.send(&request(WRITE, 0, 1, 0, u32::MAX));
    assert_eq!(client.rest(), []);
    only_the_hostile_are_gone(&served, 1);
}

#[test]
fn half_a_request_and_silence_is_cut_off() {
    let served = Served::new(short());
    let cases = [
        request(READ, 0, 1, 0, 512)[..27].to_vec(),
        request(WRITE, 0, 1, 0, 4 << 20),
        write(0, 1, 0, &[7; 4096])[..2000].to_vec(),
        // A payload that would be skipped.
        request(WRITE, 0, 1, 1 << 40, 4096),
    ];
    let began = Instant::now();
    let clients = cases.map(|sent| {
        let mut client = served.client();
        client.send(&sent);
        client
    });
    for mut client in clients {
        assert_eq!(client.rest(), []);
    }
    assert!(began.elapsed() >= short().request && began.elapsed() < LONG);
    only_the_hostile_are_gone(&served, 4);
    assert!(
        !served
            .block
            .calls()
            .iter()
            .any(|call| matches!(call, Call::Write { .. }))
    );
}

#[test]
fn request_that_trickles_is_cut_off() {
    let served = Served::new(short());
    let mut client = served.client();
    let began = Instant::now();
    let sent = write(0, 1, 0, &[7; 4096]);
    let ended = sent.chunks(1).any(|byte| {
        std::thread::sleep(Duration::from_millis(20));
        client.try_send(byte).is_err()
    });
    assert!(ended && began.elapsed() < LONG);
    only_the_hostile_are_gone(&served, 1);
}

#[test]
fn client_that_waits_between_requests_is_not_cut_off() {
    let served = Served::new(short());
    let mut client = served.client();
    for _ in 0..3 {
        assert_eq!(client.read(0, 512).unwrap(), [0; 512]);
        std::thread::sleep(short().request + Duration::from_millis(200));
    }
    assert_eq!(served.server.totals().cut_off, 0);
}

#[test]
fn client_that_vanishes_within_a_request_leaves_nothing_behind() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    client.send(&request(WRITE, 0, 1, 0, 1 << 20));
    drop(client);
    only_the_hostile_are_gone(&served, 1);
}

#[test]
fn client_that_vanishes_with_requests_in_flight_leaves_nothing_behind() {
    let served = Served::new(Limits::default());
    served.block.stall(|_| true);
    let mut client = served.client();
    for cookie in 0..20 {
        client.send(&write(0, cookie, cookie * 4096, &[7; 4096]));
        client.send(&request(READ, 0, cookie, 0, 1 << 20));
    }
    assert!(served.block.wait_stalled(40, LONG));
    drop(client);
    served.block.release();
    wait_until("client gone", || served.server.totals().clients == 0);
    wait_until("writes done", || {
        served.block.content(0..20 * 4096) == [7; 20 * 4096]
    });
    // Its room is free again: eight reads of 4 MiB need all spare bytes.
    let mut client = served.client();
    for cookie in 0..9 {
        client.send(&request(READ, 0, cookie, 0, 4 << 20));
    }
    for _ in 0..9 {
        assert_eq!(client.reply().1, 0);
        client.receive(4 << 20);
    }
}

#[test]
fn negotiation_that_stalls_or_trickles_is_cut_off() {
    let served = Served::new(short());
    let mut silent = Client::connect(served.server.address());
    let mut half = Client::connect(served.server.address());
    half.send(&[0, 0, 0, 3]);
    half.send(&go()[..10]);
    let mut trickling = Client::connect(served.server.address());
    trickling.send(&[0, 0, 0, 3]);
    let began = Instant::now();
    let list = option(3, b"").into_iter().cycle().take(16 * 60);
    let ended = list.into_iter().any(|byte| {
        std::thread::sleep(Duration::from_millis(10));
        trickling.try_send(&[byte]).is_err()
    });
    assert!(ended && began.elapsed() < LONG);
    assert_eq!(silent.rest(), []);
    assert_eq!(half.rest(), []);
    only_the_hostile_are_gone(&served, 3);
}

#[test]
fn flood_of_options_is_cut_off() {
    let served = Served::new(Limits::default());
    let mut client = Client::connect(served.server.address());
    client.send(&[0, 0, 0, 3]);
    let flood = option(99, b"x").repeat(10_000);
    // It ends before everything is sent.
    let _ = client.try_send(&flood);
    let told = client.rest();
    assert_eq!(told.len(), 64 * 20);
    only_the_hostile_are_gone(&served, 1);
}

#[test]
fn options_whose_answers_nobody_reads_are_cut_off() {
    let served = Served::new(short());
    let mut client = Client::silent(served.server.address());
    client.send(&[0, 0, 0, 3]);
    let _ = client.try_send(&option(3, b"").repeat(10_000));
    only_the_hostile_are_gone(&served, 1);
}

#[test]
fn replies_that_nobody_reads_are_bounded_and_cut_off() {
    let served = Served::new(short());
    let mut greedy = served.client();
    let mut honest = served.client();
    let requests: Vec<_> = (0..200)
        .flat_map(|n| request(READ, 0, n, 0, 4 << 20))
        .collect();
    greedy.send(&requests);
    // Its share of 4 MiB, the spare 32 MiB, and what the socket holds.
    let reads = || {
        let calls = served.block.calls();
        let long = |call: &&Call| matches!(call, Call::Read { bytes, .. } if *bytes > 4096);
        calls.iter().filter(long).count()
    };
    wait_until("reads", || reads() >= 9);
    for _ in 0..50 {
        assert_eq!(honest.read(MIB, 4096).unwrap(), [0; 4096]);
    }
    wait_until("greedy client gone", || served.server.totals().clients == 1);
    assert_eq!(served.server.totals().cut_off, 1);
    assert!(reads() <= 10, "{} reads of 4 MiB", reads());
    assert_eq!(honest.read(MIB, 4096).unwrap(), [0; 4096]);
}

#[test]
fn flood_of_bad_requests_is_bounded_and_cut_off() {
    let served = Served::new(short());
    let mut client = served.client();
    let flood: Vec<_> = (0..100_000).flat_map(|n| request(99, 0, n, 0, 0)).collect();
    assert!(client.try_send(&flood).is_err());
    only_the_hostile_are_gone(&served, 1);
}

#[test]
fn requests_in_flight_are_bounded() {
    let limits = Limits {
        requests: 10,
        ..Limits::default()
    };
    let served = Served::new(limits);
    served.block.stall(|_| true);
    let mut client = served.client();
    let flood: Vec<_> = (0..100).flat_map(|n| request(READ, 0, n, 0, 512)).collect();
    client.send(&flood);
    assert!(served.block.wait_stalled(10, LONG));
    assert!(!served.block.wait_stalled(11, Duration::from_millis(200)));
    served.block.release();
    for _ in 0..100 {
        assert_eq!(client.reply().1, 0);
        client.receive(512);
    }
}

#[test]
fn one_client_too_many_is_told_so_and_others_are_closed() {
    let limits = Limits {
        clients: 2,
        ..Limits::default()
    };
    let served = Served::new(limits);
    let (mut one, other) = (served.client(), served.client());
    let mut refused = Client::connect(served.server.address());
    refused.send(&[0, 0, 0, 3]);
    refused.send(&go());
    let (kind, why) = refused.answer();
    assert_eq!(kind, ERR_POLICY);
    assert_eq!(why, b"this server has as many clients as it allows");
    // Four are told the reason at a time, further ones are closed without a word.
    let _told: Vec<_> = (0..3)
        .map(|_| Client::connect(served.server.address()))
        .collect();
    assert_eq!(Client::silent(served.server.address()).rest(), []);
    assert_eq!(served.server.totals().refused, 5);
    assert_eq!(one.read(0, 512).unwrap(), [0; 512]);
    drop(other);
    wait_until("a place", || served.server.totals().clients == 1);
    assert_eq!(served.client().read(0, 512).unwrap(), [0; 512]);
}
