//! What `put` replaces.
//!
//! With `--expect N` a name must lead to what it led to after entry N: the same file with the same content, or nothing.
//! The call says what was there, so the guards of its op hold at the op's position of the log, and of two devices with one
//! `--expect` one is refused. A look before the change would not do.
//!
//! Without it, `put` tells what it has replaced that another device had changed last. The answer of the call says so; it
//! rests on the values before the op. Nothing is kept on disk for it, so it is not known what this device's user has read.

use std::cell::RefCell;
use std::rc::Rc;

use ::share::files::{Call, Changed, Over, Place, Replace, Seen};
use serde_json::{Map, Value, json};
use trust::inode::Inode;
use trust_shared::principal::FileId;

use super::log::{shown, time};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Output, fields};
use crate::text;
use bulla::members::Membership;
use bulla::shared::places::{Address, path_of};
use bulla::shared::{Made, SharedVolume};

/// Replaced files that are named.
const NAMED: usize = 3;

/// What a command replaces, and may replace.
pub struct Overwriting<'a> {
    shared: &'a SharedVolume,
    /// The number of an entry (`--expect`). A file that was changed after it is not replaced.
    expect: Option<u64>,
    members: RefCell<Option<Rc<Membership>>>,
    told: RefCell<Told>,
}

#[derive(Default)]
struct Told {
    replaced: u64,
    /// In words, the first ones.
    first: Vec<String>,
    conflicts: u64,
    conflict: Option<String>,
}

impl<'a> Overwriting<'a> {
    /// For a command with or without `--expect`.
    pub fn of(shared: &'a SharedVolume, expect: Option<u64>) -> Overwriting<'a> {
        Overwriting {
            shared,
            expect,
            members: RefCell::default(),
            told: RefCell::default(),
        }
    }

    /// Whether it is said what may be replaced.
    pub fn expects(&self) -> bool {
        self.expect.is_some()
    }

    /// Refuses an entry that the log does not have, or from before what this device knows.
    pub async fn check(&self) -> Outcome<()> {
        let Some(entry) = self.expect else {
            return Ok(());
        };
        let root = Place {
            start: self.shared.client().root(),
            path: Vec::new(),
        };
        self.shared.look_back(entry, &root).await?;
        Ok(())
    }

    /// Makes a file. None: somebody else has changed what it would have replaced, which is told.
    pub async fn create(
        &self,
        to: &Address,
        inode: Inode,
        output: &RefCell<&mut Output>,
    ) -> Outcome<Option<FileId>> {
        let replace = match self.expect {
            Some(entry) => Replace::Seen(self.seen(entry, to).await?),
            None => Replace::Any,
        };
        let made = self.shared.make(to, inode, None, replace).await?;
        self.made(made, to, output).await
    }

    /// Renames a file. False: somebody else has changed what would have been replaced, which is told.
    pub async fn rename(
        &self,
        from: Place,
        to: &Address,
        output: &RefCell<&mut Output>,
    ) -> Outcome<bool> {
        let over = match self.expect {
            Some(entry) => Over::Seen(self.seen(entry, to).await?),
            None => Over::Replace,
        };
        let call = Call::Rename {
            from,
            to: to.name.clone(),
            over,
        };
        let made = self.shared.replace(call, to).await?;
        Ok(self.made(made, to, output).await?.is_some())
    }

    /// What was under a name after an entry. It is the path that counts, as the user of `--at` sees it.
    async fn seen(&self, entry: u64, to: &Address) -> Outcome<Seen> {
        let file = self.shared.look_back(entry, &to.path).await?;
        Ok(Seen(file.map(|file| (file.id, file.inode.content.clone()))))
    }

    async fn made(
        &self,
        made: Made,
        to: &Address,
        output: &RefCell<&mut Output>,
    ) -> Outcome<Option<FileId>> {
        match made {
            Made::Alone(file) => Ok(Some(file)),
            Made::Over(file, _) if self.expect.is_some() => Ok(Some(file)),
            Made::Over(file, changed) => {
                self.replaced(to, &changed, output).await?;
                Ok(Some(file))
            }
            Made::Stale => {
                self.conflict(to, output).await?;
                Ok(None)
            }
        }
    }

    async fn replaced(
        &self,
        to: &Address,
        changed: &Changed,
        output: &RefCell<&mut Output>,
    ) -> Outcome<()> {
        let by = self.by(changed).await?;
        {
            let mut told = self.told.borrow_mut();
            told.replaced = told.replaced.saturating_add(1);
            if told.first.len() < NAMED {
                told.first.push(format!("{}: {}", to.shown(), by.words()));
            }
        }
        self.record("replaced", to, Some(&by), output)
    }

    async fn conflict(&self, to: &Address, output: &RefCell<&mut Output>) -> Outcome<()> {
        let changed = self.shared.changed(&to.name).await?;
        let by = match changed {
            Some(changed) => Some(self.by(&changed).await?),
            None => None,
        };
        let why = match (&by, self.expect) {
            (Some(by), Some(entry)) if by.changed.at > entry => by.words(),
            // A directory above it may have been replaced.
            _ => "it is not what was there".to_owned(),
        };
        let words = format!("{}: {why}", to.shown());
        {
            let mut told = self.told.borrow_mut();
            told.conflicts = told.conflicts.saturating_add(1);
            if told.conflict.is_none() {
                // The failure at the end has this one.
                told.conflict = Some(words);
            } else if !output.borrow().json() {
                output.borrow().warn(&format!("left as it is: {words}"));
            }
        }
        self.record("conflict", to, by.as_ref(), output)
    }

    async fn by(&self, changed: &Changed) -> Outcome<By> {
        let known = self.members.borrow().clone();
        let members = match known {
            Some(members) => members,
            None => {
                let members = Rc::new(self.shared.known_members().await?);
                *self.members.borrow_mut() = Some(Rc::clone(&members));
                members
            }
        };
        Ok(By {
            user: members.author(changed.device),
            whose: members.whose(changed.device),
            when: self.shared.home().times().of(changed.at),
            changed: *changed,
        })
    }

    fn record(
        &self,
        kind: &str,
        to: &Address,
        by: Option<&By>,
        output: &RefCell<&mut Output>,
    ) -> Outcome<()> {
        let mut output = output.borrow_mut();
        if !output.json() {
            return Ok(());
        }
        let mut record = Map::new();
        text::put_name(&mut record, "path", &path_of(&to.path));
        record.extend(match by {
            Some(by) => by.fields(),
            None => Map::new(),
        });
        output.record(kind, record)
    }

    /// Tells what was replaced.
    pub fn tell(self, output: &Output) -> Overwritten {
        let told = self.told.into_inner();
        if told.replaced > 0 && !output.json() {
            output.note(&replaced(told.replaced, &told.first));
        }
        Overwritten {
            replaced: told.replaced,
            conflicts: told.conflicts,
            conflict: told.conflict,
            expect: self.expect.unwrap_or_default(),
        }
    }
}

/// What came of it.
pub struct Overwritten {
    /// Files that were replaced and that another device had changed last.
    pub replaced: u64,
    /// Files that were left as they are, because somebody else has changed them.
    pub conflicts: u64,
    conflict: Option<String>,
    expect: u64,
}

impl Overwritten {
    /// The failure, if something was left as it is. `others`: files that were put.
    pub fn failure(&self, others: u64) -> Option<Failure> {
        let first = self.conflict.as_ref()?;
        let (count, entry) = (self.conflicts, self.expect);
        let error = match (count, others) {
            (1, 0) => format!("changed after entry {entry}, and left as it is: {first}"),
            (1, _) => format!(
                "one file was changed after entry {entry}, and left as it is; the others were put: {first}"
            ),
            (_, 0) => format!(
                "{count} files were changed after entry {entry}, and left as they are. The first: {first}"
            ),
            _ => format!(
                "{count} files were changed after entry {entry}, and left as they are; the others were put. The first: \
                 {first}"
            ),
        };
        Some(Failure::new(Kind::Conflict, error))
    }
}

/// The author and the time of a change.
struct By {
    user: String,
    whose: String,
    changed: Changed,
    when: ::share::home::When,
}

impl By {
    fn words(&self) -> String {
        let (whose, device, at) = (&self.whose, self.changed.device.0, self.changed.at);
        let when = match shown(self.when) {
            when if when.starts_with(|first: char| first.is_ascii_digit()) => format!(" at {when}"),
            when if when == "unknown" => String::new(),
            when => format!(" {when}"),
        };
        format!("{whose} (device {device}) changed it{when} (entry {at})")
    }

    fn fields(&self) -> Map<String, Value> {
        fields(json!({
            "entry": self.changed.at,
            "device": self.changed.device.0,
            "user": self.user,
            "not_before": time(self.when.after_ms),
            "not_after": time(self.when.before_ms),
        }))
    }
}

/// What was replaced, in words.
fn replaced(count: u64, first: &[String]) -> String {
    let named = first.join("; ");
    let more = count.saturating_sub(first.len() as u64);
    match (count, more) {
        (1, _) => format!("Replaced what another device had written: {named}."),
        (_, 0) => format!("Replaced {count} files that other devices had written: {named}."),
        _ => format!(
            "Replaced {count} files that other devices had written: {named}; and {more} more (`--json` names them all)."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_replaced_files_are_counted_and_the_first_ones_are_named() {
        let first: Vec<String> = ["a", "b", "c"].map(str::to_owned).into();
        let one = "Replaced what another device had written: a.";
        assert_eq!(replaced(1, &first[..1]), one);
        let few = "Replaced 2 files that other devices had written: a; b.";
        assert_eq!(replaced(2, &first[..2]), few);
        let many = "Replaced 12 files that other devices had written: a; b; c; and 9 more (`--json` names them all).";
        assert_eq!(replaced(12, &first), many);
    }
}
