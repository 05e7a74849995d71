//! What programs did and saw: calls, answers, and which call had ended before which began. Recorded from the outside,
//! without the engines' help.

use std::hash::Hash;

use crate::chain::Chain;
use crate::engine::Output;
use crate::protocol::{Answer, Call, CallId, Device, Point};
use crate::wide::Wide;

#[derive(Clone, Copy, PartialEq, Hash, Debug)]
pub struct Given {
    pub answer: Answer,
    pub at: Point,
    pub marked: u64,
}

#[derive(Clone, Hash, Debug)]
pub struct Record {
    pub call: CallId,
    pub what: Call,
    /// Calls that had ended when this one began.
    pub before: u32,
    pub given: Option<Given>,
}

/// A device until a power cut: what it knew then, and what its programs had been told.
#[derive(Clone, Debug)]
pub struct Life {
    pub device: Device,
    pub chain: Chain,
    pub kept: u64,
    pub given: Vec<(CallId, Given)>,
}

#[derive(Clone, Default, Debug)]
pub struct History {
    /// In the order of call numbers.
    pub records: Vec<Record>,
    pub past: Vec<Life>,
    ended: u32,
}

impl History {
    pub fn begin(&mut self, call: CallId, what: Call) {
        let record = Record {
            call,
            what,
            before: self.ended,
            given: None,
        };
        let place = self.records.partition_point(|other| other.call < call);
        self.records.insert(place, record);
    }

    /// Takes answers out of what an engine put out.
    pub fn note(&mut self, outputs: &[Output]) {
        for output in outputs {
            if let Output::Answer {
                call,
                answer,
                at,
                marked,
            } = output
            {
                self.ended |= call.bit();
                let record = self.records.iter_mut().find(|record| record.call == *call);
                if let Some(record) = record {
                    assert!(record.given.is_none(), "{call:?} is answered twice");
                    record.given = Some(Given {
                        answer: *answer,
                        at: *at,
                        marked: *marked,
                    });
                }
            }
        }
    }

    pub fn record(&self, call: CallId) -> Option<&Record> {
        self.records.iter().find(|record| record.call == call)
    }

    pub fn given(&self, device: Device) -> Vec<(CallId, Given)> {
        let own = self
            .records
            .iter()
            .filter(|record| record.call.device() == device);
        own.filter_map(|record| Some((record.call, record.given?)))
            .collect()
    }

    /// A power cut: the device forgets what it had not synced. For the others, calls that ended after that never
    /// ended; the device's view until now is kept.
    pub fn cut(&mut self, device: Device, chain: &Chain, kept: u64) {
        let given = self.given(device);
        let mut forgotten = 0;
        for record in &mut self.records {
            if record.call.device() == device
                && record.given.is_some_and(|given| given.at.size > kept)
            {
                record.given = None;
                forgotten |= record.call.bit();
            }
        }
        self.ended &= !forgotten;
        for record in &mut self.records {
            record.before &= !forgotten;
        }
        if forgotten != 0 {
            self.past.push(Life {
                device,
                chain: chain.clone(),
                kept,
                given,
            });
        }
    }

    pub fn hash(&self, into: &mut Wide) {
        self.records.hash(into);
        self.ended.hash(into);
        for life in &self.past {
            (life.device, life.chain.point(), life.kept, &life.given).hash(into);
        }
    }
}
