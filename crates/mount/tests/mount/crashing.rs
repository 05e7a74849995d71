//! A device of another process, over disks whose power a test cuts, with a loop device and a file system on top. That
//! nothing of all this outlives the test's process is tested here too.

use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use mount::device::{DeviceOptions, Served, serve};
use mount::loop_device;
use protect::map::{Map, Root};
use protect::{Attach, Cookie, Limits, Pace, Protected, Shape, Watch};
use rustix::process::{Pid, Signal, kill_process};
use sim::power::Power;
use wal::{Client, FileDevice, Geometry, Key, PAGE_BYTES, VolumeId};

use crate::fixture::{is_mounted, wait_until};
use crate::looped::{Loop, Places, can_loop, has, sh};

const DATA_BYTES: u64 = 512 << 20;
/// Small, so that the log's tail moves in every round.
const RING_BYTES: u64 = 8 << 20;
const LOG_BYTES: u64 = 32 << 20;
const VOLUME: VolumeId = VolumeId([5; 16]);
const PATIENCE: Duration = Duration::from_secs(60);

pub fn key() -> Key {
    Key::new([6; 32])
}

/// Prints what an operator must know; the test reads it.
pub struct Told;

impl Watch for Told {
    fn bad_block(&self, block: u64, _: u64) {
        eprintln!("ALARM bad block {block}");
    }

    fn repaired_block(&self, block: u64, _: u64) {
        eprintln!("ALARM repaired block {block}");
    }

    fn lost_blocks(&self, blocks: std::ops::Range<u64>) {
        eprintln!("ALARM lost blocks {blocks:?}");
    }

    fn device_failed(&self, device: &'static str, error: &io::Error) {
        eprintln!("{device}: {error}");
    }

    fn became_read_only(&self, why: &str) {
        eprintln!("read-only: {why}");
    }
}

/// Attaches a device and serves it until it is killed; detaches it when it is terminated.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by other tests, as a process that they kill"]
async fn attach_until_told() {
    let variable = |name: &str| PathBuf::from(std::env::var_os(name).unwrap());
    let disks = variable("BULLA_TEST_DISKS");
    // Programs that the test starts beside this one keep its locks until they run.
    let open = |name: &str| {
        let path = disks.join(name).join(name);
        let mut device = FileDevice::open(&path);
        for _ in 0..100 {
            if !matches!(&device, Err(e) if e.kind() == io::ErrorKind::WouldBlock) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
            device = FileDevice::open(&path);
        }
        Arc::new(device.unwrap())
    };
    let attach = Attach {
        data: open("D"),
        log: open("L"),
        key: key(),
        anchor: None,
        cut_at_error: false,
        accept_changed: false,
        claim: None,
        limits: Limits::default(),
        map_cache_bytes: 1 << 20,
        watch: Arc::new(Told),
    };
    let (engine, recovered) = attach.attach().unwrap();
    eprintln!("{recovered:?}");
    // Honest disks are never suspected.
    assert_eq!((recovered.bad, recovered.changed), (0, 0), "ALARM");
    let pace = Pace {
        settle: Duration::from_millis(200),
        ..Pace::default()
    };
    let device = Arc::new(Protected::start(engine, pace).unwrap());
    let name = variable("BULLA_TEST_NAME");
    let options = DeviceOptions::new(name.to_str().unwrap(), "bulla#test");
    let mut signals = mount::Signals::listen().unwrap();
    let served = serve(device.clone(), &variable("BULLA_TEST_MOUNT"), options).await;
    let mut served = served.unwrap();
    tokio::select! {
        ended = served.ended() => ended.unwrap(),
        () = signals.arrived() => {}
    }
    served.finish(PATIENCE).await.unwrap();
    device.detach(PATIENCE).unwrap();
}

/// Disks, their files, and the device of another process.
pub struct World {
    pub power: Arc<Power>,
    server: Option<Child>,
    pub device: Option<Loop>,
    places: Places,
    _disks: Vec<Served>,
}

impl World {
    pub async fn new() -> World {
        let places = Places::new();
        let power = Power::new(&[("D", DATA_BYTES), ("L", LOG_BYTES)]);
        let mut disks = Vec::new();
        for name in ["D", "L"] {
            let place = places.at("disks").join(name);
            fs::create_dir_all(&place).unwrap();
            let options = DeviceOptions::new(name, "bulla#disk");
            let served = serve(power.block(name), &place, options).await;
            disks.push(served.unwrap());
        }
        let world = World {
            power,
            server: None,
            device: None,
            places,
            _disks: disks,
        };
        let log = world.at("disks/L/L");
        let formatted = tokio::task::spawn_blocking(move || {
            let device = FileDevice::open(&log).unwrap();
            format_log(&device, DATA_BYTES, RING_BYTES);
        });
        formatted.await.unwrap();
        world
    }

    pub fn at(&self, name: &str) -> PathBuf {
        self.places.at(name)
    }

    pub fn files(&self) -> String {
        self.places.files()
    }

    /// What the server printed.
    pub fn told(&self) -> String {
        fs::read_to_string(self.at("told")).unwrap_or_default()
    }

    pub fn attach(&mut self) -> Result<(), String> {
        let told = OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.at("told"));
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "crashing::attach_until_told",
                "--ignored",
                "--nocapture",
            ])
            .env("BULLA_TEST_DISKS", self.at("disks"))
            .env("BULLA_TEST_MOUNT", self.at("served"))
            .env("BULLA_TEST_NAME", self.places.name())
            .env("RUST_BACKTRACE", "0")
            .stdout(Stdio::null())
            .stderr(told.unwrap())
            .spawn()
            .unwrap();
        self.server = Some(child);
        let deadline = Instant::now() + PATIENCE;
        let file = self.places.file();
        while !file.exists() {
            let ended = self
                .server
                .as_mut()
                .map(|server| server.try_wait().unwrap());
            if let Some(status) = ended.flatten() {
                return Err(format!("attach: {status}: {}", self.told()));
            }
            if Instant::now() > deadline {
                return Err(format!("attach takes too long: {}", self.told()));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.device = Some(Loop::new(&file, 512));
        Ok(())
    }

    pub fn path(&self) -> String {
        self.device.as_ref().unwrap().path()
    }

    pub fn mount(&self) -> Result<(), String> {
        self.places.mount(self.device.as_ref().unwrap())
    }

    pub fn unmount(&self) -> Result<(), String> {
        self.places.unmount()
    }

    /// Ends the server as a crash does: of the machine, whose disks then hold what `outcome` says, or of the process.
    pub fn crash(&mut self, outcome: Option<u64>) {
        if outcome.is_some() {
            self.power.cut();
        }
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
    }

    /// Removes what the crash left in the kernel, which a power cut would have removed.
    pub fn clear(&mut self, outcome: Option<u64>) -> Result<(), String> {
        self.unmount()?;
        let cleared =
            loop_device::clear_stale(&self.places.file()).map_err(|error| error.to_string())?;
        assert_eq!(cleared.detached.len(), 1);
        self.device = None;
        mount::unmount(&self.at("served")).map_err(|error| error.to_string())?;
        if let Some(number) = outcome {
            self.power.restore(number);
        }
        Ok(())
    }

    pub fn detach(&mut self) -> Result<(), String> {
        self.device = None;
        let mut server = self.server.take().unwrap();
        kill_process(Pid::from_child(&server), Signal::TERM).unwrap();
        match server.wait().unwrap() {
            status if status.success() => Ok(()),
            status => Err(format!("detach: {status}: {}", self.told())),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if is_mounted(&self.at("files")) {
            let _ = self.unmount();
        }
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn geometry(data_bytes: u64, ring_bytes: u64) -> Geometry {
    let area = Map::area_bytes(data_bytes / PAGE_BYTES as u64).unwrap();
    Geometry {
        ring_bytes,
        areas: vec![(Client(1), area)],
    }
}

/// Length of a log for a data disk of a length.
pub fn log_bytes(data_bytes: u64, ring_bytes: u64) -> u64 {
    let geometry = geometry(data_bytes, ring_bytes);
    wal::Layout::new(&geometry).unwrap().device_bytes()
}

/// Makes the log of a data disk that is all zeros.
pub fn format_log(device: &dyn wal::Device, data_bytes: u64, ring_bytes: u64) {
    let geometry = geometry(data_bytes, ring_bytes);
    wal::prepare(device, &geometry, &mut |_| {}).unwrap();
    let shape = Shape {
        bytes: data_bytes,
        sector_bytes: 512,
    };
    let root = Root::ZERO;
    let cookie = Cookie { shape, root }.encode();
    let cookies = [(Client(1), cookie)];
    wal::format(device, &key(), VOLUME, &geometry, &cookies, b"").unwrap();
    device.sync().unwrap();
}

/// Whether the machine has what these tests need; says so if not.
pub fn is_ready(programs: &[&str]) -> bool {
    can_loop("power cuts on real mounts") && programs.iter().all(|program| has(program))
}

/// A device with a file system, until it is killed.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "run by another test, as a process that it kills"]
async fn hold_a_file_system() {
    let mut world = World::new().await;
    let told = std::env::var_os("BULLA_TEST_TOLD").unwrap();
    tokio::task::spawn_blocking(move || {
        world.attach().unwrap();
        sh("mkfs.ext4 -q -F -E nodiscard $1", &world.path()).unwrap();
        world.mount().unwrap();
        let places = world.places.at("").to_str().unwrap().to_owned();
        fs::write(told, format!("{places}\n{}\n", world.path())).unwrap();
        std::thread::sleep(PATIENCE);
    })
    .await
    .unwrap();
}

#[test]
fn killed_test_leaves_no_mount_loop_device_process_or_directory() {
    if !is_ready(&["mkfs.ext4"]) {
        return;
    }
    let told = tempfile::NamedTempFile::new().unwrap();
    let mut test = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crashing::hold_a_file_system", "--ignored"])
        .env("BULLA_TEST_TOLD", told.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let lines = || fs::read_to_string(told.path()).unwrap();
    wait_until("the file system", || lines().lines().count() == 2);
    let lines = lines();
    let (place, device) = lines.split_once('\n').unwrap();
    let directory = Path::new(place);
    let left = || {
        let mut left = Vec::new();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let ours = mounts.lines().filter(|line| line.contains(place));
        left.extend(ours.map(str::to_owned));
        left.extend(
            loop_device::on(Path::new(device.trim()))
                .unwrap()
                .map(|it| format!("{it:?}")),
        );
        left.extend(processes_that_know(place));
        left.extend(directory.exists().then(|| place.to_owned()));
        left
    };
    // Two disks, the device's file, the file system; the loop device; the server; the directory.
    assert_eq!(left().len(), 4 + 1 + 1 + 1, "{:?}", left());
    test.kill().unwrap();
    test.wait().unwrap();
    wait_until("nothing to be left", || left().is_empty());
}

/// Processes with this in their environment.
fn processes_that_know(place: &str) -> Vec<String> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let environments = entries.map(|entry| entry.path().join("environ"));
    let knows = |path: &PathBuf| {
        let environment = fs::read(path).unwrap_or_default();
        String::from_utf8_lossy(&environment).contains(place)
    };
    let found = environments.filter(knows);
    found.map(|path| path.display().to_string()).collect()
}
