//! Profiles of mounts: `bulla mount --profile FILE` reads one, `--record FILE` writes one.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::mount::{FetchFirst, Recorder};
use volume::profile::{MAX_PROFILE_BYTES, Profile};

use crate::daemon::absolute;
use crate::failure::{Failure, Kind, Outcome};

/// How often the file is written while programs read.
const PAUSE: Duration = Duration::from_secs(5);

/// What the flag `--profile` asks for.
pub fn fetch_first(given: Option<&Path>) -> Outcome<FetchFirst> {
    match given {
        None => Ok(FetchFirst::Attached),
        Some(none) if none.as_os_str() == OsStr::new("none") => Ok(FetchFirst::Nothing),
        Some(file) => Ok(FetchFirst::Given(read(file)?)),
    }
}

fn read(file: &Path) -> Outcome<Profile> {
    let name = || format!("cannot read {}", file.display());
    let length = fs::metadata(file).map_err(|e| Failure::io(name(), &e))?;
    let text = match length.is_file() && length.len() <= MAX_PROFILE_BYTES as u64 {
        true => fs::read(file).map_err(|e| Failure::io(name(), &e))?,
        false => return Err(Failure::new(Kind::Profile, no_profile(file))),
    };
    let wrong = |why| Failure::of(Kind::Profile, no_profile(file), &why);
    Profile::parse(&text).map_err(wrong)
}

fn no_profile(file: &Path) -> String {
    format!("{} is no profile", file.display())
}

/// A profile that is being recorded into a file. If nothing was mounted, the file goes with it.
#[derive(Debug)]
pub struct Recording {
    file: PathBuf,
    written: Profile,
    is_mounted: bool,
}

impl Drop for Recording {
    fn drop(&mut self) {
        if !self.is_mounted {
            let _ = fs::remove_file(&self.file);
        }
    }
}

impl Recording {
    /// Makes the file, which must be new.
    pub fn begin(file: &Path) -> Outcome<Recording> {
        let file = absolute(file)?;
        let made = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&file);
        match made {
            Ok(_) => Ok(Recording {
                file,
                written: Profile::default(),
                is_mounted: false,
            }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let error = format!("{} exists", file.display());
                Err(Failure::new(Kind::Exists, error))
            }
            Err(error) => Err(Failure::io(
                format!("cannot write {}", file.display()),
                &error,
            )),
        }
    }

    /// Writes what programs have read every few seconds, until `ended`, and once more then.
    pub async fn until<T>(
        mut self,
        recorder: &Recorder,
        ended: impl Future<Output = T>,
    ) -> Outcome<T> {
        self.is_mounted = true;
        let mut ended = std::pin::pin!(ended);
        loop {
            let end = tokio::select! {
                end = &mut ended => Some(end),
                () = tokio::time::sleep(PAUSE) => None,
            };
            // A mount goes on without its profile; at its end the error is the result.
            let written = self.write(recorder);
            match (end, written) {
                (Some(end), written) => return written.map(|()| end),
                (None, Err(failure)) => tracing::warn!(%failure, "the profile is not written"),
                (None, Ok(())) => {}
            }
        }
    }

    /// Replaces the file, if there is something new.
    fn write(&mut self, recorder: &Recorder) -> Outcome<()> {
        let profile = recorder.profile();
        if profile == self.written {
            return Ok(());
        }
        let failed = |e| Failure::io(format!("cannot write {}", self.file.display()), &e);
        let mut new = self.file.clone().into_os_string();
        new.push(".new");
        fs::write(&new, profile.to_text()).map_err(failed)?;
        fs::rename(&new, &self.file).map_err(failed)?;
        if profile.is_full() && !self.written.is_full() {
            tracing::warn!(
                paths = profile.len(),
                "the profile is full: what is read from now on is not in it"
            );
        }
        self.written = profile;
        Ok(())
    }
}
