//! Devices connected to a server in this process. One thread sends and takes for all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use ordering::engine::Request;
use ordering::roster::Product;
use share_server::host::{Delivery, Host, HostError, HostOptions, Session, Wake};
use trust_shared::mark::Nonce;
use trust_shared::note::SignedNote;

use super::{Devices, Round, device, orderer};

/// How long the server may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// Opens a server without quotas.
pub fn open(dir: &std::path::Path) -> Result<Arc<Host>> {
    let mut options = HostOptions::default();
    options.entries.per_second = 1_000_000;
    options.entries.burst = 1_000_000;
    options.entry_bytes = share_server::host::rate::Rate {
        per_second: 1 << 40,
        burst: 1 << 40,
    };
    Ok(Host::open(dir, orderer(), options)?)
}

/// A session, and whether it was woken.
struct Device {
    session: Session,
    woken: Arc<AtomicBool>,
    /// Leaves that it has.
    size: u64,
    proofs: u64,
}

/// All sessions.
pub struct Sessions {
    devices: Vec<Device>,
    /// The newest note that a device was sent.
    pub note: Option<SignedNote>,
}

impl Sessions {
    /// No sessions yet.
    pub fn none() -> Sessions {
        Sessions {
            devices: Vec::new(),
            note: None,
        }
    }

    /// Connects the devices before this number, from a note on. Only members may.
    pub fn connect(&mut self, host: &Host, until: usize, note: Option<SignedNote>) -> Result<()> {
        for number in self.devices.len()..until {
            let woken = Arc::new(AtomicBool::new(true));
            let session = host.connect(device(number), wake(&woken, std::thread::current()))?;
            session.receive(&Request::Open(note))?;
            self.devices.push(Device {
                session,
                woken,
                size: note.map_or(0, |note| note.note().log.size),
                proofs: 0,
            });
        }
        Ok(())
    }

    /// Connects all devices of a new server, and plays their beginning.
    pub fn begin(&mut self, host: &Host, devices: &mut Devices) -> Result<()> {
        self.connect(host, 1, None)?;
        let beginning = devices.beginning()?;
        let last = beginning.len().saturating_sub(1);
        let mut size = 0;
        for (number, round) in beginning.iter().enumerate() {
            if number == last {
                self.connect(host, devices.count(), None)?;
            }
            size += round.len() as u64;
            self.play(round, size)?;
        }
        Ok(())
    }

    /// Sends a round, and takes what the server sends until all devices have the log of this size.
    pub fn play(&mut self, round: &Round, size: u64) -> Result<()> {
        for (number, request) in round {
            self.send(*number, request)?;
        }
        self.take_until(&mut |_| Ok(()), |device| device.size >= size)
    }

    /// Each device sends a mark, and waits for its proof.
    pub fn mark(&mut self, count: &mut u64) -> Result<()> {
        for number in 0..self.devices.len() {
            *count += 1;
            let mark = Nonce::from_bytes(*blake3::hash(&count.to_le_bytes()).as_bytes());
            self.send(number, &Request::Mark(mark))?;
        }
        let proofs: u64 = self
            .devices
            .iter()
            .map(|device| device.proofs)
            .max()
            .unwrap_or(0)
            + 1;
        self.take_until(&mut |_| Ok(()), |device| device.proofs >= proofs)
    }

    /// Takes everything until all devices have the log of this size; `each` sees what the first one is sent.
    pub fn catch_up(
        &mut self,
        size: u64,
        each: &mut dyn FnMut(&Delivery) -> Result<()>,
    ) -> Result<()> {
        self.take_until(each, |device| device.size >= size)
    }

    fn send(&self, number: usize, request: &Request<Product>) -> Result<()> {
        let device = self.devices.get(number).context("no such device")?;
        Ok(device.session.receive(request)?)
    }

    fn take_until(
        &mut self,
        each: &mut dyn FnMut(&Delivery) -> Result<()>,
        has_all: impl Fn(&Device) -> bool,
    ) -> Result<()> {
        let deadline = Instant::now() + ANSWER_WITHIN;
        let mut left = self.devices.len();
        while left > 0 {
            left = 0;
            for (number, device) in self.devices.iter_mut().enumerate() {
                if device.woken.swap(false, Ordering::AcqRel) {
                    while let Some(delivery) = device.draw()? {
                        ensure!(delivery.refused.is_none(), "an entry is refused");
                        if number == 0 {
                            self.note = Some(delivery.note);
                            each(&delivery)?;
                        }
                    }
                }
                left += usize::from(!has_all(device));
            }
            if Instant::now() > deadline {
                bail!("the server did not answer in time");
            }
            let woken = |device: &Device| device.woken.load(Ordering::Acquire);
            if left > 0 && !self.devices.iter().any(woken) {
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
        Ok(())
    }
}

impl Device {
    fn draw(&mut self) -> Result<Option<Delivery>, HostError> {
        let drawn = self.session.draw()?;
        if let Some(delivery) = &drawn {
            self.size = delivery.from + delivery.leaves.len() as u64;
            self.proofs += delivery.proofs.len() as u64;
        }
        Ok(drawn)
    }
}

/// Notes that a session was woken, and unparks the thread that works for it.
pub fn wake(woken: &Arc<AtomicBool>, driver: Thread) -> Wake {
    let woken = woken.clone();
    Arc::new(move || {
        woken.store(true, Ordering::Release);
        driver.unpark();
    })
}
