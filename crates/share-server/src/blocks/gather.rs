//! Many clients' batches become one frame of the log. A batch is in one frame as a whole, so after a crash it is there
//! as a whole or not at all.

use bytes::Bytes;
use trust::Record;
use wal::{Client, DigestKey, Lsn, PAGE_BYTES};

use super::Session;
use super::batch::{Done, Receipt};
use super::error::Error;
use super::record::{BLOCKS, Builder, ENTRIES, description_bytes};

use super::window::{Before, Offer, Window};

/// The most bytes of bodies in a frame; the log allows twice as many.
const MAX_HEADER_BYTES: u64 = 512 << 10;
/// The most bytes of a frame, where the log allows more.
const MAX_FRAME_BYTES: u64 = 4 << 20;

/// A batch that waits for the log.
pub(super) struct Job {
    pub session: Session,
    /// What each block is, and its frame.
    pub blocks: Vec<(Offer, Bytes)>,
    pub entries: Vec<wal::Record>,
    /// For each block of the batch, whether it was new: at first for those that are durable already.
    pub stored: Vec<(usize, bool)>,
    /// Which blocks of the batch `blocks` are.
    pub numbers: Vec<usize>,
    pub done: Done,
}

/// A batch with blocks that go straight to the segments: because they are many, or do not fit into the log. Its other blocks
/// and its entries then wait for the log.
pub(super) struct Direct {
    pub job: Job,
    pub blocks: Vec<Straight>,
}

/// A block that goes straight to the segments.
pub(super) struct Straight {
    /// Which of its batch it is.
    pub number: usize,
    pub record: Record,
    /// Whether the segments did not have it.
    pub is_new: bool,
}

/// Bytes of a frame or of a batch in it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Size {
    header: u64,
    pages: u64,
}

impl Size {
    fn and(self, other: Size) -> Size {
        Size {
            header: self.header + other.header,
            pages: self.pages + other.pages,
        }
    }

    /// Bytes in all.
    pub fn bytes(self) -> u64 {
        self.header + self.pages
    }

    /// The most bytes of a batch. Half of a frame is left for padding.
    pub fn most_bytes(max_frame_bytes: u64) -> u64 {
        (max_frame_bytes / 2).min(MAX_FRAME_BYTES)
    }

    /// The longest frame of a block that is a batch.
    pub fn most_block_bytes(max_frame_bytes: u64) -> u64 {
        Size::most_bytes(max_frame_bytes).saturating_sub(description_bytes() as u64)
    }

    /// The most bytes of bodies in a batch.
    pub fn most_header_bytes(max_frame_bytes: u64) -> u64 {
        MAX_HEADER_BYTES.min(Size::most_bytes(max_frame_bytes) / 2)
    }

    /// Whether a frame of this size is one that the log takes.
    pub fn fits(self, max_frame_bytes: u64) -> bool {
        let most = Size::most_bytes(max_frame_bytes);
        self.header <= Size::most_header_bytes(max_frame_bytes) && self.bytes() <= most
    }
}

impl Job {
    /// A batch without blocks.
    pub fn new(session: Session, entries: Vec<wal::Record>, done: Done) -> Job {
        Job {
            session,
            blocks: Vec::new(),
            entries,
            stored: Vec::new(),
            numbers: Vec::new(),
            done,
        }
    }

    /// Bytes that it takes in a frame at most.
    pub fn size(&self) -> Size {
        let mut size = Size::default();
        for (offer, _) in &self.blocks {
            size.header += description_bytes() as u64;
            size.pages += u64::from(offer.length);
        }
        for entry in &self.entries {
            let pages = entry.payload.len();
            size.header += (entry.body.len() + 16 * pages + 8) as u64;
            size.pages += (pages * PAGE_BYTES) as u64;
        }
        size
    }

    /// Tells the client.
    pub fn finish(self, result: Result<wal::Mark, Error>) {
        let mut stored = self.stored;
        stored.sort_unstable();
        let stored = stored.into_iter().map(|(_, is_new)| is_new).collect();
        (self.done)(result.map(|durable| Receipt { stored, durable }));
    }
}

/// A frame that is being filled. The window has its blocks already, without a place.
pub(super) struct Gathering {
    before: Before,
    records: Vec<(Client, wal::Record)>,
    builder: Builder,
    size: Size,
    /// The batches in it.
    pub jobs: Vec<Job>,
}

impl Gathering {
    pub fn new(window: &Window) -> Gathering {
        Gathering {
            before: window.before(),
            records: Vec::new(),
            builder: Builder::default(),
            size: Size::default(),
            jobs: Vec::new(),
        }
    }

    /// Whether the batch belongs in this frame.
    pub fn has_room(&self, job: &Job, max_frame_bytes: u64) -> bool {
        self.jobs.is_empty() || self.size.and(job.size()).fits(max_frame_bytes)
    }

    /// Takes a batch, or gives it back with the reason why not.
    pub fn add(
        &mut self,
        window: &mut Window,
        now: u32,
        day: u32,
        mut job: Job,
        digests: &DigestKey,
    ) -> Result<(), Box<(Job, Error)>> {
        if let Err(error) = self.store(window, now, day, &mut job, digests) {
            return Err(Box::new((job, error)));
        }
        self.size = self.size.and(job.size());
        let entries = job.entries.iter();
        self.records
            .extend(entries.map(|entry| (ENTRIES, entry.clone())));
        self.jobs.push(job);
        Ok(())
    }

    fn store(
        &mut self,
        window: &mut Window,
        now: u32,
        day: u32,
        job: &mut Job,
        digests: &DigestKey,
    ) -> Result<(), Error> {
        if job.blocks.is_empty() {
            return Ok(());
        }
        let offers: Vec<Offer> = job.blocks.iter().map(|(offer, _)| *offer).collect();
        let fresh = window.admit(job.session, &offers, day)?;
        let device = window.device(job.session)?;
        for ((offer, frame), is_new) in job.blocks.iter().zip(&fresh) {
            if *is_new && !self.builder.has_room(frame.len()) {
                self.end_record(digests);
            }
            if *is_new && self.builder.is_empty() {
                window.begin_group(now);
            }
            // Nothing is added for a block that is there.
            let offset = match is_new {
                true => self.builder.add(device, &offer.handle, frame),
                false => 0,
            };
            window.store(now, job.session, *offer, offset)?;
        }
        job.stored.extend(job.numbers.drain(..).zip(fresh));
        Ok(())
    }

    fn end_record(&mut self, digests: &DigestKey) {
        let builder = std::mem::take(&mut self.builder);
        if !builder.is_empty() {
            self.records.push((BLOCKS, builder.finish(digests)));
        }
    }

    /// The records of the frame; none if all its blocks are there already.
    pub fn records(&mut self, digests: &DigestKey) -> &[(Client, wal::Record)] {
        self.end_record(digests);
        &self.records
    }

    /// The frame was appended.
    pub fn appended(&self, window: &mut Window, appended: &wal::Appended) {
        let places = self.records.iter().zip(&appended.payloads);
        let of_blocks = places.filter(|((client, _), _)| *client == BLOCKS);
        let payloads: Vec<Lsn> = of_blocks.map(|(_, payload)| *payload).collect();
        window.appended(self.before, &payloads, appended.end);
    }

    /// The frame was not appended: the batches as they were before.
    pub fn undo(self, window: &mut Window) -> Vec<Job> {
        window.undo(self.before);
        let mut jobs = self.jobs;
        for job in &mut jobs {
            let back = job.stored.len().saturating_sub(job.blocks.len());
            let numbers = job.stored.drain(back..).map(|(number, _)| number);
            job.numbers = numbers.collect();
        }
        jobs
    }
}

/// Checks that a record is the block that its handle names.
pub(super) fn verify(hasher: &trust::Hasher, record: &Record) -> Result<(), trust::Reject> {
    let plaintext = record.frame.unpack()?;
    match hasher.name(record.frame.kind(), &plaintext) == record.handle {
        true => Ok(()),
        false => Err(trust::Reject::WrongBlock),
    }
}
