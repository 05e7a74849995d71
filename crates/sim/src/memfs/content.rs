//! Content of a sparse file: pages that exist, and holes between them. Relies on nothing.

use std::collections::BTreeMap;
use std::ops::Range;

/// Granularity of holes, bytes.
pub const PAGE_BYTES: u64 = 4096;

/// A file's bytes. Ranges without a page read as zeros; bytes of the last page beyond the size are zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Content {
    size: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Content {
    /// Length, bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Pages that take space.
    pub fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// How many pages of `range` take no space yet.
    pub fn missing_pages(&self, range: &Range<u64>) -> u64 {
        if range.is_empty() {
            return 0;
        }
        let (first, last) = (range.start / PAGE_BYTES, (range.end - 1) / PAGE_BYTES);
        last - first + 1 - self.pages.range(first..=last).count() as u64
    }

    /// Up to `len` bytes from `offset` on, fewer only at the end.
    pub fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let range = offset..offset.saturating_add(len).min(self.size);
        let mut bytes = Vec::with_capacity(range.end.saturating_sub(range.start) as usize);
        for part in parts(range) {
            match self.pages.get(&part.page) {
                Some(page) => bytes.extend_from_slice(&page[part.bytes]),
                None => bytes.resize(bytes.len() + part.bytes.len(), 0),
            }
        }
        bytes
    }

    /// Puts `data` at `offset`; the file grows to its end.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let end = offset + data.len() as u64;
        let mut rest = data;
        for part in parts(offset..end) {
            let (now, later) = rest.split_at(part.bytes.len());
            self.page(part.page)[part.bytes].copy_from_slice(now);
            rest = later;
        }
        self.size = self.size.max(end);
    }

    /// Cuts or extends with a hole.
    pub fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.punch(size..u64::MAX);
        }
        self.size = size;
    }

    /// Makes a hole; parts of pages are zeroed. The size stays.
    pub fn punch(&mut self, range: Range<u64>) {
        let (first, last) = (range.start / PAGE_BYTES, range.end / PAGE_BYTES);
        let pages: Vec<u64> = self.pages.range(first..=last).map(|(at, _)| *at).collect();
        for page in pages {
            let begin = page * PAGE_BYTES;
            let start = range.start.max(begin) - begin;
            let end = (range.end - begin).min(PAGE_BYTES);
            // Bytes of a page beyond the size need not be kept.
            if start == 0 && begin + end >= self.size.min(begin + PAGE_BYTES) {
                self.pages.remove(&page);
            } else if let Some(page) = self.pages.get_mut(&page) {
                page[start as usize..end as usize].fill(0);
            }
        }
    }

    /// Takes space for a range, and grows to its end unless `keep_size`. Bytes stay as they are.
    pub fn allocate(&mut self, range: Range<u64>, keep_size: bool) {
        let end = range.end;
        for part in parts(range) {
            self.page(part.page);
        }
        if !keep_size {
            self.size = self.size.max(end);
        }
    }

    /// First byte at or after `offset` that is in a page; `None` if none is before the end.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let (page, _) = self.pages.range(offset / PAGE_BYTES..).next()?;
        let at = offset.max(page * PAGE_BYTES);
        (at < self.size).then_some(at)
    }

    /// First byte at or after `offset` that is in no page; the end counts as a hole.
    pub fn next_hole(&self, offset: u64) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut page = offset / PAGE_BYTES;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        Some((page * PAGE_BYTES).max(offset).min(self.size))
    }

    fn page(&mut self, page: u64) -> &mut [u8] {
        self.pages
            .entry(page)
            .or_insert_with(|| vec![0; PAGE_BYTES as usize].into())
    }
}

/// The part of a range that lies in one page.
struct Part {
    page: u64,
    bytes: Range<usize>,
}

fn parts(range: Range<u64>) -> impl Iterator<Item = Part> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        if at >= range.end {
            return None;
        }
        let page = at / PAGE_BYTES;
        let start = at % PAGE_BYTES;
        let end = (range.end - page * PAGE_BYTES).min(PAGE_BYTES);
        at = page * PAGE_BYTES + end;
        Some(Part {
            page,
            bytes: start as usize..end as usize,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn content_equals_a_vector_under_random_changes() {
        let mut random = Random::new(7);
        let mut model = Vec::new();
        let mut content = Content::default();
        for step in 0..4000 {
            let start = random.below(40_000);
            let end = start + random.below(20_000);
            let (from, to) = (start as usize, end as usize);
            match random.below(5) {
                0 => {
                    let data = vec![step as u8 | 1; to - from];
                    content.write(start, &data);
                    if !data.is_empty() {
                        model.resize(model.len().max(to), 0);
                        model[from..to].copy_from_slice(&data);
                    } else {
                        model.resize(model.len().max(from), 0);
                    }
                }
                1 => {
                    content.truncate(start);
                    model.resize(from, 0);
                }
                2 => {
                    content.punch(start..end);
                    let to = to.min(model.len());
                    if from < to {
                        model[from..to].fill(0);
                    }
                }
                3 => {
                    content.allocate(start..end, true);
                }
                _ => {
                    content.allocate(start..end, false);
                    model.resize(model.len().max(to), 0);
                }
            }
            assert_eq!(content.size(), model.len() as u64, "step {step}");
            assert!(content.read(0, 1 << 20) == model, "step {step}");
            assert!(
                content
                    .pages
                    .values()
                    .all(|page| page.len() == PAGE_BYTES as usize)
            );
        }
    }

    #[test]
    fn holes_are_found_between_pages() {
        let mut content = Content::default();
        content.write(3 * PAGE_BYTES, b"data");
        content.truncate(10 * PAGE_BYTES);
        assert_eq!(content.next_data(0), Some(3 * PAGE_BYTES));
        assert_eq!(content.next_hole(0), Some(0));
        assert_eq!(content.next_hole(3 * PAGE_BYTES), Some(4 * PAGE_BYTES));
        assert_eq!(content.next_data(4 * PAGE_BYTES), None);
        assert_eq!(content.next_hole(10 * PAGE_BYTES), None);
        content.punch(0..5 * PAGE_BYTES);
        assert_eq!((content.pages(), content.next_data(0)), (0, None));
    }
}
