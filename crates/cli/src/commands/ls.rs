//! `bulla ls SOURCE [PATH]`: lists a directory of a volume. Names are escaped on a terminal, and written
//! unchanged into a pipe or a file.

use bulla::walk::{MAX_DEPTH, Step};
use bulla::{Entry, Tree};
use reader::Reads;
use serde_json::json;
use trust::inode::Content;

use crate::args::Ls;
use crate::config::Config;
use crate::entry;
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};
use crate::session::not_found;
use crate::states::State;
use crate::text;

/// Lists.
pub fn run(args: &Ls, config: &Config, output: &mut Output) -> Outcome<Done> {
    let path = entry::clean(&args.path);
    let reads = match args.recursive {
        true => Reads::Names,
        false => Reads::Directory,
    };
    let state = State::of(&args.reading, &args.past, &path).with(reads);
    let entries = state.read(config, output, async |tree, output| {
        let mut lines = Lines {
            args,
            output,
            entries: 0,
        };
        let top = tree.follow(&path).await?;
        let top = top.ok_or_else(|| not_found(&path))?;
        lines.all(tree, &top, reads).await?;
        Ok(lines.entries)
    })?;
    Ok(Done::ok(fields(json!({"entries": entries}))))
}

/// Prints entries.
struct Lines<'a> {
    args: &'a Ls,
    output: &'a mut Output,
    entries: u64,
}

impl Lines<'_> {
    async fn all(&mut self, tree: &Tree<'_>, top: &Entry, reads: Reads) -> Outcome<()> {
        if !top.is_directory() {
            return self.show(top, &top.path);
        }
        let mut walk = tree.walk(top, reads);
        while let Some(step) = walk.next().await.map_err(|unlisted| unlisted.why)? {
            let Step::Entry(entry) = step else {
                continue;
            };
            let shown = match self.args.recursive {
                true => &entry.path,
                false => entry.name(),
            };
            self.show(&entry, shown)?;
            if self.args.recursive && entry.is_directory() {
                if walk.depth() >= MAX_DEPTH {
                    let path = text::printable(&entry.path);
                    return Err(bulla::Error::TooDeep { path }.into());
                }
                walk.enter(entry);
            }
        }
        Ok(())
    }

    fn show(&mut self, entry: &Entry, shown: &[u8]) -> Outcome<()> {
        let (path, inode) = (&entry.path, &entry.inode);
        self.entries += 1;
        if self.output.json() {
            return self.output.record("entry", entry::record(path, inode));
        }
        if self.args.long {
            let owner = match &inode.owner {
                Some(owner) => format!("{}:{}", owner.uid, owner.gid),
                None => "-".to_owned(),
            };
            let (mode, mtime) = (entry::mode(inode), entry::time(inode.mtime));
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
