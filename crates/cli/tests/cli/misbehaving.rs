//! Mirrors that fail under a busy reader, with the real binary: all servers except one become stale, lie,
//! stall, die, or announce a version and withhold it, first one after the other and then all at once.
//! Programs on the mount get the right bytes without errors, in bounded time.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::support::{
    self, Home, Mounted, Ran, Server, corrupt, noise, segments, skipped, wait_until,
};
use serde_json::Value;

const FILES: usize = 480;
const FILE_BYTES: usize = 20_000;
/// The longest time of any read while mirrors fail: the slowest detection takes 3 s, the rest is a reserve for a busy
/// machine.
const LONGEST: Duration = Duration::from_secs(30);

fn name(n: usize) -> String {
    format!("d{:02}/f{n:03}", n % 16)
}

fn fill(home: &Home) {
    for n in 0..FILES {
        let path = home.path("tree").join(name(n));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(n as u64, FILE_BYTES)).unwrap();
    }
}

/// Removes the blocks of a repository, so that its server announces a version but withholds it.
fn withhold(repo: &Path) {
    for path in segments(repo) {
        let mut bytes = fs::read(&path).unwrap();
        bytes.iter_mut().skip(64).for_each(|byte| *byte = 0);
        fs::write(&path, bytes).unwrap();
    }
}

/// A relay that makes a server the slowest of all, so that readers prefer the others.
fn far_away(location: &str) -> String {
    let server = location.trim_start_matches("bulla://").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = format!("bulla://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for client in listener.incoming().flatten() {
            let server = TcpStream::connect(&server).unwrap();
            let ends = [client, server];
            let [client, server] = ends.each_ref().map(|end| end.try_clone().unwrap());
            let [client_again, server_again] = ends;
            std::thread::spawn(move || carry(client, server));
            std::thread::spawn(move || carry(server_again, client_again));
        }
    });
    place
}

fn carry(mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0; 256 << 10];
    while let Ok(read) = from.read(&mut buffer) {
        std::thread::sleep(Duration::from_millis(10));
        if read == 0 || to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// The times of reads, each of a file that was not read before.
struct Reader<'a> {
    home: &'a Home,
    next: usize,
    slowest: Duration,
}

impl Reader<'_> {
    #[track_caller]
    fn read(&mut self, files: usize, what: &str) {
        for n in self.next..self.next + files {
            let began = Instant::now();
            let path = self.home.path("mnt").join(name(n));
            let bytes = fs::read(path).unwrap_or_else(|e| panic!("{what}: {}: {e}", name(n)));
            let took = began.elapsed();
            assert!(bytes == noise(n as u64, FILE_BYTES), "{what}: {}", name(n));
            assert!(took < LONGEST, "{what}: {} took {took:?}", name(n));
            self.slowest = self.slowest.max(took);
        }
        self.next += files;
    }
}

fn status(home: &Home) -> Value {
    let told = home.run(&["--json", "status", "mnt"]).ends(0);
    told.records("mount").remove(0)
}

/// `bulla mount --foreground` of `source` with `mirrors`.
fn mount(home: &Home, source: &str, mirrors: &[&str]) -> Child {
    fs::create_dir_all(home.path("mnt")).unwrap();
    let mut args = vec!["mount", source, "mnt", "--foreground", "--refresh", "300ms"];
    mirrors.iter().for_each(|it| args.extend(["--mirror", it]));
    let mut command = home.command(&args);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    wait_until("the mount", || home.path("mnt/d00").exists());
    child
}

/// The fault of a mirror.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Lying,
    Stalled,
    Dead,
    Withholding,
}

/// The mirrors of the test. The last one is honest and slow, and is not used while another one is good.
struct Mirrors<'a> {
    home: &'a Home,
    names: [&'static str; 6],
    servers: [Server; 6],
    good: Vec<usize>,
}

impl Mirrors<'_> {
    /// Makes the mirror fail that got the most requests since `before`.
    fn turn(&mut self, turn: Turn, before: &Value) {
        let asked = |told: &Value, at: usize| told["mirrors"][at]["requests"].as_u64().unwrap();
        let told = status(self.home);
        let since = |at: usize| asked(&told, at) - asked(before, at);
        // What was fetched ahead needs no request. If no mirror got one, the mirror with the most requests in all fails.
        let near = self.good.iter().copied();
        let busiest = near.max_by_key(|at| (since(*at), asked(&told, *at)));
        let busiest = busiest.unwrap();
        assert!(
            asked(&told, busiest) > 0,
            "no near mirror was asked: {told}"
        );
        self.good.retain(|at| *at != busiest);
        let repo = self.home.path(self.names[busiest]);
        match turn {
            Turn::Lying => corrupt(&repo),
            Turn::Stalled => self.servers[busiest].stall(),
            Turn::Dead => self.servers[busiest].kill(),
            Turn::Withholding => {
                // A genuine version that no other mirror has.
                fs::write(self.home.path("tree/third"), noise(3, 300_000)).unwrap();
                let repo_name = self.names[busiest];
                let third = ["publish", "tree", repo_name, "--key", "key"];
                self.home.run(&third).ends(0);
                withhold(&repo);
            }
        }
    }
}

#[test]
fn all_mirrors_but_one_go_bad_and_programs_notice_nothing() {
    if !Path::new("/dev/fuse").exists() {
        return skipped("mirrors under a mount", "no /dev/fuse");
    }
    let home = Home::new();
    fs::create_dir_all(home.path("tree")).unwrap();
    fill(&home);
    let volume = home.published();
    let names = ["stale", "m1", "m2", "m3", "m4", "honest"];
    for copy in names {
        support::copy(&home.path("repo"), &home.path(copy));
    }
    let servers = names.map(|copy| home.serve(copy));
    let mut places = servers.each_ref().map(|it| it.location().to_owned());
    places[5] = far_away(&places[5]);
    let mirrors: Vec<&str> = places.iter().skip(1).map(String::as_str).collect();
    let source = format!("{volume}@{}", places[0]);
    let mounted = Mounted {
        home: &home,
        dir: "mnt",
    };
    let mut daemon = mount(&home, &source, &mirrors);
    let mut reader = Reader {
        home: &home,
        next: 0,
        slowest: Duration::ZERO,
    };
    reader.read(40, "all are well");

    // A new version, and one mirror that does not follow.
    fs::write(home.path("tree/second"), noise(2, 300_000)).unwrap();
    home.publish().ends(0);
    let published = home.source(&volume, "repo");
    for copy in &names[1..] {
        home.run(&["pull", &published, copy]).ends(0);
    }
    // Until then a mirror that is behind is as good as any other, including the stale one.
    wait_until("version 2 everywhere but at one place", || {
        let told = status(&home);
        let mirrors = told["mirrors"].as_array().unwrap();
        told["version"] == 2 && mirrors[1..].iter().all(|it| it["behind"] == false)
    });
    let mut bad = Mirrors {
        home: &home,
        names,
        servers,
        good: vec![1, 2, 3, 4],
    };
    for turn in [Turn::Lying, Turn::Stalled, Turn::Dead, Turn::Withholding] {
        let before = status(&home);
        reader.read(40, "before one goes bad");
        bad.turn(turn, &before);
        reader.read(40, &format!("{turn:?}"));
    }
    let refreshes = || status(&home)["refresh"]["count"].as_u64().unwrap();
    let before = refreshes();
    wait_until("the mount refreshes again", || refreshes() > before);
    reader.read(80, "all but one are bad");
    let second = fs::read(home.path("mnt/second")).unwrap();
    assert!(second == noise(2, 300_000));
    println!("the slowest read took {:?}", reader.slowest);
    let told = status(&home);
    assert_eq!(told["version"], 2, "{told}");
    for (kind, n) in told["errors"].as_object().unwrap() {
        assert_eq!(n, 0, "{kind}: {told}");
    }
    let faulty = |it: &&Value| it["behind"] == true || it["last_fault"].is_string();
    let faulty = told["mirrors"].as_array().unwrap().iter().filter(faulty);
    // For the stalled mirror it may only be known that others are faster.
    assert!(faulty.count() >= 4, "{told}");
    home.run(&["umount", "mnt"]).ends(0);
    daemon.wait().unwrap();
    drop(mounted);

    newcomer(&home, &source, &mirrors);
}

/// A reader without state gets the newest available version too.
fn newcomer(home: &Home, source: &str, mirrors: &[&str]) {
    let mut args = vec!["cat", source, "second"];
    mirrors.iter().for_each(|it| args.extend(["--mirror", it]));
    let began = Instant::now();
    let mut command = home.command(&args);
    command.env("BULLA_STATE_DIR", home.path("newcomer"));
    let output = command.output().unwrap();
    let bytes = output.stdout.clone();
    Ran::of(output).ends(0);
    assert_eq!(bytes, noise(2, 300_000));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}
