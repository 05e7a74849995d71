//! The head file: the list of index runs and the statements (`trust::head`), which are opaque here.
//! It is the only file that changes, and it is replaced as a whole (docs/decisions/0008).
//!
//! ```text
//! magic "bullahd\n" | format u32 LE = 0 | incompatible flags u32 LE = 0
//! run count u8 | per run, newest first: id [16] | entries u64 LE | file length u64 LE, bytes
//! retired count u8 | per retired run: id [16]
//! statements length u32 LE | statements
//! BLAKE3 [32] of all bytes before it
//! ```
//!
//! The checksum detects bit rot and torn writes, not attacks: statements are signed and blocks hashed.

use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};

use crate::names::FileId;

/// Maximum length of the statements in a head, bytes.
pub const MAX_STATEMENT_BYTES: usize = 1 << 20;
/// Maximum number of index runs that a head names.
pub const MAX_RUNS: usize = 64;
/// Maximum length of a head file, bytes.
pub const MAX_HEAD_BYTES: usize = MAX_STATEMENT_BYTES + 16 + 2 + MAX_RUNS * 48 + 4 + 32;

const MAGIC: &[u8; 8] = b"bullahd\n";
const FORMAT: u32 = 0;

/// An index run as the head names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunName {
    /// Its file.
    pub id: FileId,
    /// Number of its entries.
    pub entries: u64,
    /// Length of the file, bytes. With the number of entries it tells a remote reader where the pages
    /// end.
    pub len_bytes: u64,
}

/// Content of the head file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// The index runs, newest first.
    pub runs: Vec<RunName>,
    /// Runs that the last commit replaced. Their files stay until the next commit, for readers that
    /// still use the head before the last commit.
    pub retired: Vec<FileId>,
    /// The statements of the newest version; empty before the first.
    pub statements: Bytes,
}

impl Head {
    /// The file's bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Encoder::new();
        out.raw(MAGIC).u32(FORMAT).u32(0);
        out.u8(self.runs.len() as u8);
        for run in &self.runs {
            out.raw(&run.id.0).u64(run.entries).u64(run.len_bytes);
        }
        out.u8(self.retired.len() as u8);
        for id in &self.retired {
            out.raw(&id.0);
        }
        out.u32(self.statements.len() as u32).raw(&self.statements);
        let mut bytes = out.finish();
        let sum = blake3::hash(&bytes);
        bytes.extend_from_slice(sum.as_bytes());
        bytes
    }

    /// Whether the checksum is that of a head of this format. Then other numbers in it are damage, and no later format.
    pub(crate) fn is_of_this_format(bytes: &[u8]) -> bool {
        let mut same = bytes.to_vec();
        if let Some(numbers) = same.get_mut(MAGIC.len()..MAGIC.len() + 8) {
            numbers.fill(0);
        }
        same.split_last_chunk::<32>()
            .is_some_and(|(body, sum)| blake3::hash(body) == *sum)
    }

    /// Decodes the file's bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`], or [`Reject::Unsupported`] for an unknown format or flag.
    pub fn decode(bytes: &[u8]) -> Result<Head, Reject> {
        let mut d = Decoder::new(bytes, "head file");
        if d.array::<8>()? != *MAGIC {
            return Err(d.bad("not a head file"));
        }
        let (format, flags) = (d.u32()?, d.u32()?);
        if format != FORMAT || flags != 0 {
            return Err(Reject::Unsupported {
                what: "head file",
                why: format!("format {format}, flags {flags:#x}"),
            });
        }
        let Some((body, sum)) = bytes.split_last_chunk::<32>() else {
            return Err(d.bad("truncated"));
        };
        if blake3::hash(body) != blake3::Hash::from_bytes(*sum) {
            return Err(d.bad("checksum does not match"));
        }
        let count = usize::from(d.u8()?);
        if count > MAX_RUNS {
            return Err(d.bad("too many index runs"));
        }
        let mut runs = Vec::with_capacity(count);
        for _ in 0..count {
            runs.push(RunName {
                id: FileId(d.array()?),
                entries: d.u64()?,
                len_bytes: d.u64()?,
            });
        }
        let count = usize::from(d.u8()?);
        if count > MAX_RUNS {
            return Err(d.bad("too many retired runs"));
        }
        let mut retired = Vec::with_capacity(count);
        for _ in 0..count {
            retired.push(FileId(d.array()?));
        }
        let len = d.u32()? as usize;
        if len > MAX_STATEMENT_BYTES {
            return Err(d.bad("statements too long"));
        }
        let statements = Bytes::copy_from_slice(d.raw(len)?);
        d.raw(32)?;
        d.finish()?;
        Ok(Head {
            runs,
            retired,
            statements,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Head {
        Head {
            runs: vec![
                RunName {
                    id: FileId([1; 16]),
                    entries: 3,
                    len_bytes: 4300,
                },
                RunName {
                    id: FileId([2; 16]),
                    entries: 1_000_000,
                    len_bytes: 44_400_000,
                },
            ],
            retired: vec![FileId([3; 16])],
            statements: Bytes::from_static(b"opaque"),
        }
    }

    #[test]
    fn every_cut_and_flipped_bit_is_found() {
        for head in [Head::default(), sample()] {
            let good = head.encode();
            assert!(good.len() <= MAX_HEAD_BYTES);
            assert_eq!(Head::decode(&good), Ok(head));
            for cut in 0..good.len() {
                assert!(Head::decode(&good[..cut]).is_err(), "cut at {cut}");
            }
            for bit in 0..good.len() * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(Head::decode(&bad).is_err(), "bit {bit}");
            }
        }
    }

    #[test]
    fn counts_beyond_the_bounds_are_refused_with_a_good_checksum() {
        let mut bytes = sample().encode();
        bytes.truncate(bytes.len() - 32);
        bytes[16] = 255;
        let sum = blake3::hash(&bytes);
        bytes.extend_from_slice(sum.as_bytes());
        assert!(Head::decode(&bytes).is_err());
    }
}
