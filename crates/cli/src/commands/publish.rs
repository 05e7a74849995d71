//! `bulla publish DIR REPO --key FILE`: publishes the next version of a volume, or a new volume.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use publish::pipeline::{self, Input, PublishOptions};
use publish::progress::{Observer, Published, Skipped};
use publish::publish_error::Unreadable;
use serde_json::{Map, Value, json};
use trust::change::Change;
use trust::request::Request;
use trust::text::{Noun, write};

use super::{excluded, expiry_notes, key, new_volume, sign};
use crate::args::{Global, Publish};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::progress::Progress;
use crate::{asking, changes, lock_wait, session, text, units};

/// Publishes.
pub fn run(args: &Publish, global: &Global, config: &Config, output: &mut Output) -> Outcome<Done> {
    if !args.install.is_empty() {
        return sign::install(args, global, config, output);
    }
    check_asking(args)?;
    let files = match args.unsigned {
        true => Vec::new(),
        false => key::paths(&args.key, config)?,
    };
    let mut options = options(args, config)?;
    let own = files.first().map(|file| key::public(file)).transpose()?;
    options.new_volume = new_volume::described(args, own, options.valid, options.clock.now())?;
    expiry_notes::warn_of_clock(args.accept_clock, output);
    let options = Arc::new(options);
    let reach = key::reach();
    let stop_waiting = Arc::clone(&reach.stop);
    let keys = key::signers(&files, &args.passphrase, global, reach)?;
    let keys = key::borrowed(&keys);
    let bar = Progress::start(output, "publishing");
    let watch = Watch {
        bar: bar.clone(),
        ..Watch::default()
    };
    let stop = Arc::clone(&options);
    // Ctrl-C stops at the next file; the repository keeps its last version.
    session::on_interrupt(move || {
        stop.cancel.store(true, Ordering::Relaxed);
        stop_waiting.store(true, Ordering::Relaxed);
    })?;
    let repo = args.repository()?;
    let is_stopped = || options.cancel.load(Ordering::Relaxed);
    let published = lock_wait::until_free(&args.lock_wait, &is_stopped, output, || {
        let tree = input(args)?;
        Ok(match args.unsigned {
            false => pipeline::publish_with(tree, repo, &keys, &options, &watch)
                .map(|published| (published, None)),
            true => pipeline::publish_unsigned(tree, repo, &options, &watch),
        }?)
    });
    bar.end();
    let (published, request) = published?;
    let unmatched = excluded::unmatched(&args.exclude, &options.exclude, output);
    expiry_notes::warn_of_end(repo, output);
    let mut done = tell(&published, request.as_ref(), args, output)?;
    done.fields.insert("unmatched".to_owned(), unmatched.into());
    Ok(done)
}

/// Refuses flags for witnesses where none is asked.
fn check_asking(args: &Publish) -> Outcome<()> {
    let by_file = &args.by_file;
    if by_file.checkpoint_out.is_some() || !by_file.cosigned.is_empty() {
        let error = "--checkpoint-out and --cosigned go with --install";
        let hint =
            "make a request with --unsigned --out FILE, `bulla sign` it, and install it with both";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    if args.unsigned && !args.asking.witness.is_empty() {
        let error = "--witness does not go with --unsigned: no witness is asked before the version is signed";
        let hint = "give --witness to `bulla publish --install`";
        return Err(Failure::new(Kind::Usage, error).with_hint(hint));
    }
    Ok(())
}

/// The directory tree, or the archive on stdin.
fn input(args: &Publish) -> Outcome<Input<'_>> {
    let tree = args.tree()?;
    Ok(match tree == Path::new("-") {
        true => Input::Tar(&|| Box::new(std::io::stdin().lock())),
        false => Input::Directory(tree),
    })
}

fn options(args: &Publish, config: &Config) -> Outcome<PublishOptions> {
    let valid = match args.valid {
        Some(valid) => valid,
        None => config.duration("valid")?,
    };
    Ok(PublishOptions {
        valid,
        exclude: excluded::patterns(&args.exclude, &args.exclude_file)?,
        one_file_system: args.one_file_system,
        skip_unreadable: args.skip_unreadable,
        with_owner: args.owner,
        publish_keys: args.publish_keys,
        dry_run: args.dry_run,
        accept_clock: args.accept_clock,
        paranoid: args.paranoid,
        cache_dir: config.path("cache-dir"),
        state_dir: config.path("state-dir"),
        version_name: args.tag.clone(),
        name: args.name.clone().unwrap_or_else(|| name_of(&args.dir)),
        cosigning: asking::cosigning(&args.asking, None, config)?,
        ..PublishOptions::default()
    })
}

/// The name of the directory, shortened and cleaned to be a valid name of a volume.
fn name_of(directory: &Path) -> String {
    if directory == Path::new("-") {
        return "archive".to_owned();
    }
    let whole = directory
        .canonicalize()
        .unwrap_or_else(|_| directory.to_owned());
    let name = whole
        .file_name()
        .map_or("volume".into(), |name| name.to_string_lossy());
    let plain = name.chars().filter(|c| !c.is_control());
    let mut name = String::new();
    for c in plain {
        if name.len() + c.len_utf8() > trust::policy::MAX_NAME_BYTES {
            break;
        }
        name.push(c);
    }
    name
}

fn tell(
    published: &Published,
    request: Option<&Request>,
    args: &Publish,
    output: &mut Output,
) -> Outcome<Done> {
    let how = How {
        dry_run: args.dry_run,
        unsigned: args.unsigned,
    };
    let mut record = result_fields(published, how);
    if args.dry_run {
        record.extend(compare(&published.changes, output)?);
    }
    tell_skipped(&published.skipped, output)?;
    if args.name.is_some() && !published.new_volume {
        output.warn("--name was not used: a volume keeps the name of its first version");
    }
    if let Some(name) = &args.tag {
        record.insert("tag".to_owned(), name.to_string().into());
    }
    if !output.json() {
        print(published, how, output)?;
    }
    if let (Some(request), Some(out)) = (request, &args.out) {
        sign::requested(request, published, out, &mut record, output)?;
    }
    let exit = if published.skipped_count > 0 {
        Exit::Partial
    } else {
        Exit::Ok
    };
    Ok(Done {
        exit,
        fields: record,
    })
}

/// How a version was published.
#[derive(Debug, Clone, Copy, Default)]
pub struct How {
    /// Nothing was written.
    pub dry_run: bool,
    /// It is signed later, on another machine.
    pub unsigned: bool,
}

/// The fields of the result record.
pub fn result_fields(published: &Published, how: How) -> Map<String, Value> {
    let mut record = fields(json!({
        "volume": published.volume.to_string(),
        "new_volume": published.new_volume,
        "version": published.version,
        "valid_until": units::time(published.valid_until),
        "previous_valid_until": published.previous_until.map(units::time),
        "unchanged": published.unchanged,
        "files": published.totals.files,
        "directories": published.totals.directories,
        "other": published.totals.other,
        "bytes": published.totals.bytes,
        "new_bytes": published.new_bytes,
        "skipped": published.skipped_count,
        "dry_run": how.dry_run,
        "waits_for_timestamp": published.waits_for_timestamp,
    }));
    if let Some(hash) = &published.record_hash {
        record.insert("record".to_owned(), write(Noun::Record, hash).into());
    }
    record
}

/// Reports each path that was left out.
fn tell_skipped(skipped: &[Skipped], output: &mut Output) -> Outcome<()> {
    for Skipped { path, why } in skipped {
        let name = path.as_os_str().as_bytes();
        if output.json() {
            let mut one = Map::new();
            text::put_name(&mut one, "path", name);
            one.insert("why".to_owned(), Value::from(why.clone()));
            output.record("skipped", one)?;
        } else {
            output.warn(&format!("left out: {}: {why}", text::printable(name)));
        }
    }
    Ok(())
}

/// Prints the changes, one path a line. Returns their counts as fields of the result record.
fn compare(changes: &[Change], output: &mut Output) -> Outcome<Map<String, Value>> {
    let mut counts = [0; 3];
    for change in changes {
        changes::tell(change, &mut counts, output)?;
    }
    let [added, changed, removed] = counts;
    Ok(fields(
        json!({"added": added, "changed": changed, "removed": removed}),
    ))
}

/// Prints what was published.
pub fn print(published: &Published, how: How, output: &mut Output) -> Outcome<()> {
    output.line(&format!("volume   {}", published.volume))?;
    let word = if how.dry_run {
        " (nothing was written)"
    } else {
        ""
    };
    output.line(&format!("version  {}{word}", published.version))?;
    if let Some(hash) = &published.record_hash {
        output.line(&format!("record   {}", write(Noun::Record, hash)))?;
    }
    output.line(&format!("valid to {}", units::time(published.valid_until)))?;
    if let Some(until) = shortened(published, how) {
        output.note(&format!(
            "The previous version was valid for longer, to {}. Set the validity with --valid or the setting \
             `valid`.",
            units::time(until)
        ));
    }
    output.line(&format!("tree     {}", units::totals(&published.totals)))?;
    output.line(&format!("new      {}", units::size(published.new_bytes)))?;
    if published.unchanged && !how.dry_run {
        output
            .note("Nothing has changed since the previous version: the new one has the same tree.");
    }
    if published.new_volume && !how.dry_run && !how.unsigned {
        output.note(
            "This is a new volume. Give its id to the readers over a channel that they trust: the id is all \
             that they need to verify the volume.",
        );
    }
    if published.waits_for_timestamp {
        output.note(expiry_notes::CONFIRM_FIRST);
    }
    Ok(())
}

/// The end of the previous validity, if it is later than the new one. For an unsigned version the signer sets
/// the validity.
fn shortened(published: &Published, how: How) -> Option<u64> {
    let until = published.previous_until.filter(|_| !how.unsigned)?;
    (until > published.record_until).then_some(until)
}

/// Passes the observer's calls to the progress bar.
#[derive(Default)]
struct Watch {
    bar: Progress,
    found_bytes: AtomicU64,
    done_bytes: AtomicU64,
    done_files: AtomicU64,
}

impl Observer for Watch {
    fn found(&self, _files: u64, bytes: u64) {
        self.found_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn finished(&self, files: u64, bytes: u64) {
        let bytes = self.done_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let files = self.done_files.fetch_add(files, Ordering::Relaxed) + files;
        self.bar.of(self.found_bytes.load(Ordering::Relaxed));
        self.bar.at(bytes, files);
    }

    fn skipped(&self, path: &Path, why: &Unreadable) {
        tracing::info!(path = %path.display(), %why, "left out");
    }
}
