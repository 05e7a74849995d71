//! Sorts members into the order of the walk. Keys are sorted in runs on disk and merged; the inodes lie in
//! one spool file. Memory does not grow with the archive.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::publish_error::PublishError;

/// A run is sorted and written out when its keys take this many bytes.
const RUN_BYTES: usize = 32 << 20;
/// What a row takes besides its key, bytes.
const ROW_BYTES: usize = 48;
const BELOW: u8 = 1;
const ENTRY: u8 = 2;
const DIRECTORY: u8 = 3;

/// A place in the tree, encoded so that bytes compare in the order of the walk: sub-directories, then
/// the other entries, then the directory itself; each by the bytes of its name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(Vec<u8>);

impl Place {
    /// A directory; the top has no components.
    pub(crate) fn directory(components: &[&[u8]]) -> Place {
        let mut key = Vec::new();
        for name in components {
            key.push(BELOW);
            key.extend_from_slice(name);
            key.push(0);
        }
        key.push(DIRECTORY);
        Place(key)
    }

    /// Anything else.
    pub(crate) fn entry(components: &[&[u8]]) -> Place {
        let Some((name, above)) = components.split_last() else {
            return Place::directory(components);
        };
        let Place(mut key) = Place::directory(above);
        key.pop();
        key.push(ENTRY);
        key.extend_from_slice(name);
        key.push(0);
        Place(key)
    }

    /// The names of the directories above, and the entry's name if it is not a directory.
    pub(crate) fn components(&self) -> (Vec<&[u8]>, Option<&[u8]>) {
        let mut above = Vec::new();
        let mut rest = self.0.as_slice();
        while let Some((kind, tail)) = rest.split_first() {
            let end = tail.iter().position(|b| *b == 0).unwrap_or(tail.len());
            let (name, after) = tail.split_at(end);
            match *kind {
                BELOW => above.push(name),
                ENTRY => return (above, Some(name)),
                _ => break,
            }
            rest = after.get(1..).unwrap_or_default();
        }
        (above, None)
    }
}

/// One member at its place: its number in the archive, and the offset of its inode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Row {
    pub place: Place,
    /// Counts up along the archive.
    pub number: u64,
    /// Offset in the spool.
    pub at: u64,
}

fn failed(source: std::io::Error) -> PublishError {
    PublishError::Spool(source)
}

/// Takes rows in any order.
pub(crate) struct Sorter {
    directory: PathBuf,
    rows: Vec<Row>,
    bytes: usize,
    runs: Vec<File>,
}

impl Sorter {
    /// Keeps its runs in unnamed files under `directory`.
    pub(crate) fn new(directory: &Path) -> Sorter {
        Sorter {
            directory: directory.to_owned(),
            rows: Vec::new(),
            bytes: 0,
            runs: Vec::new(),
        }
    }

    pub(crate) fn push(&mut self, row: Row) -> Result<(), PublishError> {
        self.bytes += row.place.0.len() + ROW_BYTES;
        self.rows.push(row);
        if self.bytes > RUN_BYTES {
            self.end_run()?;
        }
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), PublishError> {
        self.rows.sort_unstable();
        let file = tempfile::tempfile_in(&self.directory).map_err(failed)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        for row in self.rows.drain(..) {
            let len = row.place.0.len() as u32;
            let write = |out: &mut BufWriter<File>| -> std::io::Result<()> {
                out.write_all(&len.to_le_bytes())?;
                out.write_all(&row.number.to_le_bytes())?;
                out.write_all(&row.at.to_le_bytes())?;
                out.write_all(&row.place.0)
            };
            write(&mut out).map_err(failed)?;
        }
        self.bytes = 0;
        let mut file = out.into_inner().map_err(|e| failed(e.into_error()))?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        self.runs.push(file);
        Ok(())
    }

    /// All rows in order; of several with one place the last of the archive.
    pub(crate) fn merge(mut self) -> Result<Merge, PublishError> {
        self.rows.sort_unstable();
        let files = self.runs.into_iter();
        let mut runs: Vec<Run> = files.map(|f| Run::File(BufReader::new(f))).collect();
        runs.push(Run::Memory(self.rows.into_iter()));
        let mut merge = Merge {
            heap: BinaryHeap::new(),
            runs,
        };
        for index in 0..merge.runs.len() {
            merge.advance(index)?;
        }
        Ok(merge)
    }
}

enum Run {
    File(BufReader<File>),
    Memory(std::vec::IntoIter<Row>),
}

impl Run {
    fn next(&mut self) -> Result<Option<Row>, PublishError> {
        let file = match self {
            Run::Memory(rows) => return Ok(rows.next()),
            Run::File(file) => file,
        };
        let mut head = [0; 20];
        match file.read_exact(&mut head) {
            Ok(()) => {}
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(e) => return Err(failed(e)),
        }
        let [a, b, c, d, rest @ ..] = head;
        let (number, at) = rest.split_at(8);
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word.copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        let mut place = vec![0; u32::from_le_bytes([a, b, c, d]) as usize];
        file.read_exact(&mut place).map_err(failed)?;
        Ok(Some(Row {
            place: Place(place),
            number: word(number),
            at: word(at),
        }))
    }
}

/// Rows in order.
pub(crate) struct Merge {
    heap: BinaryHeap<Reverse<(Row, usize)>>,
    runs: Vec<Run>,
}

impl Merge {
    fn advance(&mut self, index: usize) -> Result<(), PublishError> {
        if let Some(run) = self.runs.get_mut(index)
            && let Some(row) = run.next()?
        {
            self.heap.push(Reverse((row, index)));
        }
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Result<Option<Row>, PublishError> {
        loop {
            let Some(Reverse((row, index))) = self.heap.pop() else {
                return Ok(None);
            };
            self.advance(index)?;
            let again = self.heap.peek();
            if again.is_none_or(|Reverse((next, _))| next.place != row.place) {
                return Ok(Some(row));
            }
        }
    }
}

/// Encoded inodes, one after another, in an unnamed file.
pub(crate) struct Spool {
    out: BufWriter<File>,
    len: u64,
}

impl Spool {
    pub(crate) fn new(directory: &Path) -> Result<Spool, PublishError> {
        let file = tempfile::tempfile_in(directory).map_err(failed)?;
        Ok(Spool {
            out: BufWriter::with_capacity(1 << 20, file),
            len: 0,
        })
    }

    /// Appends `bytes`; gives their offset.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<u64, PublishError> {
        let at = self.len;
        let len = bytes.len() as u32;
        self.out.write_all(&len.to_le_bytes()).map_err(failed)?;
        self.out.write_all(bytes).map_err(failed)?;
        self.len += 4 + bytes.len() as u64;
        Ok(at)
    }

    /// Ends writing, so that it can be read.
    pub(crate) fn finish(self) -> Result<Spooled, PublishError> {
        let file = self.out.into_inner().map_err(|e| failed(e.into_error()))?;
        Ok(Spooled(file))
    }
}

/// A spool that is full.
pub(crate) struct Spooled(File);

impl Spooled {
    pub(crate) fn read(&self, at: u64) -> Result<Vec<u8>, PublishError> {
        let mut len = [0; 4];
        self.0.read_exact_at(&mut len, at).map_err(failed)?;
        let mut bytes = vec![0; u32::from_le_bytes(len) as usize];
        self.0.read_exact_at(&mut bytes, at + 4).map_err(failed)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn components(path: &str) -> Vec<&[u8]> {
        path.split('/')
            .filter(|n| !n.is_empty())
            .map(str::as_bytes)
            .collect()
    }

    #[test]
    fn places_compare_in_the_order_of_the_walk() {
        let mut places: Vec<(Place, &str)> = ["m", "a.txt", "b/z", "b/c/M", "ab", "a"]
            .map(|path| (Place::entry(&components(path)), path))
            .into();
        for path in ["", "b", "b/c", "a-dir", "a"] {
            places.push((Place::directory(&components(path)), path));
        }
        places.sort();
        let order: Vec<&str> = places.iter().map(|(_, path)| *path).collect();
        let walk = [
            "a", "a-dir", "b/c/M", "b/c", "b/z", "b", "a", "a.txt", "ab", "m", "",
        ];
        assert_eq!(order, walk);
        for (place, path) in &places {
            let (mut above, name) = place.components();
            above.extend(name);
            assert_eq!(above, components(path));
        }
    }

    #[test]
    fn runs_on_disk_merge_and_the_last_of_a_place_stays() {
        let directory = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(directory.path());
        let mut number = 0;
        for round in 0..3 {
            for i in (0..1000u64).rev() {
                let name = format!("{:04}", (i * 7 + round) % 1000);
                let place = Place::entry(&[b"dir", name.as_bytes()]);
                number += 1;
                let at = number;
                sorter.push(Row { place, number, at }).unwrap();
            }
            if round < 2 {
                sorter.end_run().unwrap();
            }
        }
        let mut merge = sorter.merge().unwrap();
        let mut rows = Vec::new();
        while let Some(row) = merge.next().unwrap() {
            rows.push(row);
        }
        assert_eq!(rows.len(), 1000);
        assert!(rows.iter().all(|row| row.number > 2000), "the last round's");
        assert!(rows.is_sorted_by(|a, b| a.place < b.place));
    }
}
