//! `bulla stat SOURCE [PATH]`: shows the metadata of a file, and the signed version that proves it.

use ::share::home::Home;
use bytes::Bytes;
use reader::Fetch;
use serde_json::{Map, Value, json};
use trust::inode::{Content, Inode};
use trust::text::{Noun, write};
use volume::Snapshot;

use crate::args::Stat;
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output};
use crate::session::{Session, about, not_found};
use crate::sharing::places::path_of;
use crate::sharing::reading::Opening;
use crate::{sharing, text, units};

/// Shows a file.
pub fn run(args: &Stat, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        return shared(args, home, config, output);
    }
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let volume = session.open_at(
        config,
        &args.reading,
        (args.past.at.as_ref(), &path),
        None,
        output,
    )?;
    let (snapshot, inode, xattrs) = session.run(async {
        let snapshot = volume.current()?;
        let how = || Fetch::Until(volume.deadline());
        // The path itself: a symbolic link is not followed.
        let inode = snapshot
            .resolve(&path, how())
            .await
            .map_err(about(&path))?
            .ok_or_else(|| not_found(&path))?;
        let xattrs = snapshot.xattrs(&inode, how()).await?;
        Ok((snapshot, inode, xattrs))
    })?;
    let mut record = statement(&volume.id().to_string(), &snapshot);
    record.extend(entry::record(&path, &inode));
    record.insert("xattrs".to_owned(), listed(&xattrs));
    if !output.json() {
        print(output, &record, &path, &inode)?;
        print_xattrs(output, &xattrs)?;
    }
    Ok(Done::ok(record))
}

/// Shows a file of a shared volume: whose it is, instead of the statement that proves it.
fn shared(args: &Stat, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let volume = home.volume().to_string();
    let opening = Opening::of(config, home, &args.reading).at(args.past.entry()?);
    let (path, file, members, xattrs) = opening.read(output, async |shared, _| {
        let place = shared.place(&args.path)?;
        let file = shared.find(&place, false).await?;
        let members = shared.members().await?;
        let xattrs = shared.contents().xattrs(&file.inode, shared.how()).await?;
        Ok((path_of(&place), file, members, xattrs))
    })?;
    let mut record = Map::new();
    record.insert("volume".to_owned(), volume.into());
    record.insert("owner".to_owned(), members.name(file.id.principal).into());
    record.extend(entry::record(&path, &file.inode));
    // How many names a directory has is not in its inode.
    if matches!(file.inode.content, Content::Directory { .. }) {
        record.remove("entries");
        record.remove("size");
    }
    record.insert("xattrs".to_owned(), listed(&xattrs));
    if !output.json() {
        print_file(output, &record, &path, &file.inode)?;
        output.raw(b"whose    ")?;
        output.name(members.name(file.id.principal).as_bytes())?;
        output.raw(b"\n")?;
        print_xattrs(output, &xattrs)?;
    }
    Ok(Done::ok(record))
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
    let until = record.get("valid_until").map(plain).unwrap_or_default();
    output.line(&format!("valid to {until}"))
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
    output.line(&format!("modified {}", entry::mtime(inode.mtime)))?;
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
