//! Publishing real trees into real repositories, and reading them back.

use content::attributes::AttributeError;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use publish::exclude::Exclude;
use publish::progress::Silent;
use publish::publish_error::{PublishError, Unreadable};
use publish::{PublishOptions, publish};
use sim::random::noise;
use sim::time::now;
use trust::inode::{Content, FileContent, Time};
use trust::key::SecretKey;

use crate::place::{Place, key};

#[test]
fn every_kind_and_attribute_comes_back() {
    let place = Place::new();
    let tree = place.tree();
    place.write("empty", b"");
    place.write("inline", b"short");
    place.write("small", &noise(1, 5000));
    place.write("whole", &noise(2, 900_000));
    place.write("long", &noise(3, 3_000_000));
    place.write("a/b/c", b"deep");
    fs::create_dir(tree.join("nothing")).unwrap();
    symlink("a/../small", tree.join("link")).unwrap();
    symlink("/nowhere", tree.join("dangling")).unwrap();
    fs::hard_link(tree.join("small"), tree.join("a/same")).unwrap();
    let odd = OsStr::from_bytes(b"\xff\xfe name\n");
    fs::write(tree.join(odd), b"odd").unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o640);
    let cwd = rustix::fs::CWD;
    rustix::fs::mknodat(cwd, tree.join("fifo"), rustix::fs::FileType::Fifo, mode, 0).unwrap();
    fs::set_permissions(tree.join("inline"), PermissionsExt::from_mode(0o4751)).unwrap();
    let past = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 5,
            tv_nsec: 6,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: -7,
            tv_nsec: 123_456_789,
        },
    };
    let file = fs::File::open(tree.join("whole")).unwrap();
    rustix::fs::futimens(&file, &past).unwrap();

    let published = place.publish();
    assert_eq!((published.version, published.new_volume), (1, true));
    assert_eq!(published.totals.leaves(), 12);
    assert_eq!(published.totals.directories, 4);
    let read = place.read();
    assert_eq!(read.offer.record_hash, published.record_hash.unwrap());
    for path in [
        "empty", "inline", "small", "whole", "long", "a/b/c", "a/same",
    ] {
        let on_disk = tree.join(path);
        assert!(read.content(path) == fs::read(&on_disk).unwrap(), "{path}");
        let (inode, metadata) = (read.at(path), fs::metadata(&on_disk).unwrap());
        assert_eq!(u32::from(inode.mode), metadata.mode() & 0o7777, "{path}");
        assert_eq!(u64::from(inode.links), metadata.nlink(), "{path}");
        assert_eq!(inode.owner, None);
        let mtime = Time {
            seconds: metadata.mtime(),
            nanos: metadata.mtime_nsec() as u32,
        };
        assert_eq!(inode.mtime, mtime, "{path}");
    }
    assert_eq!(read.at("whole").mtime.seconds, -7);
    assert_eq!(read.at("small"), read.at("a/same"));
    assert!(read.at("small").link_group.is_some());
    assert_eq!(read.at("inline").link_group, None);
    let target = |path| match &read.at(path).content {
        Content::Symlink(target) => target.to_vec(),
        other => panic!("{other:?}"),
    };
    assert_eq!(target("link"), b"a/../small");
    assert_eq!(target("dangling"), b"/nowhere");
    assert_eq!(read.at("fifo").content, Content::Fifo);
    assert_eq!(read.at("fifo").mode & 0o7777, 0o640 & !umask());
    assert_eq!(read.at("socket").content, Content::Socket);
    let odd = &read.inodes[odd.as_bytes()];
    assert_eq!(
        odd.content,
        Content::Regular(FileContent::Inline("odd".into()))
    );
    assert!(matches!(
        read.at("nothing").content,
        Content::Directory { map: None, .. }
    ));
}

fn umask() -> u16 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|l| l.strip_prefix("Umask:"))
        .unwrap();
    u16::from_str_radix(line.trim(), 8).unwrap()
}

#[test]
fn owners_and_extended_attributes() {
    let place = Place::new();
    let tree = place.tree();
    place.write("file", b"content");
    place.write("many", b"content");
    let set = |path: &str, name: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(tree.join(path), name, value, flags).unwrap();
    };
    set("file", "user.b", b"two");
    set("file", "user.a", b"\0\xff");
    set("", "user.top", b"of it");
    for i in 0..30 {
        set("many", &format!("user.attribute-{i:02}"), &noise(i, 100));
    }
    let options = PublishOptions {
        with_owner: true,
        ..place.options()
    };
    place.publish_with(&options);
    let read = place.read();
    let list = read.xattrs("file");
    assert_eq!(
        list,
        [
            ("user.a".into(), b"\0\xff"[..].into()),
            ("user.b".into(), "two".into())
        ]
    );
    assert_eq!(read.xattrs(""), [("user.top".into(), "of it".into())]);
    let many = read.xattrs("many");
    assert_eq!(many.len(), 30);
    assert!(many.iter().zip(0..).all(|((_, v), i)| *v == noise(i, 100)));
    let owner = read.at("file").owner.unwrap();
    let metadata = fs::metadata(tree.join("file")).unwrap();
    assert_eq!((owner.uid, owner.gid), (metadata.uid(), metadata.gid()));

    set("file", "user.bulla.volume", b"forged");
    let error = place.try_publish(&options).unwrap_err();
    let PublishError::Unreadable { path, why } = error else {
        panic!("{error}");
    };
    assert_eq!(path, Path::new("file"));
    assert!(matches!(
        why,
        Unreadable::Attributes(AttributeError::Reserved(_))
    ));
}

#[test]
fn holes_depend_on_content_and_cost_nothing() {
    let place = Place::new();
    let (sparse, dense) = (place.tree().join("sparse"), place.tree().join("dense"));
    let file = fs::File::create(&sparse).unwrap();
    file.set_len(3 << 20).unwrap();
    file.write_all_at(b"begin", 0).unwrap();
    file.write_all_at(b"middle", 1_500_000).unwrap();
    fs::write(&dense, fs::read(&sparse).unwrap()).unwrap();
    let vast = fs::File::create(place.tree().join("vast")).unwrap();
    vast.set_len(1 << 40).unwrap();
    vast.write_all_at(b"x", 1 << 39).unwrap();
    let begun = std::time::Instant::now();
    place.publish();
    assert!(
        begun.elapsed() < Duration::from_secs(120),
        "a terabyte was read"
    );
    let read = place.read();
    let layout = [5, -1_499_995, 6, -1_645_722];
    assert_eq!(read.layout("sparse"), layout);
    assert_eq!(read.layout("dense"), layout);
    assert_eq!(read.layout("vast"), [-(1 << 39), 1, -((1 << 39) - 1)]);
    assert!(read.content("sparse") == fs::read(&sparse).unwrap());
}

#[test]
fn the_root_does_not_depend_on_the_number_of_threads() {
    let place = Place::new();
    for i in 0..40u64 {
        for j in 0..30u64 {
            let len = (i * 37 + j * 1009) as usize % 9000;
            place.write(&format!("d{i}/f{j}"), &noise(i * 100 + j, len));
        }
    }
    place.write("d3/long", &noise(9, 5_000_000));
    let mut roots = Vec::new();
    for readers in [1, 2, 7] {
        let options = PublishOptions {
            readers: Some(readers),
            ..place.options()
        };
        let published = place.publish_with(&options);
        assert_eq!(published.unchanged, readers != 1);
        roots.push(place.read().offer.record.root);
    }
    assert!(roots.iter().all(|root| *root == roots[0]));
    let read = place.read();
    assert_eq!(read.inodes.len(), 40 * 31 + 2);
    assert!(read.content("d3/long") == noise(9, 5_000_000));
    assert_eq!(read.offer.record.version, 3);
}

#[test]
fn one_read_around_brings_a_directory_and_its_small_files() {
    let place = Place::new();
    let names = |kind: &str| (0..6).map(|n| format!("d/{n}-{kind}")).collect::<Vec<_>>();
    for (seed, name) in names("small").iter().enumerate() {
        place.write(name, &noise(seed as u64, 2000));
    }
    for (seed, name) in names("large").iter().enumerate() {
        place.write(name, &noise(100 + seed as u64, 300_000));
    }
    // Cut in parts by the gatherer.
    place.write("d/3-long", &noise(7, 2_000_000));
    place.publish();
    let read = place.read();
    let beside = read.beside("d", 64 << 10);
    for name in [names("small"), names("large"), vec!["d/3-long".into()]].concat() {
        assert!(beside.contains(&read.top(&name)), "{name}");
    }
    // Array nodes before content, so that little read-around brings them.
    let beside = read.beside("d", 8 << 10);
    for name in names("large") {
        assert!(beside.contains(&read.top(&name)), "{name}");
    }
}

#[test]
fn links_outside_of_the_tree_are_not_counted() {
    let place = Place::new();
    place.write("a/one", &noise(1, 1000));
    place.write("two", &noise(2, 1000));
    let outside = |name: &str| place.path(name);
    place.publish();
    let before = place.read();
    fs::hard_link(place.tree().join("a/one"), outside("one")).unwrap();
    place.publish();
    let after = place.read();
    assert_eq!(before.offer.record.root, after.offer.record.root);
    fs::hard_link(place.tree().join("two"), place.tree().join("a/too")).unwrap();
    fs::hard_link(place.tree().join("two"), outside("two")).unwrap();
    place.publish();
    let read = place.read();
    assert_eq!((read.at("two").links, read.at("a/one").links), (2, 1));
    assert_eq!(read.at("two"), read.at("a/too"));
    assert!(read.at("two").link_group.is_some() && read.at("a/one").link_group.is_none());
}

#[test]
fn versions_follow_one_another_under_one_key() {
    let place = Place::new();
    place.write("f", b"1");
    let first = place.publish();
    place.write("f", b"2");
    let second = place.publish();
    assert_eq!((first.version, second.version), (1, 2));
    assert_eq!(first.volume, second.volume);
    assert!(!second.unchanged && !second.new_volume);
    assert_eq!(place.read().content("f"), b"2");
    let other = SecretKey::from_seed(&[8; 32]);
    let options = place.options();
    let refused = publish(&place.tree(), &place.repo(), &other, &options, &Silent);
    assert!(matches!(refused, Err(PublishError::WrongKey { .. })));
    let behind = PublishOptions {
        clock: state::Clock::fixed(now() - 1000),
        ..place.options()
    };
    let refused = place.try_publish(&behind);
    assert!(matches!(refused, Err(PublishError::ClockBehind { .. })));
    assert_eq!(place.read().offer.record.version, 2);
}

#[test]
fn a_second_publisher_is_locked_out() {
    let place = Place::new();
    place.publish();
    let repository = store::repository::Repository::open(place.repo()).unwrap();
    let _writer = store::writer::Writer::begin(&repository).unwrap();
    let refused = place.try_publish(&place.options());
    assert!(matches!(refused, Err(PublishError::Locked { .. })));
}

#[test]
fn excluded_names_are_left_out() {
    let place = Place::new();
    for path in ["keep", "a/x.o", "a/keep.c", ".git/config", "b/target/z"] {
        place.write(path, b"content");
    }
    let options = PublishOptions {
        exclude: Exclude::new(&["*.o", ".git/", "b/target"]).unwrap(),
        ..place.options()
    };
    let published = place.publish_with(&options);
    assert_eq!(published.totals.files, 2);
    let paths: Vec<_> = place.read().inodes.into_keys().collect();
    assert_eq!(paths, [&b""[..], b"a", b"a/keep.c", b"b", b"keep"]);
}

#[test]
fn unreadable_files_are_errors_unless_skipping_is_asked_for() {
    let place = Place::new();
    for path in ["a/bad", "a/good", "z"] {
        place.write(path, b"content");
    }
    // Not even root can publish this.
    let flags = rustix::fs::XattrFlags::empty();
    let (bad, directory) = (place.tree().join("a/bad"), place.tree().join("a"));
    rustix::fs::setxattr(&bad, "user.bulla.x", b"", flags).unwrap();
    fs::hard_link(&bad, place.tree().join("b")).unwrap();
    let refused = place.try_publish(&place.options()).unwrap_err();
    assert!(matches!(refused, PublishError::Unreadable { path, .. } if path == Path::new("a/bad")));
    assert!(!place.repo().exists(), "the repository was left");

    let skipping = PublishOptions {
        skip_unreadable: true,
        ..place.options()
    };
    let published = place.publish_with(&skipping);
    assert_eq!((published.totals.files, published.skipped_count), (2, 2));
    let skipped: Vec<_> = published.skipped.iter().map(|s| s.path.as_path()).collect();
    assert_eq!(skipped, [Path::new("a/bad"), Path::new("b")]);
    let paths: Vec<_> = place.read().inodes.into_keys().collect();
    assert_eq!(paths, [&b""[..], b"a", b"a/good", b"z"]);
    // A directory stays, with its entries and without the attributes that cannot be published.
    rustix::fs::setxattr(&directory, "user.bulla.x", b"", flags).unwrap();
    assert!(place.try_publish(&place.options()).is_err());
    let published = place.publish_with(&skipping);
    assert_eq!((published.totals.files, published.skipped_count), (2, 3));
}

#[test]
fn the_repository_is_not_published_into_itself() {
    let place = Place::new();
    place.write("f", b"content");
    let inside = place.tree().join("repo");
    let refused = publish(&place.tree(), &inside, &key(), &place.options(), &Silent);
    assert!(matches!(
        refused,
        Err(PublishError::RepositoryInside { .. })
    ));
    let options = PublishOptions {
        exclude: Exclude::new(&["/repo/"]).unwrap(),
        ..place.options()
    };
    assert_eq!(
        publish(&place.tree(), &inside, &key(), &options, &Silent)
            .unwrap()
            .totals
            .files,
        1
    );
}

#[test]
fn a_dry_run_writes_nothing() {
    let place = Place::new();
    place.write("f", &noise(1, 100_000));
    let dry = PublishOptions {
        dry_run: true,
        ..place.options()
    };
    let told = place.publish_with(&dry);
    assert!(!place.repo().exists());
    assert!(told.new_bytes > 80_000 && told.record_hash.is_none());
    place.publish();
    let before = place.read().offer.record_hash;
    place.write("g", &noise(2, 100_000));
    let told = place.publish_with(&dry);
    assert!(
        (80_000..110_000).contains(&told.new_bytes),
        "{}",
        told.new_bytes
    );
    assert_eq!((told.version, told.totals.files), (2, 2));
    assert_eq!(place.read().offer.record_hash, before);
}

/// A file that is written all the time, until the flag stops it. One call writes one page: the system stamps
/// the beginning of a call, so a long call on a busy machine can go unnoticed (decision 0011).
fn restless(path: PathBuf, len: usize) -> (Arc<AtomicBool>, std::thread::JoinHandle<()>) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let file = fs::File::create(path).unwrap();
    let thread = std::thread::spawn(move || {
        for turn in 0.. {
            for (page, bytes) in vec![turn as u8; len].chunks(4096).enumerate() {
                file.write_all_at(bytes, 4096 * page as u64).unwrap();
            }
            if stopped.load(Ordering::Relaxed) {
                break;
            }
        }
    });
    (stop, thread)
}

#[test]
fn a_file_that_changes_while_it_is_read_is_never_mixed() {
    for len in [200_000, 4_000_000] {
        let place = Place::new();
        place.write("calm", b"content");
        let (stop, thread) = restless(place.tree().join("restless"), len);
        let (mut told, begun) = (0, std::time::Instant::now());
        for turn in 0.. {
            // On a busy machine the two take turns, and a small file is read in one turn.
            let enough = turn >= 4 && (told > 0 || len < 1_000_000);
            if enough || begun.elapsed() > Duration::from_secs(120) {
                break;
            }
            match place.try_publish(&place.options()) {
                Ok(_) => {
                    let content = place.read().content("restless");
                    // At any moment the file holds this turn up to some position, and the last turn after it.
                    let turn = content[0];
                    let mut rest = content.iter().skip_while(|b| **b == turn);
                    assert!(rest.all(|b| *b == turn.wrapping_sub(1)), "mixed");
                }
                Err(PublishError::Unreadable { path, why }) => {
                    assert_eq!(path, Path::new("restless"));
                    assert!(matches!(why, Unreadable::Changing(3)), "{why}");
                    told += 1;
                }
                Err(e) => panic!("{e}"),
            }
        }
        let options = PublishOptions {
            skip_unreadable: true,
            ..place.options()
        };
        let published = place.publish_with(&options);
        assert_eq!(published.totals.files + published.skipped_count, 2);
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
        assert!(
            told > 0 || len < 1_000_000,
            "the writer was never noticed: the test tests nothing"
        );
    }
}

#[test]
fn a_cancelled_publication_keeps_the_old_version() {
    let place = Place::new();
    place.write("f", b"1");
    place.publish();
    place.write("f", b"2");
    let options = place.options();
    options.cancel.store(true, Ordering::Relaxed);
    let stopped = place.try_publish(&options);
    assert!(matches!(stopped, Err(PublishError::Interrupted)));
    assert_eq!(place.read().content("f"), b"1");
}
