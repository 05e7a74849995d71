//! A replica that lies in one named way (design `quality.md`, *Adversaries*).
//!
//! It wraps an honest replica and changes its answers. [`Lie`] is the list of attacks: each test names one,
//! and a reader must report it, mask it with another replica, or fail cleanly.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use store::object::ObjectName;
use store::{BlockStore, BoxFuture, Objects, Replica, StoreError};
use trust::{Frame, Handle, Kind, Record};

/// What a [`Liar`] does wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lie {
    /// Nothing: the honest control.
    None,
    /// Flips bit `n` (modulo its length) of every frame's payload.
    FlipBit(usize),
    /// Sends the plaintext of a block with a bit flipped, in a well-formed frame.
    WrongPlaintext,
    /// Answers each handle with another valid block of the same volume.
    AnotherBlock,
    /// Answers with the right bytes under another kind.
    WrongKind,
    /// Cuts each frame's payload and repairs the header.
    Truncate,
    /// Denies every block.
    DenyBlocks,
    /// No lie: it gives its head, and then no block answers.
    FailBlocks,
    /// Denies the volume.
    DenyVolume,
    /// No lie: it speaks a later protocol, so that nothing can be asked of it.
    LaterProtocol,
    /// Never answers.
    Stall,
    /// Answers each question after this long.
    Slow(Duration),
    /// Adds blocks that were not requested, under wrong handles.
    PoisonAround,
    /// Sends this head instead of its own.
    Head(Bytes),
    /// Flips bit `n` of the head.
    FlipHead(usize),
    /// Cuts the head to this many bytes.
    CutHead(usize),
    /// Changes the policies among its files. Everything else is honest.
    Policies(PolicyLie),
    /// Sends a frame that unpacks to more than it says.
    Bomb,
}

/// What a [`Liar`] does wrong when it is asked for a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PolicyLie {
    /// Denies one.
    Missing(u64),
    /// Sends these bytes in the place of one.
    Other(u64, Bytes),
    /// Sends each second one in the place of the one before, and the other way round.
    Swapped,
    /// Sends these bytes whatever the number.
    Endless(Bytes),
    /// Answers each question after this long.
    Slow(Duration),
    /// Sends these bytes in the place of its head, and no policies.
    NoneUnder(Bytes),
}

/// A replica that tells one lie.
pub struct Liar<R> {
    honest: R,
    place: String,
    lie: Mutex<Lie>,
    asked: AtomicUsize,
    prepared: Mutex<Vec<u64>>,
    seen: Mutex<Vec<Record>>,
}

impl<R: Replica> Liar<R> {
    /// Wraps `honest`, whose answers `lie` changes.
    pub fn new(honest: R, lie: Lie) -> Self {
        Liar {
            place: format!("liar({lie:?})"),
            honest,
            lie: Mutex::new(lie),
            asked: AtomicUsize::new(0),
            prepared: Mutex::default(),
            seen: Mutex::default(),
        }
    }

    /// The store that it passes requests on to.
    pub fn honest(&self) -> &R {
        &self.honest
    }

    /// Changes the lie.
    pub fn tell(&self, lie: Lie) {
        *self.lie.lock().unwrap_or_else(|e| e.into_inner()) = lie;
    }

    /// The bounds of what it was to get ready with, in order.
    pub fn prepared(&self) -> Vec<u64> {
        self.prepared
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }

    /// Requests for blocks so far.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }

    fn lie(&self) -> Lie {
        self.lie.lock().unwrap_or_else(|e| e.into_inner()).clone()
    }

    fn later(&self) -> StoreError {
        StoreError::Unsupported {
            place: self.place.clone(),
            why: "protocol 7".to_owned(),
        }
    }

    fn spoil(&self, lie: &Lie, records: Vec<Record>) -> Vec<Record> {
        let mut seen = self.seen.lock().unwrap_or_else(|e| e.into_inner());
        seen.extend(records.iter().take(8).cloned());
        match lie {
            Lie::FlipBit(n) => records.into_iter().filter_map(|r| flip(r, *n)).collect(),
            Lie::WrongPlaintext => records.into_iter().filter_map(wrong_plaintext).collect(),
            Lie::WrongKind => records.into_iter().filter_map(wrong_kind).collect(),
            Lie::Truncate => records.into_iter().filter_map(truncate).collect(),
            Lie::Bomb => records.into_iter().filter_map(bomb).collect(),
            Lie::AnotherBlock => records
                .into_iter()
                .map(|r| match seen.iter().find(|s| s.handle != r.handle) {
                    Some(other) => Record {
                        handle: r.handle,
                        frame: other.frame.clone(),
                    },
                    None => r,
                })
                .collect(),
            Lie::PoisonAround => {
                let poison: Vec<Record> = records
                    .iter()
                    .map(|r| {
                        let mut name = *r.handle.as_bytes();
                        name[0] ^= 1;
                        Record {
                            handle: Handle::from_bytes(name),
                            frame: r.frame.clone(),
                        }
                    })
                    .collect();
                records.into_iter().chain(poison).collect()
            }
            _ => records,
        }
    }
}

impl<R: Replica> BlockStore for Liar<R> {
    fn place(&self) -> &str {
        &self.place
    }

    fn prepare(&self, most_bytes: u64) -> BoxFuture<'_, ()> {
        let mut prepared = self.prepared.lock().unwrap_or_else(|e| e.into_inner());
        prepared.push(most_bytes);
        Box::pin(std::future::ready(()))
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::Relaxed);
            let lie = self.lie();
            match &lie {
                Lie::Stall => std::future::pending::<()>().await,
                Lie::Slow(time) => tokio::time::sleep(*time).await,
                Lie::DenyBlocks => return Ok(Vec::new()),
                Lie::FailBlocks => {
                    return Err(StoreError::Unavailable {
                        place: self.place.clone(),
                        cause: "connection reset".to_owned(),
                    });
                }
                Lie::DenyVolume => {
                    return Err(StoreError::NoVolume {
                        place: self.place.clone(),
                    });
                }
                Lie::LaterProtocol => return Err(self.later()),
                _ => {}
            }
            let records = self.honest.get_many(want, around).await?;
            Ok(self.spoil(&lie, records))
        })
    }
}

impl<R: Replica> Replica for Liar<R> {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        Box::pin(async move {
            match self.lie() {
                Lie::Stall => std::future::pending().await,
                Lie::DenyVolume => Err(StoreError::NoVolume {
                    place: self.place.clone(),
                }),
                Lie::LaterProtocol => Err(self.later()),
                Lie::Head(head) | Lie::Policies(PolicyLie::NoneUnder(head)) => Ok(head),
                Lie::Slow(time) => {
                    tokio::time::sleep(time).await;
                    self.honest.head().await
                }
                Lie::FlipHead(n) => {
                    let mut head = self.honest.head().await?.to_vec();
                    let at = n / 8 % head.len().max(1);
                    if let Some(byte) = head.get_mut(at) {
                        *byte ^= 1 << (n % 8);
                    }
                    Ok(head.into())
                }
                Lie::CutHead(n) => {
                    let head = self.honest.head().await?;
                    Ok(head.slice(..n.min(head.len())))
                }
                _ => self.honest.head().await,
            }
        })
    }

    fn objects(&self) -> Option<&dyn Objects> {
        Some(self)
    }
}

/// Of the files, only policies and the log's tiles are served, so that readers request blocks by handle.
impl<R: Replica> Objects for Liar<R> {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        Box::pin(async move {
            match (self.lie(), name, self.honest.objects()) {
                (Lie::Stall, ..) => std::future::pending().await,
                (Lie::Policies(lie), ObjectName::Policy(number), Some(objects)) => {
                    let number = match lie {
                        PolicyLie::Missing(gone) if gone == number => return Ok(None),
                        PolicyLie::NoneUnder(_) => return Ok(None),
                        PolicyLie::Other(at, bytes) if at == number => return Ok(Some(bytes)),
                        PolicyLie::Endless(bytes) => return Ok(Some(bytes)),
                        PolicyLie::Slow(time) => {
                            tokio::time::sleep(time).await;
                            number
                        }
                        PolicyLie::Swapped => number ^ 1,
                        PolicyLie::Missing(_) | PolicyLie::Other(..) => number,
                    };
                    let name = ObjectName::Policy(number);
                    objects.range(name, offset, len_bytes).await
                }
                (Lie::Policies(_), ObjectName::Log { .. }, Some(objects))
                | (_, ObjectName::Tile { .. } | ObjectName::Policy(_), Some(objects)) => {
                    objects.range(name, offset, len_bytes).await
                }
                _ => Ok(None),
            }
        })
    }
}

fn reframe(handle: Handle, bytes: impl Into<Bytes>) -> Option<Record> {
    Frame::parse(bytes.into())
        .ok()
        .map(|frame| Record { handle, frame })
}

fn flip(record: Record, n: usize) -> Option<Record> {
    let mut bytes = record.frame.as_bytes().to_vec();
    let payload = bytes.len().checked_sub(6).filter(|p| *p > 0)?;
    let at = 6 + n / 8 % payload;
    *bytes.get_mut(at)? ^= 1 << (n % 8);
    reframe(record.handle, bytes)
}

fn wrong_plaintext(record: Record) -> Option<Record> {
    let mut plain = record.frame.unpack().ok()?.to_vec();
    match plain.last_mut() {
        Some(last) => *last ^= 1,
        None => plain.push(0),
    }
    let frame = trust::frame::Packer::new()
        .pack(record.frame.kind(), &plain)
        .ok()?;
    Some(Record {
        handle: record.handle,
        frame,
    })
}

fn wrong_kind(record: Record) -> Option<Record> {
    let kind = Kind::ALL.into_iter().find(|k| *k != record.frame.kind())?;
    let plain = record.frame.unpack().ok()?;
    let frame = trust::frame::Packer::new().pack(kind, &plain).ok()?;
    Some(Record {
        handle: record.handle,
        frame,
    })
}

fn truncate(record: Record) -> Option<Record> {
    let plain = record.frame.unpack().ok()?;
    let cut = plain.slice(..plain.len() / 2);
    let frame = trust::frame::Packer::new()
        .pack(record.frame.kind(), &cut)
        .ok()?;
    Some(Record {
        handle: record.handle,
        frame,
    })
}

/// A header that states one byte more than the payload holds, over a payload that unpacks to a MiB.
fn bomb(record: Record) -> Option<Record> {
    let zeros = vec![0u8; trust::frame::MAX_BLOCK_BYTES];
    let packed = trust::frame::Packer::new()
        .pack(record.frame.kind(), &zeros)
        .ok()?;
    let mut bytes = BytesMut::from(packed.as_bytes().as_ref());
    let lie = (trust::frame::MAX_BLOCK_BYTES as u32 - 1).to_le_bytes();
    bytes.get_mut(2..6)?.copy_from_slice(&lie);
    reframe(record.handle, bytes.freeze())
}
