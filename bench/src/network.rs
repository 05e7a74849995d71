//! A relay that makes the loopback behave like a long network path.
//!
//! Every byte is delayed. A connection costs one round trip before its first byte. Then ten packets of
//! 1,460 bytes may be in flight in each direction, and twice as many after every round trip that used
//! them up (slow start). There is no loss and no other limit. The kernel's emulation (netem) is not used
//! because many kernels lack it. The relay counts the bytes and round trips of each contestant.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

const FIRST_WINDOW_BYTES: usize = 10 * 1460;
const MAX_WINDOW_BYTES: usize = 8 << 20;
const BUFFER_BYTES: usize = 64 << 10;
/// Buffers in transit in one direction.
const BUFFERS: usize = 1024;

/// A relay to a server of this machine. It ends with the program.
pub struct Far {
    /// Port of 127.0.0.1 on which the relay listens.
    pub port: u16,
    crossed_bytes: Arc<AtomicU64>,
    waves: Arc<Waves>,
}

/// Counts dependent round trips. Each begins with a message of the client. Everything else that the client
/// sends within this round trip cannot depend on the answers, so it belongs to the same round trip.
#[derive(Default)]
struct Waves {
    count: AtomicU64,
    until: Mutex<Option<Instant>>,
}

impl Waves {
    fn sent(&self, round_trip: Duration) {
        let now = Instant::now();
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        if until.is_none_or(|until| now >= until) {
            *until = Some(now + round_trip);
            self.count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Far {
    /// Starts a relay to the server at `port` with this delay in milliseconds, each way.
    ///
    /// # Errors
    /// Without a free port.
    pub fn new(port: u16, one_way_ms: u64) -> Result<Far> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let far = Far {
            port: listener.local_addr()?.port(),
            crossed_bytes: Arc::default(),
            waves: Arc::default(),
        };
        let one_way = Duration::from_millis(one_way_ms);
        let (crossed_bytes, waves) = (far.crossed_bytes.clone(), far.waves.clone());
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                // If the server cannot be reached, the client's connection is closed.
                if let Ok(server) = TcpStream::connect(("127.0.0.1", port)) {
                    let _ = join(&client, &server, one_way, (&crossed_bytes, &waves));
                }
            }
        });
        Ok(far)
    }

    /// Bytes that have crossed so far, both directions, without headers.
    pub fn bytes(&self) -> u64 {
        self.crossed_bytes.load(Ordering::Relaxed)
    }

    /// Round trips that clients have begun so far, those that overlap counted once.
    pub fn waves(&self) -> u64 {
        self.waves.count.load(Ordering::Relaxed)
    }
}

fn join(
    client: &TcpStream,
    server: &TcpStream,
    one_way: Duration,
    (crossed_bytes, waves): (&Arc<AtomicU64>, &Arc<Waves>),
) -> std::io::Result<()> {
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let handshake = Instant::now() + 2 * one_way;
    for (from, to, waves) in [(client, server, Some(waves)), (server, client, None)] {
        let way = Way {
            waves: waves.cloned(),
            one_way,
            window_bytes: FIRST_WINDOW_BYTES,
            used_bytes: 0,
            since: handshake,
        };
        let (from, to) = (from.try_clone()?, to.try_clone()?);
        let crossed_bytes = crossed_bytes.clone();
        let (send, receive) = sync_channel(BUFFERS);
        thread::spawn(move || way.carry(from, &send, &crossed_bytes));
        thread::spawn(move || deliver(&receive, to));
    }
    Ok(())
}

/// One direction of a connection.
struct Way {
    /// Counts round trips, if this is the client's direction.
    waves: Option<Arc<Waves>>,
    one_way: Duration,
    window_bytes: usize,
    used_bytes: usize,
    since: Instant,
}

type Parcel = (Instant, Vec<u8>);

impl Way {
    fn carry(
        mut self,
        mut from: TcpStream,
        send: &std::sync::mpsc::SyncSender<Parcel>,
        crossed_bytes: &AtomicU64,
    ) {
        let mut buffer = vec![0; BUFFER_BYTES];
        while let Ok(read) = from.read(&mut buffer) {
            let mut rest = buffer.get(..read).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            crossed_bytes.fetch_add(read as u64, Ordering::Relaxed);
            if let Some(waves) = &self.waves {
                waves.sent(2 * self.one_way);
            }
            while !rest.is_empty() {
                let now_bytes = self.room().min(rest.len());
                let (now, later) = rest.split_at(now_bytes);
                self.used_bytes += now_bytes;
                let due = Instant::now().max(self.since) + self.one_way;
                if send.send((due, now.to_vec())).is_err() {
                    return;
                }
                rest = later;
            }
        }
    }

    /// Waits until something may be sent. Returns how many bytes.
    fn room(&mut self) -> usize {
        loop {
            let next = self.since + 2 * self.one_way;
            let now = Instant::now();
            if now >= next {
                if self.used_bytes >= self.window_bytes {
                    self.window_bytes = (self.window_bytes * 2).min(MAX_WINDOW_BYTES);
                }
                self.used_bytes = 0;
            }
            if self.used_bytes == 0 {
                self.since = self.since.max(now);
            }
            match self.window_bytes.saturating_sub(self.used_bytes) {
                0 => thread::sleep(next.saturating_duration_since(now)),
                room => return room,
            }
        }
    }
}

fn deliver(receive: &Receiver<Parcel>, mut to: TcpStream) {
    while let Ok((due, bytes)) = receive.recv() {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_unchanged_and_not_too_early() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut ask = [0; 4];
            stream.read_exact(&mut ask).unwrap();
            stream.write_all(&vec![7; 100_000]).unwrap();
        });
        let far = Far::new(port, 10).unwrap();
        let began = Instant::now();
        let mut client = TcpStream::connect(("127.0.0.1", far.port)).unwrap();
        client.write_all(b"send").unwrap();
        let mut got = Vec::new();
        client.read_to_end(&mut got).unwrap();
        server.join().unwrap();
        assert_eq!(got, vec![7; 100_000]);
        // Set-up, there and back, and three windows of 14,600, 29,200 and 58,400 bytes: 80 ms.
        assert!(began.elapsed() >= Duration::from_millis(79));
        assert_eq!(far.bytes(), 100_004);
        assert_eq!(far.waves(), 1);
    }
}
