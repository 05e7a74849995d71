//! `bulla key new`, `bulla key show`: the publisher's signing key in a file of its own.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use publish::keyfile::{self, KeyError};
use serde_json::json;
use trust::key::SecretKey;

use crate::args::{Global, KeyNew, KeyShow, Passphrase};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::passphrase;

/// Makes a key.
pub fn new(args: &KeyNew, global: &Global, output: &mut Output) -> Outcome<Done> {
    // A person should not type a passphrase twice to learn that the file exists.
    if args.out.symlink_metadata().is_ok() {
        return Err(KeyError::Exists {
            path: args.out.clone(),
        }
        .into());
    }
    let secret = if args.no_passphrase {
        None
    } else {
        let prompt = format!("New passphrase for {}", args.out.display());
        let secret = passphrase::get(&args.passphrase, global.no_input, &prompt, true);
        Some(secret.map_err(offer_none)?)
    };
    let public = keyfile::create(&args.out, secret.as_ref().map(|secret| secret.as_slice()))?;
    if !output.json() {
        output.line(&public.to_string())?;
        output.note(&format!(
            "{} holds the key; who has it{} can publish. Keep a copy where it cannot be lost.",
            args.out.display(),
            if secret.is_some() {
                " and the passphrase"
            } else {
                ""
            },
        ));
    }
    let file = args.out.display().to_string();
    let record = json!({"key": public.to_string(), "file": file, "passphrase": secret.is_some()});
    Ok(Done::ok(fields(record)))
}

fn offer_none(failure: Failure) -> Failure {
    let hint = format!(
        "{}, or make a key without one: --no-passphrase",
        failure.hint()
    );
    failure.with_hint(hint)
}

/// Shows a key's public name.
pub fn show(args: &KeyShow, output: &mut Output) -> Outcome<Done> {
    let public = keyfile::public(&args.file).map_err(missing)?;
    let locked = keyfile::has_passphrase(&args.file)?;
    if !output.json() {
        output.line(&public.to_string())?;
    }
    Ok(Done::ok(fields(
        json!({"key": public.to_string(), "passphrase": locked}),
    )))
}

/// The key file that was named, or is set.
pub fn path(named: Option<&PathBuf>, config: &Config) -> Outcome<PathBuf> {
    let path = named.cloned().or_else(|| config.path("key"));
    path.ok_or_else(|| {
        Failure::new(Kind::Usage, "no key was named").with_hint(
            "name the publisher's key with --key FILE; `bulla key new --out FILE` makes one",
        )
    })
}

/// Reads a signing key, with its passphrase if it has one.
pub fn load(path: &Path, flags: &Passphrase, no_input: bool) -> Outcome<SecretKey> {
    if !keyfile::has_passphrase(path).map_err(missing)? {
        return Ok(keyfile::load(path, || Err("the file changed"))?);
    }
    let prompt = format!("Passphrase of {}", path.display());
    let secret = passphrase::get(flags, no_input, &prompt, false)?;
    Ok(keyfile::load(path, || {
        Ok::<_, std::convert::Infallible>(secret)
    })?)
}

/// A command that names several files says which of them is not there.
fn missing(error: KeyError) -> Failure {
    match &error {
        KeyError::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            let error = format!("there is no key file {}", path.display());
            Failure::of(Kind::NoKey, error, source)
        }
        _ => error.into(),
    }
}
