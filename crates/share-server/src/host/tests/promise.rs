//! An entry and the blocks that came before it, without a network.

use std::sync::mpsc::channel;

use trust::signatures::Signatures;
use trust::{Kind, Record};
use trust_shared::genesis::Policies;

use super::super::HostError;
use super::devices::Device;
use super::world::World;
use ordering::orderer::Turned;

fn block(content: &[u8]) -> Record {
    let (volume, genesis) = super::world::genesis_policy();
    let mut signatures = Signatures::new(4);
    let policies = Policies::begin(volume, &genesis, &mut signatures);
    let hasher = policies.unwrap().chain().hasher();
    let frame = trust::frame::Packer::new().pack(Kind::Data, content);
    Record {
        handle: hasher.name(Kind::Data, content),
        frame: frame.unwrap(),
    }
}

#[test]
fn entry_is_not_taken_before_its_blocks_are_durable() {
    let world = World::new();
    let core = world.open().unwrap();
    let mut device = Device::connect(&core, 1).unwrap();
    device.draw().unwrap();
    let (send, stored) = channel();
    let done = Box::new(move |result: Result<_, _>| send.send(result.is_ok()).unwrap());
    device.session.store(vec![block(b"content")], done);
    let resume = device.resume(1);
    let turn = device.session.turn();
    let early = device.session.order(&resume, &turn);
    assert!(matches!(early, Err(HostError::Turned(Turned::Busy))));
    let (wake, woken) = channel();
    turn.when_ready(Box::new(move || wake.send(()).unwrap()));
    core.blocks.storage().commit();
    // Whether the block could be stored or not: it has its answer now.
    let stored = stored.try_recv().unwrap();
    woken.try_recv().unwrap();
    device.session.order(&resume, &turn).unwrap();
    core.pump();
    let delivery = device.draw().unwrap().remove(0);
    assert_eq!(delivery.unstored.is_some(), !stored);
    assert_eq!(delivery.leaves.len(), usize::from(stored));
    assert!(stored);
}
