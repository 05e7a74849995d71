//! A tree whose newest nodes are only in the overlay.

use std::sync::Arc;

use bytes::Bytes;
use reader::{Blocks, Overlay, Position, Prefetcher, Spawner, Tree};
use trust::array::{self, Extent};
use trust::inode::{Content, Entry, FileContent, Inode, Mtime};
use trust::map;
use trust::{Data, Handle, InodeBlock, MapNode, Record};

use crate::store_log::{StoreLog, blocks, hasher, soon};

fn file(overlay: &Overlay, content: &[u8]) -> Inode {
    let mut nodes = Vec::new();
    let hasher = hasher();
    let mut builder = array::Builder::new(&hasher, |_, node: &Bytes| nodes.push(node.clone()));
    for chunk in content.chunks(4096) {
        let handle = overlay.put::<Data>(chunk).unwrap();
        let len = chunk.len() as u32;
        builder.push(Extent::Data { handle, len }).unwrap();
    }
    let root = builder.finish().unwrap().unwrap();
    for node in nodes {
        overlay.put::<trust::ArrayNode>(&node).unwrap();
    }
    let content = Content::Regular(FileContent::Array(root));
    Inode::new(0o644, Mtime::default(), content)
}

fn directory(overlay: &Overlay, entries: &[(String, Inode)]) -> Inode {
    let mut nodes = Vec::new();
    let hasher = hasher();
    let mut builder = map::Builder::new(&hasher, [0; 16], |_, n: &Bytes| nodes.push(n.clone()));
    for (name, inode) in entries {
        let (value, block) = Entry::place(name.as_bytes(), inode, &hasher);
        assert!(block.is_none(), "these inodes are small");
        builder.push(name.as_bytes(), &value).unwrap();
    }
    let map = builder.finish().unwrap();
    for node in nodes {
        overlay.put::<MapNode>(&node).unwrap();
    }
    let content = Content::Directory { map, opaque: false };
    Inode::new(0o755, Mtime::default(), content)
}

fn content(number: usize) -> Vec<u8> {
    format!("content of file {number}\n")
        .repeat(600)
        .into_bytes()
}

fn root(overlay: &Overlay, inode: &Inode) -> Handle<InodeBlock> {
    overlay.put(&inode.encode()).unwrap()
}

fn store_all(blocks: &Blocks, store: &StoreLog) {
    let overlay = blocks.overlay().unwrap();
    let upload = overlay.upload(Position::default(), usize::MAX).unwrap();
    let handles: Vec<Handle> = upload.records.iter().map(|record| record.handle).collect();
    upload.records.into_iter().for_each(|r| store.insert(r));
    blocks.stored(&handles);
}

#[tokio::test]
async fn tree_with_unstored_nodes_reads_them_without_asking_the_store() {
    let store = StoreLog::new();
    let writer = blocks(&store, 64 << 20, 64 << 20);
    let overlay = writer.overlay().unwrap();
    let mut entries: Vec<(String, Inode)> = (0..300)
        .map(|n| (format!("f{n:03}"), file(overlay, &content(n))))
        .collect();
    let old = directory(overlay, &entries);
    let old_root = root(overlay, &old);
    store_all(&writer, &store);

    // Another client with an empty cache changes one file.
    let blocks = Arc::new(blocks(&store, 64 << 20, 64 << 20));
    let overlay = blocks.overlay().unwrap();
    entries[150].1 = file(overlay, &content(9999));
    let new_root = root(overlay, &directory(overlay, &entries));
    assert_ne!(old_root, new_root);
    let own = overlay.upload(Position::default(), usize::MAX).unwrap();
    let runtime = tokio::runtime::Handle::current();
    let prefetcher = Prefetcher::new(blocks.clone(), Spawner::on(runtime));
    let tree = Tree::open(prefetcher, &new_root, soon()).await.unwrap();
    for (name, expected) in [("f150", content(9999)), ("f007", content(7))] {
        let inode = tree
            .resolve(name.as_bytes(), soon())
            .await
            .unwrap()
            .unwrap();
        let read = tree.read(&inode, 0, 1 << 20, soon()).await.unwrap();
        assert_eq!(read.concat(), expected, "{name}");
    }
    assert!(tree.resolve(b"f300", soon()).await.unwrap().is_none());
    let listed = tree.list(tree.root(), None, 1000, soon()).await.unwrap();
    assert_eq!(listed.len(), 300);
    let asked = store.asked();
    assert!(!asked.is_empty(), "the old file comes from the store");
    for record in &own.records {
        let Record { handle, .. } = record;
        assert!(!asked.contains(handle), "the store was asked for {handle}");
    }
}
