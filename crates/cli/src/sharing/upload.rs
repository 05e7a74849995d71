//! Content of files on its way into a shared volume: cut, hashed, packed, and put into a sink. Memory is bounded,
//! whatever the length of the file. Relies on [`publish::chunk`], so a file has the same blocks as when it is published.

use std::cell::RefCell;
use std::io::Read;

use bytes::Bytes;
use publish::chunk::{Chunker, Piece};
use store::BlockSink;
use trust::array::{ArrayRoot, Builder, Extent};
use trust::frame::Packer;
use trust::inode::{FileContent, MAX_INLINE_BYTES};
use trust::{ArrayNode, BlockKind, Data, Hasher, Record, Reject};

use crate::failure::{Failure, Kind, Outcome};

/// Content that is read at a time, bytes.
const READ_BYTES: usize = 1 << 20;
/// Packed blocks that wait until they are put together, bytes.
const BATCH_BYTES: usize = 1 << 20;

/// Puts content of files into a sink.
pub struct Upload<'a> {
    hasher: &'a Hasher,
    sink: &'a dyn BlockSink,
    packer: Packer,
}

impl<'a> Upload<'a> {
    /// Names blocks by the volume's hash function.
    pub fn new(hasher: &'a Hasher, sink: &'a dyn BlockSink) -> Upload<'a> {
        Upload {
            hasher,
            sink,
            packer: Packer::new(),
        }
    }

    /// Puts what `from` gives until its end. `told` gets the number of bytes so far.
    ///
    /// # Errors
    /// `unreadable` of an error of `from`; those of the sink.
    pub async fn content(
        &mut self,
        mut from: impl Read,
        unreadable: impl Fn(&std::io::Error) -> Failure,
        mut told: impl FnMut(u64),
    ) -> Outcome<FileContent> {
        let mut first = Vec::with_capacity(READ_BYTES);
        let read = |from: &mut dyn Read, buffer: &mut Vec<u8>| {
            buffer.clear();
            let read = from.take(READ_BYTES as u64).read_to_end(buffer);
            read.map_err(|e| unreadable(&e))
        };
        if read(&mut from, &mut first)? <= MAX_INLINE_BYTES {
            told(first.len() as u64);
            return Ok(match first.is_empty() {
                true => FileContent::Empty,
                false => FileContent::Inline(first.into()),
            });
        }
        let nodes = RefCell::new(Vec::new());
        let keep = |_, node: &Bytes| nodes.borrow_mut().push(node.clone());
        let mut builder = Builder::new(self.hasher, keep);
        let (mut chunker, mut records, mut bytes) = (Chunker::new(), Vec::new(), 0);
        let mut buffer = first;
        loop {
            let mut emit = |piece: Piece<'_>| {
                let extent = match piece {
                    Piece::Hole(len) => Extent::Hole { len },
                    Piece::Data(plain) => Extent::Data {
                        handle: self.block::<Data>(plain, &mut records)?,
                        len: plain.len() as u32,
                    },
                };
                builder.push(extent)
            };
            let ended = buffer.is_empty();
            match ended {
                true => chunker.finish(&mut emit),
                false => chunker.push(&buffer, &mut emit),
            }
            .map_err(|why| defect(&why))?;
            bytes += buffer.len() as u64;
            for node in nodes.take() {
                let named = self.block::<ArrayNode>(&node, &mut records);
                named.map_err(|why| defect(&why))?;
            }
            if records.iter().map(Record::len).sum::<usize>() >= BATCH_BYTES {
                self.sink.put(&records).await?;
                records.clear();
            }
            told(bytes);
            if ended {
                break;
            }
            read(&mut from, &mut buffer)?;
        }
        let root = builder.finish().map_err(|why| defect(&why))?;
        self.end(root, nodes.take(), records).await
    }

    /// Puts the last blocks: the nodes at the top of the tree come last.
    async fn end(
        &mut self,
        root: Option<ArrayRoot>,
        nodes: Vec<Bytes>,
        mut records: Vec<Record>,
    ) -> Outcome<FileContent> {
        for node in nodes {
            let named = self.block::<ArrayNode>(&node, &mut records);
            named.map_err(|why| defect(&why))?;
        }
        self.sink.put(&records).await?;
        Ok(root.map_or(FileContent::Empty, FileContent::Array))
    }

    /// Names and packs one block.
    fn block<K: BlockKind>(
        &mut self,
        plain: &[u8],
        records: &mut Vec<Record>,
    ) -> Result<trust::Handle<K>, Reject> {
        let handle = self.hasher.handle::<K>(plain);
        records.push(Record {
            handle: handle.any(),
            frame: self.packer.pack(K::KIND, plain)?,
        });
        Ok(handle)
    }
}

/// The format refuses what this program has made itself.
fn defect(why: &Reject) -> Failure {
    Failure::of(Kind::Defect, "a file cannot be cut into blocks", why)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use reader::{Blocks, Fetch, Prefetcher, Spawner, Tree};
    use sim::random::noise;
    use store::memory::MemoryStore;
    use store::mirrors::Mirrors;
    use trust::inode::{Content, Inode, Mtime};

    use super::*;

    fn unreadable(error: &std::io::Error) -> Failure {
        Failure::io("cannot read", error)
    }

    fn contents(hasher: &Hasher, store: &Arc<MemoryStore>) -> Tree {
        let mirrors = Arc::new(Mirrors::new(vec![store.clone()]));
        let blocks = Arc::new(Blocks::new(hasher.clone(), mirrors, 64 << 20, None));
        Tree::of_contents(Prefetcher::new(blocks, Spawner::none()))
    }

    #[tokio::test]
    async fn content_comes_back_whatever_its_length() {
        let mut sparse = noise(1, 3 << 20);
        sparse[100_000..2_500_000].fill(0);
        let hasher = Hasher::new(&[7; 32]);
        let store = Arc::new(MemoryStore::new("server"));
        for content in [
            noise(2, 0),
            noise(2, 1),
            noise(2, MAX_INLINE_BYTES),
            noise(2, MAX_INLINE_BYTES + 1),
            noise(2, READ_BYTES),
            noise(2, (5 << 20) + 7),
            vec![0; 3 << 20],
            sparse,
        ] {
            let mut upload = Upload::new(&hasher, store.as_ref());
            let mut counted = 0;
            let uploaded = upload.content(&*content, unreadable, |bytes| counted = bytes);
            let uploaded = Content::Regular(uploaded.await.unwrap());
            assert_eq!(counted, content.len() as u64);
            assert_eq!(uploaded.size(), content.len() as u64);
            let how = Fetch::Until(Instant::now() + Duration::from_secs(30));
            let tree = contents(&hasher, &store);
            let file = Inode::new(0o644, Mtime::default(), uploaded);
            let read = tree.read(&file, 0, content.len() + 1, how).await.unwrap();
            assert!(read.concat() == content, "{} bytes", content.len());
        }
    }

    #[tokio::test]
    async fn unreadable_content_is_an_error_and_no_short_file() {
        struct Failing(usize);
        impl Read for Failing {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let len = buffer.len().min(self.0);
                self.0 -= len;
                match len {
                    0 => Err(std::io::Error::from_raw_os_error(5)),
                    _ => Ok(len),
                }
            }
        }
        let (hasher, store) = (Hasher::new(&[7; 32]), MemoryStore::new("server"));
        for len in [0, 100, READ_BYTES, 3 * READ_BYTES + 1] {
            let mut upload = Upload::new(&hasher, &store);
            let failed = upload.content(Failing(len), unreadable, |_| {}).await;
            assert_eq!(failed.unwrap_err().kind, Kind::System, "{len}");
        }
    }
}
