//! Commands that only read. If the owners begin the log again meanwhile, the device goes over, and the command runs
//! again, once (decision 0063). Nothing is printed twice, and no output is half from one log and half from another.

use std::time::Duration;

use ::share::client::ClientError;
use ::share::home::{Followed, Home};

use bulla::shared::SharedVolume;
use bulla::shared::recovery::{Recovered, follow};

use super::recovery;
use super::session::Opened;
use crate::args::{Reading, Waiting};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;

/// The volume of a command that only reads.
pub struct Opening<'a> {
    config: &'a Config,
    home: Home,
    deadline: Option<Duration>,
    /// Also without its server.
    alone: bool,
}

impl<'a> Opening<'a> {
    /// The volume with this home, as it is now.
    pub fn of(config: &'a Config, home: Home, reading: &Reading) -> Opening<'a> {
        Opening {
            config,
            home,
            deadline: reading.deadline,
            alone: false,
        }
    }

    /// The volume with this name or id.
    pub fn named(config: &'a Config, name: &str, waiting: &Waiting) -> Outcome<Opening<'a>> {
        Ok(Opening {
            config,
            home: super::home(config, name)?,
            deadline: waiting.deadline,
            alone: false,
        })
    }

    /// Opens the volume also without its server.
    pub fn alone(self) -> Opening<'a> {
        Opening {
            alone: true,
            ..self
        }
    }

    fn open(&self) -> Outcome<Opened> {
        let home = self.home.clone();
        match self.alone {
            true => Opened::start_alone(self.config, home, self.deadline),
            false => Opened::start(self.config, home, self.deadline),
        }
    }

    /// Opens the volume, runs a command that only reads, and closes the volume.
    ///
    /// # Errors
    /// That of the command. [`Kind::OtherEpoch`] if the owners have begun the log again, and the command cannot begin
    /// again: somebody may have seen a part of its output, or it has begun again before.
    pub fn read<T>(
        &self,
        output: &mut Output,
        command: impl AsyncFn(&SharedVolume, &mut Output) -> Outcome<T>,
    ) -> Outcome<T> {
        let mut again = true;
        loop {
            let opened = self.open()?;
            let shared = &*opened;
            let read = opened.run(shared.unless_offered(command(shared, output)));
            if !opened.failed_by_move(&read) {
                return opened.close(read, output);
            }
            let nothing_seen = output.take_back();
            if !(again && nothing_seen) {
                return opened.close(Err(begun_again(nothing_seen)), output);
            }
            again = false;
            opened.go_over(output)?;
        }
    }
}

/// The failure of a command that only reads and does not begin again.
fn begun_again(nothing_seen: bool) -> Failure {
    let failure = Failure::from(ClientError::GoneOver);
    match nothing_seen {
        true => failure,
        false => failure.with_hint(
            "what it has printed or made so far is from the log before, and not complete: the owners have begun the log \
             again. Run the command again",
        ),
    }
}

impl Opened {
    /// Closes the volume. If its server has shown that the owners have begun the log again, the device goes over: an
    /// engine of another process may stay in the old log for a while, and a command that begins again would find it there.
    fn go_over(self, output: &mut Output) -> Outcome<()> {
        let offered = self.client().offered();
        self.end(output)?;
        let Some(more) = offered else {
            return Ok(());
        };
        let following = async { Ok(follow(self.home(), more, self.until()).await?) };
        if let Followed::Epoch(epoch) = self.run(following)? {
            recovery::tell(&Recovered::at(epoch), output);
        }
        Ok(())
    }

    /// Whether a command failed because the owners have begun the log again.
    fn failed_by_move<T>(&self, outcome: &Outcome<T>) -> bool {
        match outcome {
            Ok(_) => false,
            Err(failure) if failure.kind == Kind::Interrupted => false,
            Err(_) => self.has_moved(),
        }
    }
}
