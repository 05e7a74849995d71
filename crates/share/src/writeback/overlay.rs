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
    local: Ranges,
    /// Ranges that were made zeros.
    zeros: Ranges,
    /// All bytes from here on were appended.
    appended: Option<u64>,
    /// The shortest length that a program set, if it was shorter than the content then.
    cut: Option<u64>,
    /// The longest length that a program set otherwise.
    extended: u64,
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
            local: Ranges::default(),
            zeros: Ranges::default(),
            appended: None,
            cut: None,
            extended: 0,
        }
    }

    /// Length of the file, bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Up to where the base shows through, bytes.
    pub fn base_len(&self) -> u64 {
        self.base_len
    }

    /// The local ranges, ascending.
    pub fn local(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.local.iter()
    }

    /// Local bytes.
    pub fn local_bytes(&self) -> u64 {
        self.local.iter().map(|range| range.end - range.start).sum()
    }

    /// A program wrote this range. What was between the end of the file and its start reads as zeros.
    pub fn write(&mut self, range: Range<u64>) {
        self.has_place(&range);
        self.put(range);
    }

    /// A program made this range zeros, which is no longer than the file.
    pub fn zero(&mut self, range: Range<u64>) {
        let range = range.start..range.end.min(self.len);
        if range.is_empty() {
            return;
        }
        self.has_place(&range);
        self.local.take(&range);
        self.zeros.put(range);
    }

    /// A program that writes into the appended bytes, or behind them, names an offset: they stay at theirs from now on.
    fn has_place(&mut self, range: &Range<u64>) {
        if self.appended.is_some_and(|from| range.end > from) && !range.is_empty() {
            self.appended = None;
        }
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
        if range.is_empty() {
            return;
        }
        self.len = self.len.max(range.end);
        self.zeros.take(&range);
        self.local.put(range);
    }

    /// A program set the length.
    pub fn truncate(&mut self, len: u64) {
        match len {
            // What was appended is not the end any more.
            _ if len > self.len => {
                self.extended = self.extended.max(len);
                self.appended = None;
            }
            // The length that the file has says nothing; that it is empty replaces what others wrote.
            _ if len == self.len && len > 0 => {}
            _ => self.cut = Some(self.cut.map_or(len, |cut| cut.min(len))),
        }
        self.len = len;
        self.base_len = self.base_len.min(len);
        self.local.take(&(len..u64::MAX));
        self.zeros.take(&(len..u64::MAX));
        if self.appended.is_some_and(|from| from >= len) {
            self.appended = None;
        }
    }

    /// Where the bytes of the first stretch of `[offset, until)` come from, and where it ends. None at the end of the
    /// file.
    pub fn stretch(&self, offset: u64, until: u64) -> Option<(Range<u64>, From)> {
        let until = until.min(self.len);
        if offset >= until {
            return None;
        }
        if let Some(end) = self.local.end_at(offset) {
            return Some((offset..until.min(end), From::Local));
        }
        let until = until.min(self.local.next(offset));
        if let Some(end) = self.zeros.end_at(offset) {
            return Some((offset..until.min(end), From::Nowhere));
        }
        let until = until.min(self.zeros.next(offset));
        Some(match offset < self.base_len {
            true => (offset..until.min(self.base_len), From::Base),
            false => (offset..until, From::Nowhere),
        })
    }

    /// What differs from the base, which has this length: ranges of the content as it is now, ascending. The last one
    /// is empty if only the end of the base is gone.
    pub fn changed(&self, base_len: u64) -> Vec<Range<u64>> {
        let kept = self.base_len.min(base_len);
        let mut all = self.local.clone();
        self.zeros.iter().for_each(|range| all.put(range));
        let before = all.iter().filter(|range| range.start < kept);
        let mut changed: Vec<Range<u64>> = before.collect();
        if self.len != kept || base_len != kept {
            match changed.last_mut() {
                Some(last) if last.end >= kept => last.end = self.len,
                _ => changed.push(kept..self.len),
            }
        }
        changed
    }

    /// The file has another content of this length meanwhile: the changes move onto it. Gives which bytes move.
    pub fn rebase(&mut self, base_len: u64) -> Option<Moved> {
        if let Some(cut) = self.cut {
            // The program has said how long the file is.
            self.base_len = base_len.min(cut).min(self.len);
            return None;
        }
        self.base_len = base_len;
        let end = |before| {
            let ends = [&self.local, &self.zeros].map(|ranges| ranges.end_before(before));
            ends.into_iter().fold(base_len.max(self.extended), u64::max)
        };
        let Some(from) = self.appended else {
            self.len = end(u64::MAX);
            return None;
        };
        let to = end(from);
        let moved = Moved {
            from: from..self.len,
            to,
        };
        self.local.take(&(from..u64::MAX));
        self.len = to;
        let bytes = moved.from.end - moved.from.start;
        self.put(to..to.saturating_add(bytes));
        self.appended = Some(to);
        (moved.from.start != to).then_some(moved)
    }
}

/// Ranges that do not touch one another: start and end.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(start, end)| *start..*end)
    }

    /// Adds a range. Those that it meets become one with it.
    fn put(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&from, &to)) = self.0.range(..=end).next_back()
            && to >= start
        {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
    }

    /// Takes a range out.
    fn take(&mut self, range: &Range<u64>) {
        while let Some((&from, &to)) = self.0.range(..range.end).next_back()
            && to > range.start
        {
            self.0.remove(&from);
            if to > range.end {
                self.0.insert(range.end, to);
            }
            if from < range.start {
                self.0.insert(from, range.start);
                return;
            }
        }
    }

    /// The end of the range that has this offset.
    fn end_at(&self, offset: u64) -> Option<u64> {
        let before = self.0.range(..=offset).next_back();
        before.map(|(_, end)| *end).filter(|end| *end > offset)
    }

    /// Where the next range begins.
    fn next(&self, offset: u64) -> u64 {
        let next = self.0.range(offset..).next();
        next.map_or(u64::MAX, |(from, _)| *from)
    }

    /// The end of the last range that begins before this offset, and no more than the offset.
    fn end_before(&self, offset: u64) -> u64 {
        let last = self.0.range(..offset).next_back();
        last.map_or(0, |(_, to)| (*to).min(offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sim::random::Random;

    /// The same by vectors of bytes.
    struct Model {
        content: Vec<u8>,
        local: Vec<u8>,
    }

    /// One range as a list.
    fn only(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
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
                let at = match random.below(5) {
                    4 => {
                        let end = (start + data.len()).min(model.content.len());
                        overlay.zero(start as u64..(start + data.len()) as u64);
                        if start < end {
                            model.content[start..end].fill(0);
                        }
                        continue;
                    }
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
        assert_eq!(overlay.changed(300), only(300..315));
        // And back, when that one was shorter.
        let moved = overlay.rebase(50).unwrap();
        assert_eq!(
            moved,
            Moved {
                from: 300..315,
                to: 50
            }
        );
        assert_eq!(overlay.changed(50), only(50..65));
        assert_eq!(overlay.rebase(50), None);
    }

    #[test]
    fn setting_the_length_that_a_file_has_changes_nothing_of_its_appends() {
        let mut overlay = Overlay::over(100);
        overlay.append(10);
        overlay.truncate(110);
        assert_eq!(overlay.rebase(100), None);
        assert_eq!((overlay.len(), overlay.changed(100)), (110, only(100..110)));
        // Made longer: what was appended has its place then.
        let mut overlay = Overlay::over(100);
        overlay.append(10);
        overlay.truncate(200);
        assert_eq!(overlay.rebase(300), None);
        assert_eq!((overlay.len(), overlay.changed(300)), (300, only(100..110)));
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

    /// A rebase keeps the number of local bytes: the local file has no others.
    #[test]
    fn rebase_makes_no_bytes_local() {
        let mut random = Random::new(17);
        for round in 0..2000 {
            let mut overlay = Overlay::over(random.below(60));
            for _ in 0..1 + random.below(6) {
                let start = random.below(90);
                match random.below(4) {
                    0 => overlay.write(start..start + 1 + random.below(30)),
                    1 => drop(overlay.append(1 + random.below(30))),
                    2 => overlay.zero(start..start + random.below(30)),
                    _ => overlay.truncate(start),
                }
            }
            let before = overlay.clone();
            let base_len = random.below(120);
            let moved = overlay.rebase(base_len);
            assert_eq!(
                overlay.local_bytes(),
                before.local_bytes(),
                "round {round}: {before:?}"
            );
            assert!(
                overlay.base_len() <= base_len.min(overlay.len()),
                "round {round}"
            );
            if let Some(moved) = moved {
                let end = moved.from.end;
                assert!(
                    before.local().any(|range| range.end == end),
                    "round {round}"
                );
            }
            // Another one with the same base changes nothing.
            let again = overlay.clone();
            assert_eq!(overlay.rebase(base_len), None, "round {round}");
            assert_eq!(overlay, again, "round {round}");
        }
    }

    #[test]
    fn file_that_was_made_longer_keeps_what_others_appended() {
        let mut overlay = Overlay::over(100);
        overlay.truncate(4096);
        assert_eq!(overlay.rebase(110), None);
        assert_eq!((overlay.len(), overlay.base_len()), (4096, 110));
        overlay.write(0..5);
        assert_eq!(overlay.rebase(9000), None);
        assert_eq!((overlay.len(), overlay.base_len()), (9000, 9000));
        assert_eq!(overlay.changed(9000), only(0..5));
    }

    #[test]
    fn length_that_a_program_set_holds_over_every_other_content() {
        let mut overlay = Overlay::over(100);
        overlay.truncate(0);
        overlay.write(0..7);
        assert_eq!(overlay.rebase(500), None);
        assert_eq!((overlay.len(), overlay.changed(500)), (7, only(0..7)));
        let mut overlay = Overlay::over(0);
        overlay.truncate(0);
        overlay.write(0..7);
        assert_eq!(overlay.rebase(500), None);
        assert_eq!(overlay.len(), 7);
        let mut overlay = Overlay::over(100);
        overlay.truncate(40);
        assert_eq!(overlay.rebase(500), None);
        assert_eq!((overlay.len(), overlay.base_len()), (40, 40));
        assert_eq!(overlay.changed(500), only(40..40));
    }
}
