//! `bulla key new`, `bulla key show`, `bulla key list`: signing keys in key files. Files that refer to
//! keys elsewhere are made in `refer`.

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use keys::elsewhere::{By, Elsewhere, Reach, Reference};
use keys::keyfile::{self, Content, KeyError};
use serde_json::{Map, Value, json};
use trust::key::{PublicKey, SecretKey};
use trust::signer::Signer;

use crate::args::{Global, KeyList, KeyNew, KeyShow, Passphrase};
use crate::config::Config;
use crate::exit::Exit;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::{passphrase, text, units};

/// The type of all keys.
const KIND: &str = "ed25519";

/// What a signing key allows. The same kind of key publishes, owns volumes and signs rules, whoever it is for.
const POWER: &str = "can sign in your name: versions of volumes that it publishes, and the rules of volumes that it owns";

/// Creates a key.
pub fn new(args: &KeyNew, global: &Global, output: &mut Output) -> Outcome<Done> {
    create(args, global, output, POWER)
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
    let content = keyfile::content(&args.file).map_err(missing)?;
    if !output.json() {
        output.line(&content.public().to_string())?;
        if let Content::Reference(reference) = &content {
            output.note(&format!("The key signs elsewhere: {}.", by(reference)));
        }
    }
    Ok(Done::ok(content_fields(&content)))
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
        match keyfile::content(&path) {
            Ok(content) => {
                keys += 1;
                told(&path, &content, output)?;
            }
            Err(error) => {
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

fn told(path: &Path, content: &Content, output: &mut Output) -> Outcome<()> {
    let name = path.as_os_str().as_bytes();
    if output.json() {
        let mut one = content_fields(content);
        one.insert("kind".to_owned(), KIND.into());
        text::put_name(&mut one, "path", name);
        return output.record("key", one);
    }
    let word = match content {
        Content::Key { passphrase, .. } if *passphrase => "passphrase",
        Content::Key { .. } => "open",
        Content::Reference(reference) => reference.by.word(),
    };
    let public = content.public();
    output.raw(format!("{public} {KIND} {word:<10} ").as_bytes())?;
    output.name(name)?;
    output.raw(b"\n")
}

/// What a key file says, for JSON.
fn content_fields(content: &Content) -> Map<String, Value> {
    let key = content.public().to_string();
    match content {
        Content::Key { passphrase, .. } => {
            fields(json!({"key": key, "passphrase": passphrase, "by": "file"}))
        }
        Content::Reference(reference) => fields(json!({
            "key": key,
            "passphrase": false,
            "by": reference.by.word(),
            "within_s": reference.within.as_secs(),
            "command": match &reference.by {
                By::Command(arguments) => Some(arguments),
                By::Agent => None,
            },
        })),
    }
}

/// The agent or the program that signs with the key, for people.
fn by(reference: &Reference) -> String {
    let within = units::span(reference.within);
    match &reference.by {
        By::Agent => format!("the ssh-agent, within {within}"),
        By::Command(arguments) => {
            let shown: Vec<String> = arguments.iter().map(|text| format!("{text:?}")).collect();
            format!("the program {}, within {within}", shown.join(" "))
        }
    }
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
    Ok(keyfile::content(path).map_err(missing)?.public())
}

/// A key that signs, wherever it lies.
pub type AnyKey = Box<dyn Signer>;

/// What this process reaches keys with that lie elsewhere.
pub fn reach() -> Reach {
    let socket = std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty());
    Reach {
        agent: socket.map(PathBuf::from),
        ..Reach::default()
    }
}

/// Reads a key that signs, with its passphrase if it has one.
pub fn signer(path: &Path, flags: &Passphrase, global: &Global) -> Outcome<AnyKey> {
    signer_within(path, flags, global, &reach())
}

/// The same with another reach.
pub fn signer_within(
    path: &Path,
    flags: &Passphrase,
    global: &Global,
    reach: &Reach,
) -> Outcome<AnyKey> {
    let mut secrets = passphrase::Several::of(flags, global.no_input);
    signer_next(path, &mut secrets, reach)
}

/// Reads several keys that sign. The flags give a passphrase for each of them that has one.
pub fn signers(
    paths: &[PathBuf],
    flags: &Passphrase,
    global: &Global,
    reach: Reach,
) -> Outcome<Vec<AnyKey>> {
    let mut secrets = passphrase::Several::of(flags, global.no_input);
    let keys = paths
        .iter()
        .map(|path| signer_next(path, &mut secrets, &reach));
    keys.collect()
}

fn signer_next(
    path: &Path,
    secrets: &mut passphrase::Several<'_>,
    reach: &Reach,
) -> Outcome<AnyKey> {
    match keyfile::content(path).map_err(missing)? {
        Content::Key { .. } => Ok(Box::new(load_next(path, secrets)?)),
        Content::Reference(reference) => Ok(Box::new(Elsewhere::new(reference, reach.clone()))),
    }
}

/// The same keys, borrowed.
pub fn borrowed(keys: &[AnyKey]) -> Vec<&dyn Signer> {
    keys.iter().map(|key| &**key).collect()
}

/// Reads a key of which this process needs the secret, with its passphrase if it has one.
pub fn load(path: &Path, flags: &Passphrase, no_input: bool) -> Outcome<SecretKey> {
    load_next(path, &mut passphrase::Several::of(flags, no_input))
}

fn load_next(path: &Path, secrets: &mut passphrase::Several<'_>) -> Outcome<SecretKey> {
    let content = keyfile::content(path).map_err(missing)?;
    if !matches!(
        content,
        Content::Key {
            passphrase: true,
            ..
        }
    ) {
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
