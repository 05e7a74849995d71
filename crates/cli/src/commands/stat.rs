//! `bulla stat SOURCE [PATH]`: shows the metadata of a file, and the signed version that proves it.

use bulla::{Entry, Tree};
use bytes::Bytes;
use serde_json::{Map, Value, json};
use trust::inode::{Content, Inode};
use trust::text::{Noun, write};
use volume::Snapshot;

use crate::args::Stat;
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::states::State;
use crate::{text, units};

/// A file as `stat` shows it.
struct Shown {
    record: Map<String, Value>,
    entry: Entry,
    /// The user or group whose file it is, in a shared volume.
    owner: Option<String>,
    xattrs: Vec<(Bytes, Bytes)>,
}

/// Shows a file.
pub fn run(args: &Stat, config: &Config, output: &mut Output) -> Outcome<Done> {
    let path = entry::clean(&args.path);
    let state = State::of(&args.reading, &args.past, &path);
    // The path itself: a symbolic link is not followed.
    let shown = state.read(config, output, async |tree, _| look(tree, &path).await)?;
    let Shown {
        record,
        entry: found,
        owner,
        xattrs,
    } = shown;
    if !output.json() {
        print(output, &record, &path, &found.inode)?;
        if let Some(owner) = &owner {
            output.raw(b"whose    ")?;
            output.name(owner.as_bytes())?;
            output.raw(b"\n")?;
        }
        print_xattrs(output, &xattrs)?;
    }
    Ok(Done::ok(record))
}

async fn look(tree: &Tree<'_>, path: &[u8]) -> Outcome<Shown> {
    let found = tree.find(path).await?;
    let xattrs = tree.xattrs(&found).await?;
    let volume = tree.volume().to_string();
    let mut record = match tree.snapshot() {
        Some(snapshot) => statement(&volume, snapshot),
        None => fields(json!({"volume": volume})),
    };
    let owner = match (tree.as_shared(), found.id()) {
        (Some(shared), Some(id)) => Some(shared.members().await?.name(id.principal)),
        _ => None,
    };
    if let Some(owner) = &owner {
        record.insert("owner".to_owned(), owner.as_str().into());
    }
    record.extend(entry::record(path, &found.inode));
    // How many names a directory of a shared volume has is not in its inode.
    if owner.is_some() && found.is_directory() {
        record.remove("entries");
        record.remove("size");
    }
    record.insert("xattrs".to_owned(), listed(&xattrs));
    Ok(Shown {
        record,
        entry: found,
        owner,
        xattrs,
    })
}

/// Extended attributes as JSON.
fn listed(xattrs: &[(Bytes, Bytes)]) -> Value {
    let listed = xattrs.iter().map(|(name, value)| {
        let mut one = Map::new();
        text::put_name(&mut one, "name", name);
        one.insert("value_base64".to_owned(), text::base64(value).into());
        Value::Object(one)
    });
    Value::Array(listed.collect())
}

fn print_xattrs(output: &mut Output, xattrs: &[(Bytes, Bytes)]) -> Outcome<()> {
    for (name, value) in xattrs {
        output.raw(b"xattr    ")?;
        output.name(name)?;
        output.raw(b" = ")?;
        output.line(&text::printable(value))?;
    }
    Ok(())
}

/// The fields of the signed version.
fn statement(volume: &str, snapshot: &Snapshot) -> Map<String, Value> {
    let record = snapshot.record();
    let mut out = Map::new();
    let mut put = |key: &str, value: Value| out.insert(key.to_owned(), value);
    put("volume", volume.into());
    put("version", record.version.into());
    if let Some(name) = snapshot.name() {
        put("tag", name.to_string().into());
    }
    put("record", write(Noun::Record, snapshot.record_hash()).into());
    put("signed", units::time(record.start).into());
    // A pinned version is read without end; what it said of itself stays.
    let until = snapshot.end().unwrap_or(record.until());
    put("valid_until", units::time(until).into());
    put("root", record.root.to_string().into());
    out
}

fn print(
    output: &mut Output,
    record: &Map<String, Value>,
    path: &[u8],
    inode: &Inode,
) -> Outcome<()> {
    print_file(output, record, path, inode)?;
    match record.get("valid_until") {
        Some(until) => output.line(&format!("valid to {}", plain(until))),
        None => Ok(()),
    }
}

/// The attributes of a file, and the fields that the record has.
fn print_file(
    output: &mut Output,
    record: &Map<String, Value>,
    path: &[u8],
    inode: &Inode,
) -> Outcome<()> {
    output.raw(b"path     ")?;
    output.name(if path.is_empty() { b"." } else { path })?;
    if let Content::Symlink(target) = &inode.content {
        output.raw(b" -> ")?;
        output.name(target)?;
    }
    output.raw(b"\n")?;
    let size = inode.content.size();
    output.line(&format!("kind     {}", entry::kind(inode.kind())))?;
    output.line(&format!(
        "mode     {} ({:04o})",
        entry::mode(inode),
        inode.mode
    ))?;
    if record.contains_key("size") {
        output.line(&format!("size     {size} ({})", units::size(size)))?;
    }
    output.line(&format!("modified {}", entry::time(inode.mtime)))?;
    if let Some(ctime) = inode.ctime {
        output.line(&format!("changed  {}", entry::time(ctime)))?;
    }
    output.line(&format!("links    {}", inode.links))?;
    if let Some(owner) = &inode.owner {
        output.line(&format!("owner    {}:{}", owner.uid, owner.gid))?;
    }
    for key in [
        "handle", "entries", "device", "volume", "version", "tag", "record", "signed",
    ] {
        if let Some(value) = record.get(key) {
            output.line(&format!("{key:<8} {}", plain(value)))?;
        }
    }
    Ok(())
}

fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => json!(other).to_string(),
    }
}
