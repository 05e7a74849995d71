//! What a device is sent. One task for each device that has entered: it makes a delivery when the device may be sent
//! one, and waits until the connection has taken it. So a device that does not read holds at most one delivery in
//! memory beside the one that is being written.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use share_server::host::{Delivery, HostError};
use tokio::sync::Semaphore;
use trust_shared::mark::{MarkProof, Nonce};
use wire::refusal::ERROR;
use wire::shared::delivery::{End, LeavesPart, put_attest};
use wire::shared::{PART_BYTES, SESSION_ID, kind};

use crate::net::{Account, Pusher};
use crate::shared::member::Member;
use crate::shared::refuse::{error_body, told};

/// Messages: their types and bodies.
type Messages = Vec<(u8, Bytes)>;

/// Delivers until the connection or the session is over.
pub(crate) async fn run(
    member: Arc<Member>,
    account: Arc<Account>,
    pusher: Pusher,
    draws: Arc<Semaphore>,
) {
    let why = loop {
        member.rung().await;
        match deliver_all(&member, &account, &pusher, &draws).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => break error,
        }
    };
    member.end();
    let (code, text) = told(&why);
    // The connection may be over.
    let _ = pusher.push(SESSION_ID, ERROR, error_body(code, &text));
}

/// Delivers all there is, as far as the device's window goes; false when the connection is over.
async fn deliver_all(
    member: &Arc<Member>,
    account: &Arc<Account>,
    pusher: &Pusher,
    draws: &Arc<Semaphore>,
) -> Result<bool, HostError> {
    while member.has_credit() {
        // A client that holds its share of memory gets its next delivery when there is room.
        if !account.wait_for_room().await {
            continue;
        }
        let Some(draft) = member.session().draft()? else {
            return Ok(true);
        };
        // Mostly that is so, and another thread would cost more than what it does.
        let messages = match draft.at_hand() {
            Ok(delivery) => messages(delivery),
            Err(draft) => {
                let Ok(turn) = Arc::clone(draws).acquire_owned().await else {
                    return Ok(false);
                };
                let read = tokio::task::spawn_blocking(move || {
                    let _turn = turn;
                    Ok(messages(draft.read()?))
                });
                read.await.unwrap_or(Err(HostError::Stopped))?
            }
        };
        member.spend(messages.iter().map(|(_, body)| body.len()).sum());
        if !pusher.send(0, messages).await {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The messages of a delivery.
fn messages(delivery: Delivery) -> Messages {
    let mut proofs: HashMap<u64, Vec<(Nonce, MarkProof)>> = HashMap::new();
    for (position, nonce, proof) in delivery.proofs {
        proofs.entry(position).or_default().push((nonce, proof));
    }
    let mut messages = Vec::new();
    let mut part = LeavesPart::new(delivery.from);
    for (position, leaf) in (delivery.from..).zip(&delivery.leaves) {
        if part.len() >= PART_BYTES {
            let full = std::mem::replace(&mut part, LeavesPart::new(position));
            messages.push((kind::LEAVES_PART, full.finish()));
        }
        let proofs = proofs.get(&position).map_or(&[][..], Vec::as_slice);
        part.push(&leaf.leaf, leaf.body.as_deref(), proofs);
    }
    if !part.is_empty() {
        messages.push((kind::LEAVES_PART, part.finish()));
    }
    let mut attests = BytesMut::new();
    for attest in &delivery.attests {
        put_attest(attest, &mut attests);
        if attests.len() >= PART_BYTES {
            messages.push((kind::ATTESTS, attests.split().freeze()));
        }
    }
    if !attests.is_empty() {
        messages.push((kind::ATTESTS, attests.freeze()));
    }
    let end = End {
        from: delivery.from,
        note: delivery.note,
        more: delivery.more,
        asked: delivery.asked,
        refused: delivery.refused,
        unstored: delivery.unstored,
    };
    messages.push((kind::DELIVERY, end.encode()));
    messages
}
