//! The small files of a server's directory that a start can do without, for its check and its repair: the snapshot, the
//! confirmations, the checkpoints, and files of evidence.

use std::path::PathBuf;

use store::StoreError;
use store::disk::{Disk, damaged, io_error, read_file};
use trust::Reject;
use trust_shared::evidence::{self, MAX_EVIDENCE_BYTES};
use trust_shared::genesis::Policies;

use super::HostError;
use super::directory::{CHECKPOINTS, CONFIRMED, EVIDENCE, SNAPSHOT};
use super::parts::Parts;
use super::trail::Snapshot;
use super::{checkpoints, confirmed, trail};

/// The files of an epoch, each with its longest length.
const FILES: [(&str, usize); 3] = [
    (SNAPSHOT, trail::MAX_BYTES),
    (CONFIRMED, confirmed::MAX_BYTES),
    (CHECKPOINTS, checkpoints::MAX_BYTES),
];

/// The names of files of the newest epoch that are damaged, and why.
pub(super) fn wrong_names(
    disk: &dyn Disk,
    policies: &Policies,
) -> Result<Vec<(String, StoreError)>, HostError> {
    let (volume, epoch) = (policies.chain().volume(), policies.newest_epoch().number);
    let mut wrong = Vec::new();
    for (name, most) in FILES {
        let Some(bytes) = whole(disk, name, most, &mut wrong)? else {
            continue;
        };
        let read: Result<(), Reject> = match name {
            SNAPSHOT => Snapshot::decode(&bytes, volume, epoch).map(drop),
            CONFIRMED => confirmed::decode(&bytes, volume, epoch).map(drop),
            _ => checkpoints::decode(&bytes, volume, epoch).map(drop),
        };
        if let Err(why) = read {
            wrong.push((name.to_owned(), damaged(disk, name, &why.to_string())));
        }
    }
    let listed = match disk.list(EVIDENCE) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        other => other.map_err(|e| io_error(disk, EVIDENCE, e))?,
    };
    for name in listed.iter().filter(|name| name.ends_with(".evidence")) {
        let name = format!("{EVIDENCE}/{name}");
        let Some(bytes) = whole(disk, &name, MAX_EVIDENCE_BYTES, &mut wrong)? else {
            continue;
        };
        match evidence::verify(&bytes) {
            Ok(_) | Err(Reject::Unsupported { .. }) => {}
            Err(why) => {
                let why = damaged(disk, &name, &why.to_string());
                wrong.push((name, why));
            }
        }
    }
    Ok(wrong)
}

/// The bytes of a file, if it is there and not too long.
fn whole(
    disk: &dyn Disk,
    name: &str,
    most: usize,
    wrong: &mut Vec<(String, StoreError)>,
) -> Result<Option<bytes::Bytes>, HostError> {
    match read_file(disk, name, most) {
        Err(error @ StoreError::Damaged { .. }) => {
            wrong.push((name.to_owned(), error));
            Ok(None)
        }
        other => Ok(other?),
    }
}

/// The paths of these files, and why.
pub(super) fn wrong(
    parts: &Parts,
    policies: &Policies,
) -> Result<Vec<(PathBuf, String)>, HostError> {
    let disk = parts.disk(policies.newest_epoch().number);
    let wrong = wrong_names(&*disk, policies)?;
    let told = wrong.into_iter();
    Ok(told
        .map(|(name, error)| (disk.path(&name), error.to_string()))
        .collect())
}
