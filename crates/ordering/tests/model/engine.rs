//! What the explorer drives: a device and an ordering server, both without input, output, clock or randomness of their
//! own. `device` and `server` put the product's state machines behind these traits.

use crate::chain::Chain;
use crate::protocol::{Answer, Call, CallId, Device, Incarnation, Point, Reply, Request};
use crate::wide::Wide;

/// What a client wants done.
#[derive(Clone, Debug)]
pub enum Output {
    Send(Request),
    /// Answers a program. `at` is the prefix at whose end the call took place; `marked` are positions of entries that
    /// the answer rests on although their authors have not attested them.
    Answer {
        call: CallId,
        answer: Answer,
        at: Point,
        marked: u64,
    },
    /// The server lies. The client stops.
    Alarm(String),
}

/// An alarm clock of the client that may ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Timer {
    /// Floor and journal are synced at most a second late.
    Sync,
    /// After a short idle time.
    Attest,
    /// The wait for a silent author is over.
    Timeout,
    /// What the server sent after the start is taken for all there is.
    Resume,
    /// The last message was not answered: the same bytes again.
    Resend,
    /// The time to live of locks has passed.
    Lapse,
}

pub const TIMERS: [Timer; 6] = [
    Timer::Sync,
    Timer::Attest,
    Timer::Timeout,
    Timer::Resume,
    Timer::Resend,
    Timer::Lapse,
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Crash {
    /// kill -9: what was written is still there.
    Kill,
    /// Power cut: only what was synced is still there.
    Power,
}

pub trait ClientEngine: Clone {
    /// Whether a program can make a call now.
    fn ready(&self) -> bool;
    fn issue(&mut self, call: CallId, what: Call) -> Vec<Output>;
    fn deliver(&mut self, reply: &Reply) -> Vec<Output>;
    /// Timers that may ring now.
    fn armed(&self, timer: Timer) -> bool;
    fn timer(&mut self, timer: Timer) -> Vec<Output>;
    /// Stops and starts again, with what is left and a fresh incarnation.
    fn crash(&mut self, how: Crash, fresh: Incarnation) -> Vec<Output>;

    /// The program of this call is gone.
    fn cancel(&mut self, call: CallId);

    /// Starts with a checkpoint that another device makes of its log. None: that device signs none now.
    fn begin(&self, from: &Self, fresh: Incarnation) -> Option<(Self, Vec<Output>)>;
    /// Goes over to the second epoch, with an empty log and a fresh incarnation.
    fn follow(&mut self, start: Point, fresh: Incarnation) -> Vec<Output>;
    /// Where the second epoch began, if the device has gone over to it.
    fn start(&self) -> Option<Point>;

    /// The verified log.
    fn frontier(&self) -> &Chain;
    /// Size of the floor that a power cut leaves.
    fn kept(&self) -> u64;
    /// It has asked this device for an Attest, and waits.
    fn awaits(&self, device: Device) -> bool;
    /// Entries that were sent for a call which has no answer yet.
    fn attempts(&self) -> u8;
    /// Since when it waits out locks of other devices.
    fn watched(&self) -> Option<u64>;
    /// It works, or would if the server answered.
    fn stopped(&self) -> bool;
    /// All that decides what it does next.
    fn state(&self, into: &mut Wide);
}

/// An honest ordering server.
pub trait Orderer: Clone {
    fn receive(&mut self, from: Device, request: &Request) -> Vec<(Device, Reply)>;
    /// From now on a commit is a step of its own.
    fn patient(self) -> Self;
    /// Something waits for a commit.
    fn waits(&self) -> bool;
    fn commit(&mut self) -> Vec<(Device, Reply)>;
    /// The device's connection is closed.
    fn disconnect(&mut self, device: Device);
    /// Stops and starts again, with what was synced before it answered.
    fn crash(&mut self);
    fn log(&self) -> &Chain;
    fn state(&self, into: &mut Wide);
}
