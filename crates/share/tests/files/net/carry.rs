//! What the server commits on its way to the devices, and what they fetch.

use super::*;

impl Net {
    pub(super) fn commit(&mut self) {
        if let Some((from, leaves)) = self.server.commit() {
            assert_eq!(from, self.stored.len() as u64);
            self.committing = leaves;
        }
    }

    pub(super) fn committed(&mut self) {
        if !self.committing.is_empty() {
            self.stored.append(&mut self.committing);
            self.server.committed();
        }
    }

    pub(super) fn draw(&mut self, at: usize) {
        if !self.nodes[at].connected || self.nodes[at].down.len() > 3 {
            return;
        }
        let Some(delivery) = self.server.draw(device(at)) else {
            return;
        };
        let range = delivery.leaves.start as usize..delivery.leaves.end as usize;
        let whole = self.whole;
        let leaves = self.stored[range].iter().map(|leaf| match whole {
            true => leaf.clone(),
            false => carried(leaf),
        });
        self.nodes[at].down.push_back(Reply {
            from: delivery.leaves.start,
            leaves: leaves.collect(),
            note: delivery.note,
            more: delivery.more,
            attests: delivery.attests,
            asked: delivery.asked,
            refused: delivery.refused,
            unstored: delivery.unstored,
        });
    }

    pub(super) fn take(&mut self, at: usize) {
        let Some(reply) = self.nodes[at].down.pop_front() else {
            return;
        };
        self.deliver(at, &reply);
    }

    pub fn deliver(&mut self, at: usize, reply: &Reply<Product>) {
        let node = &mut self.nodes[at];
        node.alarm.replied(reply);
        let effects = node.engine.deliver(reply);
        self.act(at, effects);
    }

    /// What a device misses arrives.
    pub(super) fn fetch(&mut self, at: usize) {
        let blocks_come = self.now_ms.is_multiple_of(self.blocks_ms);
        let comes = |missing: &Missing| blocks_come || missing.blocks.is_empty();
        let all = &mut self.nodes[at].missing;
        let Some(missing) = all.iter().position(comes).and_then(|next| all.remove(next)) else {
            return;
        };
        self.fetched += (missing.bodies.len() + missing.blocks.len()) as u64;
        let files = self.nodes[at].engine.ledger().volume();
        for position in &missing.bodies {
            let body = Body::decode(&self.body(*position)).map(Arc::new);
            files.shelf().put_body(*position, body);
        }
        for wanted in &missing.blocks {
            let bytes = self.blocks[&wanted.handle()].clone();
            let found = wanted.prove(&files.terms().hasher, bytes);
            files.shelf().put_block(wanted, found);
        }
        let effects = self.nodes[at].engine.supplied();
        self.act(at, effects);
    }
}
