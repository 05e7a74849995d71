//! `bulla key new`, `bulla key show`, `bulla key list`: signing keys in key files.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde_json::{Map, json};
use state::keyfile::{self, KeyError};
use trust::key::{PublicKey, SecretKey};

use crate::args::{Global, KeyList, KeyNew, KeyShow, Passphrase};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::{passphrase, text};

/// The type of all keys.
const KIND: &str = "ed25519";

/// Creates a key.
pub fn new(args: &KeyNew, global: &Global, output: &mut Output) -> Outcome<Done> {
    create(args, global, output, "can publish")
}

/// Creates a key and tells it. `power` says what the file allows.
pub fn create(args: &KeyNew, global: &Global, output: &mut Output, power: &str) -> Outcome<Done> {
    // Checked first, so that the user does not type a passphrase in vain.
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
            "The key is in {}. Anybody who has this file{} {power}. Keep a backup in a safe place.",
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
    if failure.kind == Kind::Interrupted {
        return failure;
    }
    let hint = format!(
        "{}, or create the key without a passphrase: --no-passphrase",
        failure.hint()
    );
    failure.with_hint(hint)
}

/// Shows the public key of a key file.
pub fn show(args: &KeyShow, output: &mut Output) -> Outcome<Done> {
    let public = public(&args.file)?;
    let locked = keyfile::has_passphrase(&args.file)?;
    if !output.json() {
        output.line(&public.to_string())?;
    }
    Ok(Done::ok(fields(
        json!({"key": public.to_string(), "passphrase": locked}),
    )))
}

/// The key file from the flag or the setting.
pub fn path(named: Option<&PathBuf>, config: &Config) -> Outcome<PathBuf> {
    let path = named.cloned().or_else(|| config.path("key"));
    path.ok_or_else(|| {
        Failure::new(Kind::Usage, "no key is given").with_hint(
            "name the publisher's key file with --key FILE; `bulla key new --out FILE` creates one",
        )
    })
}

/// The key files from the flags, or the one of the setting.
pub fn paths(named: &[PathBuf], config: &Config) -> Outcome<Vec<PathBuf>> {
    match named {
        [] => Ok(vec![path(None, config)?]),
        named => Ok(named.to_vec()),
    }
}

/// Lists keys. Directories are not searched recursively, and their other files are ignored. A key file that
/// cannot be read is reported.
pub fn list(args: &KeyList, config: &Config, output: &mut Output) -> Outcome<Done> {
    let (mut keys, mut unreadable) = (0_u64, 0_u64);
    for path in wanted(args, config)? {
        match (keyfile::public(&path), keyfile::has_passphrase(&path)) {
            (Ok(public), Ok(locked)) => {
                keys += 1;
                told(&path, &public, locked, output)?;
            }
            (Err(error), _) | (_, Err(error)) => {
                unreadable += 1;
                refused(&path, missing(error), output)?;
            }
        }
    }
    let exit = match unreadable {
        0 => Exit::Ok,
        _ => Exit::Partial,
    };
    if keys == 0 && unreadable == 0 {
        output.note("There are no keys. `bulla key new --out FILE` creates one.");
    }
    let fields = fields(json!({"keys": keys, "unreadable": unreadable}));
    Ok(Done { exit, fields })
}

/// The files to list.
fn wanted(args: &KeyList, config: &Config) -> Outcome<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !args.paths.is_empty() {
        for path in &args.paths {
            match path.is_dir() {
                true => files.extend(keys_in(path)?),
                false => files.push(path.clone()),
            }
        }
        return Ok(files);
    }
    if let Some(dir) = config.path("key-dir").filter(|dir| dir.exists()) {
        files.extend(keys_in(&dir)?);
    }
    files.extend(config.path("key").filter(|key| !files.contains(key)));
    Ok(files)
}

/// The files of a directory that look like keys, and those that cannot be read.
fn keys_in(dir: &Path) -> Outcome<Vec<PathBuf>> {
    let cannot = |e: std::io::Error| Failure::io(format!("cannot list {}", dir.display()), &e);
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(cannot)? {
        let path = entry.map_err(cannot)?.path();
        if keyfile::claims_to_be_one(&path).unwrap_or(true) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn told(path: &Path, public: &PublicKey, locked: bool, output: &mut Output) -> Outcome<()> {
    let name = path.as_os_str().as_bytes();
    if output.json() {
        let mut one = fields(json!({
            "key": public.to_string(),
            "kind": KIND,
            "passphrase": locked,
        }));
        text::put_name(&mut one, "path", name);
        return output.record("key", one);
    }
    let word = if locked { "passphrase" } else { "open" };
    output.raw(format!("{public} {KIND} {word:<10} ").as_bytes())?;
    output.name(name)?;
    output.raw(b"\n")
}

fn refused(path: &Path, failure: Failure, output: &mut Output) -> Outcome<()> {
    let name = path.as_os_str().as_bytes();
    if !output.json() {
        output.warn(&format!("{}: {}", text::printable(name), failure.error));
        return Ok(());
    }
    let mut one = Map::new();
    text::put_name(&mut one, "path", name);
    one.insert("why".to_owned(), failure.error.into());
    output.record("unreadable", one)
}

/// The public key of a signing key, for which no passphrase is needed.
pub fn public(path: &Path) -> Outcome<PublicKey> {
    keyfile::public(path).map_err(missing)
}

/// Reads a signing key, with its passphrase if it has one.
pub fn load(path: &Path, flags: &Passphrase, no_input: bool) -> Outcome<SecretKey> {
    load_next(path, &mut passphrase::Several::of(flags, no_input))
}

/// Loads several keys. The flags give a passphrase for each of them that has one.
pub fn load_all(paths: &[PathBuf], flags: &Passphrase, no_input: bool) -> Outcome<Vec<SecretKey>> {
    let mut secrets = passphrase::Several::of(flags, no_input);
    let keys = paths.iter().map(|path| load_next(path, &mut secrets));
    keys.collect()
}

fn load_next(path: &Path, secrets: &mut passphrase::Several<'_>) -> Outcome<SecretKey> {
    if !keyfile::has_passphrase(path).map_err(missing)? {
        return Ok(keyfile::load(path, || Err("the file changed"))?);
    }
    let secret = secrets.next(&format!("Passphrase of {}", path.display()))?;
    Ok(keyfile::load(path, || {
        Ok::<_, std::convert::Infallible>(secret)
    })?)
}

/// Names the key file that does not exist: a command may have several file arguments.
fn missing(error: KeyError) -> Failure {
    match &error {
        KeyError::Io { path, source } if source.kind() == ErrorKind::NotFound => {
            let error = format!("there is no key file {}", path.display());
            Failure::of(Kind::NoKey, error, source)
        }
        _ => error.into(),
    }
}
