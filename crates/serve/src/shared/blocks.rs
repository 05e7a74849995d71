//! STORE and PSTORE: answered by the thread that made the blocks durable. Their bytes are on the client's account until
//! then.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use share_server::blocks::{Done, Error, Receipt};
use trust::Record;
use wire::shared::kind;

use crate::net::{Completion, Held, Responder};
use crate::shared::member::Member;
use crate::shared::refuse::told_of_blocks;

/// STORE.
pub(crate) fn store(member: &Member, records: Vec<Record>, responder: Responder<'_>) {
    let held = hold(&records, &responder);
    let completion = responder.later();
    let done: Done = Box::new(move |result| {
        drop(held);
        finish(completion, result.err());
    });
    member.session().store(records, done);
}

/// PSTORE: the answer comes when all blocks are durable.
pub(crate) fn pstore(member: &Member, records: Vec<Record>, responder: Responder<'_>) {
    let held = hold(&records, &responder);
    let all = Arc::new(Mutex::new(Left {
        blocks: records.len(),
        failed: None,
        answer: Some((responder.later(), held)),
    }));
    for record in records {
        let all = Arc::clone(&all);
        let done = Box::new(move |result: Result<Receipt, Error>| {
            let mut left = all.lock().unwrap_or_else(PoisonError::into_inner);
            left.blocks = left.blocks.saturating_sub(1);
            if let Err(error) = result {
                left.failed.get_or_insert(error);
            }
            if left.blocks > 0 {
                return;
            }
            let (answer, failed) = (left.answer.take(), left.failed.take());
            drop(left);
            if let Some((completion, held)) = answer {
                drop(held);
                finish(completion, failed);
            }
        });
        member.session().pstore(record, done);
    }
}

/// A PSTORE of which not all blocks are durable.
struct Left {
    blocks: usize,
    failed: Option<Error>,
    answer: Option<(Completion, Held)>,
}

fn hold(records: &[Record], responder: &Responder<'_>) -> Held {
    let bytes = records.iter().map(Record::len).sum();
    responder.account().hold(bytes)
}

fn finish(mut completion: Completion, failed: Option<Error>) {
    match failed {
        None => {
            completion.message(kind::DONE, Bytes::new());
            completion.finish();
        }
        Some(error) => {
            let (code, text) = told_of_blocks(&error);
            completion.refuse(code, &text);
        }
    }
}
