//! Requests that may wait for a disk: RETRIEVE, CSTORE, DECREF, LEAVES, BODIES, CHECKPOINT, CHECKPOINTS. They run on blocking threads, a bounded
//! number at a time. A long answer comes in slices; what a slice may take is on the connection's account before it is
//! read, and until the connection has taken it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use share_server::host::HostError;
use share_server::host::promise::Asked;
use tokio::sync::Semaphore;
use tokio::time::sleep;
use trust::Handle;
use wire::shared::answer::{BodiesPart, encode_checkpoints, encode_have};
use wire::shared::delivery::LeavesPart;
use wire::shared::request::Request;
use wire::shared::usage::{UNKNOWN, USAGE_BYTES, Usage};
use wire::shared::{PART_BYTES, kind};

use crate::net::{Account, Completion, Held};
use crate::shared::cost;
use crate::shared::member::Member;
use crate::shared::refuse::told;

/// Most bytes of a slice; it ends with the block or body that reaches them.
const SLICE_BYTES: usize = 512 << 10;
/// What a block is expected to take, bytes.
const EXPECTED_BLOCK_BYTES: usize = 64 << 10;
/// Leaves that are read at once for LEAVES.
const LEAVES_AT_ONCE: u64 = 16;
/// Bodies that are read at once for BODIES.
const BODIES_AT_ONCE: usize = 8;

/// What of a request is not answered yet.
pub(crate) enum Rest {
    Retrieve(Vec<Handle>),
    Cstore(Vec<Handle>, Asked),
    Decref(Vec<Handle>),
    Leaves { from: u64, count: u32 },
    Bodies(Vec<u64>),
    Checkpoint(Bytes),
    Checkpoints,
    Usage,
}

/// A slice of an answer.
struct Slice {
    messages: Vec<(u8, Bytes)>,
    /// Blocks, bodies or leaves that were looked for, beyond those that the request was counted for.
    named: usize,
    rest: Option<Rest>,
}

impl Slice {
    fn last(kind: u8, body: Bytes) -> Slice {
        Slice {
            messages: vec![(kind, body)],
            named: 0,
            rest: None,
        }
    }
}

/// Reads, slice by slice, and completes the request.
pub(crate) async fn answer(
    member: Arc<Member>,
    account: Arc<Account>,
    reads: Arc<Semaphore>,
    mut rest: Rest,
    mut completion: Completion,
) {
    loop {
        // In this order: who waits for room must not keep others from the disk.
        let Some(held) = account.reserve(rest.expected_bytes()).await else {
            return completion.busy();
        };
        let Ok(turn) = Arc::clone(&reads).acquire_owned().await else {
            return;
        };
        let on = Arc::clone(&member);
        let read = tokio::task::spawn_blocking(move || {
            // The read itself holds its turn, because it goes on when the connection is gone.
            let _turn = turn;
            rest.read(&on, held)
        });
        let (slice, held) = match read.await.unwrap_or(Err(HostError::Stopped)) {
            Ok(slice) => slice,
            Err(error) => {
                let (code, text) = told(&error);
                return completion.refuse(code, &text);
            }
        };
        completion.charge(held);
        let bytes = slice.messages.iter().map(|(_, body)| body.len()).sum();
        let pause = member.session().pay(cost::of_answer(bytes, slice.named));
        for (kind, body) in slice.messages {
            completion.message(kind, body);
        }
        let Some(next) = slice.rest else {
            return completion.finish();
        };
        if !completion.send().await {
            return;
        }
        // Nothing is in memory meanwhile.
        if !pause.is_zero() {
            sleep(pause).await;
        }
        rest = next;
    }
}

impl Rest {
    /// The request, in its place among the others of the session.
    pub(crate) fn of(member: &Member, request: Request) -> Option<Rest> {
        Some(match request {
            Request::Retrieve(handles) => Rest::Retrieve(handles),
            Request::Cstore(handles) => {
                let asked = member.session().asks(&handles);
                Rest::Cstore(handles, asked)
            }
            Request::Decref(handles) => Rest::Decref(handles),
            Request::Leaves { from, count } => Rest::Leaves { from, count },
            Request::Bodies(positions) => Rest::Bodies(positions),
            Request::Checkpoint(posted) => Rest::Checkpoint(posted),
            Request::Checkpoints => Rest::Checkpoints,
            Request::Usage => Rest::Usage,
            _ => return None,
        })
    }

    fn expected_bytes(&self) -> usize {
        match self {
            Rest::Retrieve(handles) => {
                SLICE_BYTES.min(handles.len().saturating_mul(EXPECTED_BLOCK_BYTES))
            }
            Rest::Cstore(handles, _) | Rest::Decref(handles) => 32 * handles.len(),
            Rest::Leaves { .. } | Rest::Bodies(_) | Rest::Checkpoints => SLICE_BYTES,
            Rest::Checkpoint(posted) => posted.len(),
            Rest::Usage => USAGE_BYTES,
        }
    }

    fn read(self, member: &Member, mut held: Held) -> Result<(Slice, Held), HostError> {
        let slice = match self {
            Rest::Retrieve(handles) => retrieve(member, &handles)?,
            Rest::Cstore(handles, asked) => {
                let have = handles.iter().map(|handle| member.session().cstore(handle));
                let have: Vec<bool> = have.collect::<Result<_, _>>()?;
                asked.answered(have.iter().copied());
                Slice::last(kind::HAVE, encode_have(&have))
            }
            Rest::Decref(handles) => {
                for handle in &handles {
                    member.session().decref(handle)?;
                }
                Slice::last(kind::DONE, Bytes::new())
            }
            Rest::Leaves { from, count } => leaves(member, from, count)?,
            Rest::Bodies(positions) => bodies(member, positions)?,
            Rest::Checkpoint(posted) => {
                member.session().post_checkpoint(posted)?;
                Slice::last(kind::DONE, Bytes::new())
            }
            Rest::Checkpoints => {
                let all = member.session().checkpoints()?;
                let body = encode_checkpoints(all.iter().map(|posted| &posted[..]));
                Slice::last(kind::CHECKPOINTS_PART, body)
            }
            Rest::Usage => Slice::last(kind::USED, usage(member)?),
        };
        held.resize(slice.messages.iter().map(|(_, body)| body.len()).sum());
        Ok((slice, held))
    }
}

fn retrieve(member: &Member, handles: &[Handle]) -> Result<Slice, HostError> {
    let mut records = BytesMut::new();
    let mut read = 0;
    for handle in handles {
        read += 1;
        if let Some(record) = member.session().retrieve(handle)? {
            record.put(&mut records);
        }
        if records.len() >= SLICE_BYTES {
            break;
        }
    }
    let rest = handles.get(read..).unwrap_or_default();
    let mut messages = Vec::new();
    if !records.is_empty() {
        messages.push((kind::RECORDS, records.freeze()));
    }
    if rest.is_empty() {
        messages.push((kind::DONE, Bytes::new()));
    }
    Ok(Slice {
        messages,
        named: read,
        rest: (!rest.is_empty()).then(|| Rest::Retrieve(rest.to_vec())),
    })
}

/// What the device has used, and what the file system says.
fn usage(member: &Member) -> Result<Bytes, HostError> {
    let (used, space) = member.session().usage()?;
    let usage = Usage {
        today_bytes: used.today_bytes,
        daily_bytes: used.quota.daily_bytes,
        temporary_bytes: used.temporary_bytes,
        temporary_most_bytes: used.quota.temporary_bytes,
        disk_bytes: space.map_or(UNKNOWN, |space| space.total_bytes),
        disk_free_bytes: space.map_or(UNKNOWN, |space| space.free_bytes),
    };
    Ok(usage.encode().into())
}

/// One part: as many leaves as fit.
fn leaves(member: &Member, from: u64, count: u32) -> Result<Slice, HostError> {
    let mut part = LeavesPart::new(from);
    let (mut at, end) = (from, from.saturating_add(count.into()));
    while at < end && part.len() < PART_BYTES {
        let few = end.min(at.saturating_add(LEAVES_AT_ONCE));
        let read = match member.session().leaves(at..few) {
            // The log ends before.
            Err(HostError::NoLeaf { published, .. }) if published <= at => break,
            Err(HostError::NoLeaf { published, .. }) if published < few => {
                member.session().leaves(at..published)?
            }
            read => read?,
        };
        if read.is_empty() {
            break;
        }
        for leaf in read {
            if part.len() >= PART_BYTES {
                break;
            }
            part.push(&leaf.leaf, leaf.body.as_deref(), &[]);
            at = at.saturating_add(1);
        }
    }
    Ok(match part.is_empty() {
        true => Slice::last(kind::DONE, Bytes::new()),
        false => Slice {
            named: usize::try_from(at.saturating_sub(from)).unwrap_or(usize::MAX),
            ..Slice::last(kind::LEAVES_PART, part.finish())
        },
    })
}

fn bodies(member: &Member, positions: Vec<u64>) -> Result<Slice, HostError> {
    let few = positions.get(..BODIES_AT_ONCE).unwrap_or(&positions);
    let mut part = BodiesPart::default();
    let mut read = 0;
    for position in few {
        // One by one: a position beyond the log, or without a body, does not hide the others.
        match member.session().bodies(&[*position]) {
            Ok(found) => {
                if let Some(Some(body)) = found.first() {
                    part.push(*position, body);
                }
            }
            Err(HostError::NoLeaf { .. }) => {}
            Err(error) => return Err(error),
        }
        read += 1;
        if part.len() >= SLICE_BYTES {
            break;
        }
    }
    let rest = positions.get(read..).unwrap_or_default();
    let mut messages = Vec::new();
    if !part.is_empty() {
        messages.push((kind::BODIES_PART, part.finish()));
    }
    if rest.is_empty() {
        messages.push((kind::DONE, Bytes::new()));
    }
    Ok(Slice {
        messages,
        named: read,
        rest: (!rest.is_empty()).then(|| Rest::Bodies(rest.to_vec())),
    })
}
