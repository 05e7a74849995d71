//! Arbitrary bytes as a proof about a path of one volume. They are refused, or canonical; a proof that passes
//! every check is true of the signed tree.
#![no_main]

use std::collections::HashMap;
use std::sync::LazyLock;

use bulla_fuzz::{NOW, head_of, plant, volume_hasher};
use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use trust::head::Head;
use trust::inode::{Content, Entry, Inode, Time};
use trust::map::Builder;
use trust::path_proof::{Demands, PathProof, Prover};
use trust::reach::{Lookup, Outcome};
use trust::statement::VolumeId;
use trust::{Handle, InodeBlock, MapNode};

struct World {
    volume: VolumeId,
    head: Head,
    root: Handle<InodeBlock>,
    blocks: HashMap<Handle, Bytes>,
}

fn directory(blocks: &mut HashMap<Handle, Bytes>, entries: &[(Vec<u8>, Vec<u8>)]) -> Inode {
    let sink = |handle: Handle<MapNode>, bytes: &Bytes| {
        blocks.insert(handle.any(), bytes.clone());
    };
    let mut builder = Builder::new(&volume_hasher(), [0; 16], sink);
    for (name, value) in entries {
        builder.push(name, value).expect("an entry");
    }
    let map = builder.finish().expect("a map");
    Inode::new(
        0o755,
        Time::default(),
        Content::Directory { map, opaque: false },
    )
}

fn inode_block(blocks: &mut HashMap<Handle, Bytes>, inode: &Inode) -> Handle<InodeBlock> {
    let (handle, block) = volume_hasher().seal::<InodeBlock>(inode.encode().into());
    blocks.insert(handle.any(), block.into_bytes());
    handle
}

static WORLD: LazyLock<World> = LazyLock::new(|| {
    let mut blocks = HashMap::new();
    let pipe = Inode::new(0o644, Time::default(), Content::Fifo);
    let apart = Entry::Block(inode_block(&mut blocks, &pipe)).encode();
    let inner = directory(
        &mut blocks,
        &[
            (b"apart".to_vec(), apart),
            (b"pipe".to_vec(), pipe.encode()),
        ],
    );
    let many: Vec<_> = (0..2000u32)
        .map(|n| (format!("n{n:05}").into_bytes(), pipe.encode()))
        .collect();
    let many = directory(&mut blocks, &many);
    let names = [
        (b"inner".to_vec(), inner.encode()),
        (b"many".to_vec(), many.encode()),
    ];
    let root = directory(&mut blocks, &names);
    let root = inode_block(&mut blocks, &root);
    let (volume, head, _) = head_of(root);
    World {
        volume,
        head,
        root,
        blocks,
    }
});

fn seeds() -> Vec<Vec<u8>> {
    let prove = |path: &&str| {
        let mut prover =
            Prover::new(&WORLD.head, &[], WORLD.volume, path.as_bytes()).expect("a head");
        while let Some(wanted) = prover.wants() {
            let block = WORLD.blocks[&wanted.handle()].clone();
            prover.supply(block).expect("the right block");
        }
        prover.finish().expect("complete").encode().expect("short")
    };
    [
        "",
        "inner",
        "inner/apart",
        "inner/no",
        "inner/pipe/x",
        "many/n00700",
        "no/x",
    ]
    .iter()
    .map(prove)
    .collect()
}

fn truth(path: &[u8]) -> Outcome {
    let mut lookup = Lookup::new(WORLD.root, path).expect("a path");
    while let Some(wanted) = lookup.wants() {
        let block = WORLD.blocks[&wanted.handle()].clone();
        let found = wanted.prove(&volume_hasher(), block).expect("sound");
        lookup.supply(found).expect("sound");
    }
    lookup.outcome().expect("an end").clone()
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let Ok(proof) = PathProof::decode(data) else {
        return;
    };
    assert_eq!(proof.encode().expect("short"), data);
    let demands = Demands { now: NOW, least_policy: 0 };
    if let Ok(shown) = proof.verify(WORLD.volume, proof.path(), &demands) {
        assert_eq!(shown.outcome, truth(proof.path()));
    }
});
