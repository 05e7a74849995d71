//! Commands that only read. If the owners begin the log again meanwhile, the device goes over, and the command runs
//! again, once (decision 0063). Nothing is printed twice, and no output is half from one log and half from another.

use std::future::Future;
use std::time::Duration;

use ::share::client::ClientError;
use ::share::home::{Followed, Home};

use super::recovery::{self, Recovered};
use super::session::SharedVolume;
use crate::args::{Reading, Waiting};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;

/// The volume of a command that only reads.
pub struct Opening<'a> {
    config: &'a Config,
    home: Home,
    deadline: Option<Duration>,
    past: Option<u64>,
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
            past: None,
            alone: false,
        }
    }

    /// The volume with this name or id.
    pub fn named(config: &'a Config, name: &str, waiting: &Waiting) -> Outcome<Opening<'a>> {
        Ok(Opening {
            config,
            home: super::home(config, name)?,
            deadline: waiting.deadline,
            past: None,
            alone: false,
        })
    }

    /// Files are those after this entry.
    pub fn at(self, entry: Option<u64>) -> Opening<'a> {
        Opening {
            past: entry,
            ..self
        }
    }

    /// Opens the volume also without its server.
    pub fn alone(self) -> Opening<'a> {
        Opening {
            alone: true,
            ..self
        }
    }

    fn open(&self) -> Outcome<SharedVolume> {
        let home = self.home.clone();
        let shared = match self.alone {
            true => SharedVolume::start_alone(self.config, home, self.deadline),
            false => SharedVolume::start(self.config, home, self.deadline),
        };
        Ok(shared?.at(self.past))
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
            let shared = self.open()?;
            let read = shared.run(shared.unless_offered(command(&shared, output)));
            if !shared.has_moved(&read) {
                return shared.close(read, output);
            }
            let nothing_seen = output.take_back();
            if !(again && nothing_seen) {
                return shared.close(Err(begun_again(nothing_seen)), output);
            }
            again = false;
            shared.go_over(output)?;
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

impl SharedVolume {
    /// Runs a future as long as the log goes on.
    async fn unless_offered<T>(&self, future: impl Future<Output = Outcome<T>>) -> Outcome<T> {
        tokio::select! {
            biased;
            outcome = future => outcome,
            () = self.client().offering() => Err(ClientError::GoneOver.into()),
        }
    }

    /// Makes a call, which nobody answers any more once the owners have begun the log again.
    pub(super) async fn here<T>(
        &self,
        call: impl Future<Output = Result<T, ClientError>>,
        only_reads: bool,
    ) -> Outcome<T> {
        let called = self.unless_offered(async { Ok(call.await?) }).await;
        called.map_err(|failure| match failure.kind {
            Kind::OtherEpoch if !only_reads => self.open_change(),
            _ => failure,
        })
    }

    /// The failure of a change that nobody answers. It is not made again: it may have had effect, and come back.
    fn open_change(&self) -> Failure {
        let error = "the owners have begun the log of this volume again: whether this change stands is not known";
        let name = self.home().name();
        let hint = format!(
            "`bulla share follow {name}` goes over, and brings back what this device alone has. Then look whether the \
             change is there before you repeat it"
        );
        Failure::new(Kind::OtherEpoch, error).with_hint(hint)
    }

    /// Fails if this device has gone over to another log since the volume was opened: what was read before and what is
    /// read now do not belong together.
    pub(super) fn is_here(&self) -> Outcome<()> {
        // What the home has cannot be read: that does not say that anything has changed.
        let signed = self.home().signed_policies();
        if signed.is_ok_and(|signed| signed.len() == self.rules) {
            return Ok(());
        }
        let begun = self.client().policies().newest_epoch().number;
        match self.home().policies() {
            Ok(policies) if policies.newest_epoch().number != begun => {
                Err(ClientError::GoneOver.into())
            }
            _ => Ok(()),
        }
    }

    /// Closes the volume. If its server has shown that the owners have begun the log again, the device goes over: an engine
    /// of another process may stay in the old log for a while, and a command that begins again would find it there.
    fn go_over(self, output: &mut Output) -> Outcome<()> {
        let offered = self.client().offered();
        self.end(output)?;
        let Some(more) = offered else {
            return Ok(());
        };
        let following = recovery::follow(self.home(), more, self.until());
        if let Followed::Epoch(epoch) = self.run(following)? {
            Recovered::at(epoch).tell(output);
        }
        Ok(())
    }

    /// Whether a command failed because the owners have begun the log again.
    fn has_moved<T>(&self, outcome: &Outcome<T>) -> bool {
        match outcome {
            Ok(_) => false,
            Err(failure) if failure.kind == Kind::Interrupted => false,
            Err(_) => self.client().offered().is_some() || self.is_here().is_err(),
        }
    }
}
