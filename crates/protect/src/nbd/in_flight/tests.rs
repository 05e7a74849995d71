//! Room for requests, and replies to clients that read them late or never.

use std::io::Read;
use std::os::unix::net::UnixStream;

use super::*;

const SHARE: usize = 100;
const LONG: Duration = Duration::from_secs(30);

/// Two clients and their ends of the connections.
fn accounts(spare: usize) -> ([Arc<InFlight>; 2], [UnixStream; 2]) {
    let spare = Spare::new(spare);
    let pairs = [(); 2].map(|()| UnixStream::pair().unwrap());
    let [(one, other_one), (two, other_two)] = pairs;
    let clients =
        [one, two].map(|stream| InFlight::new(Stream::Unix(stream), 4, SHARE, spare.clone()));
    (clients, [other_one, other_two])
}

/// Whether the client would be admitted now.
fn has_room(client: &Arc<InFlight>, bytes: usize) -> bool {
    let client = client.clone();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let is_admitted = client.admit(bytes).is_some();
        tell.send(is_admitted)
    });
    let told = told.recv_timeout(std::time::Duration::from_secs(1));
    told.unwrap_or(false)
}

/// Whether the client is admitted soon. Threads of earlier questions may hold room for a moment.
fn gets_room(client: &Arc<InFlight>, bytes: usize) -> bool {
    (0..100).any(|_| has_room(client, bytes))
}

#[test]
fn client_gets_its_share_and_spare_bytes_and_no_more() {
    let ([one, other], _ends) = accounts(50);
    let first = one.admit(100).unwrap();
    let second = one.admit(50).unwrap();
    assert!(!has_room(&one, 1));
    // The spare bytes are used, the other's share is not.
    assert!(!has_room(&other, 101));
    assert!(gets_room(&other, 100));
    drop(second);
    assert!(gets_room(&other, 101));
    drop(first);
    assert!(gets_room(&one, 150));
    one.close();
    other.close();
}

/// Fills the buffers of the connection with replies. Returns how many requests are then unsent.
fn stall(client: &Arc<InFlight>) -> usize {
    while has_room(client, SHARE) {
        let room = client.admit(SHARE).unwrap().of(1);
        room.answer(Ok(vec![0; 1 << 20]));
    }
    lock(&client.state).requests
}

#[test]
fn requests_are_counted_until_their_replies_are_sent() {
    let ([client, _], [mut end, _]) = accounts(1 << 20);
    assert_eq!(stall(&client), 4);
    let sending = {
        let client = client.clone();
        std::thread::spawn(move || client.send_to_slow_reader(LONG))
    };
    assert!(!has_room(&client, 0));
    const REPLY: usize = REPLY_BYTES + (1 << 20);
    let mut read = vec![0; 2 * REPLY];
    end.set_read_timeout(Some(LONG)).unwrap();
    end.read_exact(&mut read).unwrap();
    assert!(gets_room(&client, 0));
    client.last();
    end.read_exact(&mut read).unwrap();
    assert_eq!(sending.join().unwrap(), Ok(()));
}

#[test]
fn replies_that_wait_too_long_end_the_connection_and_free_their_room() {
    let ([client, _], [mut end, _]) = accounts(1 << 20);
    stall(&client);
    let began = Instant::now();
    let patience = Duration::from_millis(200);
    assert_eq!(
        client.send_to_slow_reader(patience),
        Err(Violation::SlowReader)
    );
    assert!(began.elapsed() < LONG);
    assert!(client.admit(0).is_none());
    assert_eq!(lock(&client.state).requests, 0);
    assert_eq!(*lock(&client.spare.0), 1 << 20);
    // What was sent before arrives, then the end.
    let mut sent = Vec::new();
    end.read_to_end(&mut sent).unwrap();
}

#[test]
fn request_that_a_panicking_thread_drops_is_answered_with_an_error() {
    let ([client, _], [mut end, _]) = accounts(0);
    let room = client.admit(7).unwrap().of(9);
    let thread = std::thread::spawn(move || {
        let _room = room;
        panic!("a device that panics");
    });
    assert!(thread.join().is_err());
    let mut sent = [0; REPLY_BYTES];
    end.set_read_timeout(Some(LONG)).unwrap();
    end.read_exact(&mut sent).unwrap();
    assert_eq!(sent, reply(9, Some(NbdError::Io)));
}

#[test]
fn sending_ends_after_the_last_reply_or_at_once_when_the_client_is_gone() {
    let ([client, gone], [mut end, _]) = accounts(0);
    let room = client.admit(1).unwrap().of(1);
    client.last();
    room.answer(Ok(vec![1]));
    assert_eq!(client.send_to_slow_reader(LONG), Ok(()));
    let mut sent = [0; REPLY_BYTES + 1];
    end.read_exact(&mut sent).unwrap();

    let room = gone.admit(1).unwrap().of(1);
    gone.close();
    assert_eq!(gone.send_to_slow_reader(LONG), Ok(()));
    assert!(gone.admit(0).is_none());
    room.answer(Ok(vec![1]));
    assert_eq!(lock(&gone.state).requests, 0);
    assert_eq!(lock(&gone.state).bytes, 0);
}
