//! A store in memory: for tests, and as the model that other stores are compared with.

use std::collections::{HashMap, HashSet};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use bytes::Bytes;
use trust::{Frame, Handle, Record};

use crate::object::ObjectName;
use crate::{BlockSink, BlockStore, BoxFuture, Objects, Replica, StoreError};

/// Blocks, a head and objects in memory. Read-around follows the order of insertion.
#[derive(Debug, Default)]
pub struct MemoryStore {
    place: String,
    held: RwLock<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    records: Vec<Record>,
    positions: HashMap<Handle, usize>,
    head: Option<Bytes>,
    objects: HashMap<ObjectName, Bytes>,
}

impl MemoryStore {
    /// An empty store; `place` is its name.
    pub fn new(place: impl Into<String>) -> Self {
        MemoryStore {
            place: place.into(),
            held: RwLock::default(),
        }
    }

    /// Adds a record; returns false, changing nothing, when its handle is there already.
    pub fn insert(&self, record: Record) -> bool {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        let position = held.records.len();
        let new = !held.positions.contains_key(&record.handle);
        if new {
            held.positions.insert(record.handle, position);
            held.records.push(record);
        }
        new
    }

    /// Sets the head that [`Replica::head`] returns.
    pub fn set_head(&self, head: Bytes) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.head = Some(head);
    }

    /// Adds an object. Without any, [`Replica::objects`] returns `None`.
    pub fn set_object(&self, name: ObjectName, bytes: Bytes) {
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        held.objects.insert(name, bytes);
    }

    /// Number of blocks.
    pub fn len(&self) -> usize {
        self.held().records.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.held().records.is_empty()
    }

    fn held(&self) -> RwLockReadGuard<'_, Contents> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Contents {
    fn answer(&self, want: &[Handle], around: usize) -> Vec<Record> {
        let mut positions: Vec<usize> = want
            .iter()
            .filter_map(|h| self.positions.get(h).copied())
            .collect();
        let first = positions.first().copied();
        positions.sort_unstable();
        positions.dedup();
        let get = |p: &usize| self.records.get(*p).cloned();
        let mut answer: Vec<Record> = positions.iter().filter_map(get).collect();
        let mut left = around;
        for (position, record) in self
            .records
            .iter()
            .enumerate()
            .skip(first.map_or(usize::MAX, |f| f + 1))
        {
            if positions.binary_search(&position).is_ok() {
                continue;
            }
            if record.len() > left {
                break;
            }
            left -= record.len();
            answer.push(record.clone());
        }
        answer
    }
}

impl BlockStore for MemoryStore {
    fn place(&self) -> &str {
        &self.place
    }

    fn get_many<'a>(
        &'a self,
        want: &'a [Handle],
        around: usize,
    ) -> BoxFuture<'a, Result<Vec<Record>, StoreError>> {
        let answer = self.held().answer(want, around);
        Box::pin(std::future::ready(Ok(answer)))
    }

    fn try_cached(&self, handle: &Handle) -> Option<Frame> {
        let held = self.held();
        let record = held.records.get(*held.positions.get(handle)?)?;
        Some(record.frame.clone())
    }
}

/// A record is there as soon as it is put and as long as the process runs, so `flush` does nothing.
impl BlockSink for MemoryStore {
    fn put<'a>(&'a self, records: &'a [Record]) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            for record in records {
                self.insert(record.clone());
            }
            Ok(())
        })
    }

    fn touch<'a>(
        &'a self,
        handles: &'a [Handle],
    ) -> BoxFuture<'a, Result<Vec<Handle>, StoreError>> {
        Box::pin(async move {
            let held = self.held();
            let mut asked = HashSet::new();
            let absent = |h: &&Handle| asked.insert(**h) && !held.positions.contains_key(*h);
            Ok(handles.iter().filter(absent).copied().collect())
        })
    }

    fn flush(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Replica for MemoryStore {
    fn head(&self) -> BoxFuture<'_, Result<Bytes, StoreError>> {
        let head = self.held().head.clone().ok_or(StoreError::NoVolume {
            place: self.place.clone(),
        });
        Box::pin(std::future::ready(head))
    }

    fn objects(&self) -> Option<&dyn Objects> {
        (!self.held().objects.is_empty()).then_some(self)
    }
}

impl Objects for MemoryStore {
    fn range(
        &self,
        name: ObjectName,
        offset: u64,
        len_bytes: usize,
    ) -> BoxFuture<'_, Result<Option<Bytes>, StoreError>> {
        let object = self.held().objects.get(&name).cloned();
        let part = object.map(|bytes| {
            let from = usize::try_from(offset).map_or(bytes.len(), |from| from.min(bytes.len()));
            let to = from.saturating_add(len_bytes).min(bytes.len());
            bytes.slice(from..to)
        });
        Box::pin(std::future::ready(Ok(part)))
    }
}
