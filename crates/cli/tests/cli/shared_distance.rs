//! Shared volumes far away, with the real binary: a server and two devices on a network that is slow, loses packets and
//! is cut, where each host is a network namespace; and how many round trips commands take.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use sim::network::{Host, Network};

use crate::network::hosts;
use crate::shared_lab::{Orderer, found, founded_at, joined};
use crate::shared_mount_lab::{Mount, can_mount};
use crate::support::{Home, Ran, noise};

const ONE_WAY: Duration = Duration::from_millis(25);
const LOST_IN_1000: u64 = 20;

/// A machine: its files, and the host on which its processes run.
struct Machine {
    home: Home,
    host: Host,
}

impl Machine {
    fn run(&self, args: &[&str]) -> Ran {
        let mut command = self.home.command(args);
        let ran = self.host.inside(|| command.output());
        Ran::of(ran.unwrap())
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.home.path(name), content).unwrap();
    }

    fn put(&self, name: &str, content: &str) {
        self.write(name, content);
        self.run(&["put", name, "notes", "--deadline", "60s"])
            .ends(0);
    }

    #[track_caller]
    fn reads(&self, name: &str, content: &str) {
        let ran = self.run(&["cat", "notes", name, "--deadline", "60s"]);
        assert_eq!(ran.ends(0).out, content);
    }
}

/// The kind of the error of a command that fails.
fn kind(ran: &Ran) -> String {
    ran.field("error")["kind"].as_str().unwrap().to_owned()
}

#[test]
fn devices_far_away_lose_nothing_while_packets_are_lost_and_hosts_are_cut_off() {
    let mut network = Network::new(ONE_WAY, LOST_IN_1000, 7);
    let Some([server, one, other]) = hosts(&mut network) else {
        return;
    };
    let place = server.address().to_string();
    let (orderer, ada, laptop) = server.inside(|| {
        let (orderer, ada) = founded_at(&place, &[]);
        let laptop = joined(&ada, "ada");
        (orderer, ada, laptop)
    });
    let ada = Machine {
        home: ada,
        host: one,
    };
    let laptop = Machine {
        home: laptop,
        host: other,
    };
    for round in 0..4 {
        let content = format!("round {round}\n").repeat(3000);
        let (from, to) = if round % 2 == 0 {
            (&ada, &laptop)
        } else {
            (&laptop, &ada)
        };
        from.put("file", &content);
        to.reads("file", &content);
    }
    // A device that is cut off gets an error at its deadline; the other goes on.
    network.cut_off(&laptop.host);
    let told = laptop.run(&["--json", "cat", "notes", "file", "--deadline", "3s"]);
    assert_eq!(kind(&told.ends(30)), "unavailable");
    ada.put("b", "meanwhile\n");
    network.reconnect(&laptop.host);
    laptop.reads("b", "meanwhile\n");
    // A device is cut off while it writes, and connected again: the command ends as if nothing had been.
    laptop.write("c", &"c".repeat(300_000));
    let mut put = laptop
        .home
        .command(&["put", "c", "notes", "--deadline", "100s"]);
    put.stdout(Stdio::null()).stderr(Stdio::piped());
    let put = laptop.host.inside(|| put.spawn()).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    network.cut_off(&laptop.host);
    std::thread::sleep(Duration::from_secs(2));
    network.reconnect(&laptop.host);
    Ran::of(put.wait_with_output().unwrap()).ends(0);
    ada.reads("c", &"c".repeat(300_000));
    // No device reaches the server. Each command says so in time, and nothing is lost.
    network.cut_off(&server);
    ada.write("d", "d\n");
    for (machine, args) in [
        (&ada, &["put", "d", "notes", "--deadline", "3s"][..]),
        (&laptop, &["ls", "notes", "--deadline", "3s"]),
    ] {
        let told = machine.run(&[&["--json"], args].concat());
        assert_eq!(kind(&told.ends(30)), "unavailable");
    }
    network.reconnect(&server);
    ada.put("d", "d\n");
    for machine in [&ada, &laptop] {
        let listed = machine.run(&["ls", "notes", "--deadline", "60s"]);
        assert_eq!(listed.ends(0).out, "b\nc\nd\nfile\n");
    }
    drop(orderer);
    let (carried, lost) = network.packets();
    assert!(lost > 5, "the network was too good: {lost} of {carried}");
}

/// A way to a server that is longer than what a busy machine needs for a call.
const LONG_WAY: Duration = Duration::from_millis(150);

/// A long way to a server, that counts round trips. One has begun when the client sends something after it was answered,
/// and as long as the way lasts there is no other: so a slow machine has no more of them than it sends messages.
struct LongWay {
    port: u16,
    trips: Arc<Mutex<Trips>>,
}

struct Trips {
    count: u32,
    began: Instant,
    is_answered: bool,
}

impl LongWay {
    /// Each direction takes so long.
    fn to(port: u16, one_way: Duration) -> LongWay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let trips = Arc::new(Mutex::new(Trips {
            count: 0,
            began: Instant::now(),
            is_answered: true,
        }));
        let way = LongWay {
            port: listener.local_addr().unwrap().port(),
            trips: Arc::clone(&trips),
        };
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else {
                    continue;
                };
                let (up, down) = (Arc::clone(&trips), Arc::clone(&trips));
                let sent = move || {
                    let mut trips = up.lock().unwrap();
                    if trips.is_answered && trips.began.elapsed() >= 2 * one_way {
                        trips.count += 1;
                        trips.began = Instant::now();
                        trips.is_answered = false;
                    }
                };
                let answered = move || down.lock().unwrap().is_answered = true;
                carry((&client, &server), one_way, sent, || ());
                carry((&server, &client), one_way, || (), answered);
            }
        });
        way
    }

    /// Runs a command, and gives how many round trips it takes.
    fn trips(&self, home: &Home, args: &[&str]) -> (Ran, u32) {
        let before = self.trips.lock().unwrap().count;
        let ran = home.run(args);
        let trips = self.trips.lock().unwrap().count - before;
        (ran, trips)
    }
}

/// Carries bytes from one end of the way to the other, until the connection ends.
fn carry(
    (from, to): (&TcpStream, &TcpStream),
    one_way: Duration,
    sent: impl Fn() + Send + 'static,
    arrived: impl Fn() + Send + 'static,
) {
    let (mut from, mut to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
    to.set_nodelay(true).unwrap();
    let (put, take) = mpsc::channel::<(Instant, Vec<u8>)>();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 1 << 16];
        while let Ok(len @ 1..) = from.read(&mut buffer) {
            sent();
            let due = Instant::now() + one_way;
            if put.send((due, buffer[..len].to_vec())).is_err() {
                break;
            }
        }
    });
    std::thread::spawn(move || {
        for (due, bytes) in take {
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
            arrived();
        }
        // It may be closed.
        let _ = to.shutdown(Shutdown::Both);
    });
}

#[test]
fn tree_of_1000_files_takes_few_round_trips() {
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let way = LongWay::to(orderer.port, ONE_WAY);
    orderer.seen_at = Some(format!("127.0.0.1:{}", way.port));
    let ada = found(&mut orderer, &key, &[], &[]);
    let laptop = joined(&ada, "ada");
    let path = |n: usize| format!("tree/d{:02}/f{n:04}", n % 20);
    for n in 0..1000 {
        let path = ada.path(&path(n));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(n as u64, 2000)).unwrap();
    }
    // A device keeps the content that it made, so the other one reads it.
    for (home, name, args) in [
        (&ada, "put", &["put", "-r", "tree", "notes"][..]),
        (&ada, "put again", &["put", "-r", "tree", "notes"]),
        (&ada, "ls", &["ls", "-R", "notes"]),
        (&laptop, "verify", &["verify", "notes"]),
        (&laptop, "extract", &["extract", "notes", "copy"]),
    ] {
        let (ran, trips) = way.trips(home, args);
        eprintln!("{name}: {trips} round trips");
        ran.ends(0);
        assert!(trips <= 30, "{name}: {trips} round trips");
    }
    for n in 0..1000 {
        let copy = fs::read(laptop.path("copy").join(path(n))).unwrap();
        assert!(copy == noise(n as u64, 2000), "{}", path(n));
    }
}

/// How many round trips something takes, one after the other: the fewest of some tries, because this machine may be busy.
fn waits(mut work: impl FnMut(usize)) -> f64 {
    let mut waits = |number| {
        let begin = Instant::now();
        work(number);
        begin.elapsed().as_secs_f64() / (2.0 * LONG_WAY.as_secs_f64())
    };
    (0..4).map(&mut waits).fold(f64::INFINITY, f64::min)
}

#[test]
fn calls_of_a_mount_take_as_many_round_trips_as_the_design_says() {
    if !can_mount() {
        return;
    }
    let (mut orderer, key) = Orderer::new("127.0.0.1");
    let way = LongWay::to(orderer.port, LONG_WAY);
    orderer.seen_at = Some(format!("127.0.0.1:{}", way.port));
    let ada = found(&mut orderer, &key, &[], &[]);
    let mount = Mount::of(&ada, &["--attr", "60s"]);
    let path = |number: usize| mount.path(&format!("f{number}"));
    let long = |number: usize| noise(number as u64, 900_000);
    let create = |number: usize, content: &[u8], syncs: bool| {
        let mut file = fs::File::create_new(path(number)).unwrap();
        file.write_all(content).unwrap();
        if syncs {
            file.sync_all().unwrap();
        }
    };
    let counted = [
        (
            "create and close",
            2.0,
            waits(|n| create(n, b"short", false)),
        ),
        (
            "with content in blocks",
            2.0,
            waits(|n| create(10 + n, &long(n), false)),
        ),
        ("with fsync", 2.0, waits(|n| create(20 + n, &long(n), true))),
        (
            "stat",
            0.0,
            waits(|n| assert!(fs::metadata(path(n)).is_ok())),
        ),
        (
            "open",
            1.0,
            waits(|n| assert!(fs::File::open(path(n)).is_ok())),
        ),
        (
            "write and close",
            2.0,
            waits(|n| fs::write(path(10 + n), long(30 + n)).unwrap()),
        ),
        (
            "unlink",
            1.0,
            waits(|n| fs::remove_file(path(10 + n)).unwrap()),
        ),
    ];
    for (what, expected, trips) in counted {
        eprintln!("{what}: {trips:.2} round trips");
        assert!(
            trips >= expected && trips < expected + 0.7,
            "{what}: {trips:.2} round trips"
        );
    }
    assert_eq!(fs::read(path(0)).unwrap(), b"short");
    assert!(fs::read(path(20)).unwrap() == long(0));
    mount.end();
}
