//! Output of commands: the result to stdout, everything else to stderr. With `--json` stdout has one record
//! per line, and the last one is always a `result` record. Design: *Output*.

use std::io::{BufWriter, IsTerminal, Write};
use std::sync::Mutex;

use serde_json::{Map, Value, json};
use trust::root::RootRecord;

use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::logging;
use crate::{text, units};

/// Version of the JSON records. New fields do not change it; renaming or removing a field or changing its
/// meaning does.
pub const SCHEMA: u64 = 0;

/// When to color messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl Color {
    /// Whether to color messages on stderr.
    pub fn on_stderr(self) -> bool {
        match self {
            Color::Always => true,
            Color::Never => false,
            Color::Auto => {
                let forbidden = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
                !forbidden && std::io::stderr().is_terminal()
            }
        }
    }
}

/// stdout and stderr of a command, and the format of its output.
#[derive(Debug)]
pub struct Output {
    command: String,
    json: bool,
    quiet: bool,
    color: bool,
    terminal: bool,
    /// Most columns of a message; `None` if stderr is no terminal.
    columns: Option<usize>,
    /// The warnings so far, so that nothing is told twice.
    warned: Mutex<String>,
    /// Whether the volume has expired and the grace applies: a field of the result record.
    stale: bool,
    /// Whether the volume was opened from the cache alone: a field of the result record.
    offline: bool,
    /// The newest version, if an earlier one is read: a field of the result record.
    newest: Option<u64>,
    /// Whether a result rests on what a silent device wrote: a field of the result record.
    unattested: bool,
    /// What the command ends with, after its result.
    last: Option<Failure>,
    /// Bytes of the result so far.
    bytes: u64,
    /// Something beside stdout has been made.
    lasts: bool,
    stdout: BufWriter<std::io::Stdout>,
}

impl Output {
    /// The streams of a command.
    pub fn new(command: &str, json: bool, quiet: bool, color: Color) -> Output {
        let stdout = std::io::stdout();
        Output {
            command: command.to_owned(),
            json,
            quiet,
            color: color.on_stderr(),
            terminal: stdout.is_terminal(),
            columns: columns(),
            warned: Mutex::default(),
            stale: false,
            offline: false,
            newest: None,
            unattested: false,
            last: None,
            bytes: 0,
            lasts: false,
            stdout: BufWriter::with_capacity(BUFFER_BYTES, stdout),
        }
    }

    /// Whether records are wanted instead of text.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Whether progress may be drawn: for a person who looks on and did not ask for quiet.
    pub fn progress(&self) -> bool {
        !self.quiet && !self.json && std::io::stderr().is_terminal()
    }

    /// A line of the result.
    pub fn line(&mut self, line: &str) -> Outcome<()> {
        self.raw(line.as_bytes())?;
        self.raw(b"\n")
    }

    /// Bytes of the result, as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.bytes = self.bytes.saturating_add(bytes.len() as u64);
        self.stdout.write_all(bytes).map_err(|e| stdout_failed(&e))
    }

    /// A name of the result: as it is into a pipe or file, harmless on a terminal.
    pub fn name(&mut self, name: &[u8]) -> Outcome<()> {
        if self.terminal {
            self.raw(text::printable(name).as_bytes())
        } else {
            self.raw(name)
        }
    }

    /// A JSON record of the type `kind`.
    pub fn record(&mut self, kind: &str, fields: Map<String, Value>) -> Outcome<()> {
        let mut record = Map::new();
        record.insert("type".to_owned(), kind.into());
        record.insert("schema".to_owned(), SCHEMA.into());
        record.extend(fields);
        let mut line = Value::Object(record).to_string().into_bytes();
        line.push(b'\n');
        self.raw(&line)
    }

    /// The command makes something that stays, beside its output.
    pub fn lasts(&mut self) {
        self.lasts = true;
    }

    /// Takes the result so far back, so that the command can begin again. False: somebody may have seen something of it.
    pub fn take_back(&mut self) -> bool {
        let all_here = self.stdout.buffer().len() as u64 == self.bytes;
        if self.lasts || !all_here {
            return false;
        }
        forget(&mut self.stdout, std::io::stdout());
        self.bytes = 0;
        true
    }

    /// Writes the buffered output.
    pub fn flush(&mut self) -> Outcome<()> {
        self.stdout.flush().map_err(|e| stdout_failed(&e))
    }

    /// Prints a note on stderr, unless `-q` is given.
    pub fn note(&self, note: &str) {
        if !self.quiet {
            self.message("", note);
        }
    }

    /// Prints a warning on stderr, even with `-q`.
    pub fn warn(&self, warning: &str) {
        self.message("warning:", warning);
        if let Ok(mut warned) = self.warned.lock()
            && warned.len() < BUFFER_BYTES
        {
            warned.push_str(warning);
            warned.push('\n');
        }
    }

    /// Prints a message after its label: on a terminal at most [`MAX_COLUMNS`] wide, elsewhere as one line for programs.
    fn message(&self, label: &str, words: &str) {
        let words = text::printable_message(words);
        let whole = match label {
            "" => words,
            label => format!("{label} {words}"),
        };
        let whole = match self.columns {
            Some(columns) => text::wrapped(&whole, columns),
            None => whole,
        };
        let code = match label {
            "error:" => "31",
            "hint:" => "36",
            _ => "33",
        };
        match whole.strip_prefix(label).filter(|_| !label.is_empty()) {
            Some(rest) => say(&format!("{}{rest}\n", self.paint(code, label))),
            None => say(&format!("{whole}\n")),
        }
    }

    /// Warns of what the libraries met, unless a warning or the failure tells it.
    fn tell_kept(&self, failure: Option<&Failure>) {
        let (kept, more) = logging::take_kept();
        let mut told = match self.warned.lock() {
            Ok(warned) => warned.clone(),
            Err(_) => String::new(),
        };
        if let Some(failure) = failure {
            told.push_str(&failure.error);
            told.extend(failure.causes.iter().map(|cause| format!("\n{cause}")));
        }
        for one in kept {
            let words = one.to_string();
            if !one.is_told_by(&told) {
                self.warn(&words);
                told.push('\n');
                told.push_str(&words);
            }
        }
        if more > 0 {
            self.warn(&format!("{more} more warnings; `-v` shows them all"));
        }
    }

    /// Warns that the version expired at `ended` and is used within the grace.
    pub fn stale(&mut self, ended: &str) {
        self.stale = true;
        self.warn(&format!(
            "this version expired at {ended}, and no location has a newer one; it is read within the grace"
        ));
    }

    /// Warns that no location answered and that the last adopted version is read from the cache.
    pub fn offline(&mut self, version: u64) {
        self.offline = true;
        self.warn(&format!(
            "no location answers with a usable version; version {version} is read from the cache, and \
             what the cache does not have cannot be read"
        ));
    }

    /// The newest version, if an earlier one is read.
    pub fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Notes that a version is read that a newer one has replaced, or may replace: history, which does not expire.
    pub fn history(&mut self, record: &RootRecord, newest: u64) {
        self.newest = Some(newest);
        let (version, signed) = (record.version, units::time(record.start));
        let until = units::time(record.until());
        self.note(&format!(
            "version {version} was signed at {signed} and was valid until {until}; the newest is version {newest}"
        ));
    }

    /// Warns that the result rests on what a silent device wrote.
    pub fn unattested(&mut self) {
        self.unattested = true;
        self.warn(
            "this rests on what a device wrote that has not confirmed it since; if the server has shown it another log, \
             it may be undone (`bulla share status` names the device)",
        );
    }

    /// The command ends with this failure, after its result. The result is then what this device had verified before: it
    /// has proof that the server lies, or gets nothing from it any more.
    pub fn ends_with(&mut self, why: Failure) {
        self.last = Some(why);
    }

    fn paint(&self, code: &str, word: &str) -> String {
        if self.color {
            format!("\x1b[1;{code}m{word}\x1b[0m")
        } else {
            word.to_owned()
        }
    }

    /// Ends a command: writes the result record, or the error and its hint. Returns the exit code.
    pub fn close(&mut self, outcome: Outcome<Done>) -> Exit {
        let outcome = match (outcome, self.last.take()) {
            (Ok(done), Some(mut failure)) => {
                failure.fields.extend(done.fields);
                Err(failure)
            }
            (outcome, _) => outcome,
        };
        let closed = match outcome {
            Ok(done) => {
                let exit = done.exit;
                // The result comes before the warnings, also where both go to one terminal.
                let _ = self.flush();
                self.tell_kept(None);
                let written = self.close_record(exit, done.fields, None);
                written.and_then(|()| self.flush()).map(|()| exit)
            }
            Err(failure) => Err(failure),
        };
        match closed {
            Ok(exit) => exit,
            // The reader of stdout has closed it, as in `bulla ls | head`. That is not an error.
            Err(failure) if failure.error == BROKEN_PIPE => Exit::Ok,
            Err(failure) => {
                let exit = failure.exit();
                let _ = self.flush();
                self.tell_kept(Some(&failure));
                self.print(&failure);
                // If stdout is closed, nobody can read the record.
                let _ = self
                    .close_record(exit, failure.fields.clone(), Some(&failure))
                    .and_then(|()| self.flush());
                exit
            }
        }
    }

    fn close_record(
        &mut self,
        exit: Exit,
        fields: Map<String, Value>,
        failure: Option<&Failure>,
    ) -> Outcome<()> {
        if !self.json {
            return Ok(());
        }
        let mut record = Map::new();
        record.insert("command".to_owned(), self.command.clone().into());
        record.insert("ok".to_owned(), (exit == Exit::Ok).into());
        record.insert("exit_code".to_owned(), exit.code().into());
        record.extend(fields);
        if self.stale {
            record.insert("stale".to_owned(), true.into());
        }
        if self.offline {
            record.insert("offline".to_owned(), true.into());
        }
        if let Some(newest) = self.newest {
            record.insert("newest".to_owned(), newest.into());
        }
        if self.unattested {
            record.insert("unattested".to_owned(), true.into());
        }
        if let Some(failure) = failure {
            let error = json!({
                "kind": failure.word(),
                "message": failure.error,
                "causes": failure.causes,
                "hint": failure.hint(),
            });
            record.insert("error".to_owned(), error);
        }
        self.record("result", record)
    }

    fn print(&self, failure: &Failure) {
        self.message("error:", &failure.error);
        for cause in &failure.causes {
            self.message("cause:", cause);
        }
        self.message("hint:", failure.hint());
    }
}

/// Writes to stderr. Errors (a full disk, a closed pipe) are ignored: the command goes on, and its exit code
/// reports the outcome. The macros for stderr would panic.
pub fn say(words: &str) {
    let _ = std::io::stderr().write_all(words.as_bytes());
}

/// The result of a command that succeeded, fully or in part.
#[derive(Debug)]
pub struct Done {
    /// [`Exit::Ok`] or [`Exit::Partial`].
    pub exit: Exit,
    /// Fields of the result record.
    pub fields: Map<String, Value>,
}

impl Done {
    /// The same with another field.
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Done {
        self.fields.insert(key.to_owned(), value.into());
        self
    }

    /// Full success.
    pub fn ok(fields: Map<String, Value>) -> Done {
        Done {
            exit: Exit::Ok,
            fields,
        }
    }
}

/// Most columns of a message on a terminal. Longer lines are hard to read, and few terminals have more.
const MAX_COLUMNS: usize = 100;
/// Fewest columns for which messages are wrapped.
const MIN_COLUMNS: usize = 40;

/// The columns of messages, if stderr is a terminal.
fn columns() -> Option<usize> {
    let stderr = std::io::stderr();
    if !stderr.is_terminal() {
        return None;
    }
    // A terminal that does not know its size says 0.
    let size = rustix::termios::tcgetwinsize(&stderr).ok();
    let columns = size.map_or(0, |size| usize::from(size.ws_col));
    match columns {
        0 => Some(MAX_COLUMNS),
        columns => Some(columns.clamp(MIN_COLUMNS, MAX_COLUMNS)),
    }
}

/// Output that is held back so long as no more comes.
const BUFFER_BYTES: usize = 64 << 10;
const BROKEN_PIPE: &str = "stdout was closed by its reader";

fn stdout_failed(error: &std::io::Error) -> Failure {
    if error.kind() == std::io::ErrorKind::BrokenPipe {
        Failure::new(Kind::System, BROKEN_PIPE)
    } else {
        Failure::io("cannot write to stdout", error)
    }
}

/// The fields of a JSON object, from `json!({...})`.
pub fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => Map::from_iter([("value".to_owned(), other)]),
    }
}

/// Forgets what a buffer holds back.
fn forget<W: Write>(buffer: &mut BufWriter<W>, to: W) {
    let empty = BufWriter::with_capacity(BUFFER_BYTES, to);
    // Taken apart, because the end of a buffer writes it.
    drop(std::mem::replace(buffer, empty).into_parts());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_is_taken_back_is_not_written() {
        let file = tempfile::tempfile().unwrap();
        let mut buffer = BufWriter::new(&file);
        buffer.write_all(b"of the log before\n").unwrap();
        forget(&mut buffer, &file);
        drop(buffer);
        assert_eq!(file.metadata().unwrap().len(), 0);
    }
}
