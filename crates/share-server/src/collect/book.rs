//! The ages of blocks, and the files that keep them for a restart. Bytes: `docs/formats/shared-server.md`, *Ages*.
//!
//! The file `ages` has all that is known at one time; a journal gets each touch since, before the client is told. When
//! time goes on to the next tick, both are begun anew. After a kill nothing is unknown: what was written is in the
//! system's memory. After a power cut, or if a file is missing or damaged, something may be: then this begins with nothing,
//! and everything counts as young.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use store::StoreError;
use store::disk::{Disk, DiskFile, io_error, read_file, replace_file};
use store::names::{FileId, TEMPORARY};
use trust::encode::Decoder;
use trust::volume_id::VolumeId;
use trust::{Handle, Reject};

use super::ages::{Ages, Known, MAX_SIZES, MAX_TICK, Record, Touched};
use ordering::checked_file::FileKind;

pub use super::boot::Boot;

/// What is known at one time.
pub const AGES: &str = "ages";
/// Names of journals begin with this.
pub const JOURNAL: &str = "touched-";
const FORM: FileKind = FileKind {
    what: "file of ages",
    magic: *b"bullaag\n",
};
/// The longest file that is read and written.
const MAX_BYTES: usize = 1 << 30;
const JOURNAL_MAGIC: &[u8; 8] = b"bullato\n";
/// `magic [8] | format u32 | flags u32 | id [16] | boot [16]`, then 16 bytes of its hash.
const JOURNAL_HEAD_BYTES: usize = 64;
const RECORD_BYTES: usize = 16;
/// The tick of a record that tells the time.
const TIME: u64 = 0xffff;
/// Time is kept so often between two ticks, in parts of a tick.
const PARTS: u32 = 32;

/// Time since an instant that does not change, never going back.
type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// How time is counted.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Length of a tick.
    pub tick: Duration,
    /// Length of the window, ticks.
    pub window: u32,
    /// The kernel.
    pub boot: Boot,
}

/// See the head of this file.
pub struct Book {
    disk: Arc<dyn Disk>,
    volume: VolumeId,
    epoch: u64,
    clock: Clock,
    times: Times,
    /// Time that was counted before this start, and the clock then.
    before: (Duration, Duration),
    state: Mutex<State>,
    /// Held while files are written.
    writing: Mutex<()>,
}

struct State {
    ages: Ages,
    journal: Option<Journal>,
    /// The journal that the file of ages names.
    named: Option<FileId>,
    /// A touch that would be in this journal is in no file, and a start would not notice.
    untold: Option<FileId>,
    /// Time was kept last.
    kept: Duration,
    /// The tick in which the files were begun.
    begun: u32,
    closed: bool,
}

/// Why nobody may be told that a block is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Untouched {
    /// The server stops.
    #[error("the server stops")]
    Stopped,
    /// The disk takes neither the touch nor a sign that one is missing. The next start may take the block for old.
    #[error("the use of a block cannot be kept")]
    Unkept,
}

/// Touches since the file of ages.
struct Journal {
    id: FileId,
    file: Arc<dyn DiskFile>,
    records: u64,
}

/// What the file of ages says.
struct Read {
    elapsed: Duration,
    known: Known,
    journal: Option<FileId>,
}

impl Book {
    /// Goes on with what the files say, if that is all that there is to know.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn open(
        disk: Arc<dyn Disk>,
        (volume, epoch): (VolumeId, u64),
        clock: Clock,
        times: Times,
    ) -> Result<Book, StoreError> {
        let read = read(&*disk, (volume, epoch), times);
        let (before, ages) = match read {
            Ok(read) => {
                let ages = Ages::resume(ticks(read.elapsed, times.tick), times.window, read.known);
                (read.elapsed, ages)
            }
            Err(why) => {
                tracing::info!(
                    why,
                    "when blocks were used last is not known: all count as used now"
                );
                (Duration::ZERO, Ages::new(0, times.window))
            }
        };
        let book = Book {
            disk,
            volume,
            epoch,
            before: (before, clock()),
            clock,
            times,
            state: Mutex::new(State {
                begun: ages.now(),
                ages,
                journal: None,
                named: None,
                untold: None,
                kept: before,
                closed: false,
            }),
            writing: Mutex::default(),
        };
        book.begin_anew()?;
        Ok(book)
    }

    /// Time that has been counted.
    pub fn elapsed(&self) -> Duration {
        let (before, start) = self.before;
        before + (self.clock)().saturating_sub(start)
    }

    fn tick(&self) -> u32 {
        ticks(self.elapsed(), self.times.tick).min(MAX_TICK)
    }

    /// The rules, to ask or to change what is not kept.
    pub fn with<T>(&self, ask: impl FnOnce(&mut Ages) -> T) -> T {
        ask(&mut lock(&self.state).ages)
    }

    /// A block was found in the segments after so many steps of sweeps. What is new is written before this returns, or
    /// else the next start knows that it does not know all.
    ///
    /// # Errors
    /// [`Untouched`].
    pub fn touch(&self, block: &Handle, steps: u64) -> Result<Touched, Untouched> {
        let mut state = lock(&self.state);
        if state.closed {
            return Err(Untouched::Stopped);
        }
        state.ages.wake(self.tick());
        let touched = state.ages.touch(block, steps);
        if let Touched::New(record) = touched {
            self.keep(&mut state, record.0);
        }
        // Nor is one that is known: it may be the one that is in no file.
        match state.untold {
            Some(_) => Err(Untouched::Unkept),
            None => Ok(touched),
        }
    }

    /// The same for whoever holds the writer of the segments: no step of a sweep is under way.
    ///
    /// # Errors
    /// [`Untouched`].
    pub fn renew(&self, block: &Handle) -> Result<Touched, Untouched> {
        let steps = self.with(|ages| ages.steps());
        self.touch(block, steps)
    }

    /// Whether the block is old now, and marks that were begun at a tick still tell what is needed. If so, it counts as
    /// not there until the step of the sweep ends.
    pub fn condemn(&self, segment: FileId, block: &Handle, began: u32) -> bool {
        let mut state = lock(&self.state);
        state.ages.wake(self.tick());
        !state.ages.are_late(began) && state.ages.condemn(segment, block)
    }

    fn keep(&self, state: &mut State, record: u64) {
        let Some(journal) = &mut state.journal else {
            return;
        };
        if let Err(error) = journal.append(record) {
            // Without the journal that the file of ages names, the next start knows that it does not know all.
            tracing::warn!(%error, "touches of blocks cannot be kept");
            let id = journal.id;
            let is_gone = self.disk.remove(&journal_name(id)).is_ok();
            if !is_gone || state.named != Some(id) {
                state.untold = Some(id);
            }
            state.journal = None;
        }
    }

    /// Time goes on. `size`: of the log; `segments`: all that there are.
    ///
    /// # Errors
    /// [`StoreError::Io`]: nothing is wrong, but a restart may begin with nothing.
    pub fn go_on(&self, size: u64, segments: &[FileId]) -> Result<(), StoreError> {
        let elapsed = self.elapsed();
        let is_new_tick = {
            let mut state = lock(&self.state);
            state.ages.advance(self.tick(), size);
            state.ages.segments(segments);
            let is_due = elapsed.saturating_sub(state.kept) >= self.times.tick / PARTS;
            if is_due {
                state.kept = elapsed;
                let ms = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
                self.keep(&mut state, ms << 16 | TIME);
            }
            state.begun < state.ages.now() || state.journal.is_none()
        };
        match is_new_tick {
            true => self.begin_anew(),
            false => Ok(()),
        }
    }

    /// Writes what is known, and begins a journal.
    fn begin_anew(&self) -> Result<(), StoreError> {
        let _turn = lock(&self.writing);
        let id = FileId::random(self.disk.place())?;
        let journal = Journal::begin(&*self.disk, id, self.times.boot)?;
        let (known, elapsed) = {
            let mut state = lock(&self.state);
            if state.closed {
                return Ok(());
            }
            state.journal = Some(journal);
            state.begun = state.ages.now();
            (state.ages.known(), self.elapsed())
        };
        self.write(&known, elapsed, Some(id))?;
        self.remove_journals(Some(id))?;
        let mut state = lock(&self.state);
        state.named = Some(id);
        // What came since would be in the new journal.
        state.untold = state.untold.filter(|untold| *untold == id);
        Ok(())
    }

    /// The server stops: what is known now is all.
    ///
    /// # Errors
    /// [`StoreError::Io`]: the next start begins with the journal.
    pub fn close(&self) -> Result<(), StoreError> {
        let _turn = lock(&self.writing);
        let (known, elapsed) = {
            let mut state = lock(&self.state);
            if state.closed {
                return Ok(());
            }
            state.closed = true;
            (state.ages.known(), self.elapsed())
        };
        self.write(&known, elapsed, None)?;
        self.remove_journals(None)
    }

    fn remove_journals(&self, but: Option<FileId>) -> Result<(), StoreError> {
        for id in journals(&*self.disk)? {
            if Some(id) != but {
                let name = journal_name(id);
                let removed = self.disk.remove(&name);
                removed.map_err(|e| io_error(&*self.disk, &name, e))?;
            }
        }
        Ok(())
    }

    fn write(
        &self,
        known: &Known,
        elapsed: Duration,
        journal: Option<FileId>,
    ) -> Result<(), StoreError> {
        let log = (self.volume, self.epoch);
        let bytes = encode(log, self.times.tick, elapsed, known, journal);
        if bytes.len() > MAX_BYTES {
            tracing::warn!("too many blocks were used: a restart does not know when");
            return Ok(());
        }
        let temporary = format!("{AGES}{TEMPORARY}");
        replace_file(&*self.disk, AGES, &temporary, "", &bytes)
    }
}

impl Journal {
    fn begin(disk: &dyn Disk, id: FileId, boot: Boot) -> Result<Journal, StoreError> {
        let name = journal_name(id);
        let fail = |e| io_error(disk, &name, e);
        let file = disk.create(&name).map_err(fail)?;
        file.write_at(&head(id, boot), 0).map_err(fail)?;
        file.sync().map_err(fail)?;
        disk.sync_dir("").map_err(fail)?;
        Ok(Journal {
            id,
            file,
            records: 0,
        })
    }

    fn append(&mut self, record: u64) -> std::io::Result<()> {
        let at = JOURNAL_HEAD_BYTES as u64 + self.records * RECORD_BYTES as u64;
        self.file
            .write_at(&record_bytes(self.id, self.records, record), at)?;
        self.records += 1;
        Ok(())
    }

    /// The records of a journal of this kernel. None: it was never used, or is of another one.
    fn read(disk: &dyn Disk, id: FileId, boot: Boot) -> Result<Option<Vec<u64>>, &'static str> {
        let bytes = read_file(disk, &journal_name(id), MAX_BYTES);
        let Ok(Some(bytes)) = bytes else {
            return Err("the journal of touches cannot be read");
        };
        let Some((begins, records)) = bytes.split_at_checked(JOURNAL_HEAD_BYTES) else {
            return Ok(None);
        };
        if boot.0.is_none() || *begins != head(id, boot) {
            return Ok(None);
        }
        let (records, rest) = records.as_chunks::<RECORD_BYTES>();
        let mut all = Vec::with_capacity(records.len());
        for (number, bytes) in (0..).zip(records) {
            let (record, _) = bytes.split_at(8);
            let record = u64::from_le_bytes(record.try_into().unwrap_or_default());
            if record_bytes(id, number, record) != *bytes {
                return Err("the journal of touches is damaged");
            }
            all.push(record);
        }
        match rest.is_empty() {
            true => Ok(Some(all)),
            false => Err("the journal of touches is cut short"),
        }
    }
}

/// Takes a lock. A thread that panicked holding it has left a touch unkept at most, and its client was told nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn head(id: FileId, boot: Boot) -> [u8; JOURNAL_HEAD_BYTES] {
    let mut out = [0; JOURNAL_HEAD_BYTES];
    let boot = boot.0.unwrap_or_default();
    let parts: [&[u8]; 4] = [JOURNAL_MAGIC, &[0; 8], &id.0, &boot];
    let fields = parts.concat();
    let hash = *blake3::hash(&fields).as_bytes();
    let all = fields.iter().chain(&hash);
    out.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    out
}

fn record_bytes(id: FileId, number: u64, record: u64) -> [u8; RECORD_BYTES] {
    let record = record.to_le_bytes();
    let mut hasher = blake3::Hasher::new();
    hasher.update(&id.0).update(&number.to_le_bytes());
    hasher.update(&record);
    let check = hasher.finalize();
    let mut out = [0; RECORD_BYTES];
    let all = record.iter().chain(check.as_bytes());
    out.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
    out
}

fn journal_name(id: FileId) -> String {
    format!("{JOURNAL}{id}")
}

fn journals(disk: &dyn Disk) -> Result<Vec<FileId>, StoreError> {
    let names = disk.list("").map_err(|e| io_error(disk, "", e))?;
    let ids = names
        .iter()
        .filter_map(|name| FileId::parse(name.strip_prefix(JOURNAL)?, ""));
    Ok(ids.collect())
}

fn ticks(elapsed: Duration, tick: Duration) -> u32 {
    let tick = tick.as_millis().max(1);
    u32::try_from(elapsed.as_millis() / tick).unwrap_or(u32::MAX)
}

/// What the files say, if it is all.
fn read(disk: &dyn Disk, log: (VolumeId, u64), times: Times) -> Result<Read, &'static str> {
    let bytes = match read_file(disk, AGES, MAX_BYTES) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return Err("there is no file of ages"),
        Err(_) => return Err("the file of ages cannot be read"),
    };
    let mut read = decode(&bytes, log, times.tick).map_err(|_| "the file of ages is damaged")?;
    let Some(newest) = read.journal else {
        return Ok(read);
    };
    let all = journals(disk).map_err(|_| "the journals of touches cannot be listed")?;
    if !all.contains(&newest) {
        return Err("the journal of touches is missing");
    }
    for id in all {
        let records = match Journal::read(disk, id, times.boot)? {
            Some(records) => records,
            None if id == newest => return Err("the machine has stopped since"),
            // It was begun and not used yet, or was to be removed.
            None => continue,
        };
        for record in records {
            match record & 0xffff {
                TIME => {
                    let at = Duration::from_millis(record >> 16);
                    read.elapsed = read.elapsed.max(at);
                }
                _ => read.known.touched.push(Record(record)),
            }
        }
    }
    let last = read.known.touched.iter().map(|record| record.tick()).max();
    let last = times.tick.saturating_mul(last.unwrap_or(0));
    read.elapsed = read.elapsed.max(last);
    Ok(read)
}

fn encode(
    (volume, epoch): (VolumeId, u64),
    tick: Duration,
    elapsed: Duration,
    known: &Known,
    journal: Option<FileId>,
) -> Vec<u8> {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let mut out = FORM.begin(volume, epoch);
    out.varint(ms(tick)).varint(ms(elapsed));
    out.u8(u8::from(journal.is_some()));
    if let Some(id) = journal {
        out.raw(&id.0);
    }
    out.varint(known.unknown.into());
    out.varint(known.sizes.len() as u64);
    for (tick, size) in &known.sizes {
        out.varint((*tick).into()).varint(*size);
    }
    out.varint(known.arrived.len() as u64);
    for (id, tick) in &known.arrived {
        out.raw(&id.0).varint((*tick).into());
    }
    out.varint(known.touched.len() as u64);
    for record in &known.touched {
        out.u64(record.0);
    }
    FileKind::end(out)
}

fn decode(bytes: &[u8], (volume, epoch): (VolumeId, u64), tick: Duration) -> Result<Read, Reject> {
    let mut d = FORM.open(bytes, volume, epoch)?;
    let most = bytes.len() as u64;
    if u128::from(d.varint()?) != tick.as_millis() {
        return Err(d.bad("ticks of another length"));
    }
    let elapsed = Duration::from_millis(d.varint()?);
    let journal = match d.flag()? {
        true => Some(FileId(d.array()?)),
        false => None,
    };
    let short = |d: &mut Decoder<'_>| {
        let tick = d.bounded(MAX_TICK.into(), "beyond all ticks")?;
        Ok::<u32, Reject>(tick as u32)
    };
    let mut known = Known {
        unknown: short(&mut d)?,
        ..Known::default()
    };
    for _ in 0..d.bounded(MAX_SIZES as u64, "too many sizes")? {
        known.sizes.push((short(&mut d)?, d.varint()?));
    }
    if !known.sizes.is_sorted_by(|a, b| a.0 < b.0) {
        return Err(d.bad("sizes that do not ascend"));
    }
    let mut arrived = BTreeMap::new();
    for _ in 0..d.bounded(most, "too many segments")? {
        arrived.insert(FileId(d.array()?), short(&mut d)?);
    }
    known.arrived = arrived;
    for _ in 0..d.bounded(most / 8, "too many touches")? {
        known.touched.push(Record(d.u64()?));
    }
    d.finish()?;
    Ok(Read {
        elapsed,
        known,
        journal,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of the page that are about these files, in hexadecimal.
    fn vectors() -> [String; 2] {
        let page = include_str!("../../../../docs/formats/shared-server.md");
        let (_, page) = page
            .split_once("The file `ages` of volume 70…70")
            .expect("the vectors");
        let blocks = page.split("```vector\n").skip(1);
        let inner = blocks.filter_map(|block| block.split("```").next());
        let mut inner = inner.map(|block| block.split_whitespace().collect());
        [
            inner.next().unwrap_or_default(),
            inner.next().unwrap_or_default(),
        ]
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    const LOG: (VolumeId, u64) = (VolumeId::from_bytes([0x70; 32]), 0);
    const TICK: Duration = Duration::from_hours(6);
    const ID: FileId = FileId([0xa1; 16]);

    fn known() -> Known {
        Known {
            unknown: 3,
            arrived: BTreeMap::from([(FileId([0x5e; 16]), 4)]),
            sizes: vec![(2, 10), (5, 300)],
            touched: vec![Record(0x0605_0403_0201 << 16 | 5)],
        }
    }

    #[test]
    fn files_of_ages_have_the_bytes_of_the_page() {
        let elapsed = TICK * 5 + Duration::from_millis(7);
        let ages = encode(LOG, TICK, elapsed, &known(), Some(ID));
        let mut journal = head(ID, Boot(Some([0xb0; 16]))).to_vec();
        journal.extend(record_bytes(ID, 0, 0x0605_0403_0201 << 16 | 5));
        journal.extend(record_bytes(ID, 1, 108_000_007 << 16 | TIME));
        assert_eq!([hex(&ages), hex(&journal)], vectors());
        let read = decode(&ages, LOG, TICK).unwrap();
        assert_eq!(
            (read.elapsed, read.known, read.journal),
            (elapsed, known(), Some(ID))
        );
    }

    #[test]
    fn file_of_ages_is_refused_with_any_bit_changed_and_of_another_log() {
        let bytes = encode(LOG, TICK, TICK, &known(), None);
        assert!(decode(&bytes, LOG, TICK).is_ok());
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(decode(&flipped, LOG, TICK).is_err(), "byte {at}");
        }
        assert!(decode(&bytes, (LOG.0, 1), TICK).is_err());
        assert!(decode(&bytes, LOG, TICK * 2).is_err());
    }

    #[test]
    fn touch_is_named_by_the_first_six_bytes_of_its_block() {
        let mut ages = Ages::new(5, 4);
        let mut name = [9; 32];
        name[..6].copy_from_slice(&[1, 2, 3, 4, 5, 6]);
        let touched = ages.touch(&Handle::from_bytes(name), 0);
        assert_eq!(touched, Touched::New(Record(0x0605_0403_0201 << 16 | 5)));
    }
}
