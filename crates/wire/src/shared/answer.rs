//! What the server answers, but for deliveries: bodies, which blocks are there, policies. Nothing here is verified.

use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::statement::MAX_SIGNED_BYTES;
use trust_shared::entry::MAX_OPS_BYTES;

use super::{MAX_CHECKPOINT_BYTES, MAX_CHECKPOINTS, MAX_NAMES};

/// The body of a BODIES_PART: positions of entries, each with the entry's body.
#[derive(Default)]
pub struct BodiesPart(Encoder);

impl BodiesPart {
    /// Appends the body of the entry at a position.
    pub fn push(&mut self, position: u64, body: &[u8]) {
        self.0.u64(position).bytes(body);
    }

    /// Bytes so far.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it has no body.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The message's body.
    pub fn finish(self) -> Bytes {
        self.0.finish().into()
    }
}

/// Reads what [`BodiesPart`] wrote.
///
/// # Errors
/// [`Reject::Malformed`] for anything else, and for no body at all.
pub fn decode_bodies(body: &[u8]) -> Result<Vec<(u64, Bytes)>, Reject> {
    let mut d = Decoder::new(body, "bodies");
    let mut bodies = Vec::new();
    while d.remaining() > 0 {
        if bodies.len() >= MAX_NAMES {
            return Err(d.bad("too many bodies"));
        }
        let position = d.u64()?;
        let body = d.bytes(MAX_OPS_BYTES)?;
        bodies.push((position, Bytes::copy_from_slice(body)));
    }
    if bodies.is_empty() {
        return Err(d.bad("no bodies"));
    }
    Ok(bodies)
}

/// The body of a HAVE: a bit for each handle of a CSTORE, the lowest of each byte first.
pub fn encode_have(have: &[bool]) -> Bytes {
    let byte = |bits: &[bool]| {
        let bits = bits.iter().enumerate();
        bits.fold(0, |byte, (at, bit)| byte | u8::from(*bit) << at)
    };
    have.chunks(8).map(byte).collect::<Vec<u8>>().into()
}

/// Reads the answer to a CSTORE of `count` handles.
///
/// # Errors
/// [`Reject::Malformed`] for another length, and for bits beyond the last handle.
pub fn decode_have(body: &[u8], count: usize) -> Result<Vec<bool>, Reject> {
    let bad = |why| Reject::Malformed { what: "have", why };
    if body.len() != count.div_ceil(8) {
        return Err(bad("another length than was asked for"));
    }
    let bits = body
        .iter()
        .flat_map(|byte| (0..8).map(move |at| byte >> at & 1 == 1));
    let mut have: Vec<bool> = bits.collect();
    if have.split_off(count).contains(&true) {
        return Err(bad("a bit beyond the last"));
    }
    Ok(have)
}

/// Most bytes of policies in one answer. At least one comes, whatever its length.
pub const POLICIES_BYTES: usize = 1 << 20;

/// The body of a POLICIES_PART: consecutive signed policies from the number on that was asked for, as they lie in
/// files, or none. Gives as many as fit.
pub fn encode_policies<'a>(policies: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
    let mut e = Encoder::new();
    for policy in policies {
        if !e.is_empty() && e.len().saturating_add(policy.len()) > POLICIES_BYTES {
            break;
        }
        e.bytes(policy);
    }
    e.finish().into()
}

/// Reads the body of a POLICIES_PART.
///
/// # Errors
/// [`Reject::Malformed`] for anything else, and for empty policies.
pub fn decode_policies(body: &[u8]) -> Result<Vec<Bytes>, Reject> {
    let mut d = Decoder::new(body, "policies");
    let mut policies = Vec::new();
    while d.remaining() > 0 {
        let policy = d.bytes(MAX_SIGNED_BYTES)?;
        if policy.is_empty() {
            return Err(d.bad("an empty policy"));
        }
        policies.push(Bytes::copy_from_slice(policy));
    }
    Ok(policies)
}

/// The body of a CHECKPOINTS_PART: checkpoints as they were posted.
pub fn encode_checkpoints<'a>(all: impl IntoIterator<Item = &'a [u8]>) -> Bytes {
    let mut e = Encoder::new();
    for posted in all.into_iter().take(MAX_CHECKPOINTS) {
        e.bytes(posted);
    }
    e.finish().into()
}

/// Reads the body of a CHECKPOINTS_PART.
///
/// # Errors
/// [`Reject::Malformed`] for anything else, for empty checkpoints, and for too many.
pub fn decode_checkpoints(body: &[u8]) -> Result<Vec<Bytes>, Reject> {
    let mut d = Decoder::new(body, "checkpoints");
    let mut all = Vec::new();
    while d.remaining() > 0 {
        let posted = d.bytes(MAX_CHECKPOINT_BYTES)?;
        if posted.is_empty() || all.len() >= MAX_CHECKPOINTS {
            return Err(d.bad("an empty checkpoint, or too many"));
        }
        all.push(Bytes::copy_from_slice(posted));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bits_of_blocks_have_one_encoding(have in prop::collection::vec(any::<bool>(), 0..40)) {
            let body = encode_have(&have);
            prop_assert_eq!(decode_have(&body, have.len()), Ok(have.clone()));
            prop_assert!(decode_have(&body, have.len() + 8).is_err());
            if let Some(last) = body.last() && have.len() % 8 != 0 {
                let mut odd = body.to_vec();
                *odd.last_mut().unwrap() = last | 0x80;
                prop_assert!(decode_have(&odd, have.len()).is_err());
            }
        }

        #[test]
        fn bodies_come_back(bodies in prop::collection::vec(
            (any::<u64>(), prop::collection::vec(any::<u8>(), 0..50)), 1..10))
        {
            let mut part = BodiesPart::default();
            bodies.iter().for_each(|(at, body)| part.push(*at, body));
            let bytes = part.finish();
            let expected: Vec<_> = bodies.into_iter().map(|(at, body)| (at, Bytes::from(body))).collect();
            prop_assert_eq!(decode_bodies(&bytes), Ok(expected));
            prop_assert!(decode_bodies(&bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn checkpoints_come_back_and_are_bounded() {
        let posted = vec![7; MAX_CHECKPOINT_BYTES];
        let body = encode_checkpoints([&posted[..]; MAX_CHECKPOINTS + 5]);
        assert_eq!(decode_checkpoints(&body).unwrap().len(), MAX_CHECKPOINTS);
        assert_eq!(decode_checkpoints(&[]), Ok(Vec::new()));
        assert!(decode_checkpoints(&[0]).is_err() && decode_checkpoints(&[2, 7]).is_err());
        let many = [1, 7].repeat(MAX_CHECKPOINTS + 1);
        assert!(decode_checkpoints(&many).is_err());
        let mut long = Encoder::new();
        long.bytes(&vec![7; MAX_CHECKPOINT_BYTES + 1]);
        assert!(decode_checkpoints(&long.finish()).is_err());
    }

    #[test]
    fn policies_stop_where_the_answer_is_full() {
        let policy = vec![1; MAX_SIGNED_BYTES];
        let body = encode_policies([&policy[..]; 9]);
        assert_eq!(decode_policies(&body).unwrap().len(), 3);
        let long = [vec![0x81, 0x80, 0x10], vec![1; MAX_SIGNED_BYTES + 1]].concat();
        assert!(decode_policies(&long).is_err());
        assert_eq!(decode_policies(&[]), Ok(Vec::new()));
        assert!(decode_policies(&[0]).is_err());
        assert!(decode_bodies(&[]).is_err());
    }
}
