//! What programs changed of a file's content and nobody else has yet: which bytes are local, which show the base, which
//! are zeros. Holds no bytes and does no I/O: the local bytes lie in a file of this machine, at the same offsets.
//!
//! When another device has changed the file meanwhile, the changes move onto that content ([`Overlay::rebase`]), as NFS
//! does it: ranges at their offsets, appended bytes at its end. Design: *Share*, Mount, Commit.

use std::collections::BTreeMap;
use std::ops::Range;

/// Local changes over a base of a known length.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    len: u64,
    /// The base shows through before this offset. Behind it are zeros where nothing is local.
    base_len: u64,
    /// Local ranges: start and end. They do not touch one another.
    local: BTreeMap<u64, u64>,
    /// All bytes from here on were appended.
    appended: Option<u64>,
    /// A program has set the length.
    is_sized: bool,
}

/// Where the bytes of a stretch come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// The local file.
    Local,
    /// The base.
    Base,
    /// Zeros.
    Nowhere,
}

/// Bytes that a rebase moves inside of the local file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Where they were.
    pub from: Range<u64>,
    /// Where they begin now.
    pub to: u64,
}

impl Overlay {
    /// No changes yet, over a base of this length, bytes.
    pub fn over(base_len: u64) -> Overlay {
        Overlay {
            len: base_len,
            base_len,
            local: BTreeMap::new(),
            appended: None,
            is_sized: false,
        }
    }

    /// Length of the file, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing is changed.
    pub fn is_empty(&self) -> bool {
        self.local.is_empty() && !self.is_sized
    }

    /// Up to where the base shows through, bytes.
    pub fn base_len(&self) -> u64 {
        self.base_len
    }

    /// Local bytes.
    pub fn local_bytes(&self) -> u64 {
        self.local.iter().map(|(start, end)| end - start).sum()
    }

    /// A program wrote this range. What was between the end of the file and its start reads as zeros.
    pub fn write(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        // A write behind the appended bytes, or into them, does not say that it appends. What it changes has a place.
        if self.appended.is_some_and(|from| range.end > from) {
            self.appended = None;
        }
        self.put(range);
    }

    /// A program appended so many bytes. Gives their offset.
    pub fn append(&mut self, bytes: u64) -> u64 {
        let at = self.len;
        if bytes > 0 {
            self.appended.get_or_insert(at);
            self.put(at..at.saturating_add(bytes));
        }
        at
    }

    fn put(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that it meets become one with it.
        while let Some((&from, &to)) = self.local.range(..=end).next_back()
            && to >= start
        {
            self.local.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.local.insert(start, end);
        self.len = self.len.max(end);
    }

    /// A program set the length.
    pub fn truncate(&mut self, len: u64) {
        self.is_sized = true;
        self.len = len;
        self.base_len = self.base_len.min(len);
        self.take(len..u64::MAX);
        if self.appended.is_some_and(|from| from >= len) {
            self.appended = None;
        }
    }

    /// Takes a range out of the local ones.
    fn take(&mut self, range: Range<u64>) {
        let met = self.local.range(..range.end);
        let met: Vec<(u64, u64)> = met
            .map(|(from, to)| (*from, *to))
            .filter(|(_, to)| *to > range.start)
            .collect();
        for (from, to) in met {
            self.local.remove(&from);
            if from < range.start {
                self.local.insert(from, range.start);
            }
            if to > range.end {
                self.local.insert(range.end, to);
            }
        }
    }

    /// Where the bytes of the first stretch of `[offset, until)` come from, and where it ends. None at the end of the
    /// file.
    pub fn stretch(&self, offset: u64, until: u64) -> Option<(Range<u64>, From)> {
        let until = until.min(self.len);
        if offset >= until {
            return None;
        }
        let before = self.local.range(..=offset).next_back();
        if let Some((_, to)) = before.filter(|(_, to)| **to > offset) {
            return Some((offset..until.min(*to), From::Local));
        }
        let next = self.local.range(offset..).next().map(|(from, _)| *from);
        let until = until.min(next.unwrap_or(u64::MAX));
        Some(match offset < self.base_len {
            true => (offset..until.min(self.base_len), From::Base),
            false => (offset..until, From::Nowhere),
        })
    }

    /// What differs from the base, which has this length: ranges of the content as it is now, ascending. The last one
    /// is empty if only the end of the base is gone.
    pub fn changed(&self, base_len: u64) -> Vec<Range<u64>> {
        let kept = self.base_len.min(base_len);
        let mut changed: Vec<Range<u64>> = Vec::new();
        let local = self.local.iter().map(|(from, to)| *from..*to);
        for range in local.filter(|range| range.start < kept) {
            changed.push(range);
        }
        if self.len != kept || base_len != kept {
            match changed.last_mut() {
                Some(last) if last.end >= kept => last.end = self.len,
                _ => changed.push(kept..self.len),
            }
        }
        changed
    }

    /// The file has another content of this length meanwhile: the changes move onto it. Gives which local bytes move.
    pub fn rebase(&mut self, base_len: u64) -> Option<Moved> {
        if self.is_sized {
            // The program has said how long the file is.
            self.base_len = self.base_len.min(base_len);
            return None;
        }
        self.base_len = base_len;
        let Some(from) = self.appended else {
            self.len = self.end_of_local(u64::MAX).max(base_len);
            return None;
        };
        let to = self.end_of_local(from).max(base_len);
        let moved = Moved {
            from: from..self.len,
            to,
        };
        self.take(from..u64::MAX);
        self.len = to;
        let bytes = moved.from.end - moved.from.start;
        self.put(to..to.saturating_add(bytes));
        self.appended = Some(to);
        (moved.from.start != to).then_some(moved)
    }

    /// The end of the last local range that begins before this offset, and no more than the offset.
    fn end_of_local(&self, before: u64) -> u64 {
        let last = self.local.range(..before).next_back();
        last.map_or(0, |(_, to)| (*to).min(before))
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;
    use sim::random::Random;

    /// The same by vectors of bytes.
    struct Model {
        content: Vec<u8>,
        local: Vec<u8>,
    }

    fn read(overlay: &Overlay, base: &[u8], local: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        while let Some((range, from)) = overlay.stretch(out.len() as u64, u64::MAX) {
            assert!(!range.is_empty());
            let (start, end) = (range.start as usize, range.end as usize);
            match from {
                From::Local => out.extend_from_slice(&local[start..end]),
                From::Base => out.extend_from_slice(&base[start..end]),
                From::Nowhere => out.resize(end, 0),
            }
        }
        out
    }

    /// Puts what changed over the base, as a commit does.
    fn edited(overlay: &Overlay, base: &[u8], now: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for range in overlay.changed(base.len() as u64) {
            let (start, end) = (range.start as usize, range.end as usize);
            out.extend_from_slice(&base[out.len()..start.min(base.len())]);
            assert!(out.len() == start, "between the changes is the base");
            out.extend_from_slice(&now[start..end]);
        }
        let rest = out.len().min(base.len());
        if out.len() < now.len() {
            out.extend_from_slice(&base[rest..now.len()]);
        }
        out
    }

    #[test]
    fn overlay_equals_a_vector_under_random_changes() {
        let mut random = Random::new(3);
        for round in 0..400 {
            let base: Vec<u8> = (0..random.below(60)).map(|_| 1).collect();
            let mut overlay = Overlay::over(base.len() as u64);
            let mut model = Model {
                content: base.clone(),
                local: vec![9; 400],
            };
            for step in 0..12u8 {
                let start = random.below(90) as usize;
                let data = vec![step + 2; 1 + random.below(30) as usize];
                let at = match random.below(4) {
                    0 | 1 => {
                        overlay.write(start as u64..(start + data.len()) as u64);
                        start
                    }
                    2 => overlay.append(data.len() as u64) as usize,
                    _ => {
                        overlay.truncate(start as u64);
                        model.content.resize(start, 0);
                        continue;
                    }
                };
                let end = at + data.len();
                model.content.resize(model.content.len().max(end), 0);
                model.content[at..end].copy_from_slice(&data);
                model.local[at..end].copy_from_slice(&data);
            }
            let now = read(&overlay, &base, &model.local);
            assert_eq!(now, model.content, "round {round}");
            assert_eq!(overlay.len(), now.len() as u64);
            assert_eq!(edited(&overlay, &base, &now), now, "round {round}");
        }
    }

    #[test]
    fn appended_bytes_move_to_the_end_of_the_other_content() {
        let mut overlay = Overlay::over(100);
        assert_eq!(overlay.append(10), 100);
        assert_eq!(overlay.append(5), 110);
        let moved = overlay.rebase(300).unwrap();
        assert_eq!(
            moved,
            Moved {
                from: 100..115,
                to: 300
            }
        );
        assert_eq!(overlay.len(), 315);
        assert_eq!(overlay.changed(300), [300..315]);
        // And back, when that one was shorter.
        let moved = overlay.rebase(50).unwrap();
        assert_eq!(
            moved,
            Moved {
                from: 300..315,
                to: 50
            }
        );
        assert_eq!(overlay.changed(50), [50..65]);
        assert_eq!(overlay.rebase(50), None);
    }

    #[test]
    fn ranges_stay_where_they_are_and_the_rest_is_the_other_content() {
        let mut overlay = Overlay::over(100);
        overlay.write(10..20);
        overlay.write(95..120);
        overlay.append(4);
        assert_eq!(overlay.rebase(110), None);
        assert_eq!(overlay.len(), 124);
        assert_eq!(overlay.changed(110), [10..20, 95..124]);
    }

    #[test]
    fn length_that_a_program_set_holds_over_every_other_content() {
        let mut overlay = Overlay::over(100);
        overlay.truncate(0);
        overlay.write(0..7);
        assert_eq!(overlay.rebase(500), None);
        assert_eq!((overlay.len(), overlay.changed(500)), (7, vec![0..7]));
        let mut overlay = Overlay::over(100);
        overlay.truncate(40);
        assert_eq!(overlay.rebase(500), None);
        assert_eq!((overlay.len(), overlay.base_len()), (40, 40));
        assert_eq!(overlay.changed(500), [40..40]);
    }
}
