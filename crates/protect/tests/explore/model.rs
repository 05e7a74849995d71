//! The reference: every image that a block ever had, which of them a flush has made durable, and what a device that
//! is honest, or one that is not, may return (invariants 1 to 4 and 6 of `protect.md`, *Proof*).

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

use crate::content::{Image, SECTOR, SECTORS, sector};

/// Who lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Nobody: what was flushed is there, and nothing is ever reported.
    Honest,
    /// Nobody, but a device has no space: requests may fail, reads do not.
    NoSpace,
    /// The devices, but something tells how new they must be: what was flushed, or an error.
    Lies,
    /// Pages of the log that hold content rot: what was flushed, or an error for the blocks that they belong to.
    Rots,
    /// Both devices, and nothing outside says how new they are: bytes that the block once had, or an error.
    LiesAboutAge,
}

/// What a read of a block returned: its bytes, or why not.
pub type Found = Result<Vec<u8>, String>;

/// The watched blocks of a volume.
#[derive(Clone, Debug)]
pub struct Model {
    blocks: BTreeMap<u64, History>,
    writes: u32,
    /// Sectors of the device: its last block may be short.
    sectors: u64,
}

impl Trust {
    /// Whether each read must succeed.
    pub fn is_honest(self) -> bool {
        matches!(self, Trust::Honest | Trust::NoSpace)
    }
}

/// One block. The last image is what a read must return.
#[derive(Clone, Debug)]
struct History {
    images: Vec<Image>,
    /// The newest image that a flush has made durable.
    floor: usize,
    /// Images of earlier lives, for devices that are put back.
    ever: BTreeSet<Image>,
    /// A read failed on a device that lies: any image from the floor on, or an error, may follow.
    lost: bool,
}

/// The newest image of each block when a flush began.
pub struct FlushBegun(BTreeMap<u64, usize>);

impl Model {
    /// These blocks are watched. They are zeros, durably.
    pub fn new(blocks: impl IntoIterator<Item = u64>) -> Model {
        let zero = History {
            images: vec![Image::default()],
            floor: 0,
            ever: BTreeSet::new(),
            lost: false,
        };
        Model {
            blocks: blocks
                .into_iter()
                .map(|block| (block, zero.clone()))
                .collect(),
            writes: 0,
            sectors: u64::MAX,
        }
    }

    /// The same blocks of a device of so many sectors.
    pub fn ending(self, sectors: u64) -> Model {
        Model { sectors, ..self }
    }

    /// Bytes of a block.
    pub fn bytes(&self, block: u64) -> usize {
        let places = places(block, self.sectors);
        (places.end - places.start) as usize * SECTOR
    }

    /// The watched blocks.
    pub fn blocks(&self) -> Vec<u64> {
        self.blocks.keys().copied().collect()
    }

    /// Watched blocks of which these sectors are only a part.
    pub fn merged(&self, sectors: &Range<u64>) -> Vec<u64> {
        let is_part = |block: &u64| {
            let places = places(*block, self.sectors);
            touches(&places, sectors) && !covers(sectors, &places)
        };
        self.blocks.keys().copied().filter(is_part).collect()
    }

    /// What a read of a watched block must return.
    pub fn newest(&self, block: u64) -> Image {
        self.blocks[&block].newest()
    }

    /// Accepts a write of these sectors and returns its bytes.
    pub fn write(&mut self, sectors: Range<u64>) -> Vec<u8> {
        self.writes += 1;
        self.change(&sectors, self.writes);
        sectors
            .flat_map(|place| sector(place, self.writes))
            .collect()
    }

    /// A write was not accepted. Its number is not used again.
    pub fn refuse(&mut self, refused: &Model) {
        self.writes = refused.writes;
    }

    /// Accepts zeros for these sectors.
    pub fn zero(&mut self, sectors: &Range<u64>) {
        self.change(sectors, 0);
    }

    fn change(&mut self, sectors: &Range<u64>, write: u32) {
        for (block, history) in &mut self.blocks {
            let places = places(*block, self.sectors);
            if !touches(&places, sectors) {
                continue;
            }
            let mut image = history.newest();
            let held = places.clone().zip(&mut image.0);
            let inside = held.filter(|(place, _)| sectors.contains(place));
            inside.for_each(|(_, held)| *held = write);
            history.images.push(image);
            history.lost &= !covers(sectors, &places);
        }
    }

    /// Of a block that cannot be read nobody knows which image a flush makes durable.
    pub fn flush_begins(&self) -> FlushBegun {
        let known = self.blocks.iter().filter(|(_, history)| !history.lost);
        let newest = |(block, history): (&u64, &History)| (*block, history.images.len() - 1);
        FlushBegun(known.map(newest).collect())
    }

    /// What was accepted when the flush began is durable.
    pub fn flushed(&mut self, begun: &FlushBegun) {
        for (block, newest) in &begun.0 {
            if let Some(history) = self.blocks.get_mut(block) {
                history.floor = history.floor.max(*newest);
            }
        }
    }

    /// Checks what a read in the running session returned.
    pub fn check(&self, block: u64, found: &Found, trust: Trust) -> Result<(), String> {
        let history = &self.blocks[&block];
        let image = match found {
            Err(_) if !trust.is_honest() => return Ok(()),
            Err(error) => return Err(format!("block {block} cannot be read: {error}")),
            Ok(bytes) => read_image(block, bytes)?,
        };
        let right = match history.lost {
            true => history.may_have(image, trust),
            false => image == history.newest(),
        };
        if right {
            return Ok(());
        }
        Err(format!(
            "block {block} reads {image:?}; it has {}",
            history.told()
        ))
    }

    /// Checks what a new session finds after a crash. What it returned is what the block has from now on: another
    /// crash may not choose again.
    pub fn recovered(&mut self, block: u64, found: &Found, trust: Trust) -> Result<(), String> {
        let Some(history) = self.blocks.get_mut(&block) else {
            return Ok(());
        };
        let image = match found {
            Err(error) if trust.is_honest() => {
                return Err(format!(
                    "block {block} cannot be read after the crash: {error}"
                ));
            }
            Err(_) => {
                history.lost = true;
                return Ok(());
            }
            Ok(bytes) => read_image(block, bytes)?,
        };
        if !history.may_have(image, trust) {
            let told = history.told();
            return Err(format!(
                "block {block} is {image:?} after the crash; it has {told}"
            ));
        }
        history.ever.extend(history.images.drain(..));
        history.images.push(image);
        history.floor = 0;
        history.lost = false;
        Ok(())
    }

    /// Whether a read of `block` failed, so that a write of a part of it would be made from unknown bytes.
    pub fn is_lost(&self, block: u64) -> bool {
        self.blocks.get(&block).is_some_and(|history| history.lost)
    }

    /// A number that is the same for models that accept the same.
    pub fn fingerprint(&self, trust: Trust) -> u64 {
        let mut hash = DefaultHasher::new();
        for history in self.blocks.values() {
            let images: BTreeSet<&Image> = history.images[history.floor..].iter().collect();
            (images, history.lost).hash(&mut hash);
            if trust == Trust::LiesAboutAge {
                (&history.ever, &history.images).hash(&mut hash);
            }
        }
        hash.finish()
    }
}

impl History {
    fn newest(&self) -> Image {
        self.images[self.images.len() - 1]
    }

    fn may_have(&self, image: Image, trust: Trust) -> bool {
        let (first, earlier) = match trust {
            Trust::LiesAboutAge => (0, self.ever.contains(&image)),
            Trust::Honest | Trust::NoSpace | Trust::Lies | Trust::Rots => (self.floor, false),
        };
        earlier || self.images[first..].contains(&image)
    }

    fn told(&self) -> String {
        format!("{:?}, flushed up to number {}", self.images, self.floor)
    }
}

/// Sectors of a block of a device with so many.
fn places(block: u64, sectors: u64) -> Range<u64> {
    block * SECTORS as u64..((block + 1) * SECTORS as u64).min(sectors)
}

fn touches(a: &Range<u64>, b: &Range<u64>) -> bool {
    a.start < b.end && b.start < a.end
}

fn covers(outer: &Range<u64>, inner: &Range<u64>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// Invariant 1: every sector was written there by this volume.
fn read_image(block: u64, bytes: &[u8]) -> Result<Image, String> {
    let found = || {
        format!(
            "block {block} has bytes that nobody wrote there: {:x?}",
            &bytes[..16]
        )
    };
    Image::of(block, bytes).ok_or_else(found)
}
