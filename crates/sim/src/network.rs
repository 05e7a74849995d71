//! Hosts on a network that is slow or narrow, loses packets and can be partitioned. Each host is a network namespace
//! with one device, and this process carries IP packets between the devices. TCP is the kernel's own, with
//! its retransmissions and time-outs.

#![allow(clippy::unwrap_used, clippy::expect_used)] // a test fails by panicking

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::random::Random;

/// Packets under way at most; more are lost, as in a router.
const MAX_UNDER_WAY: usize = 4096;
/// Packets that would wait longer than this for a narrow line are lost.
const QUEUE: Duration = Duration::from_millis(500);
const MTU_BYTES: usize = 1500;

/// A network of some hosts. It ends with this value, and so does each host's namespace when the last
/// process in it ends.
pub struct Network {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    hosts: u8,
}

/// One host: a network namespace with an address.
pub struct Host {
    address: Ipv4Addr,
    namespace: File,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    devices: BTreeMap<Ipv4Addr, Arc<SyncDevice>>,
    cut_off: BTreeSet<Ipv4Addr>,
    /// Destination and packet, by time of arrival and the order in which they were sent.
    under_way: BTreeMap<(Instant, u64), (Ipv4Addr, Vec<u8>)>,
    sent: u64,
    lost_in_1000: u64,
    /// The line of all packets of hosts that have no line of their own.
    common: Line,
    own: BTreeMap<Ipv4Addr, Line>,
    random: Random,
    carried: u64,
    lost: u64,
    ended: bool,
}

struct Line {
    one_way: Duration,
    bits_per_second: Option<u64>,
    /// When it has sent what waits for it.
    free_at: Instant,
}

impl Line {
    fn new(one_way: Duration, bits_per_second: Option<u64>) -> Line {
        Line {
            one_way,
            bits_per_second,
            free_at: Instant::now(),
        }
    }

    /// When a packet arrives that is sent now; `None` if too many wait.
    fn carry(&mut self, len_bytes: usize) -> Option<Instant> {
        let now = Instant::now();
        let begins = self.free_at.max(now);
        let sent = match self.bits_per_second {
            None => now,
            Some(_) if begins - now > QUEUE => return None,
            Some(rate) => begins + Duration::from_secs_f64(len_bytes as f64 * 8.0 / rate as f64),
        };
        self.free_at = sent;
        Some(sent + self.one_way)
    }
}

impl Network {
    /// A network without hosts. A packet takes `one_way`, and of 1,000 packets about `lost_in_1000` are
    /// lost; `seed` and the order of packets decide which ones.
    pub fn new(one_way: Duration, lost_in_1000: u64, seed: u64) -> Network {
        let state = State {
            devices: BTreeMap::new(),
            cut_off: BTreeSet::new(),
            under_way: BTreeMap::new(),
            sent: 0,
            lost_in_1000,
            common: Line::new(one_way, None),
            own: BTreeMap::new(),
            random: Random::new(seed),
            carried: 0,
            lost: 0,
            ended: false,
        };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let courier = shared.clone();
        Network {
            shared,
            threads: vec![std::thread::spawn(move || courier.deliver())],
            hosts: 0,
        }
    }

    /// One more host.
    ///
    /// # Errors
    /// When this process may not make network namespaces and devices.
    pub fn host(&mut self) -> io::Result<Host> {
        self.hosts += 1;
        let host = Host {
            address: Ipv4Addr::new(10, 77, 0, self.hosts),
            namespace: namespace()?,
        };
        let address = host.address;
        let device = Arc::new(host.inside(|| device(address))?);
        self.shared.state().devices.insert(address, device.clone());
        let shared = self.shared.clone();
        let collect = move || shared.collect(address, &device);
        self.threads.push(std::thread::spawn(collect));
        Ok(host)
    }

    /// All packets share a line of this rate from now on.
    pub fn narrow(&self, bits_per_second: u64) {
        self.shared.state().common.bits_per_second = Some(bits_per_second);
    }

    /// What this host sends goes over a line of its own from now on, and takes `one_way` on it.
    pub fn line(&self, host: &Host, one_way: Duration, bits_per_second: u64) {
        let line = Line::new(one_way, Some(bits_per_second));
        self.shared.state().own.insert(host.address, line);
    }

    /// Drops all packets between this host and others from now on.
    pub fn cut_off(&self, host: &Host) {
        self.shared.state().cut_off.insert(host.address);
    }

    /// Ends what [`Network::cut_off`] began.
    pub fn reconnect(&self, host: &Host) {
        self.shared.state().cut_off.remove(&host.address);
    }

    /// Packets that arrived, and packets that were lost by chance.
    pub fn packets(&self) -> (u64, u64) {
        let state = self.shared.state();
        (state.carried, state.lost)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.shared.state().ended = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Host {
    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Runs `act` on this host. Processes that it starts stay on this host.
    ///
    /// # Panics
    /// If the namespace cannot be entered, or `act` panics.
    pub fn inside<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let there = scope.spawn(|| {
                let network = Some(LinkNameSpaceType::Network);
                move_into_link_name_space(self.namespace.as_fd(), network).expect("setns");
                act()
            });
            there.join().expect("the work on a host panicked")
        })
    }
}

/// A new network namespace, which exists as long as the file is open or a process is in it.
fn namespace() -> io::Result<File> {
    let mut holder = Command::new("unshare")
        .args(["--net", "sh", "-c", "echo ready && read -r _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut ready = [0; 6];
    let stdout = holder.stdout.as_mut().expect("a pipe");
    let made = stdout.read_exact(&mut ready);
    let file = made.and_then(|()| File::open(format!("/proc/{}/ns/net", holder.id())));
    // The process ends when its standard input is closed.
    drop(holder.stdin.take());
    holder.wait()?;
    file
}

/// The device of a host, made in its namespace.
fn device(address: Ipv4Addr) -> io::Result<SyncDevice> {
    let device = DeviceBuilder::new().name("wire").build_sync()?;
    let network = format!("{address}/24");
    run(&["link", "set", "lo", "up"])?;
    run(&["address", "add", &network, "dev", "wire"])?;
    run(&["link", "set", "wire", "mtu", "1500", "up"])?;
    Ok(device)
}

fn run(arguments: &[&str]) -> io::Result<()> {
    let status = Command::new("ip").args(arguments).status()?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("ip {arguments:?}: {status}"))),
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Collects the packets of a host, until the network ends.
    fn collect(&self, from: Ipv4Addr, device: &SyncDevice) {
        let mut packet = vec![0; MTU_BYTES];
        let often = Timespec {
            tv_sec: 0,
            tv_nsec: 50_000_000,
        };
        while !self.state().ended {
            let mut waiting = [PollFd::new(device, PollFlags::IN)];
            if poll(&mut waiting, Some(&often)).unwrap_or(0) == 0 {
                continue;
            }
            if let Ok(len) = device.recv(&mut packet) {
                self.state().send(from, &packet[..len]);
                self.changed.notify_all();
            }
        }
    }

    /// Delivers packets when their time has come, until the network ends.
    fn deliver(&self) {
        let mut state = self.state();
        while !state.ended {
            let now = Instant::now();
            let first = state.under_way.first_entry();
            let wait = match first {
                Some(first) if first.key().0 <= now => {
                    let (to, packet) = first.remove();
                    state.arrive(to, &packet);
                    continue;
                }
                Some(first) => first.key().0 - now,
                None => Duration::from_millis(50),
            };
            let woken = self.changed.wait_timeout(state, wait);
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl State {
    fn send(&mut self, from: Ipv4Addr, packet: &[u8]) {
        // The destination in an IPv4 header (RFC 791, 3.1). Hosts also send IPv6, which is dropped.
        let to = packet
            .get(16..20)
            .and_then(|to| <[u8; 4]>::try_from(to).ok());
        let Some(to) = to.map(Ipv4Addr::from) else {
            return;
        };
        let apart = self.cut_off.contains(&from) || self.cut_off.contains(&to);
        if packet[0] >> 4 != 4 || !self.devices.contains_key(&to) || apart {
            return;
        }
        if self.random.below(1000) < self.lost_in_1000 || self.under_way.len() >= MAX_UNDER_WAY {
            self.lost += 1;
            return;
        }
        let line = self.own.get_mut(&from).unwrap_or(&mut self.common);
        let Some(arrives) = line.carry(packet.len()) else {
            self.lost += 1;
            return;
        };
        self.sent += 1;
        self.under_way
            .insert((arrives, self.sent), (to, packet.to_vec()));
    }

    fn arrive(&mut self, to: Ipv4Addr, packet: &[u8]) {
        if let Some(device) = self.devices.get(&to)
            && !self.cut_off.contains(&to)
            && device.send(packet).is_ok()
        {
            self.carried += 1;
        }
    }
}
