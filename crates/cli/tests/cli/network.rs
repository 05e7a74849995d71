//! Hosts 50 ms apart on a network that loses packets and disconnects hosts, with the real binary: a reader
//! whose mirrors lie, are behind or cannot be reached, and a replica that is disconnected while it pulls.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    self, Home, Mounted, Ran, Server, corrupt, noise, segments, skipped, wait_until,
};
use rustix::io::Errno;
use sim::network::{Host, Network};

const ONE_WAY: Duration = Duration::from_millis(25);
const LOST_IN_1000: u64 = 20;
const FILES: usize = 120;
const FILE_BYTES: usize = 20_000;
const HUGE_BYTES: usize = 40_000_000;
const DEADLINE: &str = "8s";
/// The longest time of a read while mirrors are lost: two deadlines, because the kernel repeats a request that
/// failed for the page that is read, and a reserve.
const LONGEST: Duration = Duration::from_secs(60);

fn name(n: usize) -> String {
    format!("d{:02}/f{n:03}", n % 12)
}

fn content(n: usize) -> Vec<u8> {
    noise(100 + n as u64, FILE_BYTES)
}

fn fill(home: &Home) {
    for n in 0..FILES {
        let path = home.path("tree").join(name(n));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content(n)).unwrap();
    }
    fs::create_dir_all(home.path("tree/apart")).unwrap();
    fs::write(home.path("tree/apart/large"), noise(7, 2_000_000)).unwrap();
}

/// N hosts; `None`, with a message, if this machine allows none.
pub fn hosts<const N: usize>(network: &mut Network) -> Option<[Host; N]> {
    let hosts: Result<Vec<Host>, _> = (0..N).map(|_| network.host()).collect();
    match hosts {
        Ok(hosts) => hosts.try_into().ok(),
        Err(error) => {
            let why = format!("network namespaces with devices: {error}");
            skipped("hosts that are far apart", &why);
            None
        }
    }
}

/// A server of `repo` on a host.
fn serve(home: &Home, host: &Host, repo: &str) -> Server {
    let place = format!("{}:0", host.address());
    host.inside(|| home.serve_at(repo, &["--listen", &place]))
}

/// The same over HTTP, and its LOCATION. On a host of its own every port is free.
fn serve_http(home: &Home, host: &Host, repo: &str) -> (Server, String) {
    let address = host.address();
    let places = [
        "--listen",
        &format!("{address}:0"),
        "--http",
        &format!("{address}:80"),
    ];
    let server = host.inside(|| home.serve_at(repo, &places));
    (server, format!("http://{address}"))
}

fn mount(home: &Home, host: &Host, source: &str, mirrors: &[&str]) -> Child {
    fs::create_dir_all(home.path("mnt")).unwrap();
    let mut args = vec!["mount", source, "mnt", "--foreground", "--refresh", "1s"];
    args.extend(["--deadline", DEADLINE]);
    mirrors.iter().for_each(|it| args.extend(["--mirror", it]));
    let mut command = home.command(&args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = host.inside(|| command.spawn()).unwrap();
    wait_until("the mount", || home.path("mnt/d00").exists());
    child
}

/// Reads files of the mount: all must be right, and each in time.
#[track_caller]
fn read(home: &Home, files: std::ops::Range<usize>, what: &str) {
    for n in files {
        let began = Instant::now();
        let bytes = fs::read(home.path("mnt").join(name(n)));
        let took = began.elapsed();
        let bytes = bytes.unwrap_or_else(|e| panic!("{what}: {}: {e} after {took:?}", name(n)));
        assert!(bytes == content(n), "{what}: {}", name(n));
        assert!(took < LONGEST, "{what}: {} took {took:?}", name(n));
    }
}

#[test]
fn a_reader_far_away_sees_no_error_while_one_good_mirror_can_be_reached() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("a mount far away", "no /dev/fuse");
    }
    let mut network = Network::new(ONE_WAY, LOST_IN_1000, 1);
    let Some([reader, liar, stale, good, web]) = hosts(&mut network) else {
        return;
    };
    let home = Home::new();
    fs::create_dir_all(home.path("tree")).unwrap();
    let volume = home.published();
    support::copy(&home.path("repo"), &home.path("stale"));
    fill(&home);
    home.publish().ends(0);
    for copy in ["liar", "good", "web"] {
        support::copy(&home.path("repo"), &home.path(copy));
    }
    corrupt(&home.path("liar"));
    let servers = [
        serve(&home, &liar, "liar"),
        serve(&home, &stale, "stale"),
        serve(&home, &good, "good"),
    ];
    let (_web, web_place) = serve_http(&home, &web, "web");
    let [source, ref mirrors @ ..] = servers.each_ref().map(Server::location);
    let source = format!("{volume}@{source}");
    let mirrors = [&mirrors[..], &[&web_place]].concat();
    let mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = mount(&home, &reader, &source, &mirrors);
    read(&home, 0..30, "one lies, one is stale");
    network.cut_off(&good);
    read(&home, 30..60, "and one cannot be reached");
    network.reconnect(&good);
    network.cut_off(&web);
    read(&home, 60..90, "another one cannot be reached");

    // No good mirror can be reached: an error in time, never wrong bytes. Later it works again.
    network.cut_off(&good);
    let large = home.path("mnt/apart/large");
    let began = Instant::now();
    let refused = fs::read(&large)
        .err()
        .and_then(|error| error.raw_os_error());
    assert_eq!(refused, Some(Errno::IO.raw_os_error()));
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    read(&home, 0..90, "what was read is still there");
    network.reconnect(&good);
    wait_until("it is read again", || fs::read(&large).is_ok());
    assert!(fs::read(&large).unwrap() == noise(7, 2_000_000));
    read(&home, 90..FILES, "after the network came back");

    // Unmounting works while no mirror can be reached.
    network.cut_off(&reader);
    let began = Instant::now();
    home.run(&["umount", "mnt"]).ends(0);
    daemon.wait().unwrap();
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    drop(mounted);
    let (carried, lost) = network.packets();
    println!("{carried} packets arrived, {lost} were lost");
    assert!(lost > 10, "the network was too good: {lost} of {carried}");
}

#[test]
fn a_replica_that_is_cut_off_while_it_pulls_goes_on_later() {
    let mut network = Network::new(ONE_WAY, LOST_IN_1000, 2);
    let Some([publisher, follower]) = hosts(&mut network) else {
        return;
    };
    let home = Home::new();
    let volume = home.published();
    let server = serve(&home, &publisher, "repo");
    let pull = |wait: &str| {
        let args = ["--json", "pull", &server.source, "replica"];
        let bounds = ["--deadline", wait, "--bwlimit", "4MiB"];
        let mut command = home.command(&[&args[..], &bounds].concat());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        follower.inside(|| command.spawn()).unwrap()
    };
    let ran = |child: Child| Ran::of(child.wait_with_output().unwrap());
    ran(pull("60s")).ends(0);
    let replica = home.source(&volume, "replica");
    let version = || {
        home.run(&["--json", "verify", &replica])
            .ends(0)
            .field("version")
    };
    fs::write(home.path("tree/huge"), noise(5, HUGE_BYTES)).unwrap();
    home.publish().ends(0);
    // This reader has its own state: for the others the replica stays at version 1.
    wait_until("the server sees version 2", || {
        let mut stat = home.command(&["--json", "stat", &server.source]);
        stat.env("BULLA_STATE_DIR", home.path("observer"));
        let ran = Ran::of(follower.inside(|| stat.output()).unwrap());
        ran.code == 0 && ran.field("version") == 2
    });

    let written = || {
        let files = segments(&home.path("replica")).into_iter();
        let bytes = files.map(|file| fs::metadata(file).unwrap().len());
        bytes.sum::<u64>()
    };
    let before = written();
    let child = pull("6s");
    wait_until("half of it has come", || {
        written() > before + HUGE_BYTES as u64 / 2
    });
    network.cut_off(&publisher);
    let began = Instant::now();
    let cut = ran(child).ends(30);
    assert!(began.elapsed() < LONGEST, "{:?}", began.elapsed());
    assert_eq!(version(), 1, "{}", cut.err);
    network.reconnect(&publisher);
    let done = ran(pull("60s")).ends(0);
    assert_eq!(version(), 2);
    let received = done.field("received_bytes").as_u64().unwrap();
    println!("the second time {received} bytes came");
    assert!(
        received < HUGE_BYTES as u64 * 3 / 4,
        "nothing was kept: {received}"
    );
    let (carried, lost) = network.packets();
    assert!(lost > 5, "the network was too good: {lost} of {carried}");
}
