//! `bulla status`: asks each mount of this user at its socket, and lists mounts and sockets whose daemon has
//! died or does not answer.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::mount::table::{self, Life, Line};
use serde_json::{Value, json};

use crate::args::Status;
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::report;
use crate::sockets::{self, Heard};
use crate::text::printable_message;

/// Time limit of a mount to answer statfs.
const PATIENCE: Duration = Duration::from_secs(2);

/// A mount or a socket that does not answer.
struct Mute {
    place: PathBuf,
    why: String,
    hint: String,
}

/// Shows the mounts.
pub fn run(args: &Status, config: &Config, output: &mut Output) -> Outcome<Done> {
    let only = match &args.dir {
        Some(dir) => {
            Some(table::absolute(dir).map_err(|e| Failure::io(format!("{}", dir.display()), &e))?)
        }
        None => None,
    };
    let mut survey = Survey::of(only);
    for (socket, heard) in sockets::ask_all(&sockets::directory(config))? {
        survey.add(socket, heard, config, output)?;
    }
    for line in own_mounts()? {
        if survey.wants(&line.directory) && !survey.answered.contains(&line.directory) {
            survey.mute.push(of_line(line));
        }
    }
    let Survey {
        mounts,
        cleared,
        mute,
        ..
    } = survey;
    for mute in &mute {
        show_mute(mute, output)?;
    }
    if let (Some(dir), 0, true) = (&args.dir, mounts, mute.is_empty()) {
        let shown = dir.display();
        let failure = Failure::new(Kind::NoFile, format!("{shown}: no volume is mounted here"));
        return Err(failure.with_hint("`bulla status` lists the mounts of this user"));
    }
    if mounts == 0 && mute.is_empty() {
        output.note("nothing is mounted");
    }
    Ok(Done {
        exit: if mute.is_empty() {
            Exit::Ok
        } else {
            Exit::Partial
        },
        fields: fields(json!({"mounts": mounts, "mute": mute.len(), "cleared": cleared})),
    })
}

/// What the sockets of this user's mounts answered.
#[derive(Default)]
struct Survey {
    /// The only directory that was asked about; `None` for all.
    only: Option<PathBuf>,
    /// The directories whose daemons answered.
    answered: BTreeSet<PathBuf>,
    mounts: u64,
    cleared: u64,
    mute: Vec<Mute>,
}

impl Survey {
    fn of(only: Option<PathBuf>) -> Survey {
        Survey {
            only,
            ..Survey::default()
        }
    }

    fn wants(&self, dir: &Path) -> bool {
        self.only.as_deref().is_none_or(|only| only == dir)
    }

    /// Shows the record of a mount. Removes the socket of a daemon that has died.
    fn add(
        &mut self,
        socket: PathBuf,
        heard: Heard,
        config: &Config,
        output: &mut Output,
    ) -> Outcome<()> {
        let (why, hint) = match heard {
            Heard::Record(mut record) => {
                put_names(&mut record, config);
                let dir = record.get("dir").and_then(Value::as_str);
                let dir = PathBuf::from(dir.unwrap_or_default());
                if self.wants(&dir) {
                    self.mounts += 1;
                    show(&record, output)?;
                }
                self.answered.insert(dir);
                return Ok(());
            }
            Heard::Dead if sockets::clear(&socket).is_ok() => {
                self.cleared += 1;
                let shown = socket.display();
                output.note(&format!("removed {shown}: its daemon has died"));
                return Ok(());
            }
            Heard::Dead => (
                "its daemon has died, and the socket cannot be removed".to_owned(),
                format!("rm {}", socket.display()),
            ),
            Heard::Silent(why) => (
                why,
                "the daemon is stuck; its log is in the state directory".to_owned(),
            ),
        };
        // A socket does not tell which directory it belongs to.
        if self.only.is_none() {
            let place = socket;
            self.mute.push(Mute { place, why, hint });
        }
        Ok(())
    }
}

/// The mounts of this user in the system's mount table.
pub fn own_mounts() -> Outcome<Vec<Line>> {
    let user = rustix::process::geteuid().as_raw();
    let lines = table::ours().map_err(|e| Failure::io("cannot read the mount table", &e))?;
    // Devices are shown by `bulla protect status`.
    let is_volume = |line: &Line| !line.source.starts_with(crate::control::MOUNT_SOURCE);
    let own = lines
        .into_iter()
        .filter(|line| line.user == Some(user) && is_volume(line));
    Ok(own.collect())
}

/// Whether a mount answers.
pub fn life(line: &Line) -> Life {
    line.life(PATIENCE)
}

fn of_line(line: Line) -> Mute {
    let shown = line.directory.display();
    let (why, hint) = match life(&line) {
        Life::Dead => (
            "dead: its daemon has died",
            format!("unmount it with `bulla umount {shown}`"),
        ),
        Life::Silent => (
            "it does not answer",
            format!("unmount it with `bulla umount {shown}`"),
        ),
        Life::Answers => (
            "it is mounted, but has no socket to ask",
            "its log says why; the daemon may have another version of bulla".to_owned(),
        ),
    };
    Mute {
        why: why.to_owned(),
        hint,
        place: line.directory,
    }
}

/// Adds the names that stand for the mounted volume now: the daemon may have been started with others.
fn put_names(record: &mut Value, config: &Config) {
    let volume = record.get("volume").and_then(Value::as_str);
    let volume = volume.and_then(|text| text.parse().ok());
    let names = volume.map(|volume| config.names_of(volume));
    if let Value::Object(fields) = record {
        fields.insert("names".to_owned(), json!(names.unwrap_or_default()));
    }
}

fn show(record: &Value, output: &mut Output) -> Outcome<()> {
    if output.json() {
        return output.record("mount", fields(record.clone()));
    }
    report::lines(record)
        .iter()
        .try_for_each(|line| output.line(line))
}

fn show_mute(Mute { place, why, hint }: &Mute, output: &mut Output) -> Outcome<()> {
    let place = place.display().to_string();
    if output.json() {
        return output.record(
            "mute",
            fields(json!({"place": place, "why": why, "hint": hint})),
        );
    }
    output.line(&printable_message(&place))?;
    output.line(&printable_message(&format!("  MUTE     {why}; {hint}")))
}
