//! A batch of blocks that is longer than a frame of a short log: it becomes several. Blocks alone need not be durable
//! together, so whoever stores them need not know how long the server's log is.

use std::sync::{Arc, Mutex, PoisonError};

use trust::Record;
use wal::Mark;

use super::batch::{Batch, Done, Receipt};
use super::error::Error;
use super::record::description_bytes;

/// The batches, each with who is told of it. `most`: bytes of the log that a batch may take, and `most_header` of them
/// for descriptions. `longest`: frames of more bytes do not go through the log. One with entries stays whole.
pub(super) fn split(
    batch: Batch,
    done: Done,
    longest: usize,
    (most, most_header): (u64, u64),
) -> Vec<(Batch, Done)> {
    let (session, entries) = (batch.session, batch.entries);
    if !entries.is_empty() {
        let blocks = batch.blocks;
        let whole = Batch {
            session,
            blocks,
            entries,
        };
        return vec![(whole, done)];
    }
    let mut parts: Vec<Vec<Record>> = vec![Vec::new()];
    let (mut bytes, mut header) = (0, 0);
    for record in batch.blocks {
        let length = record.frame.as_bytes().len();
        if length <= longest {
            let description = description_bytes() as u64;
            (bytes, header) = (bytes + length as u64 + description, header + description);
            if bytes > most || header > most_header {
                parts.push(Vec::new());
                (bytes, header) = (length as u64 + description, description);
            }
        }
        if let Some(part) = parts.last_mut() {
            part.push(record);
        }
    }
    let batches = parts.into_iter().map(|blocks| Batch {
        session,
        blocks,
        entries: Vec::new(),
    });
    let batches: Vec<Batch> = batches.collect();
    if batches.len() == 1 {
        return batches.into_iter().zip([done]).collect();
    }
    let whole = Arc::new(Mutex::new(Whole {
        left: batches.len(),
        stored: vec![Vec::new(); batches.len()],
        durable: None,
        failed: None,
        done: Some(done),
    }));
    let batches = batches.into_iter().enumerate();
    batches
        .map(|(part, batch)| (batch, part_of(&whole, part)))
        .collect()
}

/// The answers for the parts of one batch.
struct Whole {
    left: usize,
    stored: Vec<Vec<bool>>,
    durable: Option<Mark>,
    failed: Option<Error>,
    done: Option<Done>,
}

/// Takes the answer for one part. The last one answers for all.
fn part_of(whole: &Arc<Mutex<Whole>>, part: usize) -> Done {
    let whole = Arc::clone(whole);
    Box::new(move |result| {
        let mut all = whole.lock().unwrap_or_else(PoisonError::into_inner);
        all.left = all.left.saturating_sub(1);
        match result {
            Ok(receipt) => {
                let later = |mark: &Mark| mark.lsn < receipt.durable.lsn;
                if all.durable.as_ref().is_none_or(later) {
                    all.durable = Some(receipt.durable);
                }
                if let Some(stored) = all.stored.get_mut(part) {
                    *stored = receipt.stored;
                }
            }
            Err(error) => drop(all.failed.get_or_insert(error)),
        }
        if all.left > 0 {
            return;
        }
        let stored = std::mem::take(&mut all.stored).concat();
        let (failed, durable, done) = (all.failed.take(), all.durable.take(), all.done.take());
        drop(all);
        let result = match (failed, durable) {
            (None, Some(durable)) => Ok(Receipt { stored, durable }),
            (failed, _) => Err(failed.unwrap_or(Error::Stopped)),
        };
        if let Some(done) = done {
            done(result);
        }
    })
}
