//! What a reader has seen of a volume's log, as a text for another reader: the newest record that it adopted, with all
//! that is needed to verify who signed it (docs/formats/sighting.md). The text goes over any channel: it is signed and no
//! secret.
//!
//! ```text
//! bulla seen 0
//! VOLUMEID
//! version VERSION RECORDID
//! log EPOCH SIZE
//! BASE64                      lines of 76 characters: a sighting
//! end
//!
//! sighting = head length varint | head | count varint | { older policy } * count
//! ```
//!
//! The log is the one with the record as its last leaf. The head has the policies up to the newest that the reader knew,
//! the record with the signatures of its publishers, and the frontier; the older policies are those that the head leaves
//! out. There is one text for one sighting.

use crate::encode::{Decoder, Encoder};
use crate::error::Reject;
use crate::history::signed_note::{base64, unbase64};
use crate::history::{Frontier, LogPoint};
use crate::key::PublicKey;
use crate::published::floor::Floor;
use crate::published::head::{Head, MAX_HEAD_BYTES};
use crate::published::root::RootRecord;
use crate::published::standing::signed_record;
use crate::statement::chain::{Chain, Link};
use crate::statement::policy::Threshold;
use crate::statement::signatures::Signatures;
use crate::statement::{Signed, VolumeId};
use crate::text::{Noun, write};

/// Longest text, bytes.
pub const MAX_SEEN_TEXT_BYTES: usize = 12 << 20;
/// Longest sighting, bytes.
pub const MAX_SIGHTING_BYTES: usize = 8 << 20;
/// Highest number of older policies; the length of a sighting bounds them earlier.
const MAX_OLDER: u64 = 1 << 16;

const WHAT: &str = "sighting";
const FIRST_LINE: &str = "bulla seen 0";
const LINE_CHARACTERS: usize = 76;

/// What a reader has seen. Only its form was checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sighting {
    head: Head,
    /// The policies between the genesis and the others of the head.
    older: Vec<Signed>,
}

/// A sighting whose policies and record were verified. Time was not: what was signed stays signed.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The record.
    pub record: RootRecord,
    /// Its hash.
    pub record_hash: [u8; 32],
    /// The log with the record as its last leaf.
    pub log: LogPoint,
    /// The publishers that signed it.
    pub signers: Vec<PublicKey>,
    /// The log before the record.
    pub(crate) before: Frontier,
    /// The hashes of all policies, by number.
    pub(crate) policies: Vec<[u8; 32]>,
    /// The publishers under the newest of them.
    pub(crate) publishers: Threshold,
}

impl Sighting {
    /// Of a reader that has adopted the record of `head`. `older` are the policies between the genesis and the others
    /// that the head shows.
    ///
    /// # Errors
    /// Those of [`Sighting::verify`].
    pub fn new(head: &Head, older: &[Signed], volume: VolumeId) -> Result<Sighting, Reject> {
        let (floor, older) = carried(head, older, volume)?;
        let mut signatures = Signatures::default();
        let chain = floor.known_chain(head, &mut signatures)?;
        let record = signed_record(&head.record, &chain, &mut signatures)?;
        let head = reduced(head, &chain, &record)?;
        Ok(Sighting { head, older })
    }

    /// Verifies who signed it.
    ///
    /// # Errors
    /// [`Reject::WrongVolume`]; [`Reject::NotSigned`] for a record or policy that is not signed as it must be;
    /// [`Reject::Malformed`] for bytes that no check covers.
    pub fn verify(&self, volume: VolumeId) -> Result<Seen, Reject> {
        let (floor, older) = carried(&self.head, &self.older, volume)?;
        let mut signatures = Signatures::default();
        let chain = floor.known_chain(&self.head, &mut signatures)?;
        let record = signed_record(&self.head.record, &chain, &mut signatures)?;
        if older != self.older || reduced(&self.head, &chain, &record)? != self.head {
            return Err(bad("a signature or statement that is not required"));
        }
        let policy = chain.get(record.policy_number);
        let keys = policy.map_or(&[][..], |(policy, _)| policy.roles().publishers.keys());
        let signed = |key: &&PublicKey| self.head.record.by(key).is_some();
        let shown = self.head.policies.iter();
        let policies = shown.clone().take(1).chain(&self.older);
        Ok(Seen {
            signers: keys.iter().filter(signed).copied().collect(),
            record_hash: self.head.record.hash(),
            log: self.head.after_record(&record)?.point(record.log.epoch),
            before: self.head.frontier.clone(),
            policies: policies.chain(shown.skip(1)).map(Signed::hash).collect(),
            publishers: chain.newest().roles().publishers.clone(),
            record,
        })
    }

    /// The volume that it claims to be about. Nothing is verified.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when it has no policy.
    pub fn volume(&self) -> Result<VolumeId, Reject> {
        self.head.volume()
    }

    /// Appends the bytes.
    ///
    /// # Errors
    /// [`Reject::Malformed`] when the head is too long.
    pub fn encode(&self, out: &mut Encoder) -> Result<(), Reject> {
        out.bytes(&self.head.encode()?);
        out.varint(self.older.len() as u64);
        for policy in &self.older {
            policy.encode(out);
        }
        Ok(())
    }

    /// Reads what [`Sighting::encode`] wrote.
    ///
    /// # Errors
    /// [`Reject::Malformed`] for anything but the one encoding of a sighting; [`Reject::Unsupported`] for a later format
    /// of a head.
    pub fn decode(d: &mut Decoder<'_>) -> Result<Sighting, Reject> {
        let head = Head::decode(d.bytes(MAX_HEAD_BYTES)?)?;
        let count = d.bounded(MAX_OLDER, "too many policies")?;
        let mut older = Vec::new();
        for _ in 0..count {
            older.push(Signed::decode(d)?);
        }
        Ok(Sighting { head, older })
    }

    /// The text.
    ///
    /// # Errors
    /// Those of [`Sighting::encode`]; [`Reject::Malformed`] for a record that cannot be read.
    pub fn to_text(&self) -> Result<String, Reject> {
        let volume = self.volume()?;
        let record: RootRecord = self.head.record.statement().read(volume)?;
        let log = self.head.after_record(&record)?;
        let mut e = Encoder::new();
        self.encode(&mut e)?;
        if e.len() > MAX_SIGHTING_BYTES {
            return Err(bad("too long"));
        }
        let version = record.version;
        let hash = write(Noun::Record, &self.head.record.hash());
        let (epoch, size) = (record.log.epoch, log.size());
        let mut text =
            format!("{FIRST_LINE}\n{volume}\nversion {version} {hash}\nlog {epoch} {size}\n");
        let encoded = base64(&e.finish());
        let mut rest = encoded.as_str();
        while !rest.is_empty() {
            let (line, more) = rest.split_at_checked(LINE_CHARACTERS).unwrap_or((rest, ""));
            text.push_str(line);
            text.push('\n');
            rest = more;
        }
        text.push_str("end\n");
        Ok(text)
    }

    /// Reads a text. Spaces at the ends of lines and empty lines, which mail programs add, do not matter.
    ///
    /// # Errors
    /// [`Reject::Unsupported`] for a later format; [`Reject::Malformed`] for anything but the one text of a sighting.
    pub fn from_text(text: &str) -> Result<Sighting, Reject> {
        if text.len() > MAX_SEEN_TEXT_BYTES {
            return Err(bad("too long"));
        }
        let lines = text
            .lines()
            .map(str::trim_end)
            .filter(|line| !line.is_empty());
        let lines: Vec<&str> = lines.collect();
        let [first, facts @ .., "end"] = lines.as_slice() else {
            return Err(bad("not a whole text of `bulla log --seen`"));
        };
        if *first != FIRST_LINE {
            return Err(match first.strip_prefix("bulla seen ") {
                Some(format) => Reject::Unsupported {
                    what: WHAT,
                    why: format!("format {format}"),
                },
                None => bad("not a text of `bulla log --seen`"),
            });
        }
        let encoded = facts.get(3..).unwrap_or_default().concat();
        let bytes = unbase64(&encoded).ok_or_else(|| bad("not base64"))?;
        let mut d = Decoder::new(&bytes, WHAT);
        let sighting = Sighting::decode(&mut d)?;
        d.finish()?;
        let same = sighting.to_text()?;
        if !same.lines().eq(lines) {
            return Err(bad("its first lines and its content differ"));
        }
        Ok(sighting)
    }
}

/// The floor of a reader that knows the genesis and the older policies, and those policies without foreign signatures.
fn carried(
    head: &Head,
    older: &[Signed],
    volume: VolumeId,
) -> Result<(Floor, Vec<Signed>), Reject> {
    if older.len() as u64 != head.begins().saturating_sub(1) {
        return Err(bad("not the policies before those of the head"));
    }
    let genesis = head.policies.first().ok_or(bad("it has no policy"))?;
    let mut signatures = Signatures::default();
    let mut chain = Chain::begin(volume, genesis, &mut signatures)?;
    let mut reduced = Vec::new();
    for policy in older {
        chain.extend(policy, &mut signatures)?;
        reduced.extend(chain.signed().pop());
    }
    Ok((Floor::of_chain(&chain), reduced))
}

/// The head with the policies of the chain and the record, without what does not show which log its publishers signed.
fn reduced(head: &Head, chain: &Chain, record: &RootRecord) -> Result<Head, Reject> {
    head.after_record(record)?;
    let link: Option<&Link> = chain.link(record.policy_number);
    Ok(Head {
        policies: chain.signed(),
        record: match link {
            Some(link) => head.record.reduced_to(&[&link.policy.roles().publishers]),
            None => head.record.clone(),
        },
        timestamp: None,
        checkpoint: None,
        frontier: head.frontier.clone(),
        later_log: None,
    })
}

fn bad(why: &'static str) -> Reject {
    Reject::Malformed { what: WHAT, why }
}
