//! The policies of a volume as files of a repository (docs/formats/repository.md). A head carries only the newest
//! ones; who needs those between them and the genesis reads them here, by number.

use bytes::Bytes;
use trust::Reject;
use trust::floor::Floor;
use trust::head::Head;
use trust::signatures::Signatures;
use trust::statement::{MAX_SIGNED_BYTES, Signed};

use crate::disk::{Disk, damaged, io_error, read_file, write_aside};
use crate::error::StoreError;
use crate::names;

/// Reads a policy, if it is there.
pub(crate) fn read(disk: &dyn Disk, number: u64) -> Result<Option<Bytes>, StoreError> {
    read_file(disk, &names::policy(number), MAX_SIGNED_BYTES)
}

/// Writes a policy, unless the same one is there; returns whether it wrote. The caller syncs the directory.
pub(crate) fn write(disk: &dyn Disk, number: u64, policy: &[u8]) -> Result<bool, StoreError> {
    let name = names::policy(number);
    if policy.len() > MAX_SIGNED_BYTES {
        return Err(damaged(disk, &name, "longer than a signed statement"));
    }
    // Another one, or a damaged one, is replaced.
    if read(disk, number).is_ok_and(|there| there.as_deref() == Some(policy)) {
        return Ok(false);
    }
    let made = disk.make_dir(names::POLICY_DIR);
    made.map_err(|e| io_error(disk, names::POLICY_DIR, e))?;
    write_aside(disk, &name, &format!("{name}{}", names::TEMPORARY), policy)?;
    Ok(true)
}

/// The floor of a reader that was shown the genesis and the policies between it and the others of `head`.
pub(crate) fn floor(
    disk: &dyn Disk,
    head: &Head,
    signatures: &mut Signatures,
) -> Result<Floor, StoreError> {
    let volume = head.volume().map_err(|why| refused(disk, 0, why))?;
    let mut floor = Floor::new(volume);
    for number in 0..head.begins() {
        let signed = match (number, head.policies.first()) {
            (0, Some(genesis)) => genesis.clone(),
            _ => {
                let bytes = read(disk, number)?
                    .ok_or_else(|| damaged(disk, &names::policy(number), "is missing"))?;
                Signed::from_bytes(&bytes).map_err(|why| refused(disk, number, why))?
            }
        };
        let next = floor.after(&signed, signatures);
        floor = next.map_err(|why| refused(disk, number, why))?;
    }
    Ok(floor)
}

/// The error about a policy that is refused. One of a later bulla is not damaged.
fn refused(disk: &dyn Disk, number: u64, why: Reject) -> StoreError {
    match why {
        Reject::Unsupported { what, why } => StoreError::Unsupported {
            place: disk.place().to_owned(),
            why: format!("{}: {what}, {why}", names::policy(number)),
        },
        why => damaged(disk, &names::policy(number), &why.to_string()),
    }
}
