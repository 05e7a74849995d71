//! `bulla log VOLUME [PATH]` on a shared volume: who did what, and when.
//!
//! Entries come newest first, page by page, so memory does not grow with the log. The times are those of notes that this
//! device has met: the server's word, and only bounds.

use std::time::{SystemTime, UNIX_EPOCH};

use ::share::files::{Logged, LoggedOp};
use ::share::home::{Home, Times, When};
use serde_json::{Map, Value, json};
use trust::inode::{Content, FileKind};
use trust_shared::decision::Decision;
use trust_shared::outcome::{NoEffect, Outcome as Became};
use trust_shared::principal::{FileId, Principal};

use super::entry_paths::Ways;
use super::entry_words::{Act, Spot, making};
use crate::args::Log;
use crate::commands::share::members::word;
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::sharing::reading::Opening;
use crate::{entry, text, units};
use bulla::members::Membership;
use bulla::shared::SharedVolume;

/// Two bounds that are so close are shown as one time, ms.
const EXACT_MS: u64 = 60_000;

/// Lists entries.
pub fn run(args: &Log, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let volume = home.volume().to_string();
    let opening = Opening::of(config, home, &args.reading);
    let listed = opening.read(output, async |shared, output| {
        let members = shared.members().await?;
        let mut listing = Listing {
            shared,
            args,
            members,
            ways: Ways::now(shared),
            below: entry::clean(&args.path),
            times: shared.home().times(),
            output,
            shown: 0,
            next: None,
            is_doubtful: false,
        };
        listing.all().await?;
        let told = (listing.shown, listing.next, listing.is_doubtful);
        Ok((told, shared.client().status(shared.until()).await?.begins))
    });
    let ((shown, next, is_doubtful), begins) = listed?;
    if is_doubtful {
        output.note(
            "The oldest of these entries lie before what this device still knows of the volume: they show what was to be \
             done, and not whether it had effect.",
        );
    }
    if let Some(next) = next.filter(|_| !output.json()) {
        output.note(&format!(
            "There are older entries: --before {next} lists them."
        ));
    }
    if begins > 0 && next.is_none() && !output.json() {
        output.note(&format!(
            "This device began with a checkpoint of the first {begins} entries and marks: it does not have those before. A \
             device that has replayed the log shows them."
        ));
    }
    Ok(Done::ok(fields(
        json!({"volume": volume, "entries": shown, "next": next, "begins": begins}),
    )))
}

struct Listing<'a> {
    shared: &'a SharedVolume,
    args: &'a Log,
    members: Membership,
    ways: Ways<'a>,
    /// Only what was done here and below.
    below: Vec<u8>,
    times: Times,
    output: &'a mut Output,
    shown: usize,
    /// Where the list goes on.
    next: Option<u64>,
    /// Of some entries it is not known whether they had effect.
    is_doubtful: bool,
}

/// An op as it is shown.
struct Line {
    verb: &'static str,
    /// The path of the file that it is about. None: `words` say what it is about.
    path: Option<Vec<u8>>,
    to: Option<Vec<u8>>,
    words: Option<String>,
    bytes: Option<u64>,
}

impl Listing<'_> {
    async fn all(&mut self) -> Outcome<()> {
        let oldest = self.args.since.map(|since| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            let since = now.unwrap_or_default().saturating_sub(since);
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        });
        let mut before = None;
        loop {
            let page = self.shared.history(before).await?;
            for logged in page.entries {
                self.ways.begin(logged.at);
                let when = self.times.of(logged.at);
                if oldest.is_some_and(|oldest| when.before_ms.is_some_and(|ms| ms < oldest)) {
                    return Ok(());
                }
                let is_wanted = self.args.before.is_none_or(|before| logged.at < before);
                let lines = self.lines(&logged, is_wanted).await?;
                if is_wanted && (!lines.is_empty() || self.tells_damage(&logged)) {
                    if self.shown >= self.args.max {
                        self.next = Some(logged.at.saturating_add(1));
                        return Ok(());
                    }
                    self.show(&logged, &lines, when)?;
                    self.shown += 1;
                }
            }
            match page.next {
                Some(next) => before = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// A damaged entry may be about any path.
    fn tells_damage(&self, logged: &Logged) -> bool {
        logged.damaged.is_some()
    }

    /// The ops of an entry that are to be shown, and then the names as they were before it.
    async fn lines<'l>(
        &mut self,
        logged: &'l Logged,
        is_wanted: bool,
    ) -> Outcome<Vec<(Line, &'l LoggedOp)>> {
        let mut lines = Vec::new();
        for told in &logged.ops {
            let had_effect = matches!(told.outcome, None | Some(Became::Effect));
            if had_effect {
                self.ways.learn(&told.op);
            }
            if is_wanted {
                let line = self.line(&Act::of(&told.op)).await?;
                if self.is_below(&line) {
                    self.is_doubtful |= told.outcome.is_none();
                    lines.push((line, told));
                }
            }
            // The ops of an entry do not look at one another's changes.
            if had_effect {
                self.ways.undo(&told.op);
            }
        }
        Ok(lines)
    }

    fn is_below(&self, line: &Line) -> bool {
        let inside = |path: &Vec<u8>| match path.strip_prefix(self.below.as_slice()) {
            Some(rest) => rest.is_empty() || rest.starts_with(b"/"),
            None => false,
        };
        self.below.is_empty() || line.path.iter().chain(&line.to).any(inside)
    }

    async fn line(&mut self, act: &Act<'_>) -> Outcome<Line> {
        let mut line = Line {
            verb: verb(act),
            path: None,
            to: None,
            words: None,
            bytes: None,
        };
        match act {
            Act::Make { at, inode } => {
                line.path = Some(self.spot(*at).await?);
                match &inode.content {
                    Content::Symlink(target) => line.to = Some(target.to_vec()),
                    Content::Regular(_) => line.bytes = Some(inode.content.size()),
                    _ => {}
                }
            }
            Act::Link { at, file } => {
                line.path = Some(self.file(*file).await?);
                line.to = Some(self.spot(*at).await?);
            }
            Act::Remove { at, .. } => line.path = Some(self.spot(*at).await?),
            Act::Move { from, to }
            | Act::Exchange {
                one: from,
                other: to,
            } => {
                line.path = Some(self.spot(*from).await?);
                line.to = Some(self.spot(*to).await?);
            }
            Act::Set { file, inode } => {
                line.path = Some(self.file(*file).await?);
                if let Content::Regular(_) = &inode.content {
                    line.bytes = Some(inode.content.size());
                }
            }
            Act::Lock(file)
            | Act::Unlock(file)
            | Act::Claim(file)
            | Act::Touch(file)
            | Act::Hold(file)
            | Act::Release(file) => {
                line.path = Some(self.file(*file).await?);
            }
            Act::Pass { file, to } => {
                line.path = Some(self.file(*file).await?);
                line.words = Some(format!("device {}", to.0));
            }
            Act::Fold { principal, .. } => line.words = Some(self.members.name(*principal)),
            Act::Decide(decision) => line.words = Some(self.decided(decision)),
            Act::Other => {}
        }
        Ok(line)
    }

    /// A path, unless this user may not read the directory.
    async fn spot(&mut self, at: Spot<'_>) -> Outcome<Vec<u8>> {
        match self.may_read(at.directory.principal) {
            true => self.ways.path(at).await,
            false => Ok(self.hidden(at.directory.principal)),
        }
    }

    async fn file(&mut self, file: FileId) -> Outcome<Vec<u8>> {
        match self.may_read(file.principal) {
            true => self.ways.file(file).await,
            false => Ok(self.hidden(file.principal)),
        }
    }

    fn may_read(&self, owner: Principal) -> bool {
        self.members.may_read(self.shared.home().device(), owner)
    }

    fn hidden(&self, owner: Principal) -> Vec<u8> {
        format!(
            "(a file of {}, which this user may not read)",
            self.members.name(owner)
        )
        .into_bytes()
    }

    /// A decision in words.
    fn decided(&self, decision: &Decision) -> String {
        let name = |principal: &Principal| self.members.name(*principal);
        match decision {
            Decision::AdmitDevice { device, user, .. } => {
                format!("{} of {}", device.0, name(user))
            }
            Decision::RemoveDevice { device } | Decision::Accept { device } => device.0.to_string(),
            Decision::NameDevice { device, label } => format!("{} {}", device.0, label.as_str()),
            Decision::Pin { label, size } => format!("{} {size}", label.as_str()),
            Decision::Unpin { label } => label.as_str().to_owned(),
            Decision::Retain { seconds } => format!("{seconds}s"),
            Decision::AddUser { label, .. } | Decision::AddGroup { label, .. } => {
                label.as_str().to_owned()
            }
            Decision::RemovePrincipal { principal } => name(principal),
            Decision::Grant { group, user, role } => {
                format!(
                    "{} the role of {} in {}",
                    name(user),
                    word(*role),
                    name(group)
                )
            }
            Decision::Revoke { group, user } => format!("{} in {}", name(user), name(group)),
        }
    }

    fn show(&mut self, logged: &Logged, lines: &[(Line, &LoggedOp)], when: When) -> Outcome<()> {
        let user = self.members.author(logged.device);
        if self.output.json() {
            let mut record = record(logged, lines, when, &user);
            let label = self.members.device_label(logged.device);
            record.insert("device_name".to_owned(), label.into());
            return self.output.record("entry", record);
        }
        let out = &mut *self.output;
        out.line(&format!("entry    {}", logged.at))?;
        out.raw(b"author   ")?;
        out.name(self.members.whose(logged.device).as_bytes())?;
        out.line(&format!(", device {}", logged.device.0))?;
        out.line(&format!("when     {}", shown(when)))?;
        if !logged.attested {
            out.line("note     its device has not confirmed it yet")?;
        }
        if let Some(why) = &logged.damaged {
            out.line(&format!("damaged  {}", text::printable_message(why)))?;
        }
        for (line, told) in lines {
            print(line, told, out)?;
        }
        out.line("")
    }
}

/// The word for an act.
fn verb(act: &Act<'_>) -> &'static str {
    match act {
        Act::Make { inode, .. } => making(inode),
        Act::Link { .. } => "link",
        Act::Remove { kind, .. } if *kind == FileKind::Directory => "rmdir",
        Act::Remove { .. } => "rm",
        Act::Move { .. } => "mv",
        Act::Exchange { .. } => "exchange",
        Act::Set { .. } | Act::Touch(_) => "change",
        Act::Lock(_) => "lock",
        Act::Unlock(_) => "unlock",
        Act::Claim(_) => "claim",
        Act::Hold(_) => "hold",
        Act::Release(_) => "release",
        Act::Pass { .. } => "pass",
        Act::Fold { .. } => "fold",
        Act::Decide(Decision::AdmitDevice { .. }) => "device add",
        Act::Decide(Decision::RemoveDevice { .. }) => "device remove",
        Act::Decide(Decision::AddUser { .. }) => "user add",
        Act::Decide(Decision::AddGroup { .. }) => "group add",
        Act::Decide(Decision::RemovePrincipal { .. }) => "remove",
        Act::Decide(Decision::Grant { .. }) => "grant",
        Act::Decide(Decision::Revoke { .. }) => "revoke",
        Act::Decide(Decision::Accept { .. }) => "accept device",
        Act::Decide(Decision::NameDevice { .. }) => "device name",
        Act::Decide(Decision::Pin { .. }) => "snapshot",
        Act::Decide(Decision::Unpin { .. }) => "snapshot remove",
        Act::Decide(Decision::Retain { .. }) => "retain",
        Act::Other => "other",
    }
}

/// Why an op has no effect.
fn without_effect(told: &LoggedOp) -> Option<String> {
    match told.outcome {
        Some(Became::None(NoEffect::Locked)) if matches!(Act::of(&told.op), Act::Claim(_)) => {
            Some("another device has the lock, and this one waits for its turn".to_owned())
        }
        Some(Became::None(why)) => Some(why.to_string()),
        _ => None,
    }
}

fn print(line: &Line, told: &LoggedOp, out: &mut Output) -> Outcome<()> {
    out.raw(format!("{:<8} ", line.verb).as_bytes())?;
    if let Some(path) = &line.path {
        out.name(if path.is_empty() { b"." } else { path })?;
    }
    if let Some(to) = &line.to {
        out.raw(if line.verb == "symlink" {
            b" -> "
        } else {
            b" to "
        })?;
        out.name(to)?;
    }
    if let Some(words) = &line.words {
        if line.path.is_some() {
            out.raw(b" to ")?;
        }
        out.name(words.as_bytes())?;
    }
    if let Some(bytes) = line.bytes {
        out.raw(format!(" ({})", units::size(bytes)).as_bytes())?;
    }
    if let Some(why) = without_effect(told) {
        out.raw(format!(" (without effect: {why})").as_bytes())?;
    }
    out.raw(b"\n")
}

/// The time as people read it, with what it is worth.
pub fn shown(when: When) -> String {
    let at = |ms: u64| units::time(ms / 1000);
    match (when.after_ms, when.before_ms) {
        (Some(after), Some(before)) if before - after <= EXACT_MS => at(before),
        (Some(after), Some(before)) => format!("between {} and {}", at(after), at(before)),
        (None, Some(before)) => format!("before {}", at(before)),
        (Some(after), None) => format!("after {}", at(after)),
        (None, None) => "unknown".to_owned(),
    }
}

/// A bound of a time as JSON.
pub fn time(ms: Option<u64>) -> Value {
    ms.map_or(Value::Null, |ms| units::time(ms / 1000).into())
}

fn record(
    logged: &Logged,
    lines: &[(Line, &LoggedOp)],
    when: When,
    user: &str,
) -> Map<String, Value> {
    let mut out = fields(json!({
        "entry": logged.at,
        "device": logged.device.0,
        "user": user,
        "not_before": time(when.after_ms),
        "not_after": time(when.before_ms),
        "attested": logged.attested,
    }));
    if let Some(why) = &logged.damaged {
        out.insert("damaged".to_owned(), why.as_str().into());
    }
    let ops = lines.iter().map(|(line, told)| {
        let mut op = Map::new();
        op.insert("op".to_owned(), line.verb.into());
        if let Some(path) = &line.path {
            text::put_name(&mut op, "path", path);
        }
        if let Some(to) = &line.to {
            text::put_name(&mut op, "to", to);
        }
        if let Some(words) = &line.words {
            op.insert("about".to_owned(), words.as_str().into());
        }
        if let Some(bytes) = line.bytes {
            op.insert("bytes".to_owned(), bytes.into());
        }
        let effect = match told.outcome {
            None => Value::Null,
            Some(Became::Effect | Became::Late) => true.into(),
            Some(Became::None(_)) => false.into(),
        };
        op.insert("effect".to_owned(), effect);
        if let Some(why) = without_effect(told) {
            op.insert("why".to_owned(), why.into());
        }
        Value::Object(op)
    });
    out.insert("ops".to_owned(), ops.collect());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(after_ms: Option<u64>, before_ms: Option<u64>) -> String {
        shown(When {
            after_ms,
            before_ms,
        })
    }

    #[test]
    fn close_bounds_are_one_time_and_others_are_shown() {
        assert_eq!(bounds(Some(0), Some(59_000)), "1970-01-01T00:00:59Z");
        let wide = "between 1970-01-01T00:00:00Z and 1970-01-01T00:10:00Z";
        assert_eq!(bounds(Some(0), Some(600_000)), wide);
        assert_eq!(bounds(None, Some(1000)), "before 1970-01-01T00:00:01Z");
        assert_eq!(bounds(None, None), "unknown");
    }
}
