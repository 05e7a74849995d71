//! The state that a command reads: a version of a published volume, or a shared volume now or after an entry of its log.
//! Commands read both through [`bulla::Tree`], and know neither.

use bulla::Tree;
use reader::Reads;

use crate::args::{Past, Reading};
use crate::config::Config;
use crate::failure::Outcome;
use crate::output::Output;
use crate::session::Session;
use crate::sharing::{self, reading::Opening};

/// What a command reads.
pub struct State<'a> {
    reading: &'a Reading,
    past: &'a Past,
    path: &'a [u8],
    reads: Option<Reads>,
}

impl<'a> State<'a> {
    /// The file at a path in a state of a volume.
    pub fn of(reading: &'a Reading, past: &'a Past, path: &'a [u8]) -> State<'a> {
        State {
            reading,
            past,
            path,
            reads: None,
        }
    }

    /// The same, and below it what `reads` says.
    pub fn with(self, reads: Reads) -> State<'a> {
        State {
            reads: Some(reads),
            ..self
        }
    }

    /// Opens the volume, runs a command that only reads this state of it, and closes it. Of a shared volume the command
    /// runs again if the owners begin the log again meanwhile ([`Opening::read`]).
    pub fn read<T>(
        &self,
        config: &Config,
        output: &mut Output,
        command: impl AsyncFn(&Tree<'_>, &mut Output) -> Outcome<T>,
    ) -> Outcome<T> {
        if let Some(home) = sharing::named(config, self.reading)? {
            return Opening::of(config, home, self.reading).read(output, async |shared, output| {
                let entry = match &self.past.at {
                    Some(state) => Some(shared.entry(state).await?),
                    None => None,
                };
                command(&Tree::shared(shared, entry), output).await
            });
        }
        let session = Session::start(config, self.reading)?;
        let at = (self.past.at.as_ref(), self.path);
        let volume = session.open_at(config, self.reading, at, self.reads, output)?;
        session.run(async {
            let snapshot = volume.current()?;
            command(&Tree::published(&volume, snapshot), output).await
        })
    }
}
