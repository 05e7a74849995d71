//! The feed of changes (decision 0101): what may have changed since a position, from the leaves of the floor.
//!
//! A question names how far its program has been told, so nothing is kept between two questions, and nothing is missed
//! over a restart. A question that waits goes through the log with it, and is looked at after each step.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use trust::device::DeviceKey;
use trust_shared::principal::Device;

use super::history::{CHUNK, MOST_LEAVES};
use super::{Core, Out, Ticket};
use crate::disk::DiskError;
use crate::files::{After, Answer, Basis, Cursor, Feed, MAX_TOUCHED, Thing, Touched};
use ordering::roster::Product;
use ordering::scheme::{DeviceScheme, Leaf, Scheme};

/// Most leaves that a program may be behind. For more, it looks again: that costs less than so many pages.
pub(in crate::client) const MAX_BEHIND: u64 = match cfg!(test) {
    true => MOST_LEAVES + 256,
    false => 1 << 16,
};

/// A question that waits.
#[derive(Debug)]
pub(super) struct Feeding {
    pub(super) ticket: Ticket,
    pub(super) since: Option<Cursor>,
    /// Until something changes.
    waits: bool,
    /// How long an entry for which nobody speaks is waited for.
    hold: Duration,
    /// The question knows the log up to here, and nothing has changed.
    at: u64,
    held: Option<Held>,
}

/// The entry for which a question waits.
#[derive(Debug)]
struct Held {
    at: u64,
    author: DeviceKey,
    /// None: longer than the clock goes.
    until: Option<Instant>,
}

impl Held {
    fn is_over(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }
}

impl Feeding {
    pub(super) fn new(ticket: Ticket, since: Option<Cursor>, waits: bool, hold_ms: u32) -> Feeding {
        Feeding {
            ticket,
            since,
            waits,
            hold: Duration::from_millis(hold_ms.into()),
            at: since.map_or(0, |since| since.size),
            held: None,
        }
    }

    /// Whether it is told of entries, too, for which nobody speaks.
    fn is_told_all(&self, now: Instant) -> bool {
        self.hold.is_zero() || self.held.as_ref().is_some_and(|held| held.is_over(now))
    }
}

/// What a part of the log may have changed.
#[derive(Default)]
struct Page {
    changes: Vec<Touched>,
    /// Size of the prefix whose changes are told.
    until: u64,
    /// The next entry is one for which nobody speaks: its position and author.
    held: Option<(u64, DeviceKey)>,
    /// One entry has more changes than a page.
    overflows: bool,
}

impl Core {
    /// Answers questions about changes, as far as they have answers. Only where the signatures of all entries are
    /// verified.
    pub(super) fn answer_feeds(&mut self, outs: &mut Vec<Out>) {
        let now = Instant::now();
        for mut feeding in std::mem::take(&mut self.feeding) {
            match self.feed(&mut feeding, now) {
                Some(answer) => outs.push(Out::Answer {
                    ticket: feeding.ticket,
                    answer,
                    at: self.engine.ledger().size(),
                    marked: Basis::default(),
                }),
                // Nothing will ever change.
                None if self.stopped => outs.extend(self.convicted.clone().map(Out::Stopped)),
                None => self.feeding.push(feeding),
            }
        }
    }

    /// As [`Core::answer_feeds`], after a step, if all that the engine has is verified.
    pub(super) fn feed_on(&mut self, outs: &mut Vec<Out>) {
        if self.stopped {
            // The programs are told by what stopped the device.
            self.feeding.clear();
        } else if self.may_tell() {
            self.answer_feeds(outs);
        }
    }

    /// In the middle of catching up, nobody has vouched for the last entries yet.
    fn may_tell(&self) -> bool {
        !self.engine.is_unverified() && self.engine.has_start()
    }

    /// When a question has waited long enough for somebody to speak for an entry.
    pub(super) fn feeds_until(&self) -> Option<Instant> {
        if !self.may_tell() {
            // Else the timer would ring again and again. The step that ends this answers the question.
            return None;
        }
        let held = self.feeding.iter().filter_map(|it| it.held.as_ref());
        held.filter_map(|held| held.until).min()
    }

    /// None: the question waits.
    fn feed(&self, feeding: &mut Feeding, now: Instant) -> Option<Answer> {
        let ledger = self.engine.ledger();
        let files = ledger.volume();
        let reader = match files.reader(self.engine.scheme().me()) {
            Ok(reader) => reader,
            Err(why) => return Some(Answer::Refused(why)),
        };
        let epoch = self.court.epoch.number;
        let size = self.disk.len().min(ledger.size());
        let now_at = Cursor { epoch, size };
        let again = || Some(Answer::Feed(Feed::LookAgain { now: now_at }));
        let Some(since) = feeding.since.filter(|since| since.epoch == epoch) else {
            return again();
        };
        let is_known = since.size >= self.disk.first() && since.size <= size;
        if !is_known || size.saturating_sub(feeding.at) > MAX_BEHIND {
            return again();
        }
        if files.roles_change(reader, feeding.at, size) {
            return again();
        }
        if feeding.waits && self.still_holds(feeding, now) {
            return None;
        }
        let all = feeding.is_told_all(now);
        let page = match self.feed_page(reader, (feeding.at, size), all) {
            Ok(page) => page,
            Err(error) => {
                tracing::error!(%error, "the log cannot be read");
                return again();
            }
        };
        if page.overflows {
            return again();
        }
        if page.changes.is_empty() {
            feeding.at = page.until;
        }
        feeding.held = page.held.map(|(at, author)| Held {
            at,
            author,
            until: now.checked_add(feeding.hold),
        });
        // A program that comes back with its cursor must not be far behind because the log had nothing for it.
        let is_far = page.until.saturating_sub(since.size) >= MOST_LEAVES;
        if feeding.waits && page.changes.is_empty() && !is_far {
            return None;
        }
        let after = match page.held {
            Some(_) => After::Held,
            None if page.until < size => After::More,
            None => After::Nothing,
        };
        Some(Answer::Feed(Feed::Changes {
            changes: page.changes,
            until: Cursor {
                epoch,
                size: page.until,
            },
            after,
        }))
    }

    /// Whether the next entry is still one for which nobody speaks.
    fn still_holds(&self, feeding: &Feeding, now: Instant) -> bool {
        let holds = |held: &Held| {
            let is_next = held.at == feeding.at && !held.is_over(now);
            is_next && !self.engine.is_supported(held.author, held.at)
        };
        feeding.held.as_ref().is_some_and(holds)
    }

    /// What may have changed from one position on and before another, until the page is full. `all`: also by entries
    /// for which nobody speaks.
    fn feed_page(
        &self,
        reader: Device,
        (from, size): (u64, u64),
        all: bool,
    ) -> Result<Page, DiskError> {
        let end = size.min(from.saturating_add(MOST_LEAVES));
        let mut last: HashMap<Thing, u64> = HashMap::new();
        let mut page = Page {
            until: from,
            ..Page::default()
        };
        'leaves: while page.until < end {
            let to = end.min(page.until.saturating_add(CHUNK));
            let leaves = self.disk.range(page.until, to)?;
            for (at, leaf) in leaves {
                if let Leaf::Entry(entry) = leaf {
                    let touched = self.engine.ledger().volume().touched(reader, at, &entry);
                    let author = Product::author(&entry);
                    if !touched.is_empty() && !all && !self.engine.is_supported(author, at) {
                        page.held = Some((at, author));
                        break 'leaves;
                    }
                    if last.len().saturating_add(touched.len()) > MAX_TOUCHED {
                        page.overflows = last.is_empty();
                        break 'leaves;
                    }
                    last.extend(touched.into_iter().map(|thing| (thing, at)));
                }
                page.until = at.saturating_add(1);
            }
        }
        let changes = last.into_iter().map(|(what, at)| Touched { at, what });
        page.changes = changes.collect();
        page.changes.sort_unstable();
        Ok(page)
    }
}
