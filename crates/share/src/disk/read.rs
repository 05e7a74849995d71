//! Leaves of the floor: most lie in the file of leaves, the last ones in the journal only.

use super::{Disk, DiskError, Placed, leaves};
use ordering::prefixes::Rfc6962;
use ordering::scheme::Leaf;
use ordering::signed::{Codec, Signed};

impl<C: Codec> Disk<C> {
    /// A leaf of the floor, with the body that came with it.
    ///
    /// # Errors
    /// [`DiskError::Damaged`].
    pub fn leaf(&self, at: u64) -> Result<Option<Leaf<Signed<C>>>, DiskError> {
        let Some(place) = at.checked_sub(self.leaves.len()) else {
            return self.leaves.get(at);
        };
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let before = self.lengths.get(..place).unwrap_or_default();
        let Some(length) = self.lengths.get(place) else {
            return Ok(None);
        };
        let start = before.iter().map(|length| *length as usize).sum::<usize>();
        let bytes = self.tail.get(start..start.saturating_add(*length as usize));
        leaves::read(bytes.unwrap_or_default(), at, &self.path).map(Some)
    }

    /// The leaves from one position on and before another, those that the floor has, ascending.
    ///
    /// # Errors
    /// [`DiskError::Damaged`].
    pub fn range(&self, from: u64, to: u64) -> Result<Vec<Placed<C>>, DiskError> {
        let mut found = Vec::new();
        let push = |at, leaf| found.push((at, leaf));
        self.leaves.each_from(from, to, push)?;
        let mut rest = self.tail.as_slice();
        for (at, length) in (self.leaves.len()..to).zip(&self.lengths) {
            let (leaf, more) = rest.split_at_checked(*length as usize).unwrap_or_default();
            if at >= from {
                found.push((at, leaves::read(leaf, at, &self.path)?));
            }
            rest = more;
        }
        Ok(found)
    }

    /// The leaves at some positions, by position.
    ///
    /// # Errors
    /// [`DiskError::Damaged`].
    pub fn leaves<M>(&self, positions: &[u64]) -> Result<M, DiskError>
    where
        M: FromIterator<(u64, Leaf<Signed<C>>)>,
    {
        let found = positions.iter().map(|at| Ok((*at, self.leaf(*at)?)));
        let found = found.filter_map(|found| match found {
            Ok((at, leaf)) => leaf.map(|leaf| Ok((at, leaf))),
            Err(error) => Some(Err(error)),
        });
        found.collect()
    }

    /// Hashes of all leaves of the floor, from [`Disk::first`] on.
    ///
    /// # Errors
    /// [`DiskError::Damaged`].
    pub fn hashes(&self) -> Result<Vec<[u8; 32]>, DiskError>
    where
        Signed<C>: Rfc6962,
    {
        let mut hashes = Vec::new();
        let push = |_, leaf: Leaf<Signed<C>>| hashes.push(Signed::<C>::leaf_hash(&leaf));
        let (first, len) = (self.leaves.first(), self.leaves.len());
        self.leaves.each_from(first, len, push)?;
        let mut rest = self.tail.as_slice();
        for (at, length) in (self.leaves.len()..).zip(&self.lengths) {
            let (leaf, more) = rest.split_at_checked(*length as usize).unwrap_or_default();
            let leaf = leaves::read(leaf, at, &self.path)?;
            hashes.push(Signed::<C>::leaf_hash(&leaf));
            rest = more;
        }
        Ok(hashes)
    }
}
