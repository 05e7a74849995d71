//! Devices that begin with a checkpoint.

use crate::engine::ClientEngine;
use crate::protocol::Device;
use crate::rules::Rule;
use crate::world::World;

impl<E: ClientEngine> World<E> {
    /// Whether a device may begin with a checkpoint of another one: it has seen nothing but what all devices have, and
    /// said nothing since.
    pub fn may_begin(&self, to: Device, from: Device) -> bool {
        let client = &self.clients[usize::from(to)];
        let is_new = client.frontier().size() == self.base
            && self.called[usize::from(to)] == 0
            && !self.entries.iter().any(|entry| entry.body.device == to);
        let other = to != from && !self.clients[usize::from(from)].stopped();
        let is_new = is_new || !self.scope.rules.has(Rule::BeginsNew);
        is_new && other && self.begun < self.scope.begins && !client.stopped()
    }
}
