//! Connections that are lost, devices and servers that are killed.

use super::*;

impl Net {
    /// The connection is gone, with what travels on it. With `offline` no other one can be made.
    pub fn disconnect(&mut self, at: usize, offline: bool) {
        self.leave(at);
        let node = &mut self.nodes[at];
        (node.connected, node.offline) = (false, offline);
    }

    /// The server is killed, and starts again with what is durable.
    pub fn restart_server(&mut self) {
        self.committing.clear();
        self.storing.clear();
        let mut ledger = Ledger::new(Recent::default(), self.first_roster());
        self.stored.iter().for_each(|leaf| ledger.extend(leaf));
        let seed = self.seed + 1000 + self.drawn;
        let scheme = scheme(&self.policies, orderer(), seed);
        self.server = Orderer::start(scheme, Limits::default(), Unlimited, ledger);
        for at in 0..self.nodes.len() {
            let offline = self.nodes[at].offline;
            self.disconnect(at, offline);
        }
    }

    /// The device is killed, and starts again from its journal; after a power cut from what was synced.
    pub fn crash(&mut self, at: usize, power: bool) {
        self.leave(at);
        if power {
            let synced = self.nodes[at].synced;
            self.nodes[at].journal.truncate(synced);
        }
        self.drawn += 1;
        let journal = std::mem::take(&mut self.nodes[at].journal);
        let (engine, unchecked) = self.engine(at, &journal);
        let node = &mut self.nodes[at];
        node.synced = journal.len();
        node.journal = journal;
        node.engine = engine;
        node.connected = false;
        node.outbox = Outbox::default();
        (node.unchecked, node.touched, node.retry_at) = (unchecked, None, None);
        node.missing.clear();
        node.alarm = Alarm::new(Delays::default());
        node.alarm.set(self.now_ms, &node.engine);
    }
}
