//! `extract` in a directory where it was interrupted: it compares content, repairs what differs, follows no link, and
//! leaves alone what is not its own.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bulla::extract::{ExtractError, ExtractOptions, Extracted};
use bytes::Bytes;
use reader::Tally;
use sim::model::{Model, inode};
use trust::array::Extent;
use trust::inode::{Content, FileContent, Inode, Owner};
use volume::Volume;

use crate::support::extract;
use crate::world::{World, noise, now};

type Entries = Vec<(Vec<u8>, Inode)>;

const MARK: &str = ".bulla-extract";

/// A volume whose extraction stops at its last entry, a device, unless special files are left out.
struct Interrupted {
    world: World,
    dir: tempfile::TempDir,
}

impl Interrupted {
    /// Publishes what `make` makes, and extracts it until it stops.
    async fn after(make: impl FnOnce(&mut Model) -> Entries) -> Interrupted {
        let mut world = World::new();
        let mut entries = make(&mut world.model);
        let (major, minor) = (1, 8);
        let device = inode(0o666, Content::CharDevice { major, minor });
        entries.push((b"zz".to_vec(), device));
        let root = world.model.directory(entries).unwrap();
        world.head = world.model.publish(&root, now(), 3600).unwrap();
        let dir = tempfile::tempdir().unwrap();
        let one = Interrupted { world, dir };
        let stopped = one.run(b"", &ExtractOptions::default()).await;
        assert!(matches!(stopped, Err(ExtractError::Special { .. })));
        assert!(one.at(MARK).exists());
        one
    }

    fn out(&self) -> PathBuf {
        self.dir.path().join("out")
    }

    fn at(&self, path: &str) -> PathBuf {
        self.out().join(path)
    }

    async fn volume(&self) -> Arc<Volume> {
        let replica = Arc::new(self.world.replica());
        self.world.open(vec![replica]).await.unwrap()
    }

    async fn run(&self, path: &[u8], options: &ExtractOptions) -> Result<Extracted, ExtractError> {
        run(&self.volume().await, path, &self.out(), options).await
    }

    async fn go_on(&self) -> Result<Extracted, ExtractError> {
        self.run(b"", &skipping()).await
    }
}

fn skipping() -> ExtractOptions {
    ExtractOptions {
        skip_special: true,
        ..ExtractOptions::default()
    }
}

async fn run(
    volume: &Arc<Volume>,
    path: &[u8],
    out: &Path,
    options: &ExtractOptions,
) -> Result<Extracted, ExtractError> {
    let snapshot = volume.current().unwrap();
    let tally = Arc::new(Tally::default());
    extract(volume, &snapshot, path, out, options, &tally).await
}

fn linked(mut inode: Inode) -> Inode {
    inode.links = 2;
    inode.link_group = Some([9; 16]);
    inode
}

fn sparse(model: &mut Model) -> Inode {
    let handle = model.block(&noise(11, 4096)).unwrap();
    let extents = [
        Extent::Data { handle, len: 4096 },
        Extent::Hole { len: 1 << 20 },
    ];
    let root = model.extents(&extents).unwrap().unwrap();
    inode(0o644, Content::Regular(FileContent::Array(root)))
}

fn tree(model: &mut Model) -> Entries {
    let pair = linked(model.file(&noise(3, 20_000), 8192).unwrap());
    let mut read_only = model.file(&noise(4, 5000), 8192).unwrap();
    read_only.mode = 0o444;
    let below = vec![
        (b"f".to_vec(), model.file(&noise(5, 9000), 8192).unwrap()),
        (b"ro".to_vec(), read_only),
    ];
    let mut directory = model.directory(below).unwrap();
    directory.mode = 0o555;
    let target = Bytes::from_static(b"big");
    vec![
        (
            b"big".to_vec(),
            model.file(&noise(1, 300_000), 8192).unwrap(),
        ),
        (b"dir".to_vec(), directory),
        (b"h1".to_vec(), pair.clone()),
        (b"h2".to_vec(), pair),
        (b"link".to_vec(), inode(0o777, Content::Symlink(target))),
        (b"sparse".to_vec(), sparse(model)),
        (b"tiny".to_vec(), model.file(b"tiny", 8192).unwrap()),
        (
            b"whole".to_vec(),
            model.file(&noise(6, 500_000), 8192).unwrap(),
        ),
    ]
}

fn is_whole(out: &Path) {
    let read = |name: &str| std::fs::read(out.join(name)).unwrap();
    for (name, seed, len) in [
        ("big", 1, 300_000),
        ("h1", 3, 20_000),
        ("h2", 3, 20_000),
        ("dir/ro", 4, 5000),
        ("dir/f", 5, 9000),
        ("whole", 6, 500_000),
    ] {
        assert!(read(name) == noise(seed, len), "{name}");
    }
    assert_eq!(read("tiny"), b"tiny");
    let sparse = read("sparse");
    assert!(sparse[..4096] == noise(11, 4096) && sparse[4096..] == vec![0; 1 << 20]);
    assert_eq!(
        std::fs::read_link(out.join("link")).unwrap(),
        Path::new("big")
    );
    let number = |name: &str| out.join(name).symlink_metadata().unwrap().ino();
    assert_eq!(number("h1"), number("h2"));
    let mode = |name: &str| out.join(name).metadata().unwrap().mode() & 0o7777;
    assert_eq!(
        (mode("dir"), mode("dir/ro"), mode("big")),
        (0o555, 0o444, 0o644)
    );
    assert!(!out.join(MARK).exists());
}

/// Changes a file and leaves its length and time as they are.
fn change_quietly(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let before = path.metadata().unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).unwrap();
    let mut content = std::fs::read(path).unwrap();
    change(&mut content);
    std::fs::write(path, &content).unwrap();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    assert_eq!(file.metadata().unwrap().len(), before.len());
}

#[tokio::test]
async fn interrupted_extraction_repairs_what_differs_and_fetches_nothing_else() {
    let one = Interrupted::after(tree).await;
    change_quietly(&one.at("big"), |content| content[100_000] ^= 1);
    change_quietly(&one.at("sparse"), |content| content[900_000] = 7);
    change_quietly(&one.at("tiny"), |content| content[0] = b'T');
    std::fs::write(one.at("dir/ro"), b"").unwrap_or_else(|_| {
        std::fs::set_permissions(one.at("dir/ro"), PermissionsExt::from_mode(0o644)).unwrap();
        std::fs::write(one.at("dir/ro"), b"").unwrap();
    });
    std::fs::File::options()
        .write(true)
        .open(one.at("h1"))
        .unwrap()
        .set_len(7000)
        .unwrap();
    let volume = one.volume().await;
    let made = run(&volume, b"", &one.out(), &skipping()).await.unwrap();
    is_whole(&one.out());
    assert!(made.went_on);
    // `dir/f` and `whole`.
    assert_eq!((made.kept, made.extra_count), (2, 0));
    // Of 300 KB and 500 KB a block of 8 KiB; besides it small files and nodes.
    let counters = volume.snapshot();
    let fetched = counters
        .tree()
        .blocks()
        .counters()
        .fetched
        .load(Ordering::Relaxed);
    assert!(fetched < 30, "{fetched} blocks fetched");
}

#[tokio::test]
async fn links_and_other_kinds_in_the_way_are_replaced_and_not_followed() {
    let one = Interrupted::after(tree).await;
    let outside = one.dir.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("f"), b"mine").unwrap();
    std::fs::write(outside.join("file"), b"mine").unwrap();
    std::fs::set_permissions(one.at("dir"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::remove_dir_all(one.at("dir")).unwrap();
    symlink(&outside, one.at("dir")).unwrap();
    std::fs::remove_file(one.at("big")).unwrap();
    symlink(outside.join("file"), one.at("big")).unwrap();
    std::fs::remove_file(one.at("whole")).unwrap();
    std::fs::hard_link(outside.join("file"), one.at("whole")).unwrap();
    std::fs::remove_file(one.at("h2")).unwrap();
    std::fs::write(one.at("h2"), noise(3, 20_000)).unwrap();
    std::fs::remove_file(one.at("link")).unwrap();
    symlink("elsewhere", one.at("link")).unwrap();
    std::fs::remove_file(one.at("tiny")).unwrap();
    std::fs::create_dir(one.at("tiny")).unwrap();
    std::fs::remove_file(one.at("sparse")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        one.at("sparse"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .unwrap();
    one.go_on().await.unwrap();
    is_whole(&one.out());
    for name in ["f", "file"] {
        assert_eq!(
            std::fs::read(outside.join(name)).unwrap(),
            b"mine",
            "{name}"
        );
    }
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 2);
}

#[tokio::test]
async fn what_a_user_keeps_there_is_left_alone_and_told() {
    let one = Interrupted::after(tree).await;
    std::fs::write(one.at("mine"), b"mine").unwrap();
    std::fs::set_permissions(one.at("dir"), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::write(one.at("dir/mine"), b"mine").unwrap();
    let made = one.go_on().await.unwrap();
    is_whole(&one.out());
    assert_eq!(made.extra_count, 2);
    for name in ["mine", "dir/mine"] {
        assert!(made.extra.contains(&PathBuf::from(name)), "{name}");
        assert_eq!(std::fs::read(one.at(name)).unwrap(), b"mine");
    }
    // A directory with content in the place of a file is not removed.
    let one = Interrupted::after(tree).await;
    std::fs::remove_file(one.at("tiny")).unwrap();
    std::fs::create_dir(one.at("tiny")).unwrap();
    std::fs::write(one.at("tiny/mine"), b"mine").unwrap();
    let refused = one.go_on().await.unwrap_err();
    assert!(matches!(&refused, ExtractError::System { path, .. } if path.ends_with("tiny")));
    assert_eq!(std::fs::read(one.at("tiny/mine")).unwrap(), b"mine");
}

#[tokio::test]
async fn only_an_unfinished_extraction_of_the_same_goes_on() {
    let one = Interrupted::after(tree).await;
    // Of another path.
    let other = one.run(b"dir", &skipping()).await;
    assert!(
        matches!(other, Err(ExtractError::NotEmpty { .. })),
        "another path"
    );
    // While another process is at it.
    let mark = std::fs::File::open(one.at(MARK)).unwrap();
    mark.lock().unwrap();
    let busy = one.go_on().await;
    assert!(matches!(busy, Err(ExtractError::InUse { .. })), "in use");
    drop(mark);
    // A user's file of the name of the mark.
    let text = std::fs::read(one.at(MARK)).unwrap();
    std::fs::write(one.at(MARK), b"mine").unwrap();
    let foreign = one.go_on().await;
    assert!(
        matches!(foreign, Err(ExtractError::NotEmpty { .. })),
        "no mark"
    );
    std::fs::remove_file(one.at(MARK)).unwrap();
    symlink("big", one.at(MARK)).unwrap();
    let foreign = one.go_on().await;
    assert!(
        matches!(foreign, Err(ExtractError::NotEmpty { .. })),
        "a link"
    );
    std::fs::remove_file(one.at(MARK)).unwrap();
    std::fs::write(one.at(MARK), text).unwrap();
    one.go_on().await.unwrap();
    is_whole(&one.out());
    // It is finished now.
    let again = one.go_on().await;
    assert!(
        matches!(again, Err(ExtractError::NotEmpty { .. })),
        "finished"
    );
}

#[tokio::test]
async fn tree_with_the_name_of_the_mark_is_extracted() {
    let one = Interrupted::after(|model| {
        let file = model.file(b"of the volume", 8192).unwrap();
        vec![(b".bulla-extract".to_vec(), file)]
    })
    .await;
    one.go_on().await.unwrap();
    let content = std::fs::read(one.at(MARK)).unwrap();
    assert_eq!(content, b"of the volume");
    let names = std::fs::read_dir(one.out()).unwrap().count();
    assert_eq!(names, 1, "the mark is gone");
}

#[tokio::test]
async fn path_is_extracted_without_the_rest() {
    let one = Interrupted::after(tree).await;
    let volume = one.volume().await;
    let out = one.dir.path().join("below");
    let made = run(&volume, b"dir", &out, &skipping()).await.unwrap();
    assert_eq!((made.totals.directories, made.totals.files), (1, 2));
    assert!(std::fs::read(out.join("f")).unwrap() == noise(5, 9000));
    assert_eq!(out.metadata().unwrap().mode() & 0o7777, 0o555);
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 2);
    let out = one.dir.path().join("single");
    let made = run(&volume, b"dir/ro", &out, &skipping()).await.unwrap();
    assert_eq!((made.totals.directories, made.totals.files), (0, 1));
    assert!(std::fs::read(out.join("ro")).unwrap() == noise(4, 5000));
    assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
}

/// Runs as a user who is not root, on a thread of its own, which no other test uses.
fn as_nobody<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let thread = std::thread::spawn(move || {
        let nobody = rustix::fs::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(work)
    });
    thread.join().unwrap()
}

/// The files are there already and belong to another user, so the system refuses their attributes.
#[test]
fn attributes_that_are_refused_are_counted_and_the_rest_goes_on() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let one = runtime.block_on(Interrupted::after(|model| {
        let mut program = model.file(&noise(7, 5000), 8192).unwrap();
        program.mode = 0o6755;
        program.owner = Some(Owner { uid: 12, gid: 34 });
        let mut plain = model.file(b"plain", 8192).unwrap();
        plain.owner = Some(Owner { uid: 12, gid: 34 });
        vec![(b"own".to_vec(), plain), (b"program".to_vec(), program)]
    }));
    let everyone = std::fs::Permissions::from_mode(0o777);
    for path in [one.dir.path().to_owned(), one.out(), one.at(MARK)] {
        std::fs::set_permissions(&path, everyone.clone()).unwrap();
    }
    std::fs::remove_file(one.at("own")).unwrap();
    let time = SystemTime::now();
    let program = std::fs::File::open(one.at("program")).unwrap();
    program.set_modified(time).unwrap();
    let options = ExtractOptions {
        owner: true,
        ..skipping()
    };
    let out = one.out();
    let volume = runtime.block_on(one.volume());
    let made = as_nobody(async move { run(&volume, b"", &out, &options).await }).unwrap();
    // Of the program all three; of the new file the owner; of the target, which is root's, mode and time.
    let refused = &made.refused;
    assert_eq!((refused.modes, refused.owners, refused.times), (2, 2, 2));
    assert!(refused.first.is_some());
    assert!(std::fs::read(one.at("program")).unwrap() == noise(7, 5000));
    assert_eq!(std::fs::read(one.at("own")).unwrap(), b"plain");
    assert_eq!(one.at("own").metadata().unwrap().uid(), 65534);
}

/// A file that does not get its owner must not lend the rights of the one it has.
#[test]
fn program_whose_owner_is_refused_lends_no_rights() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root");
        return;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut world = World::new();
    let mut program = world.model.file(b"#!/bin/sh", 8192).unwrap();
    program.mode = 0o6755;
    program.owner = Some(Owner { uid: 12, gid: 34 });
    let root = world
        .model
        .directory(vec![(b"p".to_vec(), program)])
        .unwrap();
    world.head = world.model.publish(&root, now(), 3600).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let out = dir.path().join("out");
    let volume = runtime
        .block_on(world.open(vec![Arc::new(world.replica())]))
        .unwrap();
    let (options, to) = (
        ExtractOptions {
            owner: true,
            ..skipping()
        },
        out.clone(),
    );
    let made = as_nobody(async move { run(&volume, b"", &to, &options).await }).unwrap();
    assert_eq!((made.refused.owners, made.refused.modes), (1, 0));
    assert_eq!(out.join("p").metadata().unwrap().mode() & 0o7777, 0o755);
}
