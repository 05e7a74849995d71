//! What happened, and what must hold: who opens after a close sees it; what was acknowledged is there exactly once, or in a
//! conflict copy whose writers were told; nothing older takes the place of what is newer.

use std::collections::BTreeMap;

use trust_shared::principal::FileId;

/// Places of two bytes at the beginning of each file, which programs overwrite. Behind them are appended tokens.
pub const SLOTS: usize = 3;
/// Length of a token, bytes.
pub const TOKEN: usize = 2;
/// A file without writes: so long that its content lies in a block.
pub const EMPTY: [u8; 600] = [0; 600];

/// Where a token was written. None: at the end.
pub type Slot = Option<usize>;

/// What a program wrote once.
#[derive(Clone, Debug)]
pub struct Token {
    pub number: u16,
    pub file: FileId,
    pub device: usize,
    pub handle: u64,
    pub slot: Slot,
    /// When the program opened the file.
    pub opened: u64,
    pub fate: Fate,
}

/// What became of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Nobody was told anything.
    Open,
    /// A close or fsync said that it is in the log, at this time.
    Kept(u64),
    /// It was told lost, at this time.
    Lost(u64),
    /// Its device was killed before.
    Killed,
}

/// A file that took the place of a name.
#[derive(Clone, Debug)]
pub struct Renamed {
    pub name: String,
    pub file: FileId,
    pub begun: u64,
    pub ended: Option<u64>,
}

#[derive(Default)]
pub struct Truth {
    /// Counts steps.
    pub now: u64,
    pub tokens: Vec<Token>,
    pub renamed: Vec<Renamed>,
    pub tally: Tally,
}

/// What walks have met.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub kept: usize,
    pub lost: usize,
    pub killed: usize,
    pub copies: usize,
    pub reads: usize,
    pub stale: usize,
    /// Commits whose blocks were refused.
    pub refused: usize,
    /// Entries that were not ordered, because blocks before them were missing.
    pub unstored: usize,
}

impl Tally {
    pub fn add(&mut self, other: &Tally) {
        self.kept += other.kept;
        self.lost += other.lost;
        self.killed += other.killed;
        self.copies += other.copies;
        self.reads += other.reads;
        self.stale += other.stale;
        self.refused += other.refused;
        self.unstored += other.unstored;
    }
}

/// The tokens of a content.
pub struct Content {
    slots: Vec<u16>,
    pub appended: Vec<u16>,
}

impl Content {
    pub fn of(bytes: &[u8]) -> Content {
        assert!(
            bytes.len() >= EMPTY.len() && bytes.len().is_multiple_of(TOKEN),
            "a token is cut: {bytes:?}"
        );
        let numbers = bytes.chunks(TOKEN);
        let numbers = numbers.map(|token| u16::from_le_bytes([token[0], token[1]]));
        let numbers: Vec<u16> = numbers.collect();
        let (slots, appended) = numbers.split_at(EMPTY.len() / TOKEN);
        Content {
            slots: slots[..SLOTS].to_vec(),
            appended: appended.to_vec(),
        }
    }

    fn has(&self, token: &Token) -> usize {
        let numbers = match token.slot {
            None => &self.appended[..],
            Some(slot) => &self.slots[slot..=slot],
        };
        numbers
            .iter()
            .filter(|number| **number == token.number)
            .count()
    }
}

impl Truth {
    pub fn token(&mut self, file: FileId, by: (usize, u64, u64), slot: Slot) -> u16 {
        let number = self.tokens.len() as u16 + 1;
        let (device, handle, opened) = by;
        self.tokens.push(Token {
            number,
            file,
            device,
            handle,
            slot,
            opened,
            fate: Fate::Open,
        });
        number
    }

    /// A close or fsync of a handle has this answer.
    pub fn told(&mut self, handle: u64, is_kept: bool) {
        let now = self.now;
        let all = self.tokens.iter_mut();
        let open = all.filter(|token| token.handle == handle && token.fate == Fate::Open);
        open.for_each(|token| {
            token.fate = match is_kept {
                true => Fate::Kept(now),
                false => Fate::Lost(now),
            };
        });
    }

    /// What was acknowledged stays. What was told lost is nowhere any more, if it was not sent yet.
    pub fn killed(&mut self, device: usize) {
        let all = self
            .tokens
            .iter_mut()
            .filter(|token| token.device == device);
        let gone = all.filter(|token| !matches!(token.fate, Fate::Kept(_)));
        gone.for_each(|token| token.fate = Fate::Killed);
    }

    /// A program that opened the file at a time reads this. Its own handle wrote `own`.
    pub fn read(&mut self, file: FileId, opened: u64, own: &[u16], bytes: &[u8]) {
        self.tally.reads += 1;
        let content = Content::of(bytes);
        for token in self.tokens.iter().filter(|token| token.file == file) {
            let is_old = matches!(token.fate, Fate::Kept(at) if at < opened);
            let is_own = own.contains(&token.number);
            if token.slot.is_none() && (is_old || is_own) {
                assert_eq!(
                    content.has(token),
                    1,
                    "an appended token that was acknowledged before the open, or its own, is not there once: {token:?} in {:?}",
                    content.appended
                );
            }
        }
        self.slots_are_new(file, opened, &content);
    }

    /// No slot shows what is older than what was acknowledged before a time.
    fn slots_are_new(&self, file: FileId, before: u64, content: &Content) {
        for (slot, number) in content.slots.iter().enumerate() {
            let here = |token: &&Token| token.file == file && token.slot == Some(slot);
            let shown = self.tokens.iter().find(|token| token.number == *number);
            let since = match shown.map(|token| token.fate) {
                None => 0,
                Some(Fate::Kept(at) | Fate::Lost(at)) => at,
                Some(Fate::Open | Fate::Killed) => continue,
            };
            let newer = self.tokens.iter().filter(here);
            let mut newer = newer.filter(|token| {
                let is_kept = matches!(token.fate, Fate::Kept(at) if at < before);
                is_kept && token.opened > since && token.number != *number
            });
            if let Some(newer) = newer.next() {
                panic!("slot {slot} shows {shown:?}, but {newer:?} is newer");
            }
        }
    }

    /// A program opened a name at a time, and was given a file.
    pub fn opened(&self, name: &str, file: FileId, at: u64) {
        let of = || self.renamed.iter().filter(|renamed| renamed.name == name);
        let since = of().find(|renamed| renamed.file == file);
        let Some(since) = since.map_or(Some(0), |since| since.ended) else {
            return;
        };
        let mut newer = of().filter(|renamed| {
            let is_over = renamed.ended.is_some_and(|ended| ended < at);
            is_over && renamed.begun > since && renamed.file != file
        });
        if let Some(newer) = newer.next() {
            panic!("{name} opens {file:?}, but {newer:?} took its place before");
        }
    }

    /// Everything has ended: files by their names, and conflict copies.
    pub fn ended(&mut self, files: &BTreeMap<FileId, Vec<u8>>, copies: &[Vec<u8>]) {
        self.tally.copies = copies.len();
        let count = |is: fn(Fate) -> bool| self.tokens.iter().filter(|it| is(it.fate)).count();
        self.tally.kept = count(|fate| matches!(fate, Fate::Kept(_)));
        self.tally.lost = count(|fate| matches!(fate, Fate::Lost(_)));
        self.tally.killed = count(|fate| fate == Fate::Killed);
        let copies: Vec<Content> = copies.iter().map(|bytes| Content::of(bytes)).collect();
        for (file, bytes) in files {
            let content = Content::of(bytes);
            for number in &content.appended {
                let count = content.appended.iter().filter(|it| *it == number).count();
                assert_eq!(count, 1, "token {number} is there twice");
            }
            self.slots_are_new(*file, u64::MAX, &content);
            for token in self.tokens.iter().filter(|token| token.file == *file) {
                let copied = copies.iter().any(|copy| copy.has(token) > 0);
                match (token.fate, token.slot) {
                    (Fate::Open, _) => panic!("nobody was told of {token:?}"),
                    (Fate::Kept(_), None) => {
                        assert_eq!(content.has(token), 1, "acknowledged, and gone: {token:?}");
                    }
                    (Fate::Lost(_), None) => {
                        let is_there = content.has(token) == 1 || copied;
                        assert!(is_there, "told lost, and nowhere: {token:?}");
                    }
                    _ => {}
                }
            }
        }
    }
}
