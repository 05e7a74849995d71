//! POST and TAKE: messages of admissions.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use share_server::host::Host;
use share_server::host::mailbox::Taken;
use wire::shared::kind;
use wire::shared::request::Slot;

use crate::net::{Completion, Responder};
use crate::shared::member::Member;
use crate::shared::refuse::told;

/// POST.
pub(crate) fn post(host: &Host, slot: Slot, letter: Bytes, mut responder: Responder<'_>) {
    match host.post(&slot.invitation, slot.step as u8, letter) {
        Ok(()) => responder.message(kind::DONE, Bytes::new()),
        Err(error) => {
            let (code, text) = told(&error);
            responder.refuse(code, &text);
        }
    }
}

/// TAKE. Only a member's makes the mailbox.
pub(crate) fn take(
    host: &Host,
    member: Option<&Member>,
    slot: Slot,
    wait_ms: u32,
    responder: Responder<'_>,
) {
    let completion = Arc::new(Mutex::new(Some(responder.later())));
    let waiting = Arc::clone(&completion);
    let taken: Taken = Box::new(move |letter| {
        if let Some(completion) = open(&waiting) {
            finish(completion, letter);
        }
    });
    let deadline = Instant::now() + Duration::from_millis(wait_ms.into());
    let member = member.map(Member::session);
    let id = &slot.invitation;
    let taken = host.take(member, id, slot.step as u8, deadline, taken);
    if let Err(error) = taken
        && let Some(completion) = open(&completion)
    {
        let (code, text) = told(&error);
        completion.refuse(code, &text);
    }
}

fn open(completion: &Mutex<Option<Completion>>) -> Option<Completion> {
    let mut completion = completion.lock().unwrap_or_else(PoisonError::into_inner);
    completion.take()
}

fn finish(mut completion: Completion, letter: Option<Bytes>) {
    match letter {
        Some(letter) => completion.message(kind::LETTER, letter),
        None => completion.message(kind::DONE, Bytes::new()),
    }
    completion.finish();
}
