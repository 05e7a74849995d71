//! The end of the server.

use std::time::{Duration, Instant};

use protect::nbd::{Limits, Stopped};
use sim::block::Call;
use sim::time::wait_until;

use super::raw::{Client, READ, WRITE, request, write};
use super::{Served, short};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn stop_answers_what_is_in_flight_and_closes_connections_and_socket() {
    let served = Served::new(Limits::default());
    served
        .block
        .stall(|call| matches!(call, Call::Write { .. }));
    let mut client = served.client();
    let mut idle = served.client();
    let mut negotiating = Client::connect(served.server.address());
    // A request that is not whole does not hold the server up.
    let half = request(WRITE, 0, 2, 0, 512);
    client.send(&[write(0, 1, 0, &[7; 512]), half].concat());
    assert!(served.block.wait_stalled(1, LONG));
    // Time to read the half, too.
    std::thread::sleep(Duration::from_millis(50));
    let (server, block) = (served.server, served.block.clone());
    let stopping = std::thread::spawn(move || server.stop());
    assert_eq!(idle.rest(), []);
    assert_eq!(negotiating.rest(), []);
    assert!(!stopping.is_finished());
    block.release();
    assert_eq!(client.reply(), (1, 0));
    assert_eq!(client.rest(), []);
    assert_eq!(stopping.join().unwrap(), Stopped::Cleanly);
    assert_eq!(block.content(0..512), [7; 512]);
    assert!(!served.dir.path().join("nbd").exists());
}

#[test]
fn stop_does_not_wait_for_ever_for_a_device_that_hangs() {
    let served = Served::new(short());
    served
        .block
        .stall(|call| matches!(call, Call::Write { .. }));
    let mut client = served.client();
    let mut other = served.client();
    client.send(&write(0, 1, 0, &[7; 512]));
    assert!(served.block.wait_stalled(1, LONG));
    let began = Instant::now();
    assert_eq!(served.server.stop(), Stopped::CutOff(1));
    assert!(began.elapsed() < LONG / 2);
    assert_eq!(client.rest(), []);
    assert_eq!(other.rest(), []);
    served.block.release();
}

#[test]
fn requests_that_wait_when_the_server_stops_are_not_begun() {
    let limits = Limits {
        requests: 4,
        ..Limits::default()
    };
    let served = Served::new(limits);
    served.block.stall(|_| true);
    let mut client = served.client();
    client.send(&request(READ, 0, 1, 0, 512).repeat(2000));
    assert!(served.block.wait_stalled(4, LONG));
    let (server, block) = (served.server, served.block.clone());
    let stopping = std::thread::spawn(move || server.stop());
    let path = served.dir.path().join("nbd");
    wait_until("no socket", || !path.exists());
    block.release();
    assert_eq!(stopping.join().unwrap(), Stopped::Cleanly);
    // Those in flight, and the one that waited for room.
    assert!(block.calls().len() <= 5, "{}", block.calls().len());
}

#[test]
fn dropping_the_server_closes_everything() {
    let served = Served::new(Limits::default());
    let mut client = served.client();
    assert_eq!(client.write(0, 0, &[7; 512]), 0);
    drop(served.server);
    assert_eq!(client.rest(), []);
    assert!(!served.dir.path().join("nbd").exists());
}
