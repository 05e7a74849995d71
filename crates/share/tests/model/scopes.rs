//! What is explored: devices, their programs' calls, crashes.

use share::reading::Silence;

use crate::chain::Chain;
use crate::client::{Client, Setup};
use crate::honest::Honest;
use crate::protocol::{Body, Call, Device, Entry, Heading, Leaf};
use crate::rules::{Rule, Rules};
use crate::server::Server;
use crate::world::{Scope, World};

/// For each device what its programs may call, in any order, and how often in all.
pub type Menus<'a> = &'a [(&'a [Call], u8)];

impl Scope {
    /// Strict, without crashes. Readers wait for ever.
    pub fn new(menus: Menus<'_>) -> Scope {
        Scope {
            rules: Rules::default(),
            menus: menus
                .iter()
                .map(|(calls, count)| (calls.to_vec(), *count))
                .collect(),
            kills: 0,
            powers: 0,
            patient: true,
            relaxed: false,
            programs: 1,
            resume_counts: false,
            leaves: 60,
            members: (1 << menus.len()) - 1,
            reduced: true,
        }
    }

    /// Readers may give up.
    pub fn impatient(self) -> Scope {
        Scope {
            patient: false,
            ..self
        }
    }

    pub fn relaxed(self) -> Scope {
        Scope {
            relaxed: true,
            patient: false,
            ..self
        }
    }

    pub fn kills(self, kills: u8) -> Scope {
        Scope { kills, ..self }
    }

    pub fn powers(self, powers: u8) -> Scope {
        Scope { powers, ..self }
    }

    pub fn members(self, members: u8) -> Scope {
        Scope { members, ..self }
    }

    pub fn programs(self, programs: usize) -> Scope {
        Scope { programs, ..self }
    }

    pub fn without(self, rules: &[Rule]) -> Scope {
        Scope {
            rules: Rules::without(rules),
            ..self
        }
    }

    fn setup(&self) -> Setup {
        Setup {
            rules: self.rules,
            silence: if self.relaxed {
                Silence::Relaxed
            } else {
                Silence::Strict
            },
            members: self.members,
            programs: self.programs,
        }
    }

    /// The model's devices, and a server that does what it likes.
    pub fn world(&self) -> World<Client> {
        let devices = self.menus.len() as Device;
        let log = beginning(self.members, devices);
        let clients = (0..devices)
            .map(|device| Client::new(device, self.setup(), &log))
            .collect();
        World::new(self.clone(), clients)
    }

    /// The model's devices and its honest server, which stops so many times.
    pub fn honest(&self, server_crashes: u8) -> Honest<Client, Server> {
        let devices = self.menus.len();
        let log = beginning(self.members, devices as Device);
        let server = Server::new(self.rules, self.members, &log, devices);
        Honest::new(self.world(), server, server_crashes, 3 + devices as u8)
    }
}

/// A log in which each member has begun its first incarnation.
fn beginning(members: u8, devices: Device) -> Chain {
    let mut log = Chain::default();
    for device in (0..devices).filter(|device| members >> device & 1 == 1) {
        let seen = log.point();
        let heading = Heading {
            incarnation: 0,
            n: 0,
            previous: Default::default(),
            seen,
            kept: seen.size,
            resume: true,
            alone: true,
        };
        let body = Body {
            device,
            signed_by: device,
            heading,
            ops: Vec::new(),
        };
        log = log.push(Leaf::Entry(Entry::new(body)));
    }
    log
}
