//! What the server answers, but for deliveries: bodies, which blocks are there, policies. Nothing here is verified.

use bytes::Bytes;
use trust::Reject;
use trust::encode::{Decoder, Encoder};
use trust::shared::entry::MAX_OPS_BYTES;
use trust::statement::MAX_SIGNED_BYTES;

use super::MAX_NAMES;

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
