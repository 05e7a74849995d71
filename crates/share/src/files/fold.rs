//! Calls that are not about single files: folds, and decisions about members.

use trust_shared::calls;
use trust_shared::decision::Decision;
use trust_shared::effect::Missing;
use trust_shared::fold::{Unfolded, fold};
use trust_shared::members::Members;
use trust_shared::ops::Body;
use trust_shared::outcome::Written;
use trust_shared::principal::Principal;

use super::answer::{Answer, Refused};
use super::plan::{Made, Plan, Try};
use super::sight::{Halt, Sight};

/// Ops that one fold looks at. A longer log takes several folds, so that none holds up the calls of programs.
pub(super) const MAX_FOLDED_OPS: u32 = 8192;

impl Sight<'_> {
    /// Puts what has changed since a principal's last fold into its i-table, as far as every entry is attested.
    pub(super) fn fold(&mut self, principal: Principal, attempt: Try) -> Result<Plan, Halt> {
        let before = self.last_fold(principal)?;
        let upto = attempt.foldable.min(self.at);
        let folded = before.map_or(0, |fold| fold.upto);
        // Before that, only the last changes are known. They are in every later fold.
        if upto <= folded || upto < self.replay.begins() {
            return Ok(Plan::Says(Answer::Settled));
        }
        let begin = folded.max(self.replay.begins());
        let most = self.replay.position_after(begin, MAX_FOLDED_OPS);
        let most = most.map_or(upto, |most| upto.min(most));
        // A fold that was begun goes on to its position, however the log grows. Else it would begin with each entry.
        let begun = self.replay.gathers(principal);
        let begun = begun.filter(|begun| folded < *begun && *begun <= most);
        let upto = begun.unwrap_or(most);
        let changes = self.changes(upto, principal)?;
        let mut blocks = Vec::new();
        let table = before.and_then(|fold| fold.root);
        let hasher = &self.volume.hasher;
        let made = fold(
            hasher,
            table.as_ref(),
            &changes,
            upto,
            self.shelf,
            |kind, handle, bytes| {
                blocks.push(Made {
                    kind,
                    handle,
                    bytes: bytes.clone(),
                });
            },
        );
        match made {
            Ok(made) => Ok(Plan::Op(calls::fold(principal, before, made), blocks)),
            Err(Unfolded::Missing(wanted)) => Err(Halt::Missing(Missing {
                blocks: wanted,
                bodies: Vec::new(),
            })),
            Err(Unfolded::Refused(why)) => Err(Halt::Refused(why.into())),
        }
    }

    /// A decision, if it would take effect on the members as they are.
    pub(super) fn decide(&mut self, decision: &Decision) -> Result<Plan, Halt> {
        let (device, position) = (self.device, self.at);
        if !self.members.may_decide(device, decision, self.members_at) {
            return Err(Refused::NotPermitted.into());
        }
        let op = calls::decide(decision.clone());
        let body = Body::new(vec![op.clone()]).map_err(|_| Refused::TooLarge)?;
        let mut trial = Members::clone(self.members);
        let at = |position: u64| Written {
            position,
            device,
            seen: position,
            kept: position,
        };
        trial.propose(&at(position), &body.outline(), &body);
        let decided = trial.take_effect(&at(position.saturating_add(1)));
        let last = decided.into_iter().next_back();
        match last.map(|last| last.result) {
            Some(Ok(())) => Ok(Plan::Op(op, Vec::new())),
            Some(Err(why)) => Err(why.into()),
            None => Err(Refused::NotPermitted.into()),
        }
    }
}
