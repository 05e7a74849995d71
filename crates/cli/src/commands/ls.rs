//! `bulla ls SOURCE [PATH]`: lists a directory of a volume. Names are escaped on a terminal, and written
//! unchanged into a pipe or a file.

use ::share::home::Home;
use reader::{Fetch, Reads};
use serde_json::json;
use trust::inode::{Content, Inode};
use trust_shared::principal::Name;
use volume::Snapshot;
use volume::Volume;
use volume::walk;

use crate::args::Ls;
use crate::config::Config;
use crate::entry;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::session::{Session, about, not_found};
use crate::sharing::places::path_of;
use crate::sharing::reading::Opening;
use crate::sharing::walk::Walk;
use crate::{sharing, text};

/// Limit of the depth of nested directories.
const MAX_DEPTH: usize = 2048;

/// Lists.
pub fn run(args: &Ls, config: &Config, output: &mut Output) -> Outcome<Done> {
    if let Some(home) = sharing::named(config, &args.reading)? {
        return shared(args, home, config, output);
    }
    let session = Session::start(config, &args.reading)?;
    let path = entry::clean(&args.path);
    let reads = match args.recursive {
        true => Reads::Names,
        false => Reads::Directory,
    };
    let volume = session.open_at(
        config,
        &args.reading,
        (args.past.at.as_ref(), &path),
        Some(reads),
        output,
    )?;
    let mut listing = Listing {
        volume: &volume,
        reads,
        lines: Lines {
            args,
            output,
            entries: 0,
        },
    };
    session.run(async {
        let snapshot = volume.current()?;
        let how = Fetch::Until(volume.deadline());
        let top = snapshot
            .follow(&path, how)
            .await
            .map_err(about(&path))?
            .ok_or_else(|| not_found(&path))?;
        listing.from(&snapshot, path, &top).await
    })?;
    let entries = listing.lines.entries;
    Ok(Done::ok(fields(json!({"entries": entries}))))
}

/// Lists a directory of a shared volume.
fn shared(args: &Ls, home: Home, config: &Config, output: &mut Output) -> Outcome<Done> {
    let opening = Opening::of(config, home, &args.reading).at(args.past.entry()?);
    let entries = opening.read(output, async |shared, output| {
        let mut lines = Lines {
            args,
            output,
            entries: 0,
        };
        let top = shared.place(&args.path)?;
        let file = shared.find(&top, true).await?;
        if !is_directory(&file.inode) {
            let path = path_of(&top);
            lines.show(&path, &path, &file.inode)?;
            return Ok(lines.entries);
        }
        let mut walk = Walk::of(shared, top, args.recursive);
        while let Some((place, file)) = walk.next().await? {
            let path = path_of(&place);
            let name = place.path.last().map_or(&b""[..], Name::as_bytes);
            let shown = if args.recursive { &path } else { name };
            lines.show(&path, shown, &file.inode)?;
        }
        Ok(lines.entries)
    })?;
    Ok(Done::ok(fields(json!({"entries": entries}))))
}

struct Listing<'a> {
    volume: &'a Volume,
    reads: Reads,
    lines: Lines<'a>,
}

/// Prints entries.
struct Lines<'a> {
    args: &'a Ls,
    output: &'a mut Output,
    entries: u64,
}

impl Listing<'_> {
    async fn from(&mut self, snapshot: &Snapshot, path: Vec<u8>, top: &Inode) -> Outcome<()> {
        if !is_directory(top) {
            return self.lines.show(&path, &path, top);
        }
        let is_recursive = self.lines.args.recursive;
        let mut walk = walk::Walk::new(snapshot, path.into(), top.clone(), self.reads);
        let how = || Fetch::Until(self.volume.deadline());
        while let Some(step) = walk.next(how).await.map_err(|unlisted| unlisted.why)? {
            let walk::Step::Entry { path, name, inode } = step else {
                continue;
            };
            let shown = if is_recursive { &path } else { &name };
            self.lines.show(&path, shown, &inode)?;
            if is_recursive && is_directory(&inode) {
                if walk.depth() >= MAX_DEPTH {
                    let error = format!("{} is nested too deeply", text::printable(&path));
                    return Err(Failure::new(Kind::Malformed, error));
                }
                walk.enter(path, inode);
            }
        }
        Ok(())
    }
}

impl Lines<'_> {
    fn show(&mut self, path: &[u8], shown: &[u8], inode: &Inode) -> Outcome<()> {
        self.entries += 1;
        if self.output.json() {
            return self.output.record("entry", entry::record(path, inode));
        }
        if self.args.long {
            let owner = match &inode.owner {
                Some(owner) => format!("{}:{}", owner.uid, owner.gid),
                None => "-".to_owned(),
            };
            let (mode, mtime) = (entry::mode(inode), entry::mtime(inode.mtime));
            let (links, size) = (inode.links, inode.content.size());
            let columns = format!("{mode} {links:>3} {owner:>9} {size:>12} {mtime} ");
            self.output.raw(columns.as_bytes())?;
        }
        self.output.name(shown)?;
        if let (true, Content::Symlink(target)) = (self.args.long, &inode.content) {
            self.output.raw(b" -> ")?;
            self.output.name(target)?;
        }
        self.output.raw(b"\n")
    }
}

fn is_directory(inode: &Inode) -> bool {
    matches!(inode.content, Content::Directory { .. })
}
