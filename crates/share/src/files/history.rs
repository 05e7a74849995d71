//! What an entry of the log says, and what became of it.

use trust::error::Reject;
use trust_shared::effect::replay::Sources;
use trust_shared::effect::{Bodies, Missing, Replay, Stop};
use trust_shared::outcome::{NoEffect, Outcome};
use trust_shared::principal::Device;

use super::answer::Refused;
use super::logged::{Logged, LoggedOp};
use super::sight::Halt;
use super::{Files, question};
use ordering::roster::outline_of;
use ordering::signed::Entry;

impl Files {
    /// What an entry says. Its signature is verified by the caller.
    pub(crate) fn logged(&self, at: u64, entry: &Entry) -> Result<Logged, Missing> {
        let device = self.roster.number(entry.signed().entry().device);
        let mut logged = Logged {
            at,
            device: device.unwrap_or(Device(u32::MAX)),
            attested: false,
            ops: Vec::new(),
            damaged: None,
        };
        let asked = self.ask(question(&(2u8, at)), |replay| {
            self.ops_of(replay, at, entry)
        });
        match asked {
            Ok(ops) => logged.ops = ops,
            Err(Halt::Missing(missing)) => return Err(missing),
            Err(Halt::Refused(why)) => logged.damaged = Some(why.to_string()),
            Err(Halt::Locked(..)) => {}
        }
        Ok(logged)
    }

    fn ops_of(&self, replay: &mut Replay, at: u64, entry: &Entry) -> Result<Vec<LoggedOp>, Halt> {
        let outline = outline_of(entry).map_err(Refused::from)?;
        let body = self.shelf.body(at).map_err(Refused::from)?;
        let mut missing = Missing::default();
        let Some(body) = body else {
            missing.bodies.push(at);
            return Err(Halt::Missing(missing));
        };
        let mut ops = Vec::new();
        for (number, _) in outline.ops().iter().enumerate() {
            let Some(mut op) = body.ops().get(number).cloned() else {
                break;
            };
            op.changes
                .retain(|change| outline.has(number, &change.key()));
            let sources = Sources {
                members: self.members(),
                stored: &*self.shelf,
            };
            let outcome = match replay.outcome(at, number, sources) {
                Ok(outcome) => Some(outcome),
                Err(Stop::Missing(more)) => {
                    missing.add(more);
                    None
                }
                Err(Stop::Refused(why @ Reject::Unsupported { .. })) => {
                    return Err(Refused::from(why).into());
                }
                Err(Stop::Refused(_)) => Some(Outcome::None(NoEffect::Damaged)),
                Err(Stop::NoPosition | Stop::Full) => None,
            };
            if !op.changes.is_empty() {
                ops.push(LoggedOp { op, outcome });
            }
        }
        match missing == Missing::default() {
            true => Ok(ops),
            false => Err(Halt::Missing(missing)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use trust::device::{DeviceKey, Incarnation};
    use trust::key::SecretKey;
    use trust::volume_id::VolumeId;
    use trust_shared::change::Change;
    use trust_shared::entry::{Content, Entry as Written, Ops, Prefix, body_hash};
    use trust_shared::ops::{Body, Op};
    use trust_shared::principal::{FileId, INumber};

    use super::*;
    use crate::files::{Shelf, ShelfBytes};

    /// An entry of the volume's first device with this body, and the outline of another one.
    fn entry(volume: VolumeId, body: &Body, outlined: &Body) -> Entry {
        let bytes = bytes::Bytes::from(body.encode());
        let key = SecretKey::from_seed(&[1; 32]);
        let written = Written {
            epoch: 0,
            device: DeviceKey::from(&key.public()),
            incarnation: Incarnation::from_bytes([1; 16]),
            seen: Prefix {
                size: 0,
                root: [3; 32],
            },
            kept: 0,
            content: Content::Ops(Ops {
                n: 1,
                previous: [1; 32],
                outline: outlined.outline().encode().into(),
                body_hash: body_hash(&bytes),
            }),
        };
        Entry::with_body(written.sign(volume, &key).unwrap(), bytes).unwrap()
    }

    #[test]
    fn change_that_the_outline_does_not_name_is_not_shown() {
        let founder = SecretKey::from_seed(&[1; 32]).public();
        let (volume, policies) = crate::home::tests::policies_of(founder);
        let mut files =
            Files::new(&policies, Arc::new(Shelf::new(ShelfBytes::each(1 << 20)))).unwrap();
        let file = |counter| FileId {
            principal: files.terms().root.principal,
            number: INumber {
                device: Device(0),
                counter,
            },
        };
        let lock = |counter| Change::Lock {
            file: file(counter),
        };
        let (first, second, third) = (lock(1), lock(2), lock(3));
        let op = |changes: &[&Change]| {
            let changes = changes.iter().map(|change| (*change).clone());
            Op::new(Vec::new(), changes.collect())
        };
        let body = Body::new(vec![op(&[&first, &second]), op(&[&third])]).unwrap();
        let outlined = Body::new(vec![op(&[&first])]).unwrap();
        let entry = entry(volume, &body, &outlined);
        ordering::volume::Roll::extend(&mut files, 0, &entry);
        files.shelf().put_body(0, Ok(Arc::new(body)));
        let logged = files.logged(0, &entry).unwrap();
        let shown: Vec<&Change> = logged
            .ops
            .iter()
            .flat_map(|told| &told.op.changes)
            .collect();
        assert_eq!(shown, [&first]);
    }
}
