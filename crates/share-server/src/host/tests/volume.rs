//! A volume whose files one device writes in each quarter of a day, and what of it must be there: that says the
//! specification of the explorer (`tests/collect/spec.rs`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use trust::frame::Packer;
use trust::inode::Inode;
use trust::{Handle, Hasher, Record};
use trust_shared::itable::Fold;
use trust_shared::ops::Body;

use super::super::options::CollectionOptions;
use super::super::{Core, HostError, HostOptions};
use super::devices::Device;
use super::world::World;
use crate::collect::book::Boot;

#[path = "../../../tests/collect/spec.rs"]
#[expect(dead_code, reason = "the explorer uses more of it")]
pub mod spec;
#[path = "../../../tests/collect/tree.rs"]
#[expect(dead_code, reason = "the explorer uses more of it")]
pub mod tree;

use spec::{Entry, Spec};
use tree::Made;

/// A quarter of a day takes so long here: more than the window of dereferencing.
pub const QUARTER: Duration = Duration::from_secs(200);
pub const BEFORE: Boot = Boot(Some([1; 16]));
pub const AFTER: Boot = Boot(Some([2; 16]));

pub fn options(boot: Boot) -> HostOptions {
    HostOptions {
        collection: CollectionOptions {
            keep: Duration::ZERO,
            quarter: QUARTER,
            boot,
            grace: Duration::ZERO,
            rest: 0,
            ..CollectionOptions::default()
        },
        ..HostOptions::default()
    }
}

/// A device that writes versions of files, and what must be there.
pub struct Writer {
    pub spec: Spec,
    pub made: Made,
    pub hasher: Hasher,
    pub newest: BTreeMap<u64, Arc<Inode>>,
    pub fold: Option<Fold>,
    pub fold_blocks: Vec<Handle>,
    pub versions: u64,
}

impl Writer {
    pub fn new(core: &Core) -> Writer {
        let mut spec = Spec::default();
        spec.append(Entry::Other);
        Writer {
            spec,
            made: Made::new(),
            hasher: core.blocks.storage().hasher().clone(),
            newest: BTreeMap::new(),
            fold: None,
            fold_blocks: Vec::new(),
            versions: 0,
        }
    }

    pub fn record(&self, handle: &Handle) -> Record {
        let (kind, bytes) = self.made.get(handle).unwrap();
        Record {
            handle: *handle,
            frame: Packer::new().pack(*kind, bytes).unwrap(),
        }
    }

    pub fn store(&mut self, core: &Arc<Core>, device: &Device, blocks: &[Handle]) {
        let records = blocks.iter().map(|block| self.record(block)).collect();
        device.session.store(records, Box::new(|_| {}));
        core.pump();
        for block in blocks {
            self.spec.used(*block);
        }
    }

    pub fn order(
        &mut self,
        core: &Arc<Core>,
        device: &mut Device,
        body: &Body,
        entry: Entry,
    ) -> Result<(), HostError> {
        let request = device.entry(body.ops().to_vec());
        device.session.receive(&request)?;
        core.pump();
        device.draw()?;
        self.spec.append(entry);
        Ok(())
    }

    /// Writes a new version of a file.
    pub fn write(
        &mut self,
        core: &Arc<Core>,
        device: &mut Device,
        file: u64,
    ) -> Result<(), HostError> {
        self.versions += 1;
        let (inode, blocks) = tree::version(&self.hasher, self.versions, &mut self.made);
        self.store(core, device, &blocks);
        let body = tree::set(file, &inode);
        self.order(core, device, &body, Entry::Set(tree::file(file), blocks))?;
        self.newest.insert(file, inode);
        Ok(())
    }

    pub fn fold(&mut self, core: &Arc<Core>, device: &mut Device) -> Result<(), HostError> {
        let (upto, files) = (device.seen().size, std::mem::take(&mut self.newest));
        self.fold_of(core, device, upto, files)
    }

    /// Folds what these files are at a position.
    pub fn fold_of(
        &mut self,
        core: &Arc<Core>,
        device: &mut Device,
        upto: u64,
        files: BTreeMap<u64, Arc<Inode>>,
    ) -> Result<(), HostError> {
        let (fold, blocks, body) =
            tree::folded(&self.hasher, self.fold, &files, upto, &mut self.made);
        self.store(core, device, &blocks);
        self.fold_blocks.clone_from(&blocks);
        self.fold = Some(fold);
        self.order(core, device, &body, Entry::Fold(tree::USER, 0, blocks))
    }

    /// A quarter of a day passes, and everything moves to the segments.
    pub fn quarter(&mut self, core: &Core, world: &World) -> Result<(), HostError> {
        world.pass(QUARTER);
        self.spec.now += 2;
        core.blocks.storage().settle()?;
        core.count_time();
        Ok(())
    }

    /// What is needed and cannot be read.
    pub fn gone(&self, core: &Core) -> Vec<Handle> {
        let storage = core.blocks.storage();
        let is_whole = |block: &Handle| {
            let read = storage.peek(block).ok().flatten();
            read.is_some_and(|record| record == self.record(block))
        };
        let needed = self.spec.needed().into_iter();
        needed.filter(|block| !is_whole(block)).collect()
    }
}

/// A volume whose files were written in each of so many quarters of a day.
pub fn written(world: &World, quarters: u64) -> Result<(Arc<Core>, Device, Writer), HostError> {
    let core = world.open_with(options(BEFORE))?;
    let mut device = Device::connect(&core, 1)?;
    let resume = device.resume(1);
    device.session.receive(&resume)?;
    core.pump();
    device.draw()?;
    let mut writer = Writer::new(&core);
    for quarter in 0..quarters {
        for file in 0..3 {
            writer.write(&core, &mut device, file)?;
        }
        if quarter % 2 == 1 {
            writer.fold(&core, &mut device)?;
        }
        writer.quarter(&core, world)?;
    }
    Ok((core, device, writer))
}
