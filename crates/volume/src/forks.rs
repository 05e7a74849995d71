//! The forks that this machine remembers for a volume, what its evidence shows of both sides, and how the user
//! settles one (docs/operations/forks.md). Nothing is asked over a network.
//!
//! The floor has only the hashes. The statements are in the evidence, in the adopted head and in the floor's own
//! policies. Each is verified again, so a file that somebody put there tells nothing false.
//! Relies on `trust::floor` for the rules and on `state` for the lock.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use state::{StateError, VolumeState};
use trust::Reject;
use trust::chain::{Chain, Link};
use trust::earlier::Leaf;
use trust::floor::Floor;
use trust::head::{Head, MAX_HEAD_BYTES};
use trust::key::PublicKey;
use trust::policy::Policy;
use trust::root::RootRecord;
use trust::signatures::Signatures;
use trust::statement::Signed;

/// Most pieces of evidence that are looked at.
const MAX_PIECES: usize = 256;

/// Why a fork cannot be settled.
#[derive(Debug, thiserror::Error)]
pub enum ForkError {
    /// No fork that this machine remembers has the hash.
    #[error("this machine remembers no fork with this policy or record")]
    Unknown,
    /// Another fork stands than the one that was shown.
    #[error("the fork is not the one that was shown any more; nothing was settled")]
    Changed,
    /// The floor cannot hold the decision.
    #[error("{0}; nothing was settled")]
    Refused(#[from] Reject),
    /// The state directory cannot be read or written, or is locked.
    #[error(transparent)]
    State(#[from] StateError),
}

/// What this machine remembers about contradictions in a volume.
#[derive(Debug)]
pub struct Remembered {
    /// The forks that are not settled: one of policies, one of records, or both.
    pub forks: Vec<Fork>,
    /// How many policies and records the user refused before.
    pub refused: usize,
    /// Where evidence is kept.
    pub evidence: PathBuf,
    /// The number of pieces of evidence there, of all kinds.
    pub pieces: usize,
}

/// What contradicts each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sort {
    /// Two policies that follow the same one.
    Policies,
    /// Two records of one version.
    Records,
}

/// A fork that is not settled.
#[derive(Debug)]
pub struct Fork {
    /// What contradicts each other.
    pub sort: Sort,
    /// The number of both policies, or the version of both records.
    pub number: u64,
    /// Both sides, in the order of their hashes.
    pub sides: [Side; 2],
}

/// One of the policies or records of a fork.
#[derive(Debug)]
pub struct Side {
    /// Its hash.
    pub hash: [u8; 32],
    /// Whether this machine follows this policy, or has adopted this record.
    pub is_in_use: bool,
    /// The statement, if this machine still has it.
    pub shown: Option<Shown>,
    /// The files of evidence that show it.
    pub evidence: Vec<PathBuf>,
    /// When the first of these files was written.
    pub kept_since: Option<SystemTime>,
}

/// A verified statement of one side, and the role keys that signed it.
#[derive(Debug, Clone)]
pub struct Shown {
    /// The statement.
    pub statement: Contradicting,
    /// Owners before and after for a policy, publishers for a record.
    pub signers: Vec<PublicKey>,
}

/// A policy or a record.
#[derive(Debug, Clone)]
pub enum Contradicting {
    /// A policy.
    Policy(Box<Policy>),
    /// A record.
    Record(Box<RootRecord>),
}

impl Fork {
    /// The hash of the other side.
    pub fn rival(&self, hash: &[u8; 32]) -> Option<[u8; 32]> {
        let [one, other] = &self.sides;
        match (one.hash == *hash, other.hash == *hash) {
            (true, _) => Some(other.hash),
            (_, true) => Some(one.hash),
            _ => None,
        }
    }
}

/// What this machine remembers.
///
/// # Errors
/// [`StateError`].
pub fn remembered(state: &VolumeState, deadline: Instant) -> Result<Remembered, StateError> {
    let locked = state.lock(deadline)?;
    let floor = locked.load()?;
    let adopted = locked.adopted_head()?;
    drop(locked);
    let mut forks = unsettled(&floor);
    let evidence = state.evidence_directory();
    let pieces = pieces(&evidence);
    let mut witness = Witness {
        floor: &floor,
        sides: forks.iter_mut().flat_map(|fork| &mut fork.sides).collect(),
        signatures: Signatures::default(),
    };
    witness.look_at(floor.policies(), None, None);
    let own = adopted.and_then(|bytes| Head::decode(&bytes).ok());
    if let Some(head) = own {
        witness.look_at(&head.policies, Some(&head.record), None);
    }
    for piece in &pieces {
        let Some(bytes) = read(&piece.path) else {
            continue;
        };
        if let Ok(head) = Head::decode(&bytes) {
            witness.look_at(&head.policies, Some(&head.record), Some(piece));
        } else if let Ok(policy) = Signed::from_bytes(&bytes) {
            witness.look_at(&after_known(&floor, policy), None, Some(piece));
        }
    }
    Ok(Remembered {
        forks,
        refused: floor.forks().refused().len(),
        evidence,
        pieces: pieces.len(),
    })
}

/// Settles the fork `shown` in favour of the policy or record `keep`, durably: the other one is refused from now on.
/// Readers that run take it up at their next refresh.
///
/// # Errors
/// [`ForkError`]; then nothing has changed.
pub fn settle(
    state: &VolumeState,
    shown: &Fork,
    keep: &[u8; 32],
    deadline: Instant,
) -> Result<Floor, ForkError> {
    let locked = state.lock(deadline)?;
    let floor = locked.load()?;
    let rival = floor.forks().rival(keep).ok_or(ForkError::Unknown)?;
    // The user decided between the two that were shown.
    if shown.rival(keep) != Some(rival) {
        return Err(ForkError::Changed);
    }
    let settled = floor.settle(keep)?;
    locked.store(&settled)?;
    Ok(settled)
}

/// The forks of a floor, without their statements.
fn unsettled(floor: &Floor) -> Vec<Fork> {
    let side = |hash: [u8; 32], is_in_use| Side {
        hash,
        is_in_use,
        shown: None,
        evidence: Vec::new(),
        kept_since: None,
    };
    let mut forks = Vec::new();
    if let Some(fork) = floor.forks().policies() {
        let newest = floor.policy();
        let is_known = |hash: [u8; 32]| newest.is_some_and(|(_, newest)| newest == hash);
        let number = newest.map_or(0, |(number, _)| number);
        // Both follow the newest policy that is known, unless one of them is that policy.
        let after = !fork.hashes.into_iter().any(is_known);
        forks.push(Fork {
            sort: Sort::Policies,
            number: number.saturating_add(u64::from(after)),
            sides: fork.hashes.map(|hash| side(hash, is_known(hash))),
        });
    }
    if let Some(fork) = floor.forks().records() {
        let adopted = floor.adopted().map(|adopted| adopted.record_hash);
        forks.push(Fork {
            sort: Sort::Records,
            number: fork.version,
            sides: fork
                .records
                .map(|(hash, _)| side(hash, adopted == Some(hash))),
        });
    }
    forks
}

/// Looks for the statements of both sides.
struct Witness<'a> {
    floor: &'a Floor,
    sides: Vec<&'a mut Side>,
    signatures: Signatures,
}

impl Witness<'_> {
    /// Notes what these policies and this record show, if they are signed as they must be.
    fn look_at(&mut self, policies: &[Signed], record: Option<&Signed>, piece: Option<&Piece>) {
        let known = self.floor.chain(&mut self.signatures).ok().flatten();
        let volume = self.floor.volume();
        let chain = Chain::shown(volume, policies, known.as_ref(), &mut self.signatures);
        let Ok(chain) = chain else {
            return;
        };
        for side in &mut self.sides {
            let shown = match policy_of(&chain, &side.hash) {
                Some(shown) => Some(shown),
                None => record
                    .filter(|record| record.hash() == side.hash)
                    .and_then(|record| record_of(&chain, record, &mut self.signatures)),
            };
            let Some(shown) = shown else {
                continue;
            };
            side.shown.get_or_insert(shown);
            if let Some(piece) = piece {
                side.evidence.push(piece.path.clone());
                let first = side.kept_since.into_iter().chain(piece.kept).min();
                side.kept_since = first;
            }
        }
    }
}

/// The policies that are known before this one, and it.
fn after_known(floor: &Floor, policy: Signed) -> Vec<Signed> {
    let number = |signed: &Signed| {
        let link = Link::read(floor.volume(), signed);
        link.map_or(0, |link| link.policy.number())
    };
    let known = floor.policies().iter();
    let known = known
        .filter(|known| number(known) < number(&policy))
        .cloned();
    known.chain([policy.clone()]).collect()
}

/// The policy with this hash, and the owners who signed it.
fn policy_of(chain: &Chain, hash: &[u8; 32]) -> Option<Shown> {
    let Link { policy, signed, .. } = chain.find(hash)?;
    let before = policy.number().checked_sub(1);
    let before = before.and_then(|number| chain.get(number));
    let owners = |policy: &Policy| policy.roles().owners.keys().to_vec();
    let mut signers = owners(policy);
    for owner in before.map_or_else(Vec::new, |(policy, _)| owners(policy)) {
        if !signers.contains(&owner) {
            signers.push(owner);
        }
    }
    signers.retain(|key| signed.by(key).is_some());
    Some(Shown {
        statement: Contradicting::Policy(Box::new(policy.clone())),
        signers,
    })
}

/// The record, and the publishers who signed it.
fn record_of(chain: &Chain, signed: &Signed, signatures: &mut Signatures) -> Option<Shown> {
    let volume = chain.volume();
    let policy = chain.link(Leaf::policy_number(signed, volume).ok()?)?;
    match Leaf::read(signed, volume, policy, signatures).ok()? {
        Leaf::Record {
            record, signers, ..
        } => Some(Shown {
            statement: Contradicting::Record(record),
            signers,
        }),
        Leaf::Policy { .. } => None,
    }
}

/// A file of evidence.
struct Piece {
    path: PathBuf,
    kept: Option<SystemTime>,
}

/// The files of evidence by name.
fn pieces(directory: &Path) -> Vec<Piece> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let piece = |entry: fs::DirEntry| Piece {
        kept: entry.metadata().and_then(|it| it.modified()).ok(),
        path: entry.path(),
    };
    let mut pieces: Vec<Piece> = entries.take(MAX_PIECES).map(piece).collect();
    pieces.sort_by(|a, b| a.path.cmp(&b.path));
    pieces
}

/// A file no longer than a head.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(path).ok()?;
    file.take(MAX_HEAD_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .ok()?;
    Some(bytes)
}
