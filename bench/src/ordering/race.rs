//! Devices that write for themselves: each sends its next entry as soon as its last one was ordered. Two threads work
//! for all of them, as the peer's clients have two.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use ordering::engine::Request;
use ordering::signed::Entry;
use share_server::host::{Host, Session};
use trust_shared::entry::Prefix;
use trust_shared::note::SignedNote;

use super::drive::wake;
use super::{Author, Devices, device, write};
use crate::cpu;

const THREADS: usize = 2;
/// How long the server may take for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(60);

/// What a race took.
pub struct Raced {
    /// Entries that were ordered.
    pub entries: u64,
    /// Seconds in all.
    pub wall_s: f64,
    /// Processor seconds of everything but signing.
    pub cpu_s: f64,
    /// Processor seconds of signing.
    pub sign_s: f64,
    /// Some of the entries.
    pub sample: Vec<Entry>,
}

struct Racer {
    number: usize,
    session: Session,
    woken: Arc<AtomicBool>,
    author: Author,
    seen: Prefix,
    /// Its entry that is not ordered yet.
    sent: Option<Entry>,
}

/// All devices write until so many entries are ordered. They begin with the log that this note names.
pub fn race(host: &Host, devices: Devices, note: SignedNote, entries: u64) -> Result<Raced> {
    let (left, sign_ns) = (AtomicU64::new(entries), AtomicU64::new(0));
    let sample = Mutex::new(Vec::new());
    let mut parts: Vec<Vec<(usize, Author)>> = (0..THREADS).map(|_| Vec::new()).collect();
    for (number, author) in devices.authors.into_iter().enumerate() {
        if let Some(part) = parts.get_mut(number % THREADS) {
            part.push((number, author));
        }
    }
    let (start, cpu_s) = (Instant::now(), cpu::all_threads_s());
    std::thread::scope(|scope| {
        let (left, sign_ns, sample) = (&left, &sign_ns, &sample);
        let threads = parts.into_iter().map(|part| {
            scope.spawn(move || {
                let mut course = Course {
                    left,
                    sign_s: 0.0,
                    sample: Vec::new(),
                };
                course.run(host, part, note)?;
                sign_ns.fetch_add((course.sign_s * 1e9) as u64, Ordering::Relaxed);
                let mut all = sample.lock().unwrap_or_else(PoisonError::into_inner);
                all.append(&mut course.sample);
                anyhow::Ok(())
            })
        });
        let threads: Vec<_> = threads.collect();
        for thread in threads {
            thread.join().map_err(|_| anyhow!("a device panicked"))??;
        }
        anyhow::Ok(())
    })?;
    let sign_s = sign_ns.into_inner() as f64 / 1e9;
    Ok(Raced {
        entries,
        wall_s: start.elapsed().as_secs_f64(),
        cpu_s: cpu::all_threads_s() - cpu_s - sign_s,
        sign_s,
        sample: sample.into_inner().unwrap_or_else(PoisonError::into_inner),
    })
}

/// One thread's part.
struct Course<'a> {
    /// Entries that nobody has begun.
    left: &'a AtomicU64,
    sign_s: f64,
    sample: Vec<Entry>,
}

impl Course<'_> {
    fn run(&mut self, host: &Host, part: Vec<(usize, Author)>, note: SignedNote) -> Result<()> {
        let mut racers = Vec::new();
        for (number, author) in part {
            let woken = Arc::new(AtomicBool::new(true));
            let session = host.connect(device(number), wake(&woken, std::thread::current()))?;
            session.receive(&Request::Open(Some(note)))?;
            racers.push(Racer {
                number,
                session,
                woken,
                author,
                seen: note.note().prefix(),
                sent: None,
            });
        }
        for racer in &mut racers {
            self.next(racer)?;
        }
        let mut deadline = Instant::now() + ANSWER_WITHIN;
        while racers.iter().any(|racer| racer.sent.is_some()) {
            let mut idle = true;
            for racer in &mut racers {
                if racer.woken.swap(false, Ordering::AcqRel) {
                    idle = false;
                    if racer.take()? {
                        deadline = Instant::now() + ANSWER_WITHIN;
                        self.next(racer)?;
                    }
                }
            }
            ensure!(
                Instant::now() < deadline,
                "the server did not answer in time"
            );
            if idle {
                std::thread::park_timeout(Duration::from_secs(1));
            }
        }
        Ok(())
    }

    /// Sends a racer's next entry, if there is one.
    fn next(&mut self, racer: &mut Racer) -> Result<()> {
        let less = |left: u64| left.checked_sub(1);
        let order = Ordering::Relaxed;
        if self.left.fetch_update(order, order, less).is_err() {
            return Ok(());
        }
        let cpu_s = cpu::own_s();
        let op = write(racer.number, &mut racer.author);
        let entry = racer.author.sign(racer.seen, Some(vec![op]))?;
        self.sign_s += cpu::own_s() - cpu_s;
        racer.session.receive(&Request::Entry(entry.clone()))?;
        if self.sample.len() < 500 {
            self.sample.push(entry.clone());
        }
        racer.sent = Some(entry);
        Ok(())
    }
}

impl Racer {
    /// Takes what the server sends; whether the racer's entry was ordered.
    fn take(&mut self) -> Result<bool> {
        let mut ordered = false;
        while let Some(delivery) = self.session.draw()? {
            ensure!(delivery.refused.is_none(), "an entry is refused");
            self.seen = delivery.note.note().prefix();
            let sent = self.sent.as_ref().map(|entry| entry.signed().bytes());
            ordered |= delivery.leaves.iter().any(|leaf| Some(&leaf.leaf) == sent);
        }
        if ordered {
            self.sent.take().context("nothing was sent")?;
        }
        Ok(ordered)
    }
}
