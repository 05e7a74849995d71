//! The policies of a directory of which some may be damaged. A damaged one is taken from a copy: owners have signed it, and the
//! policies after it continue it.

use store::names;
use trust::signatures::Signatures;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust_shared::genesis::Policies;

use super::super::HostError;
use super::super::directory::SIGNATURES;
use super::super::parts::Parts;
use super::copied::{Copied, count, policy};
use super::unmended;

/// The chain, and files that are taken from a copy.
pub(super) struct Chosen {
    pub policies: Policies,
    pub taken: Vec<(String, bytes::Bytes)>,
}

/// Chooses the policies.
pub(super) fn choose(parts: &Parts, copy: Option<&Copied>) -> Result<Chosen, HostError> {
    let own = count(parts)?;
    let mut signatures = Signatures::new(SIGNATURES);
    let mut chain: Option<Policies> = None;
    let mut taken = Vec::new();
    for number in 0..own.max(1) {
        let name = names::policy(number);
        let mine = policy(parts, number)?;
        let theirs = copy.map(|copy| copy.policy(number)).transpose()?.flatten();
        let mine = mine.and_then(|it| Some((extended(&chain, &it.1, &mut signatures)?, it)));
        let theirs = theirs.and_then(|it| Some((extended(&chain, &it.1, &mut signatures)?, it)));
        chain = Some(match (mine, theirs, copy) {
            (Some((_, (_, mine))), Some((_, (_, theirs))), Some(copy))
                if mine.hash() != theirs.hash() =>
            {
                let path = copy.path.clone();
                return Err(match number {
                    0 => HostError::CopyOfOther { path },
                    _ => HostError::ForkedCopy {
                        path,
                        why: format!("its policy {number} is another one"),
                    },
                });
            }
            (Some((chain, _)), ..) => chain,
            (None, Some((chain, (bytes, _))), _) => {
                taken.push((name, bytes));
                chain
            }
            (None, None, _) => {
                let path = parts.root.path(&name);
                let why = match copy {
                    None => "no copy of it is named".to_owned(),
                    Some(copy) => format!("{} does not have it", copy.path.display()),
                };
                return Err(unmended(format!(
                    "{} is damaged, and {why}",
                    path.display()
                )));
            }
        });
    }
    if let Some(copy) = copy {
        let theirs = copy.policies()?;
        if theirs > own.max(1) {
            // Their number does not tell whether the directory is old, or has lost one.
            return Err(unmended(format!(
                "{} has {theirs} policies, and this directory has {own}: one may be missing here. If so, put back {} from a \
                 backup",
                copy.path.display(),
                parts.root.path(&names::policy(own.max(1))).display(),
            )));
        }
    }
    let none = || unmended("it has no policies".to_owned());
    Ok(Chosen {
        policies: chain.ok_or_else(none)?,
        taken,
    })
}

/// The chain with this policy, if it continues it.
fn extended(
    chain: &Option<Policies>,
    next: &Signed,
    signatures: &mut Signatures,
) -> Option<Policies> {
    match chain {
        None => {
            let volume = VolumeId::from_bytes(next.statement().hash());
            Policies::begin(volume, next, signatures).ok()
        }
        Some(chain) => {
            let mut chain = chain.clone();
            chain.extend(next, signatures).ok()?;
            Some(chain)
        }
    }
}
