//! The policies by which earlier records are read and which the head does not carry. The replica is asked for them by
//! number. Each policy names the hash of the one before it, so a reader that has verified the newest ones needs no
//! signatures to go back.

use std::collections::BTreeMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use reader::ReadError;
use store::object::ObjectName;
use trust::Reject;
use trust::chain::Link;
use trust::earlier::Leaf;
use trust::floor::Floor;
use trust::signatures::Signatures;
use trust::statement::{MAX_SIGNED_BYTES, Signed};

use super::History;
use crate::error::VolumeError;

/// Policies that are asked for at once.
const POLICIES_AT_ONCE: usize = 16;
/// Fetched policies that are kept.
const MAX_LINKS: usize = 256;

/// The policies that were fetched because the head does not carry them.
#[derive(Default)]
pub(super) struct Policies {
    /// The hash of each, as the next one names it.
    hashes: BTreeMap<u64, [u8; 32]>,
    /// Some of them.
    links: BTreeMap<u64, Arc<Link>>,
}

impl History {
    fn policies(&self) -> MutexGuard<'_, Policies> {
        let locked = self.policies.lock();
        locked.unwrap_or_else(PoisonError::into_inner)
    }

    /// The policy of the chain with this number; `None` for a later one than the newest. One that the head does not
    /// carry is fetched: each policy names the hash of the one before it.
    pub(super) async fn link(&self, number: u64) -> Result<Option<Arc<Link>>, VolumeError> {
        let chain = &self.offer.chain;
        if number >= chain.len() {
            return Ok(None);
        }
        if let Some(link) = chain.link(number) {
            return Ok(Some(Arc::new(link.clone())));
        }
        if let Some(link) = self.policies().links.get(&number) {
            return Ok(Some(link.clone()));
        }
        let highest = self.highest_unknown(number);
        let ask = |number| async move { (number, self.policy(number).await) };
        let numbers = (number..=highest).rev();
        let mut answers = stream::iter(numbers).map(ask).buffered(POLICIES_AT_ONCE);
        let mut found = None;
        while let Some((number, answer)) = answers.next().await {
            let link = Arc::new(self.next_below(number, answer?)?);
            found = Some(link);
        }
        Ok(found)
    }

    /// The highest policy that must be fetched to know the hash of this one.
    fn highest_unknown(&self, number: u64) -> u64 {
        let policies = self.policies();
        if policies.hashes.contains_key(&number) {
            return number;
        }
        let lowest = policies.hashes.keys().next().copied();
        lowest.unwrap_or(self.offer.chain.oldest().saturating_sub(1))
    }

    /// A policy from the replica, of which only the form is checked.
    async fn policy(&self, number: u64) -> Result<Signed, VolumeError> {
        let what = || format!("policy {number}");
        let missing =
            || VolumeError::unavailable(what(), format!("{} does not have it", self.place()));
        let bytes = self
            .object(ObjectName::Policy(number), MAX_SIGNED_BYTES)
            .await;
        let bytes = bytes.map_err(|e| VolumeError::from_store(what(), &e))?;
        let signed = Signed::from_bytes(&bytes.ok_or_else(missing)?);
        signed.map_err(|why| self.integrity(what(), why))
    }

    /// The policies after the genesis and before number `end`, of which only the form is checked.
    pub(crate) async fn policies_before(&self, end: u64) -> Result<Vec<Signed>, VolumeError> {
        let ask = |number| async move { self.policy(number).await };
        let answers = stream::iter(1..end).map(ask).buffered(POLICIES_AT_ONCE);
        answers.try_collect().await
    }

    /// Verifies the policies that the replica keeps beside its head, in their order, as a newcomer would.
    ///
    /// # Errors
    /// [`VolumeError::Read`] (integrity) for one that is not the next one, (unavailable) for a missing one.
    pub async fn verify_policies(&self, deadline: Instant) -> Result<(), VolumeError> {
        let verified = tokio::time::timeout_at(deadline.into(), self.policies_in_order());
        verified.await.unwrap_or_else(|_| Err(self.too_slow()))
    }

    async fn policies_in_order(&self) -> Result<(), VolumeError> {
        let mut signatures = Signatures::default();
        let mut known = Floor::new(self.volume());
        let ask = |number| async move { (number, self.policy(number).await) };
        let mut answers = stream::iter(0..self.head.begins())
            .map(ask)
            .buffered(POLICIES_AT_ONCE);
        while let Some((number, answer)) = answers.next().await {
            let next = known.after(&answer?, &mut signatures);
            known = next.map_err(|why| self.integrity(format!("policy {number}"), why))?;
        }
        let connected = known.known_chain(&self.head, &mut signatures);
        let wrong = |why| self.integrity("the policies before the head".to_owned(), why);
        connected.map(drop).map_err(wrong)
    }

    /// Takes a policy if it is the one that the next one names.
    fn next_below(&self, number: u64, signed: Signed) -> Result<Link, VolumeError> {
        let wrong = |why| self.integrity(format!("policy {number}"), why);
        let mut policies = self.policies();
        let known = policies.hashes.get(&number).copied();
        let chain = &self.offer.chain;
        let first = || chain.link(number.checked_add(1)?)?.previous();
        if Some(signed.hash()) != known.or_else(first) {
            return Err(wrong(Reject::NotSigned(
                "another policy than the next one names",
            )));
        }
        let link = Link::read(self.volume(), &signed).map_err(wrong)?;
        policies.hashes.insert(number, link.hash);
        if let (Some(before), Some(previous)) = (number.checked_sub(1), link.previous()) {
            policies.hashes.insert(before, previous);
        }
        if policies.links.len() >= MAX_LINKS {
            policies.links.clear();
        }
        policies.links.insert(number, Arc::new(link.clone()));
        Ok(link)
    }

    fn integrity(&self, what: String, why: Reject) -> VolumeError {
        let place = self.place().to_owned();
        ReadError::Integrity { place, what, why }.into()
    }

    /// What a leaf says, or why it is not believed.
    pub(super) async fn read(&self, signed: &Signed) -> Result<Result<Leaf, Reject>, VolumeError> {
        let number = match Leaf::policy_number(signed, self.volume()) {
            Ok(number) => number,
            Err(why) => return Ok(Err(why)),
        };
        let Some(policy) = self.link(number).await? else {
            return Ok(Err(Reject::NotSigned("a leaf under an unknown policy")));
        };
        Ok(Leaf::read(
            signed,
            self.volume(),
            &policy,
            &mut self.signatures(),
        ))
    }
}
