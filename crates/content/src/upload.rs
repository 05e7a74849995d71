//! Content of files on its way into a shared volume: cut, hashed, packed, and put into a sink. Memory is bounded,
//! whatever the length of the file. Cut by [`crate::chunk`], so a file has the same blocks in every volume.

use std::cell::RefCell;

use bytes::Bytes;
use store::{BlockSink, BoxFuture, StoreError};
use trust::array::{ArrayRoot, Builder, Extent};
use trust::inode::{FileContent, MAX_INLINE_BYTES};
use trust::{ArrayNode, BlockKind, Data, Handle, Hasher, Record, Reject};

use crate::blocks::Blocks;
use crate::chunk::{Chunker, Piece};
use crate::source::{Piece as Read, Source};

/// Packed blocks that wait until they are put together, bytes.
const BATCH_BYTES: usize = 1 << 20;

/// A sink for who only wants to know the blocks that content has.
#[derive(Debug)]
pub struct Nowhere;

impl BlockSink for Nowhere {
    fn put<'a>(&'a self, _: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }

    fn touch<'a>(&'a self, _: &'a [Handle]) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        Box::pin(async { Ok(Vec::new()) })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(async { Ok(()) })
    }
}

/// Why content is not in the sink.
#[derive(Debug, thiserror::Error)]
pub enum UploadError {
    /// It cannot be read.
    #[error("the content cannot be read: {0}")]
    Read(std::io::Error),
    /// The sink did not take it.
    #[error(transparent)]
    Sink(#[from] StoreError),
    /// The format refuses a block that was cut here: a defect of this program.
    #[error("the content cannot be cut into blocks: {0}")]
    Defect(#[from] Reject),
}

/// Puts content of files into a sink.
pub struct Upload<'a> {
    sink: &'a dyn BlockSink,
    blocks: Blocks<'a>,
}

impl<'a> Upload<'a> {
    /// Names blocks by the volume's hash function.
    pub fn new(hasher: &'a Hasher, sink: &'a dyn BlockSink) -> Upload<'a> {
        Upload {
            sink,
            blocks: Blocks::new(hasher),
        }
    }

    /// Puts what `from` gives until its end. `told` gets the number of bytes so far.
    ///
    /// # Errors
    /// [`UploadError`].
    pub async fn content(
        &mut self,
        mut from: impl Source,
        mut told: impl FnMut(u64),
    ) -> Result<FileContent, UploadError> {
        let mut buffer = Vec::new();
        // What an inode can hold is kept until it is known whether more follows.
        let mut short = Vec::new();
        let mut next = loop {
            let next = from.next(&mut buffer).map_err(UploadError::Read)?;
            let len = match next {
                Read::End => {
                    told(short.len() as u64);
                    return Ok(match short.is_empty() {
                        true => FileContent::Empty,
                        false => FileContent::Inline(short.into()),
                    });
                }
                Read::Bytes => buffer.len() as u64,
                Read::Hole(len) => len,
            };
            if len.saturating_add(short.len() as u64) > MAX_INLINE_BYTES as u64 {
                break next;
            }
            match next {
                Read::Bytes => short.append(&mut buffer),
                _ => short.resize(short.len() + len as usize, 0),
            }
        };
        let nodes = RefCell::new(Vec::new());
        let keep = |_, node: &Bytes| nodes.borrow_mut().push(node.clone());
        let mut builder = Builder::new(self.blocks.hasher(), keep);
        let (mut chunker, mut records) = (Chunker::new(), Vec::new());
        let mut bytes = short.len() as u64;
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
            let cut = match std::mem::take(&mut short) {
                first if first.is_empty() => Ok(()),
                first => chunker.push(&first, &mut emit),
            };
            let cut = cut.and_then(|()| match next {
                Read::End => chunker.finish(&mut emit),
                Read::Bytes => chunker.push(&buffer, &mut emit),
                Read::Hole(len) => {
                    chunker.push_zeros(len);
                    Ok(())
                }
            });
            cut?;
            bytes = bytes.saturating_add(match next {
                Read::End => 0,
                Read::Bytes => buffer.len() as u64,
                Read::Hole(len) => len,
            });
            for node in nodes.take() {
                self.block::<ArrayNode>(&node, &mut records)?;
            }
            if records.iter().map(Record::len).sum::<usize>() >= BATCH_BYTES {
                self.sink.put(&records).await?;
                records.clear();
            }
            told(bytes);
            if matches!(next, Read::End) {
                break;
            }
            next = from.next(&mut buffer).map_err(UploadError::Read)?;
        }
        let root = builder.finish()?;
        self.end(root, nodes.take(), records).await
    }

    /// Puts the last blocks: the nodes at the top of the tree come last.
    async fn end(
        &mut self,
        root: Option<ArrayRoot>,
        nodes: Vec<Bytes>,
        mut records: Vec<Record>,
    ) -> Result<FileContent, UploadError> {
        for node in nodes {
            self.block::<ArrayNode>(&node, &mut records)?;
        }
        self.sink.put(&records).await?;
        Ok(root.map_or(FileContent::Empty, FileContent::Array))
    }

    /// Names and packs one block.
    fn block<K: BlockKind>(
        &mut self,
        plain: &[u8],
        records: &mut Vec<Record>,
    ) -> Result<Handle<K>, Reject> {
        let (handle, record) = self.blocks.record::<K>(plain)?;
        records.push(record);
        Ok(handle)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    use reader::{Blocks, Fetch, Prefetcher, Spawner, Tree};
    use sim::random::noise;
    use store::memory::MemoryStore;
    use store::mirrors::Mirrors;
    use trust::inode::{Content, Inode, Time};

    use super::*;
    use crate::source::{READ_BYTES, Sparse, Stream};

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
            let uploaded = upload.content(Stream(&*content), |bytes| counted = bytes);
            let uploaded = Content::Regular(uploaded.await.unwrap());
            assert_eq!(counted, content.len() as u64);
            assert_eq!(uploaded.size(), content.len() as u64);
            let how = Fetch::Until(Instant::now() + Duration::from_secs(30));
            let tree = contents(&hasher, &store);
            let file = Inode::new(0o644, Time::default(), uploaded);
            let read = tree.read(&file, 0, content.len() + 1, how).await.unwrap();
            assert!(read.concat() == content, "{} bytes", content.len());
        }
    }

    /// With and without holes, the same content has the same blocks.
    #[tokio::test]
    async fn holes_of_a_file_are_those_of_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sparse");
        let (hasher, store) = (Hasher::new(&[7; 32]), MemoryStore::new("server"));
        let inline = MAX_INLINE_BYTES as u64;
        // Runs of data, and the length.
        let cases: [(&[(u64, usize)], u64); 9] = [
            (&[], 0),
            (&[], 1),
            (&[], inline),
            (&[], inline + 1),
            (&[], 40 << 20),
            (&[(0, 10)], inline),
            (&[(0, 10)], 5 << 20),
            (&[(1 << 20, 10), (9 << 20, 3 << 20)], 12 << 20),
            (&[(4096, 4096), (2 << 20, 1)], 9 << 20),
        ];
        for (data, len) in cases {
            let file = std::fs::File::create(&path).unwrap();
            let mut whole = vec![0; len as usize];
            for (start, bytes) in data {
                let noise = noise(3, *bytes);
                file.write_all_at(&noise, *start).unwrap();
                whole[*start as usize..][..*bytes].copy_from_slice(&noise);
            }
            file.set_len(len).unwrap();
            let file = std::fs::File::open(&path).unwrap();
            let mut upload = Upload::new(&hasher, &store);
            let sparse = upload.content(Sparse::of(file), |_| {}).await;
            let stream = upload.content(Stream(&*whole), |_| {}).await;
            assert_eq!(sparse.unwrap(), stream.unwrap(), "{len} bytes");
        }
    }

    #[tokio::test]
    async fn unreadable_content_is_an_error_and_no_short_file() {
        struct Failing(usize);
        impl std::io::Read for Failing {
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
            let failed = upload.content(Stream(Failing(len)), |_| {}).await;
            assert!(matches!(failed, Err(UploadError::Read(_))), "{len}");
        }
    }
}
