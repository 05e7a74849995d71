//! A way to a server that a test shuts and opens: a relay on this machine. What is on the way when it is shut is lost.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Connections, and whether there may be more.
#[derive(Default)]
struct Ways {
    is_shut: bool,
    open: Vec<TcpStream>,
}

pub struct Gate {
    pub port: u16,
    ways: Arc<Mutex<Ways>>,
}

impl Gate {
    /// An open way to a port of this machine.
    pub fn to(port: u16) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Gate {
            port: listener.local_addr().unwrap().port(),
            ways: Arc::default(),
        };
        let ways = Arc::clone(&gate.ways);
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let mut ways = ways.lock().unwrap();
                if ways.is_shut {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    ways.open.push(from.try_clone().unwrap());
                    carry(from.try_clone().unwrap(), to.try_clone().unwrap());
                }
            }
        });
        gate
    }

    /// Ends all connections; there are no others until it is opened.
    pub fn shut(&self) {
        let mut ways = self.ways.lock().unwrap();
        ways.is_shut = true;
        for way in ways.open.drain(..) {
            // It may be closed.
            let _ = way.shutdown(Shutdown::Both);
        }
    }

    pub fn open(&self) {
        self.ways.lock().unwrap().is_shut = false;
    }
}

/// Carries bytes until one end is closed.
fn carry(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            if to.write_all(&buffer[..len]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
}
