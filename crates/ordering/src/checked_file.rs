//! What small files of a server and of a device have in common: a head that names the format and the log, and a checksum at the end.
//! Bytes: `docs/formats/shared-server.md`.

use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::volume_id::VolumeId;

const FORMAT: u32 = 0;

/// A kind of file.
pub struct FileKind {
    /// For errors.
    pub what: &'static str,
    /// Its first bytes.
    pub magic: [u8; 8],
}

impl FileKind {
    /// Begins a file.
    pub fn begin(&self, volume: VolumeId, epoch: u64) -> Encoder {
        let mut out = Encoder::new();
        out.raw(&self.magic).u32(FORMAT).u32(0);
        out.raw(volume.as_bytes()).varint(epoch);
        out
    }

    /// Ends it.
    pub fn end(out: Encoder) -> Vec<u8> {
        let mut bytes = out.finish();
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(checksum.as_bytes());
        bytes
    }

    /// What follows the head of a file of this log.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything that was not made by [`FileKind::begin`] and [`FileKind::end`].
    pub fn open<'a>(
        &self,
        bytes: &'a [u8],
        volume: VolumeId,
        epoch: u64,
    ) -> Result<Decoder<'a>, Reject> {
        let what = self.what;
        let bad = |why| Reject::Malformed { what, why };
        let Some((summed, checksum)) = bytes.split_last_chunk::<32>() else {
            return Err(bad("cut short"));
        };
        if blake3::hash(summed).as_bytes() != checksum {
            return Err(bad("its checksum is wrong"));
        }
        let mut d = Decoder::new(summed, what);
        if d.array()? != self.magic || (d.u32()?, d.u32()?) != (FORMAT, 0) {
            return Err(bad("not a file of this format"));
        }
        if VolumeId::from_bytes(d.array()?) != volume || d.varint()? != epoch {
            return Err(bad("of another log"));
        }
        Ok(d)
    }
}
