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
            let named = table::named(dir);
            let named = named.map_err(|e| Failure::io(format!("{}", dir.display()), &e))?;
            Some(named.ok_or_else(|| not_mounted(dir))?)
        }
        None => None,
    };
    let mut survey = Survey::of(only);
    for (socket, heard) in sockets::ask_all(&sockets::directory(config))? {
        survey.add(socket, heard, config, output)?;
    }
    for line in own_mounts()? {
        if survey.wants_line(&line) && !survey.has_answered(&line) {
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
        return Err(not_mounted(dir));
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

fn not_mounted(dir: &Path) -> Failure {
    let shown = dir.display();
    let failure = Failure::new(Kind::NoFile, format!("{shown}: no volume is mounted here"));
    failure.with_hint("`bulla status` lists the mounts of this user")
}

/// What the sockets of this user's mounts answered.
#[derive(Default)]
struct Survey {
    /// The only mount that was asked about; `None` for all.
    only: Option<Line>,
    /// The directories and devices whose daemons answered.
    answered: BTreeSet<(PathBuf, Option<String>)>,
    mounts: u64,
    cleared: u64,
    mute: Vec<Mute>,
}

impl Survey {
    fn of(only: Option<Line>) -> Survey {
        Survey {
            only,
            ..Survey::default()
        }
    }

    fn wants(&self, mount: &(PathBuf, Option<String>)) -> bool {
        self.only.as_ref().is_none_or(|only| is_of(only, mount))
    }

    fn wants_line(&self, line: &Line) -> bool {
        self.only.as_ref().is_none_or(|only| only == line)
    }

    fn has_answered(&self, line: &Line) -> bool {
        self.answered.iter().any(|mount| is_of(line, mount))
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
                let text = |key| record.get(key).and_then(Value::as_str);
                let dir = PathBuf::from(text("dir").unwrap_or_default());
                let mount = (dir, text("device").map(str::to_owned));
                if self.wants(&mount) {
                    self.mounts += 1;
                    show(&record, output)?;
                }
                self.answered.insert(mount);
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

/// Whether a line of the mount table is the mount of a daemon, or a bind mount of it. A daemon of an older bulla does
/// not tell the device.
fn is_of(line: &Line, (dir, device): &(PathBuf, Option<String>)) -> bool {
    match device {
        Some(device) => *device == line.device,
        None => *dir == line.directory,
    }
}

/// The mounts of this user in the system's mount table.
pub fn own_mounts() -> Outcome<Vec<Line>> {
    let user = rustix::process::geteuid().as_raw();
    let lines = table::ours().map_err(|e| Failure::io("cannot read the mount table", &e))?;
    // Devices are shown by `bulla protect status`.
    let own = lines
        .into_iter()
        .filter(|line| line.user == Some(user) && line.is_volume());
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
