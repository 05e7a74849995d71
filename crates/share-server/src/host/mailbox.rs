//! The mailbox: messages between a member that invites and a device that wants to join (`trust_shared::invitation`).
//!
//! A box exists while a member waits at it: taking from it makes it, and it ends some minutes after the last time. So
//! a guest can post only where somebody waits, and cannot fill the memory. Messages are in memory only: after a restart
//! both sides begin again. The server reads none of them.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use trust::device::DeviceKey;

/// Longest message, bytes.
pub const MAX_MESSAGE_BYTES: usize = 512;
/// Number of slots of a box: one for each message of an admission, and one in reserve.
pub const SLOTS: u8 = 4;
/// Those who wait for one slot at a time.
const MAX_WAITERS: usize = 2;

/// Name of a box: follows from the invitation's secret.
pub type BoxId = [u8; 16];
/// Is given the message, or nothing at the deadline. It must be short.
pub type Taken = Box<dyn FnOnce(Option<Bytes>) + Send>;

/// Why a message or a wish is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Nobody waits at this box.
    #[error("nobody waits for it")]
    NoBox,
    /// Another message is there.
    #[error("another message is there already")]
    Occupied,
    /// The message is too long, or there is no such slot.
    #[error("it is too long, or has no slot")]
    Malformed,
    /// There are too many boxes, or too many wait.
    #[error("too many wait")]
    Full,
}

/// Bounds of the mailbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Boxes at a time.
    pub boxes: usize,
    /// Boxes of one device at a time.
    pub boxes_of_device: usize,
    /// How long a box lasts after its member took from it.
    pub age: Duration,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds {
            boxes: 1024,
            boxes_of_device: 8,
            age: Duration::from_mins(10),
        }
    }
}

#[derive(Default)]
struct Slot {
    message: Option<Bytes>,
    waiters: Vec<(Instant, Taken)>,
}

struct Postbox {
    owner: DeviceKey,
    until: Instant,
    slots: [Slot; SLOTS as usize],
}

/// See the head of this file.
pub struct Mailbox {
    bounds: Bounds,
    boxes: HashMap<BoxId, Postbox>,
}

/// Waiters and what each is given. They are called when no lock is held.
pub(super) type Calls = Vec<(Taken, Option<Bytes>)>;

/// Tells those who waited.
pub(super) fn call(calls: Calls) {
    for (taken, message) in calls {
        taken(message);
    }
}

impl Mailbox {
    pub(super) fn new(bounds: Bounds) -> Mailbox {
        Mailbox {
            bounds,
            boxes: HashMap::new(),
        }
    }

    /// Puts a message. The same message again has no effect.
    pub(super) fn post(
        &mut self,
        id: &BoxId,
        slot: u8,
        message: Bytes,
        now: Instant,
    ) -> Result<Calls, Refused> {
        if message.len() > MAX_MESSAGE_BYTES {
            return Err(Refused::Malformed);
        }
        let slot = self.slot(id, slot, now)?;
        if slot.message.as_ref().is_some_and(|there| *there != message) {
            return Err(Refused::Occupied);
        }
        let waiters = std::mem::take(&mut slot.waiters);
        let calls = waiters
            .into_iter()
            .map(|(_, taken)| (taken, Some(message.clone())));
        let calls = calls.collect();
        slot.message = Some(message);
        Ok(calls)
    }

    /// Takes a message, or waits for it. A member's wish makes the box, or prolongs it. The message stays, because the
    /// answer may get lost.
    pub(super) fn take(
        &mut self,
        member: Option<DeviceKey>,
        id: &BoxId,
        slot: u8,
        (now, deadline): (Instant, Instant),
        taken: Taken,
    ) -> Result<Calls, Refused> {
        if let Some(member) = member {
            self.prolong(member, id, now)?;
        }
        let until = self.boxes.get(id).map_or(now, |found| found.until);
        let slot = self.slot(id, slot, now)?;
        if let Some(message) = &slot.message {
            return Ok(vec![(taken, Some(message.clone()))]);
        }
        if slot.waiters.len() >= MAX_WAITERS {
            return Err(Refused::Full);
        }
        slot.waiters.push((deadline.min(until), taken));
        Ok(Vec::new())
    }

    fn prolong(&mut self, member: DeviceKey, id: &BoxId, now: Instant) -> Result<(), Refused> {
        let until = now + self.bounds.age;
        if let Some(found) = self.boxes.get_mut(id) {
            if found.owner == member {
                found.until = until;
            }
            return Ok(());
        }
        let own = self.boxes.values().filter(|found| found.owner == member);
        if own.count() >= self.bounds.boxes_of_device || self.boxes.len() >= self.bounds.boxes {
            return Err(Refused::Full);
        }
        let new = Postbox {
            owner: member,
            until,
            slots: Default::default(),
        };
        self.boxes.insert(*id, new);
        Ok(())
    }

    fn slot(&mut self, id: &BoxId, slot: u8, now: Instant) -> Result<&mut Slot, Refused> {
        let found = self.boxes.get_mut(id).filter(|found| found.until > now);
        let slots = &mut found.ok_or(Refused::NoBox)?.slots;
        slots.get_mut(usize::from(slot)).ok_or(Refused::Malformed)
    }

    /// Ends boxes and waits whose time is over.
    pub(super) fn expire(&mut self, now: Instant) -> Calls {
        let mut calls = Calls::new();
        self.boxes.retain(|_, found| {
            let ends = found.until <= now;
            for slot in &mut found.slots {
                let late = |(deadline, _): &mut (Instant, Taken)| ends || *deadline <= now;
                let late = slot.waiters.extract_if(.., late);
                calls.extend(late.map(|(_, taken)| (taken, None)));
            }
            !ends
        });
        calls
    }

    /// When [`Mailbox::expire`] has something to do.
    pub(super) fn next(&self) -> Option<Instant> {
        let waiters = |found: &Postbox| {
            let all = found.slots.iter().flat_map(|slot| &slot.waiters);
            all.map(|(deadline, _)| *deadline).min()
        };
        let ends = self.boxes.values();
        ends.map(|found| waiters(found).map_or(found.until, |first| first.min(found.until)))
            .min()
    }

    /// Ends all waits.
    pub(super) fn close(&mut self) -> Calls {
        let boxes = std::mem::take(&mut self.boxes);
        let slots = boxes.into_values().flat_map(|found| found.slots);
        let waiters = slots.flat_map(|slot| slot.waiters);
        waiters.map(|(_, taken)| (taken, None)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    const ID: BoxId = [1; 16];
    type Heard = Arc<Mutex<Vec<Option<Bytes>>>>;

    fn device(number: u8) -> DeviceKey {
        DeviceKey::from_bytes([number; 32])
    }

    fn listener(heard: &Heard) -> Taken {
        let heard = heard.clone();
        Box::new(move |message| heard.lock().unwrap().push(message))
    }

    #[test]
    fn guest_posts_only_where_a_member_waits() {
        let (mut mailbox, now) = (Mailbox::new(Bounds::default()), Instant::now());
        let soon = now + Duration::from_secs(5);
        let heard = Heard::default();
        let message = Bytes::from_static(b"request");
        assert!(matches!(
            mailbox.post(&ID, 0, message.clone(), now),
            Err(Refused::NoBox)
        ));
        let wish = mailbox.take(None, &ID, 1, (now, soon), listener(&heard));
        assert!(matches!(wish, Err(Refused::NoBox)));
        let wish = mailbox.take(Some(device(1)), &ID, 0, (now, soon), listener(&heard));
        assert!(wish.unwrap().is_empty());
        call(mailbox.post(&ID, 0, message.clone(), now).unwrap());
        assert_eq!(*heard.lock().unwrap(), [Some(message.clone())]);
        // Again, and for another who asks; another message is refused.
        call(mailbox.post(&ID, 0, message.clone(), now).unwrap());
        call(
            mailbox
                .take(None, &ID, 0, (now, soon), listener(&heard))
                .unwrap(),
        );
        assert_eq!(heard.lock().unwrap().len(), 2);
        let other = Bytes::from_static(b"other");
        assert!(matches!(
            mailbox.post(&ID, 0, other.clone(), now),
            Err(Refused::Occupied)
        ));
        assert!(matches!(
            mailbox.post(&ID, SLOTS, other, now),
            Err(Refused::Malformed)
        ));
        let long = Bytes::from(vec![0; MAX_MESSAGE_BYTES + 1]);
        assert!(matches!(
            mailbox.post(&ID, 1, long, now),
            Err(Refused::Malformed)
        ));
    }

    #[test]
    fn waits_end_at_their_deadline_and_boxes_at_their_age() {
        let bounds = Bounds::default();
        let (mut mailbox, now) = (Mailbox::new(bounds), Instant::now());
        let soon = now + Duration::from_secs(5);
        let heard = Heard::default();
        call(
            mailbox
                .take(Some(device(1)), &ID, 0, (now, soon), listener(&heard))
                .unwrap(),
        );
        assert_eq!(mailbox.next(), Some(soon));
        call(mailbox.expire(now));
        assert!(heard.lock().unwrap().is_empty());
        call(mailbox.expire(soon));
        assert_eq!(*heard.lock().unwrap(), [None]);
        assert_eq!(mailbox.next(), Some(now + bounds.age));
        // A wait beyond the age of the box ends with it.
        let late = now + 2 * bounds.age;
        call(
            mailbox
                .take(None, &ID, 0, (now, late), listener(&heard))
                .unwrap(),
        );
        call(mailbox.expire(now + bounds.age));
        assert_eq!(heard.lock().unwrap().len(), 2);
        assert_eq!(mailbox.next(), None);
    }

    #[test]
    fn boxes_and_waiters_are_bounded() {
        let bounds = Bounds {
            boxes: 3,
            boxes_of_device: 2,
            ..Bounds::default()
        };
        let (mut mailbox, now) = (Mailbox::new(bounds), Instant::now());
        let soon = now + Duration::from_secs(5);
        let heard = Heard::default();
        let mut take = |number: u8, id: u8| {
            let member = Some(device(number));
            let wish = mailbox.take(member, &[id; 16], 0, (now, soon), listener(&heard));
            wish.map(|calls| calls.len())
        };
        assert_eq!(take(1, 1), Ok(0));
        assert_eq!(take(1, 2), Ok(0));
        assert_eq!(take(1, 3), Err(Refused::Full));
        assert_eq!(take(2, 4), Ok(0));
        assert_eq!(take(3, 5), Err(Refused::Full));
        assert_eq!(take(1, 1), Ok(0));
        assert_eq!(take(1, 1), Err(Refused::Full));
        call(mailbox.close());
        assert_eq!(heard.lock().unwrap().len(), 4);
    }
}
