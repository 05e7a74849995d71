//! A new device begins with a checkpoint instead of replaying the log (decision 0058).
//!
//! The checkpoint is one that enough checkpointers of the policy signed, or one key that the user named. The orderer's
//! note must name the same log, so that a log which does not continue it convicts the orderer. If the invitation names a
//! prefix, the checkpoint's log must have it. Only then the file `start` is written, whole, while no engine can run. A
//! process that is killed before has changed nothing.

use std::collections::HashMap;
use std::time::Instant;

use tokio::time::timeout_at;
use trust::history::LogPoint;
use trust::key::PublicKey;
use trust::{Handle, Record, Reject};
use trust_shared::genesis::Policies;

use super::connection::{Dial, Line, Lost, Trouble};
use super::link::Offered;
use super::start::{Parts, server};
use super::{ClientError, Options};
use crate::checkpoint::{Descent, Start, Trusted};
use crate::disk::Closed;
use crate::home::Home;
use ordering::prefixes::Recent;
use ordering::roster::Product;
use ordering::scheme::Log;
use trust_shared::checkpoint::Posted;

/// Nodes that are asked for at a time. Before they are verified, each may be as long as a block: 32 MiB together.
const NODES: usize = 32;
/// Checkpoints that are tried.
const TRIES: usize = 3;

/// How a device begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// With the first leaf: there is no checkpoint that it may start from, or it has begun before.
    Replay {
        /// Why, for people. None: it has begun before.
        why: Option<String>,
    },
    /// With a checkpoint of so many leaves.
    Checkpoint {
        /// The size of its log.
        size: u64,
    },
}

/// Begins a home that has seen nothing yet with the newest checkpoint that its server has and that may be trusted: signed
/// as the policy demands, or by `own`, the key of another device of this user. Does nothing to a home that has begun.
///
/// # Errors
/// [`ClientError`] when the server does not answer, or its checkpoint is of another log than the invitation's.
pub async fn begin(
    home: &Home,
    options: &Options,
    own: Option<&PublicKey>,
    deadline: Instant,
) -> Result<Begun, ClientError> {
    let parts = Parts::of(home, options)?;
    let dial = server(home, &parts.policies, options, &Offered::default())?;
    begin_over(home, &parts.policies, own, &dial, deadline).await
}

/// As [`begin`], with this connection.
pub(super) async fn begin_over(
    home: &Home,
    policies: &Policies,
    own: Option<&PublicKey>,
    dial: &dyn Dial,
    deadline: Instant,
) -> Result<Begun, ClientError> {
    // No engine runs while this lives.
    let epoch = policies.newest_epoch().number;
    let (memory, volume) = (home.memory(epoch), home.volume());
    let directory = memory.clone();
    let closed = tokio::task::spawn_blocking(move || Closed::open(&directory, deadline));
    let closed = closed.await.map_err(|_| ClientError::Closed)??;
    if let Some(start) = Start::read(&memory, volume, epoch)? {
        let size = start.log().size;
        return Ok(Begun::Checkpoint { size });
    }
    if !closed.is_new() {
        return Ok(Begun::Replay { why: None });
    }
    if !home.earlier_memories(epoch).is_empty() {
        // What it wrote and this log does not have is found by looking at all of the log (decision 0052).
        let why = "this device has work of an earlier epoch to give back".to_owned();
        return Ok(Begun::Replay { why: Some(why) });
    }
    let late = |lost: Lost| ClientError::Deadline {
        connection: super::Connection::Offline(lost),
    };
    let found = timeout_at(deadline.into(), find(home, policies, own, dial)).await;
    let slow = || Lost::new(Trouble::Unreachable, "the server did not answer in time");
    let found = found.unwrap_or_else(|_| Err(slow().into()));
    match found {
        Ok(start) => {
            start.write(&memory, volume)?;
            let size = start.log().size;
            Ok(Begun::Checkpoint { size })
        }
        Err(No::None(why)) => Ok(Begun::Replay { why: Some(why) }),
        Err(No::Lost(lost)) => Err(late(lost)),
        Err(No::OtherBeginning) => Err(super::Stopped::OtherBeginning.into()),
    }
}

/// Why there is no start.
enum No {
    /// No checkpoint may be used. The log is replayed.
    None(String),
    Lost(Lost),
    /// The checkpoint's log does not have the prefix that the invitation names.
    OtherBeginning,
}

impl From<Lost> for No {
    fn from(lost: Lost) -> No {
        No::Lost(lost)
    }
}

async fn find(
    home: &Home,
    policies: &Policies,
    own: Option<&PublicKey>,
    dial: &dyn Dial,
) -> Result<Start, No> {
    // Deliveries begin only when they are asked for.
    let (line, _deliveries) = dial.dial().await?;
    let posted = posted(&*line).await?;
    let many = posted.len();
    let trusted = Trusted::choose(posted, policies, own);
    if trusted.is_empty() {
        return Err(No::None(match many {
            0 => "the server has no checkpoint".to_owned(),
            _ => "no checkpoint is signed by enough checkpointers, or by a key that was named"
                .to_owned(),
        }));
    }
    // Prefixes that the log must have: that of the invitation, and that with which the owners have begun its epoch.
    let epoch = policies.newest_epoch();
    let begins = home.begins().filter(|it| it.epoch == epoch.number);
    let start = epoch.start.in_epoch(epoch.number);
    let begins: Vec<LogPoint> = begins.copied().into_iter().chain([start]).collect();
    let mut why = String::new();
    for trusted in trusted.into_iter().take(TRIES) {
        match take(&trusted, policies, &begins, &*line).await {
            Err(No::None(other)) => why = other,
            taken => return taken,
        }
    }
    Err(No::None(why))
}

/// The checkpoints that the server has. Nothing is verified.
pub(super) async fn posted(line: &dyn Line) -> Result<Vec<Posted>, Lost> {
    let all = line.checkpoints().await?.into_iter();
    let posted = all.map(|bytes| Posted::decode(&bytes));
    let posted: Result<Vec<Posted>, Reject> = posted.collect();
    posted.map_err(|why| Lost::new(Trouble::Unfit, why.to_string()))
}

/// Takes the rows of a checkpoint.
async fn take(
    trusted: &Trusted,
    policies: &Policies,
    begins: &[LogPoint],
    line: &dyn Line,
) -> Result<Start, No> {
    let checkpoint = trusted.checkpoint.checkpoint();
    let size = checkpoint.log.size;
    let refused = |why: Reject| No::None(format!("the checkpoint of {size} cannot be used: {why}"));
    let hasher = policies.chain().hasher();
    let large = || {
        No::None(format!(
            "the checkpoint of {size} is too large to start from"
        ))
    };
    let mut descent = Descent::begin(&checkpoint.state).ok_or_else(large)?;
    loop {
        let wanted = descent.wanted(NODES);
        if wanted.is_empty() {
            break;
        }
        let got = line.store().get_many(&wanted, 0).await;
        let got = got.map_err(|e| Lost::new(Trouble::Refused, e.to_string()))?;
        let records: HashMap<Handle, Record> = got
            .into_iter()
            .map(|record| (record.handle, record))
            .collect();
        let taken = descent.take(&hasher, wanted.len(), &records);
        taken.map_err(refused)?;
    }
    let volume = policies.chain().volume();
    let start = Start::new(volume, trusted.posted.clone(), descent.rows()).map_err(refused)?;
    let parts = start.parts();
    if policies.chain().find(&parts.policy.hash).is_none() {
        let why = format!("the checkpoint of {size} knows a policy that this device does not know");
        return Err(No::None(why));
    }
    // What lies after the checkpoint, the engine compares.
    let begins = begins.iter().filter(|it| (1..=size).contains(&it.size));
    let begins: Vec<&LogPoint> = begins.collect();
    if begins.is_empty() {
        return Ok(start);
    }
    let log = Recent::begin(&parts.window);
    for begins in begins {
        match Log::<Product>::root_at(&log, begins.size) {
            Some(root) if root == begins.root => {}
            Some(_) => return Err(No::OtherBeginning),
            None => {
                return Err(No::None(format!(
                    "the checkpoint of {size} does not show whether its log has the first {} entries and marks that it must have",
                    begins.size
                )));
            }
        }
    }
    Ok(start)
}
