//! What became of an op, and whether that answers its call (decision 0043, *An op's error is not always the answer*).

use std::sync::atomic::Ordering;

use trust_shared::change::Change;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Bodies, Replay};
use trust_shared::guard::Guard;
use trust_shared::ops::Op;
use trust_shared::outcome::{NoEffect, Outcome as Became};
use trust_shared::principal::{Device, FileId};

use super::answer::{Answer, Basis, Changed, Refused};
use super::call::{Call, Stamped};
use super::plan::{Plan, Try};
use super::sight::Halt;
use super::turn::{do_the_same, only_claims};
use super::{Files, question};
use ordering::roster::Product;
use ordering::volume::Outcome;

type Decided = Result<Outcome<Product, Files>, Halt>;

impl Files {
    /// What became of an op of an entry of this device.
    pub(super) fn became(&self, at: u64, op: usize, call: &Stamped) -> Outcome<Product, Files> {
        if let Some(why) = &self.mute {
            return Outcome::Done(Answer::Refused(why.clone()), Basis::default());
        }
        let question = question(&(1u8, at, op));
        let decided = self.ask(question, |replay| self.decided(replay, (at, op), call));
        match decided {
            Ok(outcome) => outcome,
            Err(Halt::Missing(missing)) => Outcome::Missing(missing),
            Err(Halt::Refused(why)) => Outcome::Done(Answer::Refused(why), Basis::default()),
            Err(Halt::Locked(..)) => Outcome::Again,
        }
    }

    fn decided(&self, replay: &mut Replay, (at, op): (u64, usize), stamped: &Stamped) -> Decided {
        let call = &stamped.call;
        let sources = Sources {
            members: self.members(),
            stored: &*self.shelf,
        };
        let became = replay.outcome(at, op, sources)?;
        let since = self.attested.load(Ordering::Relaxed);
        let rests_on = |replay: &Replay| {
            let basis = replay.outcome_rests_on(at, op, since, &*self.shelf)?;
            Ok::<Basis, Halt>(self.named(basis))
        };
        let sent = self.op_at(at, op)?;
        match became {
            Became::Late => Ok(Outcome::Late(Answer::Settled)),
            Became::Effect if only_claims(&sent) || only_takes_over(&sent, call) => {
                Ok(Outcome::Again)
            }
            Became::Effect => {
                let mut answer = match held(at, &sent, call) {
                    Some(held) => held,
                    None => done(&sent, call),
                };
                if let (Answer::Done(file), Call::Create { .. } | Call::Rename { .. }) =
                    (&answer, call)
                    && let Some(changed) = self.replaced(replay, at, &sent)?
                {
                    answer = Answer::Replaced(*file, changed);
                }
                Ok(Outcome::Done(answer, rests_on(replay)?))
            }
            Became::None(why) => {
                let author = replay.author(at);
                let author = author.ok_or(Refused::NotPermitted)?;
                self.failed(replay, (at, author), stamped, (&sent, why), rests_on)
            }
        }
    }

    /// The op had no effect. Its call is built again on the values at its position.
    fn failed(
        &self,
        replay: &mut Replay,
        (at, author): (u64, Device),
        Stamped { time, call }: &Stamped,
        (sent, why): (&Op, NoEffect),
        rests_on: impl Fn(&Replay) -> Result<Basis, Halt>,
    ) -> Decided {
        let refused = |replay: &Replay| {
            let answer = Answer::Refused(why.into());
            Ok(Outcome::Done(answer, rests_on(replay)?))
        };
        if matches!(call, Call::Decide(_) | Call::Fold(_)) {
            return match why.is_no_answer() {
                true => Ok(Outcome::Again),
                false => refused(replay),
            };
        }
        let mut sight = self.sight(replay, author, (at, at), *time);
        let plan = match sight.plan(call, Try::default()) {
            Err(Halt::Refused(why)) => Plan::Says(Answer::Refused(why)),
            plan => plan?,
        };
        let about = std::mem::take(&mut sight.about);
        match plan {
            Plan::Says(answer) => {
                let since = self.attested.load(Ordering::Relaxed);
                let mut basis = replay.rests_on(at, about, since, &*self.shelf)?;
                basis.push((at, author));
                Ok(Outcome::Done(answer, self.named(basis)))
            }
            Plan::Op(op, _)
                if do_the_same(&op, sent)
                    && !why.is_no_answer()
                    && !self.passes_in_vain(sent, at) =>
            {
                refused(replay)
            }
            Plan::Op(..) | Plan::Blocked(_) => Ok(Outcome::Again),
        }
    }

    /// Whose change it was that a new file replaced, unless it was this device's own. The values are those before the
    /// op, so what came at the last moment is seen too.
    fn replaced(&self, replay: &mut Replay, at: u64, op: &Op) -> Result<Option<Changed>, Halt> {
        let mut links = op.changes.iter().filter_map(|change| match change {
            Change::Link {
                directory, name, ..
            } => Some((directory, name)),
            _ => None,
        });
        // Two names that change places replace nothing.
        let (Some(spot), None) = (links.next(), links.next()) else {
            return Ok(None);
        };
        let over = op.guards.iter().find_map(|guard| match guard {
            Guard::EntryIs {
                directory,
                name,
                is: Some(over),
            } if (directory, name) == spot => Some(over.file),
            _ => None,
        });
        let Some(file) = over else {
            return Ok(None);
        };
        let sources = Sources {
            members: self.members(),
            stored: &*self.shelf,
        };
        let changed = replay.last_change(at, spot, Some(&file), sources)?;
        let others = changed.filter(|(_, device)| Some(*device) != replay.author(at));
        Ok(others.map(|(at, device)| Changed { at, device }))
    }

    fn op_at(&self, at: u64, op: usize) -> Result<Op, Halt> {
        let body = self.shelf.body(at).map_err(Refused::from)?;
        let body = body.ok_or_else(|| {
            let bodies = vec![at];
            Halt::Missing(trust_shared::effect::Missing {
                blocks: Vec::new(),
                bodies,
            })
        })?;
        let op = body.ops().get(op).cloned();
        op.ok_or_else(|| Refused::Stale.into())
    }
}

/// Whether an op gives up what others hold, so that the next one can hold it.
fn only_takes_over(op: &Op, call: &Call) -> bool {
    let holds = |change: &Change| matches!(change, Change::Hold { .. });
    matches!(call, Call::Hold { .. }) && !op.changes.iter().any(holds)
}

/// What a device holds since its op had effect.
fn held(at: u64, op: &Op, call: &Call) -> Option<Answer> {
    let Call::Hold { .. } = call else {
        return None;
    };
    op.changes.iter().find_map(|change| match change {
        Change::Hold { file, since, .. } => Some(Answer::Held {
            file: *file,
            since: since.unwrap_or(at),
        }),
        _ => None,
    })
}

/// What a program is told when its op had effect.
fn done(op: &Op, call: &Call) -> Answer {
    let changes = op.changes.iter();
    let file: Option<FileId> = match call {
        Call::Create { number, .. } => changes
            .filter_map(|change| match change {
                Change::Set { file, .. } if file.number.counter == *number => Some(*file),
                _ => None,
            })
            .next(),
        Call::Link { .. } => changes
            .filter_map(|change| match change {
                Change::Link { target, .. } => Some(target.file),
                _ => None,
            })
            .next(),
        Call::Unlink { .. } | Call::Rmdir { .. } | Call::Rename { .. } => named(op),
        _ => changes
            .filter_map(|change| match change {
                Change::Set { file, .. }
                | Change::Lock { file }
                | Change::Unlock { file }
                | Change::Pass { file, .. }
                | Change::Hold { file, .. }
                | Change::Release { file, .. } => Some(*file),
                Change::Touch { directory, .. } => Some(*directory),
                _ => None,
            })
            .next(),
    };
    file.map_or(Answer::Settled, Answer::Done)
}

/// The file that lost its name: the first guard says where the name led.
fn named(op: &Op) -> Option<FileId> {
    op.guards.iter().find_map(|guard| match guard {
        Guard::EntryIs { is, .. } => is.map(|target| target.file),
        _ => None,
    })
}
