//! The client's requests as a state machine without I/O. It says where the next bytes of the client belong
//! ([`Requests::space`]), so that payloads are read where they stay, and when memory is about to be taken
//! ([`Event::Payload`]), so that the connection can wait for room first.

use super::export::{Command, Export, Verdict};
use super::wire::{NBD_CMD_WRITE, NbdError, REQUEST_BYTES, Request};
use super::{MAX_OPTION_DATA_BYTES, Violation};

/// Bytes of the buffer that requests arrive in. It must hold the longest option too.
const INPUT_BYTES: usize = 64 << 10;
const _: () = assert!(INPUT_BYTES >= MAX_OPTION_DATA_BYTES + super::wire::OPTION_BYTES);

/// Bytes that arrived and are not done with.
#[derive(Debug)]
pub struct Input {
    memory: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Default for Input {
    fn default() -> Input {
        Input {
            memory: vec![0; INPUT_BYTES].into_boxed_slice(),
            start: 0,
            end: 0,
        }
    }
}

impl Input {
    /// What arrived.
    pub fn bytes(&self) -> &[u8] {
        self.memory.get(self.start..self.end).unwrap_or_default()
    }

    /// The first `count` bytes are done with.
    pub fn consume(&mut self, count: usize) {
        self.start = self.end.min(self.start + count);
    }

    /// Where the next bytes belong. Not empty while less than an option or a request is waiting.
    pub fn space(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.memory.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        self.memory.get_mut(self.end..).unwrap_or_default()
    }

    /// So many bytes were put into the space.
    pub fn filled(&mut self, count: usize) {
        self.end = self.memory.len().min(self.end + count);
    }
}

/// The requests of one client.
#[derive(Debug)]
pub struct Requests {
    export: Export,
    input: Input,
    state: State,
}

#[derive(Debug)]
enum State {
    /// A request begins.
    Header,
    /// A write whose payload has no memory yet.
    Promised(Write, u32),
    /// A write whose first so many bytes are here.
    Payload(Write, Vec<u8>, usize),
    /// So many bytes of a refused write are still to come.
    Skip(u32, u64, NbdError),
}

#[derive(Debug, Clone, Copy)]
struct Write {
    cookie: u64,
    offset: u64,
    durable: bool,
}

/// What the client's bytes say.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// More bytes are needed.
    More,
    /// The next call takes so much memory for a write.
    Payload(u32),
    /// The client wants this, and names it by this cookie.
    Wants(u64, Command),
    /// The request of this cookie gets an error.
    Refused(u64, NbdError),
    /// The client takes its leave.
    Disconnect,
}

impl Requests {
    /// The requests after a negotiation, whose buffer may hold the first of them.
    pub fn new(export: Export, input: Input) -> Requests {
        Requests {
            export,
            input,
            state: State::Header,
        }
    }

    /// The next event of the bytes that are here.
    ///
    /// # Errors
    /// When the connection must end, because the client breaks the protocol.
    #[allow(clippy::should_implement_trait)] // an iterator would end
    pub fn next(&mut self) -> Result<Event, Violation> {
        match std::mem::replace(&mut self.state, State::Header) {
            State::Header => self.header(),
            State::Promised(write, bytes) => {
                let mut data = vec![0; usize::try_from(bytes).unwrap_or_default()];
                let here = data.len().min(self.input.bytes().len());
                let (front, _) = data.split_at_mut(here);
                front.copy_from_slice(self.input.bytes().get(..here).unwrap_or_default());
                self.input.consume(here);
                Ok(self.payload(write, data, here))
            }
            State::Payload(write, data, filled) => Ok(self.payload(write, data, filled)),
            State::Skip(left, cookie, error) => {
                let here = left.min(u32::try_from(self.input.bytes().len()).unwrap_or(u32::MAX));
                self.input
                    .consume(usize::try_from(here).unwrap_or_default());
                if here == left {
                    return Ok(Event::Refused(cookie, error));
                }
                self.state = State::Skip(left - here, cookie, error);
                Ok(Event::More)
            }
        }
    }

    fn header(&mut self) -> Result<Event, Violation> {
        let Some(sent) = self.input.bytes().first_chunk::<REQUEST_BYTES>() else {
            return Ok(Event::More);
        };
        let request = Request::parse(sent).ok_or(Violation::Magic)?;
        self.input.consume(REQUEST_BYTES);
        let cookie = request.cookie;
        match self.export.judge(&request) {
            Verdict::Attack => Err(Violation::PayloadTooLong(request.bytes)),
            Verdict::Disconnect => Ok(Event::Disconnect),
            Verdict::Refuse(error) if request.kind == NBD_CMD_WRITE => {
                self.state = State::Skip(request.bytes, cookie, error);
                self.next()
            }
            Verdict::Refuse(error) => Ok(Event::Refused(cookie, error)),
            Verdict::Do(Command::Write {
                offset, durable, ..
            }) => {
                let write = Write {
                    cookie,
                    offset,
                    durable,
                };
                self.state = State::Promised(write, request.bytes);
                Ok(Event::Payload(request.bytes))
            }
            Verdict::Do(command) => Ok(Event::Wants(cookie, command)),
        }
    }

    fn payload(&mut self, write: Write, data: Vec<u8>, filled: usize) -> Event {
        if filled < data.len() {
            self.state = State::Payload(write, data, filled);
            return Event::More;
        }
        let command = Command::Write {
            offset: write.offset,
            data,
            durable: write.durable,
        };
        Event::Wants(write.cookie, command)
    }

    /// Where the next bytes of the client belong. Never empty after [`Event::More`].
    pub fn space(&mut self) -> &mut [u8] {
        match &mut self.state {
            State::Payload(_, data, filled) => data.get_mut(*filled..).unwrap_or_default(),
            _ => self.input.space(),
        }
    }

    /// So many bytes were put into the space.
    pub fn filled(&mut self, count: usize) {
        match &mut self.state {
            State::Payload(_, data, filled) => *filled = data.len().min(*filled + count),
            _ => self.input.filled(count),
        }
    }

    /// Whether the client has begun a request that is not whole.
    pub fn is_within_a_request(&self) -> bool {
        !matches!(self.state, State::Header) || !self.input.bytes().is_empty()
    }
}

#[cfg(test)]
mod tests;
