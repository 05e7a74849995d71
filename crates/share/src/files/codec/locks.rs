//! Calls about locks of programs, from their bytes.

use trust::encode::Decoder;
use trust_shared::hold::{Family, Ranges};

use super::{Read, decode_setting, read_family, read_flag};
use crate::files::call::{Call, FileRef};

/// Most families that a call names.
const FAMILIES: u64 = 2;

/// The fields of a call of one of the kinds 20 to 23.
pub(super) fn decode(kind: u8, d: &mut Decoder<'_>) -> Read<Call> {
    Ok(match kind {
        20 => Call::Hold {
            file: FileRef::decode(d)?,
            family: read_family(d)?,
            ranges: Ranges::decode(d)?,
            wait: read_flag(d)?,
            lapsed: d.varint()?,
        },
        21 => Call::Release {
            file: FileRef::decode(d)?,
            family: read_family(d)?,
        },
        22 => under(d)?,
        _ => Call::Holders {
            file: FileRef::decode(d)?,
            family: read_family(d)?,
        },
    })
}

fn under(d: &mut Decoder<'_>) -> Read<Call> {
    let count = d.bounded(FAMILIES, "more families of locks than there are")?;
    let locks: Read<Vec<(Family, u64)>> = (0..count)
        .map(|_| Ok((read_family(d)?, d.varint()?)))
        .collect();
    let locks = locks?;
    match d.u8()? {
        5 => {
            let call = Box::new(decode_setting(5, d)?);
            Ok(Call::Under { locks, call })
        }
        _ => Err(d.bad("a call that no lock guards")),
    }
}
