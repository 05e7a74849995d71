//! The product's orderer with a disk, and the connections of its devices.

use std::hash::Hash;

use ordering::engine::Request;
use ordering::ledger::Ledger;
use ordering::orderer::{Limits, Orderer, Turned, Unlimited};

use crate::chain::Chain;
use crate::engine::Orderer as OrdererTrait;
use crate::protocol::{Device, Reply, Request as RequestOf};
use crate::state::State;
use crate::symbolic::Symbolic;
use crate::wide::Wide;

#[derive(Clone, Debug)]
pub struct Server {
    orderer: Orderer<Symbolic, State>,
    /// What a restart finds.
    durable: Ledger<Symbolic, State>,
    scheme: Symbolic,
    /// Each message is a commit of its own.
    hasty: bool,
}

impl Server {
    /// All devices have a session, and the whole log.
    pub fn new(scheme: Symbolic, log: Ledger<Symbolic, State>, devices: Device) -> Server {
        let mut server = Server {
            orderer: Orderer::start(scheme, Limits::default(), Unlimited, log.clone()),
            durable: log,
            scheme,
            hasty: true,
        };
        for device in 0..devices {
            let opened = server.receive(device, &Request::Open(Some(server.log().point())));
            assert!(opened.iter().all(|(_, reply)| reply.leaves.is_empty()));
        }
        server
    }

    /// All that devices can be sent now.
    fn push(&mut self) -> Vec<(Device, Reply)> {
        let mut replies = Vec::new();
        let devices: Vec<Device> = self.orderer.sessions().collect();
        for device in devices {
            while let Some(delivery) = self.orderer.draw(device) {
                let log = self.durable.log();
                let end = log.prefix(delivery.leaves.end);
                let leaves = end.expect("a page beyond the log");
                replies.push((
                    device,
                    Reply {
                        from: delivery.leaves.start,
                        leaves: leaves.since(delivery.leaves.start),
                        note: delivery.note,
                        more: delivery.more,
                        attests: delivery.attests,
                        asked: delivery.asked,
                        refused: delivery.refused,
                        unstored: delivery.unstored,
                    },
                ));
            }
        }
        replies
    }
}

impl OrdererTrait for Server {
    fn receive(&mut self, from: Device, request: &RequestOf) -> Vec<(Device, Reply)> {
        match self.orderer.receive(from, request) {
            Ok(()) | Err(Turned::NoSession) => {}
            Err(turned) => panic!("an honest device is turned away: {turned:?}"),
        }
        if self.hasty {
            return self.commit();
        }
        self.push()
    }

    fn patient(self) -> Server {
        Server {
            hasty: false,
            ..self
        }
    }

    fn waits(&self) -> bool {
        self.orderer.waits()
    }

    fn commit(&mut self) -> Vec<(Device, Reply)> {
        if self.orderer.commit().is_some() {
            self.durable = self.orderer.ledger().clone();
            self.orderer.committed();
        }
        self.push()
    }

    fn disconnect(&mut self, device: Device) {
        self.orderer.disconnect(device);
    }

    fn crash(&mut self) {
        let log = self.durable.clone();
        self.orderer = Orderer::start(self.scheme, Limits::default(), Unlimited, log);
    }

    fn log(&self) -> &Chain {
        self.durable.log()
    }

    fn state(&self, into: &mut Wide) {
        (&self.orderer, &self.durable).hash(into);
    }
}
