//! After a fork, with real processes: content of lost work that neither its device nor the server has comes from another
//! place, the directory of another server or its address.

use std::io::{Read, Seek, SeekFrom, Write};
use std::net::TcpListener;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::shared_engine::Running;
use crate::shared_forks::{forked, kind};
use crate::shared_lab::{Orderer, founded};
use crate::shared_recovery::{accepted, forget_own_content, names, recovered};
use crate::support::{Home, Ran, copy, noise};

/// In each file, so that it can be found where its blocks are stored.
const MARK: &str = "find this content ";

/// Content that is stored as it is, because it cannot be compressed.
fn content(number: u64) -> Vec<u8> {
    [&noise(number, 2_000), MARK.as_bytes(), &[number as u8]].concat()
}

fn long() -> Vec<u8> {
    noise(999, 3_000_000)
}

const MANY: std::ops::Range<u64> = 1..9;

/// The laptop has written `many/1` to `many/8` and `long` on the branch in the directory `other`, and does not have their
/// content any more.
fn lost() -> (Orderer, Home, Home) {
    let (orderer, ada, laptop) = forked();
    std::fs::create_dir(laptop.path("many")).unwrap();
    for number in MANY {
        std::fs::write(laptop.path(&format!("many/{number}")), content(number)).unwrap();
    }
    std::fs::write(laptop.path("long"), long()).unwrap();
    laptop.run(&["put", "-r", "many", "notes"]).ends(0);
    laptop.run(&["put", "long", "notes"]).ends(0);
    forget_own_content(&laptop);
    (orderer, ada, laptop)
}

/// The owner lets ada's log stand, and the laptop is told what is lacking.
fn gone_over(orderer: &mut Orderer, ada: &Home, laptop: &Home) {
    let rules = recovered(ada, &[]);
    accepted(orderer, &rules);
    let told = laptop.run(&["ls", "notes"]).ends(0);
    for path in ["long", "many/1"] {
        let lacks = format!("`{path}` is not back: the server does not have its content");
        assert!(told.err.contains(&lacks), "{}", told.err);
    }
    assert!(told.err.contains("--from LOCATION"), "{}", told.err);
    assert_eq!(owed(laptop), (9, 3_000_000 + 8 * 2_019));
}

/// Files of the device that are not back, and bytes of their content.
fn owed(device: &Home) -> (u64, u64) {
    let status = device.run(&["--json", "share", "status", "notes"]).ends(0);
    let number = |key: &str| status.field(key).as_u64().unwrap();
    (number("owed_files"), number("owed_bytes"))
}

fn follow(device: &Home, from: &str, more: &[&str]) -> Ran {
    let args = ["--json", "share", "follow", "notes", "--from", from];
    device.run(&[&args, more].concat())
}

fn number(ran: &Ran, key: &str) -> u64 {
    ran.field(key).as_u64().unwrap_or_else(|| panic!("{key}"))
}

/// The content of the conflict copy of this file.
fn back(home: &Home, path: &str) -> Option<Vec<u8>> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let beginning = format!("{name} (conflict device 1 ");
    let listed = match directory {
        "" => names(home),
        directory => {
            let listed = home.run(&["ls", "notes", directory]).ends(0).out;
            listed.lines().map(str::to_owned).collect()
        }
    };
    let mut copies = listed.iter().filter(|name| name.starts_with(&beginning));
    let copy = copies.next()?;
    assert_eq!(copies.next(), None, "twice");
    let copy = Path::new(directory).join(copy);
    let read = home.command(&["cat", "notes", copy.to_str().unwrap()]);
    let mut read = read;
    Some(read.output().unwrap().stdout)
}

fn all_are_back(homes: &[&Home]) {
    for home in homes {
        for number in MANY {
            let found = back(home, &format!("many/{number}"));
            assert_eq!(found, Some(content(number)), "many/{number}");
        }
        assert!(back(home, "long") == Some(long()));
    }
}

/// Names, lengths and times of change of all files below a directory.
fn state(directory: &Path) -> String {
    let listed = Command::new("find")
        .arg(directory)
        .args(["-printf", "%P %y %s %T@ %C@\n"])
        .output();
    String::from_utf8(listed.unwrap().stdout).unwrap()
}

#[test]
fn content_comes_back_from_the_directory_of_another_server() {
    let (mut orderer, ada, laptop) = lost();
    gone_over(&mut orderer, &ada, &laptop);
    let other = orderer.home.path("other");
    let before = state(&other);
    // A path that does not exist, and a directory that is not a server's.
    for wrong in ["nowhere", "many"] {
        let told = follow(&laptop, wrong, &[]).ends(30);
        assert!(told.err.contains("nothing was changed"), "{}", told.err);
    }
    let (stranger, _) = founded(&[]);
    let told = follow(&laptop, stranger.home.path("repo").to_str().unwrap(), &[]).ends(30);
    assert!(told.err.contains("another shared volume"), "{}", told.err);
    let told = follow(&laptop, "ada@host:repo", &[]).ends(2);
    assert!(told.err.contains("an address"), "{}", told.err);
    let repo = orderer.home.path("repo");
    let told = follow(&laptop, repo.to_str().unwrap(), &[]).ends(0);
    assert_eq!(
        (number(&told, "lacking"), number(&told, "from_blocks")),
        (9, 0)
    );
    let neither = format!("neither the server nor {} gives", repo.display());
    assert!(told.err.contains(&neither), "{}", told.err);
    // Content comes back where the engine runs.
    let running = Running::begin(&laptop, &[]);
    let told = follow(&laptop, other.to_str().unwrap(), &[]).ends(11);
    assert!(told.err.contains("bulla share run"), "{}", told.err);
    let status = laptop.run(&["--json", "share", "status", "notes"]).ends(0);
    assert!(status.field("owed_files").is_null());
    running.stop().ends(0);
    let told = follow(&laptop, other.to_str().unwrap(), &[]).ends(0);
    assert_eq!((number(&told, "lacking"), number(&told, "copies")), (0, 9));
    assert!(number(&told, "from_bytes") > 3_000_000);
    assert_eq!(number(&told, "from_wrong"), 0);
    assert_eq!(state(&other), before, "the other place was written");
    all_are_back(&[&ada, &laptop]);
    assert_eq!(owed(&laptop), (0, 0));
    let told = follow(&laptop, other.to_str().unwrap(), &[]).ends(0);
    assert_eq!(
        (number(&told, "copies"), number(&told, "from_blocks")),
        (0, 0)
    );
}

/// The blocks of the last minute are in the temporary log only, and nobody has moved them.
#[test]
fn content_comes_back_from_the_directory_of_a_killed_server() {
    let (mut orderer, ada, laptop) = lost();
    orderer.kill();
    gone_over(&mut orderer, &ada, &laptop);
    let other = orderer.home.path("other");
    let before = state(&other);
    let told = follow(&laptop, other.to_str().unwrap(), &[]).ends(0);
    assert_eq!((number(&told, "lacking"), number(&told, "copies")), (0, 9));
    assert_eq!(state(&other), before, "the other place was written");
    all_are_back(&[&ada]);
}

/// Changes the byte behind the mark of each copy of this content in a directory.
fn change(directory: &Path, number: u64) {
    let mut changed = 0;
    let files = Command::new("grep")
        .args(["-rlaU", MARK])
        .arg(directory)
        .output();
    let files = String::from_utf8(files.unwrap().stdout).unwrap();
    for path in files.lines() {
        let found = Command::new("grep").args(["-obaU", MARK, path]).output();
        let found = String::from_utf8_lossy(&found.unwrap().stdout).into_owned();
        let mut file = std::fs::File::options()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        for at in found
            .lines()
            .filter_map(|line| line.split(':').next()?.parse::<u64>().ok())
        {
            let at = at + MARK.len() as u64;
            let mut byte = [0];
            file.seek(SeekFrom::Start(at)).unwrap();
            file.read_exact(&mut byte).unwrap();
            if u64::from(byte[0]) == number {
                file.write_all_at(&[0xff], at).unwrap();
                changed += 1;
            }
        }
    }
    assert!(changed > 0, "the content is not there");
}

#[test]
fn wrong_byte_in_the_other_directory_is_not_taken() {
    let (mut orderer, ada, laptop) = lost();
    gone_over(&mut orderer, &ada, &laptop);
    let (other, wrong) = (orderer.home.path("other"), orderer.home.path("wrong"));
    copy(&other, &wrong);
    change(&wrong, 3);
    let told = follow(&laptop, wrong.to_str().unwrap(), &[]).ends(0);
    assert_eq!((number(&told, "lacking"), number(&told, "copies")), (1, 8));
    assert_eq!(told.field("lacking_names"), serde_json::json!(["many/3"]));
    assert!(number(&told, "from_wrong") > 0);
    assert!(
        told.err.contains("nothing of them was taken"),
        "{}",
        told.err
    );
    assert_eq!(back(&ada, "many/3"), None);
    assert_eq!(owed(&laptop), (1, 2_019));
    let told = follow(&laptop, other.to_str().unwrap(), &[]).ends(0);
    assert_eq!((number(&told, "lacking"), number(&told, "copies")), (0, 1));
    all_are_back(&[&ada, &laptop]);
}

#[test]
fn content_comes_back_from_the_address_of_another_server() {
    let (mut orderer, ada, laptop) = lost();
    gone_over(&mut orderer, &ada, &laptop);
    let (mut other, _) = Orderer::new("127.0.0.1");
    copy(&orderer.home.path("other"), &other.home.path("repo"));
    copy(&orderer.home.path("key"), &other.home.path("key"));
    other.start();
    let told = follow(&laptop, &other.location(), &[]).ends(0);
    assert_eq!((number(&told, "lacking"), number(&told, "copies")), (0, 9));
    other.stop();
    all_are_back(&[&ada, &laptop]);
}

/// A place that takes connections and says nothing. Gives its location, and how many have come.
fn mute() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = format!("bulla://{}", listener.local_addr().unwrap());
    let came = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&came);
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    (location, came)
}

#[test]
fn mute_place_is_told_and_what_the_device_has_comes_back_all_the_same() {
    let (mut orderer, ada, laptop) = lost();
    std::fs::write(laptop.path("kept"), content(77)).unwrap();
    laptop.run(&["put", "kept", "notes"]).ends(0);
    let rules = recovered(&ada, &[]);
    accepted(&mut orderer, &rules);
    let (location, came) = mute();
    let told = follow(&laptop, &location, &["--deadline", "8s"]).ends(30);
    assert_eq!(kind(&told), "unavailable");
    assert!(told.err.contains(&location), "{}", told.err);
    assert_eq!(back(&ada, "kept"), Some(content(77)));
    assert_eq!(owed(&laptop), (9, 3_000_000 + 8 * 2_019));
    // It is asked once, not for each file.
    assert_eq!(came.load(Ordering::SeqCst), 1);
    // One that breaks the protocol.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let location = format!("bulla://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let _ = stream.write_all(&noise(5, 100_000));
        }
    });
    // Nothing is given up while a place may still have it.
    let told = follow(&laptop, &location, &["--deadline", "8s", "--give-up"]).ends(30);
    assert!(told.err.contains("nothing was given up"), "{}", told.err);
    assert_eq!(owed(&laptop).0, 9);
    let other = orderer.home.path("other");
    follow(&laptop, other.to_str().unwrap(), &[]).ends(0);
    all_are_back(&[&ada]);
}
