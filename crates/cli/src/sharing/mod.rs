//! Shared volumes on this machine: what the commands that use them have in common. Relies on [`bulla::shared`].
//!
//! | module | what lives there |
//! |---|---|
//! | here | names, random numbers, keys of devices |
//! | `recovery` | what is told of going over to the log that stands after a fork |
//! | `session` | a volume that a command has opened |
//! | `reading` | commands that only read run again in the log that stands |
//! | `archive` | members of a tar stream |
//! | `directories` | directories that a server and a device read of each other |

use std::path::Path;

use ::share::home::{Home, HomeError};
use trust::key::SecretKey;
use zeroize::Zeroizing;

use crate::args::Reading;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};

pub mod archive;
pub mod directories;
pub mod reading;
pub mod recovery;
pub mod session;

/// Random bytes.
pub fn random<const N: usize>() -> Outcome<[u8; N]> {
    let mut bytes = [0; N];
    let failed = |e: getrandom::Error| Failure::of(Kind::System, "there is no randomness", &e);
    getrandom::fill(&mut bytes).map_err(failed)?;
    Ok(bytes)
}

/// The key of a new device. A device signs without asking anybody, so its key has no passphrase.
pub fn new_device() -> Outcome<SecretKey> {
    let seed = Zeroizing::new(random::<32>()?);
    Ok(SecretKey::from_seed(&seed))
}

/// The shared volume of this machine with this name or id.
pub fn home(config: &Config, name: &str) -> Outcome<Home> {
    let state = config.path("state-dir").unwrap_or_default();
    Home::find(&state, name)?.ok_or_else(|| {
        let error = format!("this machine has no shared volume `{name}`");
        Failure::new(Kind::NoShared, error)
    })
}

/// The shared volume that a SOURCE names: one without `@` that is no name of the configuration.
pub fn named(config: &Config, reading: &Reading) -> Outcome<Option<Home>> {
    let source = &reading.source;
    if source.contains('@') || config.source(source).is_some() {
        return Ok(None);
    }
    let state = config.path("state-dir").unwrap_or_default();
    let Some(home) = Home::find(&state, source)? else {
        return Ok(None);
    };
    let flags = [
        (!reading.mirror.is_empty(), "--mirror"),
        (reading.freshness.is_some(), "--freshness"),
        (reading.policy.is_some(), "--policy"),
        (reading.ca.is_some(), "--ca"),
        (reading.tls_unverified, "--tls-unverified"),
    ];
    match flags.iter().find(|(is_given, _)| *is_given) {
        None => Ok(Some(home)),
        Some((_, flag)) => {
            let error = format!("{flag} is for published volumes, and `{source}` is a shared one");
            let hint = "leave the flag out: a shared volume has one server, and its key proves it";
            Err(Failure::new(Kind::Usage, error).with_hint(hint))
        }
    }
}

/// Refuses a name that a volume on this machine has already, before anything is made.
pub fn name_is_free(state_directory: &Path, name: &str) -> Outcome<()> {
    match Home::find(state_directory, name)? {
        None => Ok(()),
        Some(home) => Err(HomeError::NameTaken {
            name: name.to_owned(),
            volume: home.volume(),
        }
        .into()),
    }
}
