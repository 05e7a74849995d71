//! `bulla log SOURCE` lists the versions of a volume; `bulla diff SOURCE [OLD [NEW]]` compares two of them.

use std::sync::Arc;

use ::share::home::Home;
use bulla::Tree;
use bulla::diff::diff;
use serde_json::{Map, Value, json};
use trust::earlier::Leaf;
use trust::text::{Noun, write};
use volume::Snapshot;
use volume::VersionRef;
use volume::Volume;
use volume::history::{Entry, Kept, Standing};

use crate::args::{Diff, Log};
use crate::commands::{files, log_compare};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::session::Session;
use crate::sharing::reading::Opening;
use crate::{changes, sharing, units};

/// Lists the versions, newest first.
pub fn log(args: &Log, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        args.refuse_published()?;
        return files::log::run(args, home, config, output);
    }
    args.refuse_shared()?;
    if args.seen {
        return log_compare::print(args, config, output);
    }
    if let Some(file) = &args.compare {
        return log_compare::compare(args, file, config, output);
    }
    let session = Session::start(config, &args.reading)?;
    let volume = session.open(config, &args.reading, output)?;
    let entries = session.run(async {
        let histories = volume.histories().await?;
        let Some(newest) = histories.first() else {
            return Ok(Vec::new());
        };
        Ok(newest.list(args.max, volume.deadline()).await?)
    })?;
    let mut counts = Counts::default();
    for entry in &entries {
        let record = describe(entry, &mut counts);
        if output.json() {
            output.record("entry", record)?;
        } else {
            print(entry, &record, output)?;
        }
    }
    let exit = match counts.doubtful() {
        0 => Exit::Ok,
        _ => Exit::Partial,
    };
    if counts.doubtful() > 0 {
        output.warn(&format!(
            "entries of the log: {} missing, {} false, {} unproved; another location may have the complete log",
            counts.missing, counts.false_ones, counts.unproved
        ));
    }
    Ok(Done {
        exit,
        fields: fields(json!({
            "volume": volume.id().to_string(),
            "versions": counts.versions,
            "missing": counts.missing,
            "false": counts.false_ones,
            "unproved": counts.unproved,
        })),
    })
}

#[derive(Default)]
struct Counts {
    versions: u64,
    missing: u64,
    false_ones: u64,
    unproved: u64,
}

impl Counts {
    fn doubtful(&self) -> u64 {
        self.missing + self.false_ones + self.unproved
    }
}

/// The record of an entry. An entry that is not signed has no content in its record.
fn describe(entry: &Entry, counts: &mut Counts) -> Map<String, Value> {
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put("epoch", entry.epoch.into());
    put("index", entry.index.into());
    let (kind, standing) = match (&entry.kept, entry.standing) {
        (Kept::Missing, _) => {
            counts.missing += 1;
            ("missing", "missing")
        }
        (Kept::Refused(why), _) => {
            put("why", why.to_string().into());
            counts.false_ones += 1;
            ("false", "false")
        }
        (Kept::Leaf(_), Standing::Contradicted) => {
            counts.false_ones += 1;
            put("why", "its hash is not in the signed log".into());
            ("false", "false")
        }
        (Kept::Leaf(leaf), standing) => {
            let word = match standing {
                Standing::Proved => "proved",
                _ => {
                    counts.unproved += 1;
                    "unproved"
                }
            };
            (leaf_fields(leaf, counts, &mut put), word)
        }
    };
    put("what", kind.into());
    put("standing", standing.into());
    out
}

fn leaf_fields(
    leaf: &Leaf,
    counts: &mut Counts,
    put: &mut impl FnMut(&str, Value) -> Option<Value>,
) -> &'static str {
    match leaf {
        Leaf::Policy { number, hash } => {
            put("number", (*number).into());
            put("policy", write(Noun::Policy, hash).into());
            "policy"
        }
        Leaf::Record {
            record,
            record_hash,
            signers,
            name,
        } => {
            counts.versions += 1;
            let signers = signers.iter().map(|key| Value::from(key.to_string()));
            put("version", record.version.into());
            if let Some(name) = name {
                put("tag", name.to_string().into());
            }
            put("record", write(Noun::Record, record_hash).into());
            put("signed", units::time(record.start).into());
            put("valid_until", units::time(record.until()).into());
            put("signers", Value::Array(signers.collect()));
            put("root", record.root.to_string().into());
            put("files", record.totals.files.into());
            put("directories", record.totals.directories.into());
            put("other", record.totals.other.into());
            put("bytes", record.totals.bytes.into());
            "version"
        }
    }
}

fn print(entry: &Entry, record: &Map<String, Value>, output: &mut Output) -> Outcome<()> {
    let get = |key: &str| match record.get(key) {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    };
    let doubt = match get("standing").as_str() {
        "unproved" => " (not proved to be in the log)",
        _ => "",
    };
    match get("what").as_str() {
        "version" => {
            output.line(&format!("version  {}{doubt}", get("version")))?;
            for key in ["tag", "record", "signed"] {
                if !record.contains_key(key) {
                    continue;
                }
                output.line(&format!("{key:<8} {}", get(key)))?;
            }
            output.line(&format!("valid to {}", get("valid_until")))?;
            let signers = record.get("signers").and_then(Value::as_array);
            for signer in signers.into_iter().flatten().filter_map(Value::as_str) {
                output.line(&format!("signer   {signer}"))?;
            }
            output.line(&format!("root     {}", get("root")))?;
            if let Kept::Leaf(Leaf::Record { record, .. }) = &entry.kept {
                output.line(&format!("tree     {}", units::totals(&record.totals)))?;
            }
        }
        "policy" => {
            output.line(&format!("policy   {}{doubt}", get("number")))?;
            output.line(&format!("hash     {}", get("policy")))?;
        }
        "missing" => output.line(&format!("missing  entry {}/{}", entry.epoch, entry.index))?,
        _ => output.line(&format!(
            "false    entry {}/{}: {}",
            entry.epoch,
            entry.index,
            get("why")
        ))?,
    }
    output.line("")
}

/// Prints the differences between two versions.
pub fn compare(args: &Diff, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        return shared_diff(args, home, config, output);
    }
    let session = Session::start(config, &args.reading)?;
    let volume = session.open(config, &args.reading, output)?;
    let (old, new) = versions(args, &session, &volume)?;
    let mut counts = [0_u64; 3];
    session.run(async {
        let before = Tree::published(&volume, Arc::clone(&old));
        let after = Tree::published(&volume, Arc::clone(&new));
        diff(&before, &after, |change| {
            changes::tell(&change, &mut counts, output)
        })
        .await
    })?;
    let [added, changed, removed] = counts;
    let record = |snapshot: &Snapshot| write(Noun::Record, snapshot.record_hash());
    Ok(Done::ok(fields(json!({
        "volume": volume.id().to_string(),
        "old": old.record().version,
        "old_record": record(&old),
        "new": new.record().version,
        "new_record": record(&new),
        "added": added,
        "changed": changed,
        "removed": removed,
    }))))
}

/// Prints how a shared volume differs after one entry and after another, or now.
fn shared_diff(args: &Diff, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let Some(old) = &args.old else {
        let error = "name the entry after which the volume is compared";
        let hint = "`bulla log VOLUME` shows the numbers; `bulla diff VOLUME N` compares the volume after entry N with now";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    };
    let volume = home.volume().to_string();
    let opening = Opening::of(config, home, &args.reading);
    let (old, new, counts) = opening.read(output, async |shared, output| {
        let old = shared.entry(old).await?;
        let new = match &args.new {
            Some(new) => Some(shared.entry(new).await?),
            None => None,
        };
        let mut counts = [0_u64; 3];
        let (before, after) = (Tree::shared(shared, Some(old)), Tree::shared(shared, new));
        diff(&before, &after, |change| {
            changes::tell(&change, &mut counts, output)
        })
        .await?;
        Ok((old, new, counts))
    })?;
    let [added, changed, removed] = counts;
    Ok(Done::ok(fields(json!({
        "volume": volume,
        "old": old,
        "new": new,
        "added": added,
        "changed": changed,
        "removed": removed,
    }))))
}

/// The two versions: by default the newest and the one before it.
fn versions(
    args: &Diff,
    session: &Session,
    volume: &Volume,
) -> Outcome<(Arc<Snapshot>, Arc<Snapshot>)> {
    let current = volume.current()?;
    let old = match &args.old {
        Some(old) => old.clone(),
        None => VersionRef::Number(session.run(previous(volume))?),
    };
    let new = args.new.clone();
    let new = new.unwrap_or(VersionRef::Number(current.record().version));
    let open = |which: &VersionRef| {
        session.kept(volume, which, async {
            match volume.number(which).await? {
                Some(version) => volume.version(version).await,
                None => Ok(None),
            }
        })
    };
    Ok((Arc::new(open(&old)?), Arc::new(open(&new)?)))
}

/// The version before the newest.
async fn previous(volume: &Volume) -> Outcome<u64> {
    for history in &volume.histories().await? {
        if let Some(previous) = history.previous().await? {
            return Ok(previous);
        }
    }
    let error = "no location has a version before the newest";
    Err(Failure::new(Kind::NoVersion, error))
}
