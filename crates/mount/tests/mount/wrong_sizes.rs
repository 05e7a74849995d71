//! Publishing from a file system that tells wrong sizes: some in memory and some on networks do. The times of such a
//! file do not change, so only its end shows that the size is wrong.

use std::fs;
use std::path::Path;
use std::time::Duration;

use publish::progress::{Published, Silent};
use publish::publish_error::{PublishError, Unreadable};
use publish::{PublishOptions, publish};
use sim::memfs::MemFsOptions;
use trust::key::SecretKey;

use crate::fixture::noise;
use crate::writable::WritableMount;

/// Publishes a file of `len` bytes whose size is told as `size_error` more.
async fn publish_file(
    len: usize,
    size_error: i64,
    finds_holes: bool,
) -> Result<Published, PublishError> {
    let mount = WritableMount::new(MemFsOptions {
        ttl: Duration::ZERO,
        size_error,
        finds_holes,
        ..MemFsOptions::default()
    });
    let mount = mount.await;
    fs::write(mount.path("file"), noise(1, len)).unwrap();
    assert_eq!(mount.fs.content("file").unwrap().len(), len);
    let told = fs::metadata(mount.path("file")).unwrap().len();
    assert_eq!(told, (len as u64).strict_add_signed(size_error));
    let place = tempfile::tempdir().unwrap();
    let (repository, key) = (
        place.path().join("repository"),
        SecretKey::from_seed(&[5; 32]),
    );
    let options = PublishOptions::default();
    publish(mount.root(), &repository, &key, &options, &Silent)
}

#[tokio::test(flavor = "multi_thread")]
async fn file_that_ends_elsewhere_than_its_size_says_is_not_published() {
    let sizes = [
        (1000, 100),
        (1000, -100),
        (3 << 20, 1),
        (3 << 20, 1 << 20),
        (3 << 20, -1),
        (100, 3 << 20),
    ];
    let mut wrong = Vec::new();
    for (len, size_error) in sizes {
        for finds_holes in [true, false] {
            match publish_file(len, size_error, finds_holes).await {
                Err(PublishError::Unreadable { path, why }) => {
                    assert_eq!(path, Path::new("file"));
                    assert!(matches!(why, Unreadable::Changing(3)), "{why}");
                }
                Err(other) => panic!("{other}"),
                Ok(published) => {
                    wrong.push((len, size_error, finds_holes, published.totals.bytes));
                }
            }
        }
    }
    assert_eq!(wrong, []);
}
