//! What is explored: devices, their programs' calls, crashes.

use ordering::engine::{Durable, Setup};
use ordering::ledger::Ledger;
use ordering::read_rule::Silence;

use crate::chain::Chain;
use crate::device::Client;
use crate::engine::{ClientEngine, Output, Timer};
use crate::honest::Honest;
use crate::liar::{LIES, Lie};
use crate::protocol::{ADMIN, Call, Device, Leaf, Reply, Request};
use crate::rules::{Rule, Rules};
use crate::server::Server;
use crate::state::State;
use crate::symbolic::Symbolic;
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
            refusals: 0,
            lies: 0,
            slips: LIES.to_vec(),
            deeds: vec![Call::Put(0)],
            admin: ADMIN,
            lapses: 0,
            deaths: 0,
            cancels: 0,
            in_turn: false,
            keeping: false,
            begins: 0,
            patient: true,
            relaxed: false,
            programs: 1,
            resume_counts: false,
            leaves: 60,
            members: (1 << menus.len()) - 1,
            reduced: true,
            forging: false,
            recovers: false,
            snapshots: false,
        }
    }

    /// The owners recover the volume once: any device's log may stand.
    pub fn recovers(self) -> Scope {
        Scope {
            recovers: true,
            ..self
        }
    }

    /// Devices write a snapshot whenever their floor is synced, and begin with it after a crash.
    pub fn snapshots(self) -> Scope {
        Scope {
            snapshots: true,
            ..self
        }
    }

    /// The server forges entries.
    pub fn forging(self) -> Scope {
        Scope {
            forging: true,
            ..self
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

    pub fn refusals(self, refusals: u8) -> Scope {
        Scope { refusals, ..self }
    }

    /// With one more member, which lies so often.
    pub fn lies(self, lies: u8) -> Scope {
        let members = self.members | 1 << self.menus.len();
        Scope {
            lies,
            members,
            ..self
        }
    }

    /// So often the time to live of locks passes.
    pub fn lapses(self, lapses: u8) -> Scope {
        Scope { lapses, ..self }
    }

    /// So often a device begins with a checkpoint of another one.
    pub fn begins(self, begins: u8) -> Scope {
        Scope { begins, ..self }
    }

    /// So many devices stop and never start again. Only with an honest server: a lying one need not show anything.
    pub fn deaths(self, deaths: u8) -> Scope {
        Scope { deaths, ..self }
    }

    /// So often a program is killed while its call waits. Only with an honest server.
    pub fn cancels(self, cancels: u8) -> Scope {
        Scope { cancels, ..self }
    }

    /// No device may overtake another one. This holds only with an honest server.
    pub fn in_turn(self) -> Scope {
        Scope {
            in_turn: true,
            ..self
        }
    }

    /// Others may wait for ever for a lock that a program keeps.
    pub fn keeping(self) -> Scope {
        Scope {
            keeping: true,
            ..self
        }
    }

    /// The lying member is the administrator, and makes these calls. Each entry has one of these faults.
    pub fn lying_admin(self, slips: &[Lie], deeds: &[Call]) -> Scope {
        Scope {
            admin: self.menus.len() as Device,
            slips: slips.to_vec(),
            deeds: deeds.to_vec(),
            ..self
        }
    }

    pub fn admin(self, admin: Device) -> Scope {
        Scope { admin, ..self }
    }

    /// The volume as its genesis policy says.
    pub fn genesis(&self) -> State {
        State::genesis(self.rules, self.members, self.admin)
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
            silence: if self.relaxed {
                Silence::Relaxed
            } else {
                Silence::Strict
            },
            calls: self.programs,
        }
    }

    /// Devices, and a server that does what it likes.
    pub fn world(&self) -> World<Client> {
        World::new(self.clone(), self.beginning())
    }

    /// Devices and an honest server, which stops so many times.
    pub fn honest(&self, server_crashes: u8) -> Honest<Client, Server> {
        let devices = self.menus.len() as Device;
        let clients = self.beginning();
        let mut log = Ledger::new(
            Chain::default(),
            State::genesis(Rules::default(), self.members, self.admin),
        );
        for (leaf, _) in clients[0].frontier().leaves() {
            log.extend(leaf);
        }
        let scheme = Symbolic::new(Device::MAX, Rules::default());
        let server = Server::new(scheme, log, devices);
        let world = World::new(self.clone(), clients);
        Honest::new(world, server, server_crashes)
    }

    /// All devices, after each member has begun its first incarnation.
    fn beginning(&self) -> Vec<Client> {
        let genesis = || Ledger::new(Chain::default(), self.genesis());
        let mut clients: Vec<_> = (0..self.menus.len() as Device)
            .map(|device| {
                let scheme = Symbolic::new(device, self.rules);
                Client::new(scheme, self.setup(), Durable::new(genesis()))
                    .that_keeps_snapshots(self.snapshots)
            })
            .collect();
        let resume = |clients: &mut Vec<Client>, sent: Vec<Output>| {
            for output in sent {
                let Output::Send(Request::Entry(entry)) = output else {
                    continue;
                };
                for client in clients.iter_mut() {
                    client.deliver(&next(client.frontier(), Leaf::Entry(entry.clone())));
                }
            }
        };
        for device in 0..clients.len() {
            let sent = clients[device].timer(Timer::Resume);
            resume(&mut clients, sent);
        }
        if self.lies > 0 {
            let mut liar = clients[0].as_device(clients.len() as Device);
            let sent = liar.timer(Timer::Resume);
            resume(&mut clients, sent);
        }
        for client in &mut clients {
            client.timer(Timer::Sync);
        }
        clients
    }
}

/// A reply with the next leaf.
fn next(log: &Chain, leaf: Leaf) -> Reply {
    Reply {
        from: log.size(),
        note: log.push(leaf.clone()).point(),
        leaves: vec![leaf],
        more: false,
        attests: Vec::new(),
        asked: false,
        refused: None,
        unstored: None,
    }
}
