//! What a device answers from what it has verified, and bodies that its floor has.

use std::collections::HashMap;

use trust_shared::effect::Missing;

use super::{Core, Lacks, MAX_ROUNDS, Out, read_body};
use crate::disk::DiskError;
use crate::files::{Answer, Basis, Call, Files, Refused, Stamped};
use ordering::roster::Product;
use ordering::scheme::{DeviceScheme, Leaf};
use ordering::volume::{Attempt, Basis as _, Build, Volume};

impl Core {
    /// Answers questions about the verified log, without a mark and without asking any author.
    pub(super) fn answer_looks(&mut self, outs: &mut Vec<Out>) {
        for (ticket, call) in std::mem::take(&mut self.looking) {
            match self.look_at(&call, outs) {
                Some((answer, marked)) => outs.push(Out::Answer {
                    ticket,
                    answer,
                    at: self.engine.ledger().size(),
                    marked,
                }),
                None => self.looking.push((ticket, call)),
            }
        }
    }

    /// None: something must be fetched first.
    fn look_at(&mut self, call: &Stamped, outs: &mut Vec<Out>) -> Option<(Answer, Basis)> {
        match &call.call {
            Call::History { before, most } => {
                let page = self.history(*before, *most, outs)?;
                return Some((page, Basis::default()));
            }
            Call::Root { size } => {
                let root = self.root_of(*size);
                return Some((Answer::Root(root), Basis::default()));
            }
            _ => {}
        }
        for _ in 0..MAX_ROUNDS {
            match self.built(call) {
                Build::Says(answer, basis) => return Some((answer, self.open(basis))),
                Build::Missing(missing) => {
                    // A damaged floor lacks what it had: the server may still have it.
                    if !self.look(&missing, outs).unwrap_or(false) {
                        return None;
                    }
                }
                // Only calls that read come here.
                Build::Op(..) | Build::Blocked(_) => {
                    return Some((Answer::Refused(Refused::NotPermitted), Basis::default()));
                }
            }
        }
        outs.push(Out::Again);
        None
    }

    /// The answer to a call that reads, if nothing must be verified or fetched first.
    pub(in crate::client) fn look_now(&self, call: &Call) -> Option<(Answer, Basis)> {
        let is_unready = self.stopped || self.engine.is_unverified() || !self.engine.has_start();
        let needs_a_step = matches!(
            call,
            Call::History { .. } | Call::Root { .. } | Call::Feed { .. }
        );
        if is_unready || needs_a_step || !call.only_reads() {
            return None;
        }
        match self.built(&call.clone().into()) {
            Build::Says(answer, basis) => Some((answer, self.open(basis))),
            _ => None,
        }
    }

    /// What a call that reads comes to at the end of the log.
    fn built(&self, call: &Stamped) -> Build<Product, Files> {
        let attempt = Attempt {
            device: self.engine.scheme().me(),
            failed: 0,
            foldable: 0,
            lapsed: 0,
        };
        self.engine.ledger().volume().build(call, &attempt)
    }

    /// Those entries of a basis for which nobody speaks.
    fn open(&self, basis: Basis) -> Basis {
        basis.filter(|at, device| !self.engine.is_supported(device, at))
    }

    /// Looks for bodies in the floor. Gives whether all that is missing is there now.
    pub(super) fn look(
        &mut self,
        missing: &Missing,
        outs: &mut Vec<Out>,
    ) -> Result<bool, DiskError> {
        let mut lacks = Lacks {
            bodies: Vec::new(),
            blocks: missing.blocks.clone(),
        };
        let leaves = self.disk.leaves::<HashMap<_, _>>(&missing.bodies)?;
        for position in &missing.bodies {
            let Some(Leaf::Entry(entry)) = leaves.get(position) else {
                continue;
            };
            match entry.body() {
                Some(body) => self.shelf.put_body(*position, read_body(body)),
                None => {
                    let ops = entry.signed().entry().ops();
                    lacks
                        .bodies
                        .extend(ops.map(|ops| (*position, ops.body_hash)));
                }
            }
        }
        if lacks.bodies.is_empty() && lacks.blocks.is_empty() {
            return Ok(!missing.bodies.is_empty());
        }
        outs.push(Out::Fetch(lacks));
        Ok(false)
    }
}
