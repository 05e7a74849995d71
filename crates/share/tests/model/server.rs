//! The model of an honest ordering server: it orders what has the right form, answers the same bytes with the same
//! answer, pushes to everybody, and forgets nothing that it has answered.

use std::hash::Hash;

use crate::chain::Chain;
use crate::engine::Orderer;
use crate::protocol::{Attest, Device, Leaf, Point, Reply, Request};
use crate::rules::Rules;
use crate::state::{DEVICES, State};
use crate::wide::Wide;

#[derive(Clone, Debug)]
pub struct Server {
    log: Chain,
    /// State at the end of the log: rows of devices and members are what it needs.
    state: State,
    /// What each device has been sent. None: no session.
    cursors: [Option<Point>; DEVICES],
    /// The newest Attest of each device.
    attests: [Option<Attest>; DEVICES],
}

impl Server {
    pub fn new(rules: Rules, members: u8, log: &Chain, devices: usize) -> Server {
        let mut state = State::genesis(rules, members);
        for (leaf, _) in log.leaves() {
            state.extend(leaf);
        }
        let cursors = std::array::from_fn(|device| (device < devices).then(|| log.point()));
        Server {
            log: log.clone(),
            state,
            cursors,
            attests: [None; DEVICES],
        }
    }

    fn reply(&self, extends: Point) -> Reply {
        Reply {
            extends,
            leaves: Vec::new(),
            attests: Vec::new(),
            asked: false,
            refused: false,
        }
    }

    fn push(&mut self, leaf: &Leaf) -> Vec<(Device, Reply)> {
        self.state.extend(leaf);
        self.log = self.log.push(leaf.clone());
        let mut replies = Vec::new();
        for device in 0..DEVICES {
            if let Some(extends) = self.cursors[device] {
                let leaves = self.log.since(extends.size);
                replies.push((
                    device as Device,
                    Reply {
                        leaves,
                        ..self.reply(extends)
                    },
                ));
                self.cursors[device] = Some(self.log.point());
            }
        }
        replies
    }

    fn order(&mut self, from: Device, leaf: &Leaf) -> Vec<(Device, Reply)> {
        let cursor = self.cursors[usize::from(from)].unwrap_or_else(|| self.log.point());
        if self.log.has(leaf.id()) {
            let leaves = self.log.since(cursor.size);
            self.cursors[usize::from(from)] = Some(self.log.point());
            return vec![(
                from,
                Reply {
                    leaves,
                    ..self.reply(cursor)
                },
            )];
        }
        if let Leaf::Entry(entry) = leaf
            && !self.state.faults(&self.log, &entry.body).is_empty()
        {
            let leaves = self.log.since(cursor.size);
            self.cursors[usize::from(from)] = Some(self.log.point());
            return vec![(
                from,
                Reply {
                    leaves,
                    refused: true,
                    ..self.reply(cursor)
                },
            )];
        }
        self.push(leaf)
    }
}

impl Orderer for Server {
    fn receive(&mut self, from: Device, request: &Request) -> Vec<(Device, Reply)> {
        let point = self.log.point();
        match request {
            Request::Entry(entry) => self.order(from, &Leaf::Entry(entry.clone())),
            Request::Mark(mark) => self.order(from, &Leaf::Mark(*mark)),
            Request::Attest(attest) => {
                self.attests[usize::from(from)] = Some(*attest);
                let others = (0..DEVICES).filter(|device| self.cursors[*device].is_some());
                let others = others.filter(|device| *device != usize::from(from));
                let attests = vec![*attest];
                others
                    .map(|to| {
                        (
                            to as Device,
                            Reply {
                                attests: attests.clone(),
                                ..self.reply(point)
                            },
                        )
                    })
                    .collect()
            }
            // A device that is not there will attest when it comes back.
            Request::Ask(device) => match self.cursors[usize::from(*device)] {
                Some(_) => vec![(
                    *device,
                    Reply {
                        asked: true,
                        ..self.reply(point)
                    },
                )],
                None => Vec::new(),
            },
            Request::Fetch(since) => {
                self.cursors[usize::from(from)] = Some(point);
                let attests = self.attests.iter().flatten().copied().collect();
                vec![(
                    from,
                    Reply {
                        leaves: self.log.since(since.size),
                        attests,
                        ..self.reply(*since)
                    },
                )]
            }
        }
    }

    fn disconnect(&mut self, device: Device) {
        self.cursors[usize::from(device)] = None;
    }

    fn crash(&mut self) {
        self.cursors = [None; DEVICES];
        self.attests = [None; DEVICES];
    }

    fn log(&self) -> &Chain {
        &self.log
    }

    fn state(&self, into: &mut Wide) {
        self.log.point().hash(into);
        for device in 0..DEVICES {
            (self.cursors[device], self.attests[device]).hash(into);
        }
    }
}
