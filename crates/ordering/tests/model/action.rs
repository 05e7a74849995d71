//! What may happen in a world, and traces of it for people to read.

use std::fmt;

use crate::chain::Chain;
use crate::engine::{Crash, Output, Timer};
use crate::liar::{LIED, Lie};
use crate::protocol::{Call, Device, Leaf, Mark, Point, Request, letter, marked};

/// An entry by what it says of itself, so that a trace keeps its meaning when steps before it are left out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Name {
    /// Device, incarnation, number; which of them, if there are several.
    Entry(Device, u8, u64, u8),
    Mark(Mark),
    /// A write by this device that it never signed.
    Forged(Device),
    /// A call that the lying member makes for this log.
    Lied(Lie, Call),
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Action {
    Issue(Device, Call),
    Leaf(Device, Name),
    /// To a device: the Attest of another with this number.
    Attest(Device, Device, u8),
    Timer(Device, Timer),
    Crash(Device, Crash),
    /// A device is shown the log of another one.
    Switch(Device, Device),
    Rest(Device),
    /// A device is told that its entry cannot be ordered.
    Refuse(Device, Name),
    /// A device starts with a checkpoint of another one.
    Begin(Device, Device),
    /// The owners let the log of a device stand: the second epoch begins with it.
    Recover(Device),
    /// A device goes over to the second epoch.
    Follow(Device),
    /// It is shown the prefix with which the second epoch begins.
    Start(Device),
}

/// A leaf for people to read.
pub fn describe(leaf: &Leaf) -> String {
    let entry = match leaf {
        Leaf::Entry(entry) => entry,
        Leaf::Marks(marks) => {
            let name = |mark: &Mark| format!("mark {}{}", letter(mark.device), mark.number);
            let marks: Vec<_> = marks.iter().map(name).collect();
            return marks.join(", ");
        }
    };
    let heading = &entry.body.heading;
    let calls: Vec<_> = entry
        .body
        .ops
        .iter()
        .map(|op| format!("{:?}", op.call))
        .collect();
    let what = if heading.resume {
        "resume ".to_owned()
    } else {
        String::new()
    };
    format!(
        "entry {}{}.{} {what}[{}] seen {} kept {}",
        letter(entry.body.device),
        heading.incarnation,
        heading.n,
        calls.join(" "),
        heading.seen.size,
        heading.kept
    )
}

pub fn told(output: &Output) -> Option<String> {
    Some(match output {
        Output::Send(Request::Entry(entry)) => {
            format!("sends {}", describe(&Leaf::Entry(entry.clone())))
        }
        Output::Send(Request::Mark(mark)) => format!("sends {}", describe(&marked(*mark))),
        Output::Send(Request::Attest(attest)) => format!("attests {}", attest.size),
        Output::Send(Request::Ask(device)) => format!("asks {}", letter(*device)),
        Output::Send(Request::Open(_)) => return None,
        Output::Answer {
            call,
            answer,
            at,
            marked,
        } => {
            let marks = if *marked == 0 { "" } else { ", marked" };
            format!("{call:?} answers {answer:?} at {}{marks}", at.size)
        }
        Output::Alarm(what) => format!("alarm: {what}"),
    })
}

/// A message for people to read.
pub fn describe_request(request: &Request) -> String {
    match request {
        Request::Entry(entry) => describe(&Leaf::Entry(entry.clone())),
        Request::Mark(mark) => describe(&marked(*mark)),
        Request::Attest(attest) => format!("attest {}{}", letter(attest.device), attest.size),
        Request::Ask(device) => format!("a question to {}", letter(*device)),
        Request::Open(since) => format!("fetch from {}", since.map_or(0, |since| since.size)),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Name::Entry(device, incarnation, n, which) => {
                let which = if *which == 0 {
                    String::new()
                } else {
                    format!(" (another one, {which})")
                };
                write!(f, "entry {}{incarnation}.{n}{which}", letter(*device))
            }
            Name::Mark(mark) => write!(f, "mark {}{}", letter(mark.device), mark.number),
            Name::Forged(device) => write!(f, "a forged entry of {}", letter(*device)),
            Name::Lied(lie, deed) => write!(f, "a lie: {deed:?} {lie:?}"),
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Issue(device, call) => write!(f, "{} calls {call:?}", letter(*device)),
            Action::Leaf(to, name) => write!(f, "{} is shown {name}", letter(*to)),
            Action::Attest(to, device, LIED) => {
                let by = letter(*device);
                write!(f, "{} gets an attest of {by} for its own log", letter(*to))
            }
            Action::Attest(to, device, number) => {
                write!(
                    f,
                    "{} gets attest #{number}, of {}",
                    letter(*to),
                    letter(*device)
                )
            }
            Action::Timer(device, timer) => write!(f, "{}: {timer:?}", letter(*device)),
            Action::Crash(device, how) => {
                write!(f, "{}: {how:?}, and starts again", letter(*device))
            }
            Action::Refuse(to, name) => write!(f, "{} is told that {name} is refused", letter(*to)),
            Action::Begin(to, from) => {
                let from = letter(*from);
                write!(f, "{} begins with a checkpoint of {from}", letter(*to))
            }
            Action::Rest(device) => write!(f, "{} rests", letter(*device)),
            Action::Recover(device) => write!(f, "the log of {} stands", letter(*device)),
            Action::Follow(device) => write!(f, "{} goes over", letter(*device)),
            Action::Start(device) => write!(f, "{} is shown the start", letter(*device)),
            Action::Switch(to, from) => {
                write!(f, "{} is shown the log of {}", letter(*to), letter(*from))
            }
        }
    }
}

/// A log for people to read.
pub fn print(chain: &Chain) -> String {
    let leaves = chain.leaves();
    let text: Vec<_> = leaves
        .iter()
        .map(|(leaf, Point { size, .. })| format!("{}: {}", size - 1, describe(leaf)))
        .collect();
    text.join(" | ")
}
