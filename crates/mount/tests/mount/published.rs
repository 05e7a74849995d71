//! A tree on disk, published by the real pipeline into a real repository and mounted: programs see the same
//! tree.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use publish::PublishOptions;
use publish::progress::Silent;
use store::Repository;
use trust::key::SecretKey;
use trust::root::{RootRecord, Totals};
use trust::statement::VolumeId;
use volume::{Volume, VolumeOptions};

use crate::fixture::{TestMount, World, errno, noise, quick, wait_until};

pub struct Publisher {
    pub tree: tempfile::TempDir,
    place: tempfile::TempDir,
}

impl Publisher {
    pub fn new() -> Publisher {
        Publisher {
            tree: tempfile::tempdir().unwrap(),
            place: tempfile::tempdir().unwrap(),
        }
    }

    fn repository(&self) -> std::path::PathBuf {
        self.place.path().join("repository")
    }

    /// Publishes the tree as it is now and gives the volume to mount.
    pub fn publish(&self) -> VolumeId {
        let key = SecretKey::from_seed(&[5; 32]);
        let options = PublishOptions::default();
        let (tree, repository) = (self.tree.path(), self.repository());
        let published = publish::publish(tree, &repository, &key, &options, &Silent);
        published.unwrap().volume
    }

    pub async fn open(&self, volume: VolumeId) -> Arc<Volume> {
        let options = VolumeOptions {
            state_directory: self.place.path().join("state"),
            deadline: Duration::from_secs(5),
            ..VolumeOptions::default()
        };
        let repository = Arc::new(Repository::open(self.repository()).unwrap());
        Volume::open(volume, vec![repository], options)
            .await
            .unwrap()
    }
}

/// Everything that a tree can hold and a copy keeps.
pub fn fill(tree: &Path) {
    for d in 0..8u64 {
        let dir = tree.join(format!("dir{d}"));
        fs::create_dir(&dir).unwrap();
        for f in 0..60u64 {
            fs::write(
                dir.join(format!("f{f}")),
                noise(d * 100 + f, (f * f * 53) as usize),
            )
            .unwrap();
        }
    }
    fs::write(tree.join("large"), noise(999, 9_000_001)).unwrap();
    fs::hard_link(tree.join("large"), tree.join("dir3/linked")).unwrap();
    symlink("../dir1/f5", tree.join("dir2/up")).unwrap();
    symlink("/no/such/place", tree.join("dangling")).unwrap();
    fs::create_dir_all(tree.join("deep/er/and/deeper")).unwrap();
    fs::write(tree.join("deep/er/and/deeper/file"), "deep").unwrap();
    fs::create_dir(tree.join("empty")).unwrap();
    let sparse = File::create(tree.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 50 << 20).unwrap();
    let name = std::ffi::OsString::from("odd \n name \u{fffd}");
    fs::write(tree.join(name), "odd").unwrap();
    fs::copy("/bin/true", tree.join("true")).unwrap();
}

/// The attributes from `stat` of everything below `top`, as text to compare.
fn listing(top: &Path) -> String {
    let format = "%P\\0%y\\0%m\\0%T@\\0%l\\0%n\\n";
    let not_size_of_directories = ["-not", "-type", "d", "-printf", "%P\\0%s\\n"];
    let files = Command::new("find")
        .arg(top)
        .args(not_size_of_directories)
        .output()
        .unwrap();
    let all = Command::new("find")
        .arg(top)
        .args([
            "-not",
            "-type",
            "d",
            "-printf",
            format,
            "-o",
            "-printf",
            "%P\\0%y\\0%m\\0%T@\\n",
        ])
        .output()
        .unwrap();
    assert!(files.status.success() && all.status.success());
    let text = String::from_utf8_lossy(&all.stdout) + String::from_utf8_lossy(&files.stdout);
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mounted_tree_equals_the_published_one() {
    let publisher = Publisher::new();
    fill(publisher.tree.path());
    let source = publisher.publish();
    let m = TestMount::new(publisher.open(source).await, quick()).await;
    let diff = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(publisher.tree.path())
        .arg(m.path(""))
        .output()
        .unwrap();
    assert!(
        diff.status.success(),
        "{}",
        String::from_utf8_lossy(&diff.stdout)
    );
    assert_eq!(listing(publisher.tree.path()), listing(&m.path("")));
    let number = |name: &str| fs::metadata(m.path(name)).unwrap().ino();
    assert_eq!(number("large"), number("dir3/linked"));
    assert!(Command::new(m.path("true")).status().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn publishing_again_updates_the_mount_and_not_open_files() {
    let publisher = Publisher::new();
    let tree = publisher.tree.path();
    fill(tree);
    let source = publisher.publish();
    let m = TestMount::new(publisher.open(source).await, quick()).await;
    let open = File::open(m.path("large")).unwrap();
    let kept = fs::metadata(m.path("dir1/f9")).unwrap().ino();
    let old = fs::read(tree.join("large")).unwrap();
    assert_eq!(errno(fs::metadata(m.path("new"))), libc::ENOENT);

    fs::remove_file(tree.join("large")).unwrap();
    fs::write(tree.join("large"), noise(1000, 9_000_001)).unwrap();
    fs::write(tree.join("new"), "new").unwrap();
    fs::remove_dir_all(tree.join("dir4")).unwrap();
    publisher.publish();
    m.wait_for(2);
    wait_until("the new name", || fs::metadata(m.path("new")).is_ok());
    let diff = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(tree)
        .arg(m.path(""))
        .output()
        .unwrap();
    assert!(
        diff.status.success(),
        "{}",
        String::from_utf8_lossy(&diff.stdout)
    );
    assert_eq!(fs::metadata(m.path("dir1/f9")).unwrap().ino(), kept);
    let mut whole = vec![0; old.len()];
    open.read_exact_at(&mut whole, 0).unwrap();
    assert!(whole == old, "bytes of an open file changed");
}

#[tokio::test(flavor = "multi_thread")]
async fn df_shows_the_signed_totals() {
    let publisher = Publisher::new();
    fill(publisher.tree.path());
    let volume = publisher.open(publisher.publish()).await;
    let totals = volume.snapshot().record().totals;
    assert!(totals.bytes > 9_000_001 && totals.files > 480 && totals.other > 0);
    let mount = TestMount::new(volume, quick()).await;
    let told = rustix::fs::statvfs(mount.path("")).unwrap();
    assert_eq!(told.f_blocks, totals.bytes.div_ceil(told.f_frsize));
    assert_eq!(told.f_files, totals.entries());
    let free = (told.f_bfree, told.f_bavail, told.f_ffree, told.f_favail);
    assert_eq!(free, (0, 0, 0, 0));
    assert_eq!(told.f_namemax, 255);
    let df = Command::new("df").arg("-k").arg(mount.path("")).output();
    let text = String::from_utf8(df.unwrap().stdout).unwrap();
    assert!(text.contains("100%"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn df_works_with_absurd_signed_totals() {
    let mut world = World::new();
    let most = Totals {
        files: u64::MAX,
        directories: u64::MAX,
        other: u64::MAX,
        bytes: u64::MAX,
    };
    for (totals, blocks) in [(most, 1 << 52), (Totals::default(), 0)] {
        let file = world.file(b"small");
        let root = world.directory(vec![("file", file)]);
        let root = world.model.block(&root.encode()).unwrap();
        let spoil = |record: &mut RootRecord| record.totals = totals;
        let now = world.now();
        let head = world.model.publish_handle(root, now, 3600, spoil);
        world.supply(head.unwrap());
        let mount = world.mount().await;
        let told = rustix::fs::statvfs(mount.path("")).unwrap();
        assert_eq!((told.f_blocks, told.f_files), (blocks, totals.entries()));
        let df = Command::new("df").arg(mount.path("")).output().unwrap();
        assert!(df.status.success(), "{df:?}");
        assert_eq!(mount.read("file"), b"small");
    }
}
