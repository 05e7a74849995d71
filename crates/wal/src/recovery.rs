//! Opens a log: finds its end, proves that it contains what it once contained, and gives clients their records.
//! Nothing is written before [`Recovery::finish`].

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::{Buffer, PAGE, PAGE_BYTES};
use crate::chain::{Chain, Evidence, Found};
use crate::cursor::{Cursor, Kept};
use crate::device::Device;
use crate::error::{AppendError, LogError, Witness};
use crate::frame::Draft;
use crate::key::{Digest, Key, VolumeId};
use crate::layout::Layout;
use crate::log::Log;
use crate::machine::Machine;
use crate::position::{Lsn, Mark};
use crate::record::{Client, Record};
use crate::ring::{Boundaries, RingReader, read_page, read_payload};
use crate::shared::Keys;
use crate::superblock::{self, Gap, MAX_GAPS, Superblock};

/// Bytes that are read ahead in the ring.
const AHEAD_BYTES: usize = 1 << 20;

/// How a log is opened.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Take the first position that cannot be read for the end of the log, and give up what follows. Marks beyond it
    /// do not count. [`Recovery::cut`] says where that was.
    pub cut_at_error: bool,
    /// The volume that the log must belong to.
    pub volume: Option<VolumeId>,
}

/// A log that was cut at a read error.
#[derive(Debug, Clone)]
pub struct Cut {
    /// The log ends here now.
    pub at: Lsn,
    /// The error.
    pub error: LogError,
}

/// A log that was opened and not changed yet.
pub struct Recovery {
    device: Arc<dyn Device>,
    layout: Layout,
    keys: Keys,
    superblock: Superblock,
    session: [u8; 16],
    end: Mark,
    boundaries: Boundaries,
    kept: Kept,
    wrong_pages: Vec<Lsn>,
    cut: Option<Cut>,
}

/// Opens the log on a device. Reads the ring from the tail to the end.
///
/// `anchor`: a mark that the log must pass through, which was kept where nobody could put it back.
///
/// # Errors
/// See [`LogError`]. The device is unchanged.
pub fn open(
    device: Arc<dyn Device>,
    key: &Key,
    anchor: Option<Mark>,
    options: OpenOptions,
) -> Result<Recovery, LogError> {
    // What a killed process wrote may be visible and not durable. Nothing is believed before it is.
    device.sync().map_err(|e| LogError::io("sync", 0, e))?;
    let found = superblock::load(&*device, key)?;
    if let Some(error) = found.unreadable.filter(|_| !options.cut_at_error) {
        return Err(error);
    }
    let superblock = found.newest;
    if let Some(expected) = options.volume.filter(|v| *v != superblock.volume) {
        let found = superblock.volume;
        return Err(LogError::OtherVolume { expected, found });
    }
    let layout = superblock.layout()?;
    layout.check(&*device)?;
    let mut session = [0; 16];
    getrandom::fill(&mut session).map_err(|_| LogError::Random)?;
    let mut recovery = Recovery {
        keys: Keys::new(key, superblock.volume),
        boundaries: Boundaries::new(superblock.tail, layout.ring_bytes),
        kept: Kept::new(superblock.tail),
        wrong_pages: Vec::new(),
        end: superblock.tail,
        device,
        layout,
        superblock,
        session,
        cut: None,
    };
    recovery.find_end(anchor, options.cut_at_error)?;
    Ok(recovery)
}

impl Recovery {
    fn find_end(&mut self, anchor: Option<Mark>, cut_at_error: bool) -> Result<(), LogError> {
        let mut end = self.superblock.tail;
        let mut witnesses = vec![(Witness::Superblock, self.superblock.mark)];
        if let Some(mark) = anchor {
            if mark.lsn < end.lsn {
                let tail = end.lsn;
                return Err(LogError::StaleAnchor { mark, tail });
            }
            witnesses.push((Witness::Anchor, mark));
        }
        let chain = self.keys.chain(&self.layout, &self.superblock.gaps);
        let mut reader = RingReader::new(&*self.device, &self.layout, AHEAD_BYTES);
        let marks = witnesses.iter().map(|(_, mark)| mark.lsn);
        let mut evidence = Evidence {
            device: &*self.device,
            known: marks.max().unwrap_or(end.lsn),
            cut_epoch: self.superblock.cut_epoch,
            skip_errors: cut_at_error,
        };
        loop {
            // A mark may name a frame by its end, or by where the log goes on behind a gap.
            for frame in [end, chain.beyond(&end)] {
                end.lsn = frame.lsn;
                witnesses.retain(|(_, mark)| {
                    let is_here = mark.is_same_frame(&frame);
                    if is_here {
                        end.epoch = end.epoch.max(mark.epoch);
                    }
                    !is_here
                });
            }
            match follow(&chain, &mut reader, &end, &mut evidence) {
                Ok(Some((frame, wrong))) => {
                    end = frame.mark;
                    self.boundaries.push(end);
                    self.kept.push(frame);
                    self.wrong_pages.extend(wrong);
                }
                Ok(None) => break,
                Err(error) if cut_at_error => {
                    self.cut = Some(Cut { at: end.lsn, error });
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if self.cut.is_none() {
            chain.refuse_destroyed(&mut reader, end.lsn, &evidence)?;
            if let Some((witness, mark)) = witnesses.first().copied() {
                let end = end.lsn;
                return Err(LogError::Rollback { witness, mark, end });
            }
        }
        self.end = end;
        Ok(())
    }

    /// The volume.
    pub fn volume(&self) -> VolumeId {
        self.superblock.volume
    }

    /// How often the log has been opened, this time included.
    pub fn epoch(&self) -> u64 {
        self.superblock.epoch.max(self.end.epoch) + 1
    }

    /// The random name of this opening of the log.
    pub fn session(&self) -> [u8; 16] {
        self.session
    }

    /// The end of the log.
    pub fn end(&self) -> Mark {
        self.end
    }

    /// Where the log was cut because it could not be read.
    pub fn cut(&self) -> Option<&Cut> {
        self.cut.as_ref()
    }

    /// What a client's last checkpoint left for it. Empty for a client that the log does not know.
    pub fn cookie(&self, client: Client) -> &[u8] {
        let mut clients = self.superblock.clients.iter();
        let found = clients.find(|state| state.client == client);
        found.map_or(&[], |state| state.cookie.as_slice())
    }

    /// Pages of payload, in order, that do not match their digests although they were durable: the device lost or
    /// changed them. Their records are there, and reads of these pages fail.
    pub fn wrong_pages(&self) -> &[Lsn] {
        &self.wrong_pages
    }

    /// A client's own region of the device.
    pub fn area(&self, client: Client) -> Range<u64> {
        self.layout.area(client)
    }

    /// The log's device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Bytes of the ring.
    pub fn ring_bytes(&self) -> u64 {
        self.layout.ring_bytes
    }

    /// Where a client's records begin.
    pub fn oldest(&self, client: Client) -> Lsn {
        let mut clients = self.superblock.clients.iter();
        let found = clients.find(|state| state.client == client);
        found.map_or(self.end.lsn, |state| state.oldest)
    }

    /// A client's records in order, from its oldest position. They come from memory as far as they were kept while
    /// the log was opened, and then from the ring again, without pages.
    pub fn cursor(&self, client: Client) -> Cursor<'_> {
        let chain = self.keys.chain(&self.layout, &self.superblock.gaps);
        let oldest = self.oldest(client);
        Cursor::new(&*self.device, chain, &self.kept, client, oldest, self.end)
    }

    /// A page of payload with this digest.
    ///
    /// # Errors
    /// [`LogError::Integrity`] if the page is another one, [`LogError::Released`], [`LogError::Io`].
    pub fn read(&self, lsn: Lsn, digest: Digest) -> Result<Buffer, LogError> {
        if !self.holds(lsn) {
            return Err(LogError::Released { lsn });
        }
        read_payload(&*self.device, &self.layout, &self.keys.digests, lsn, digest)
    }

    /// A page of payload as the device has it. For a client that knows its own records by something better than the log's
    /// digests.
    ///
    /// # Errors
    /// [`LogError::Released`], [`LogError::Io`].
    pub fn read_unverified(&self, lsn: Lsn) -> Result<Buffer, LogError> {
        if !self.holds(lsn) {
            return Err(LogError::Released { lsn });
        }
        let mut page = Buffer::zeroed(PAGE_BYTES);
        read_page(&*self.device, self.layout.offset(lsn), &mut page)?;
        Ok(page)
    }

    fn holds(&self, lsn: Lsn) -> bool {
        self.superblock.tail.lsn <= lsn && lsn.0.is_multiple_of(PAGE) && lsn < self.end.lsn
    }

    /// Lets the next session begin so far behind the end that no write of the session before can hit it: for a log that
    /// was taken from another host, which may have writes on their way. Does nothing if the ring has not enough room.
    pub fn leave_gap(&mut self) {
        let bytes = self.layout.window_bytes();
        let used = self.end.lsn.0 - self.superblock.tail.lsn.0;
        let needed = used + bytes + self.layout.reserve_bytes();
        if needed > self.layout.ring_bytes || self.superblock.gaps.len() >= MAX_GAPS {
            tracing::warn!("there is no room for a gap in the log");
            return;
        }
        let gap = Gap {
            at: self.end,
            to: Lsn(self.end.lsn.0 + bytes),
        };
        self.superblock.gaps.push(gap);
        self.end.lsn = gap.to;
    }

    /// Takes the log: a new epoch begins with a frame of these records, which is durable when this returns. A crash
    /// before leaves the log as it was.
    ///
    /// # Errors
    /// [`LogError::Full`], [`LogError::Invalid`], [`LogError::Io`], [`LogError::Foreign`].
    pub fn finish(self, records: &[(Client, Record)]) -> Result<Log, LogError> {
        let draft = Draft::new(records).map_err(refused)?;
        self.take(Some((draft, records)))
    }

    /// Takes the log without a frame: for a client that has nothing to say, so that opening a log that is full again
    /// and again costs no space. The new epoch begins with the superblock.
    ///
    /// # Errors
    /// [`LogError::Io`], [`LogError::Foreign`].
    pub fn finish_without_frame(self) -> Result<Log, LogError> {
        self.take(None)
    }

    fn take(self, first: Option<(Draft, &[(Client, Record)])>) -> Result<Log, LogError> {
        let epoch = self.epoch();
        let mut end = self.end;
        if first.is_none() {
            end.epoch = epoch;
        }
        let oldest = self.superblock.clients.iter();
        let oldest = oldest.map(|state| (state.client, state.oldest)).collect();
        let mut machine = Machine::new(
            self.keys.frame.clone(),
            self.layout.clone(),
            epoch,
            end,
            self.boundaries,
            oldest,
        );
        let append = |(draft, records)| machine.append(draft, records, true);
        let first = first.map(append).transpose().map_err(refused)?;
        let mut superblock = self.superblock;
        let unmarked = superblock.clone();
        superblock.session = self.session;
        superblock.epoch = epoch;
        if self.cut.is_some() {
            superblock.cut_epoch = epoch - 1;
        }
        if first.is_none() {
            superblock.mark = end;
        }
        Log::begin(
            self.device,
            self.layout,
            self.keys,
            machine,
            unmarked,
            superblock,
            first.map(|first| first.end),
        )
    }
}

/// The frame after `end` if the log goes on there, and its pages that are wrong. A frame with wrong pages is the end
/// of the log if it may never have been durable: then a crash tore it.
fn follow(
    chain: &Chain<'_>,
    reader: &mut RingReader<'_>,
    end: &Mark,
    evidence: &mut Evidence<'_>,
) -> Result<Option<(Found, Vec<Lsn>)>, LogError> {
    let Some(frame) = chain.next(reader, end)? else {
        return Ok(None);
    };
    let wrong = chain.wrong_pages(reader, &frame)?;
    let goes_on = wrong.is_empty() || chain.was_durable(&frame, evidence)?;
    Ok(goes_on.then_some((frame, wrong)))
}

/// An error of the first frame, which nobody can retry.
fn refused(error: AppendError) -> LogError {
    match error {
        AppendError::Full { needed, free } => LogError::Full { needed, free },
        AppendError::Unsynced { needed, unsynced } => LogError::Full {
            needed,
            free: unsynced,
        },
        AppendError::Invalid { why } => LogError::Invalid { why },
        AppendError::Log(error) => error,
    }
}
