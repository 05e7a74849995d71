//! What calls do, one after the other, on one machine. It knows nothing of entries, guards or positions, and shares no
//! code with the engine.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::{Answer, Call, CallId, Content, Device};

#[derive(Clone, Default)]
pub struct Posix {
    admin: Device,
    files: BTreeMap<u8, Content>,
    closed: BTreeSet<u8>,
    names: BTreeSet<u8>,
    parents: BTreeMap<u8, u8>,
    /// The holder, and whether a program has it: then a write does not give it up.
    locks: BTreeMap<u8, (Device, bool)>,
}

impl Posix {
    pub fn new(admin: Device) -> Posix {
        Posix {
            admin,
            ..Posix::default()
        }
    }

    /// A write takes the lock of its file, before it writes.
    pub fn take(&mut self, call: CallId, what: Call) {
        if let Call::Append(file) | Call::Put(file) = what {
            self.locks.insert(file, (call.device(), false));
        }
    }

    /// A write gives up the lock that its device held for one write.
    fn written(&mut self, file: u8) {
        if let Some((_, false)) = self.locks.get(&file) {
            self.locks.remove(&file);
        }
    }

    /// None: the call is not about files.
    pub fn run(&mut self, call: CallId, what: Call) -> Option<Answer> {
        let device = call.device();
        let admin = device == self.admin;
        Some(match what {
            Call::Read(file) => Answer::Content(self.files.get(&file).copied().unwrap_or_default()),
            Call::Append(file) | Call::Put(file) if self.closed.contains(&file) && !admin => {
                Answer::Denied
            }
            Call::Append(file) | Call::Put(file)
                if self
                    .locks
                    .get(&file)
                    .is_some_and(|(holder, _)| *holder != device) =>
            {
                Answer::Locked
            }
            Call::Append(file) => {
                self.written(file);
                let content = self.files.entry(file).or_default();
                *content = content.with(call);
                Answer::Content(*content)
            }
            Call::Put(file) => {
                self.written(file);
                self.files.insert(file, Content::default().with(call));
                Answer::Done
            }
            Call::Create(name) if self.names.insert(name) => Answer::Done,
            Call::Create(_) => Answer::Exists,
            Call::Move(directory, to) => {
                let mut above = to;
                while above != 0 {
                    if above == directory {
                        return Some(Answer::Invalid);
                    }
                    above = self.parents.get(&above).copied().unwrap_or(0);
                }
                self.parents.insert(directory, to);
                Answer::Done
            }
            Call::Close(_) if !admin => Answer::Denied,
            Call::Close(file) => {
                self.closed.insert(file);
                Answer::Done
            }
            // A lock of another device has lapsed.
            Call::Lock(file) => {
                self.locks.insert(file, (device, true));
                Answer::Done
            }
            Call::Unlock(file) | Call::PutLocked(file)
                if self.locks.get(&file) != Some(&(device, true)) =>
            {
                Answer::Lost
            }
            Call::Unlock(file) => {
                self.locks.remove(&file);
                Answer::Done
            }
            Call::PutLocked(file) => {
                self.files.insert(file, Content::default().with(call));
                Answer::Done
            }
            Call::Admit(_) | Call::Remove(_) | Call::Accept(_) | Call::Fold | Call::GiveUp(_) => {
                return None;
            }
        })
    }
}
