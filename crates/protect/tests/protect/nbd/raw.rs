//! A client that sends whatever a test wants. Its numbers are written down again from the protocol's document.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use protect::nbd::Address;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const WRITE_ZEROES: u16 = 6;
/// `NBD_CMD_FLAG_FUA`.
pub const FUA: u16 = 1;

/// No answer takes longer, or the test fails.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Client {
    stream: Stream,
}

enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// A request without payload, as it is sent.
pub fn request(kind: u16, flags: u16, cookie: u64, offset: u64, bytes: u32) -> Vec<u8> {
    let mut sent = 0x2560_9513u32.to_be_bytes().to_vec();
    sent.extend(flags.to_be_bytes());
    sent.extend(kind.to_be_bytes());
    sent.extend(cookie.to_be_bytes());
    sent.extend(offset.to_be_bytes());
    sent.extend(bytes.to_be_bytes());
    sent
}

/// A write, as it is sent.
pub fn write(flags: u16, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut sent = request(WRITE, flags, cookie, offset, data.len() as u32);
    sent.extend(data);
    sent
}

/// An option, as it is sent.
pub fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut sent = b"IHAVEOPT".to_vec();
    sent.extend(number.to_be_bytes());
    sent.extend((data.len() as u32).to_be_bytes());
    sent.extend(data);
    sent
}

/// `NBD_OPT_GO` for the export without a name.
pub fn go() -> Vec<u8> {
    option(7, &[0; 6])
}

impl Client {
    /// Connects and reads the greeting.
    pub fn connect(address: &Address) -> Client {
        let mut client = Client::silent(address);
        assert_eq!(client.receive(18), b"NBDMAGICIHAVEOPT\x00\x03");
        client
    }

    /// Connects and reads nothing.
    pub fn silent(address: &Address) -> Client {
        let stream = match address {
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                Stream::Unix(stream)
            }
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                stream.set_write_timeout(Some(PATIENCE)).unwrap();
                Stream::Tcp(stream)
            }
        };
        Client { stream }
    }

    /// Sends the client's flags and asks for the export.
    pub fn go(&mut self) {
        self.send(&[0, 0, 0, 3]);
        self.send(&go());
        while self.answer().0 != 1 {}
    }

    /// The kind and data of an answer to an option.
    pub fn answer(&mut self) -> (u32, Vec<u8>) {
        let header = self.receive(20);
        let (magic, rest) = header.split_at(12);
        assert_eq!(magic[..8], 0x0003_e889_0455_65a9u64.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        let data = self.receive(number(4) as usize);
        (number(0), data)
    }

    /// Sends it all. The server must not have gone.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap();
    }

    pub fn try_send(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        match &mut self.stream {
            Stream::Unix(stream) => stream.write_all(bytes),
            Stream::Tcp(stream) => stream.write_all(bytes),
        }
    }

    pub fn receive(&mut self, bytes: usize) -> Vec<u8> {
        let mut into = vec![0; bytes];
        match &mut self.stream {
            Stream::Unix(stream) => stream.read_exact(&mut into).unwrap(),
            Stream::Tcp(stream) => stream.read_exact(&mut into).unwrap(),
        }
        into
    }

    /// Cookie and error of a reply; its payload stays unread.
    pub fn reply(&mut self) -> (u64, u32) {
        let header = self.receive(16);
        assert_eq!(header[..4], 0x6744_6698u32.to_be_bytes());
        let error = u32::from_be_bytes(header[4..8].try_into().unwrap());
        (u64::from_be_bytes(header[8..].try_into().unwrap()), error)
    }

    /// Sends a request without payload in either direction and returns the error of its reply.
    pub fn ask(&mut self, kind: u16, flags: u16, offset: u64, bytes: u32) -> u32 {
        self.send(&request(kind, flags, 77, offset, bytes));
        let (cookie, error) = self.reply();
        assert_eq!(cookie, 77);
        error
    }

    /// Writes and returns the error of the reply.
    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.send(&write(flags, 78, offset, data));
        let (cookie, error) = self.reply();
        assert_eq!(cookie, 78);
        error
    }

    pub fn read(&mut self, offset: u64, bytes: u32) -> Result<Vec<u8>, u32> {
        match self.ask(READ, 0, offset, bytes) {
            0 => Ok(self.receive(bytes as usize)),
            error => Err(error),
        }
    }

    /// Reads until the server closes the connection, and returns what came.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        let read = match &mut self.stream {
            Stream::Unix(stream) => stream.read_to_end(&mut rest),
            Stream::Tcp(stream) => stream.read_to_end(&mut rest),
        };
        match read {
            // What the client sent was not read.
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            read => {
                read.unwrap();
            }
        }
        rest
    }

    /// Sends nothing more.
    pub fn hang_up(&self) {
        match &self.stream {
            Stream::Unix(stream) => stream.shutdown(Shutdown::Write).unwrap(),
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Write).unwrap(),
        }
    }
}
