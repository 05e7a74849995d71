//! What opens a log: passphrases, key files, commands, recovery keys. Nothing secret comes from the command line.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use keys::slots::{
    Credential, KeySlots, MAX_KEY_BYTES, RecoveryKey, SlotError, SlotKind, VolumeKey, new_key_bytes,
};
use rustix::fs::OFlags;

use crate::args::{Passphrase, Unlock};
use crate::failure::{Failure, Kind, Outcome};
use crate::output::Output;
use crate::passphrase::{self, Secret};

/// A credential that was read. Wiped when it is dropped.
pub enum Given {
    Passphrase(Secret),
    KeyFile(Secret),
    Command(Secret),
    Recovery(RecoveryKey),
}

impl Given {
    pub fn credential(&self) -> Credential<'_> {
        match self {
            Given::Passphrase(words) => Credential::Passphrase(words),
            Given::KeyFile(bytes) => Credential::KeyFile(bytes),
            Given::Command(bytes) => Credential::Command(bytes),
            Given::Recovery(key) => Credential::Recovery(key),
        }
    }
}

/// Opens the volume key with what the flags name.
pub fn open(
    log: &Path,
    slots: &KeySlots,
    flags: &Unlock,
    no_input: bool,
) -> Outcome<(u8, VolumeKey)> {
    let kind = kind(flags);
    // Asked first, so that nobody types a passphrase in vain.
    if !slots.list().any(|(_, other)| other == kind) {
        let number = None;
        return Err(with_kinds(SlotError::NoSuchKind { kind, number }, slots));
    }
    let given = given(log, flags, no_input)?;
    let opened = slots.open(&given.credential(), flags.slot);
    opened.map_err(|error| with_kinds(error, slots))
}

/// Adds to a failure which kinds of keys the log has.
fn with_kinds(error: SlotError, slots: &KeySlots) -> Failure {
    let mut failure = Failure::from(error);
    if failure.kind == Kind::VolumeKey {
        let list: Vec<String> = slots
            .list()
            .map(|(number, kind)| format!("{number} {kind}"))
            .collect();
        failure.push_cause(format!("the log has these slots: {}", list.join(", ")));
    }
    failure
}

fn kind(flags: &Unlock) -> SlotKind {
    match flags {
        _ if flags.recovery => SlotKind::Recovery,
        _ if flags.key_file.is_some() => SlotKind::KeyFile,
        _ if flags.key_command.is_some() => SlotKind::Command,
        _ => SlotKind::Passphrase,
    }
}

fn given(log: &Path, flags: &Unlock, no_input: bool) -> Outcome<Given> {
    let shown = log.display();
    if flags.recovery {
        let prompt = format!("Recovery key of {shown}");
        let text = passphrase::get(&flags.passphrase, no_input, &prompt, false)?;
        return recovery(&text).map(Given::Recovery);
    }
    if let Some(path) = &flags.key_file {
        return key_file(path).map(Given::KeyFile);
    }
    if let Some(command) = &flags.key_command {
        return passphrase::key_from_command(command, MAX_KEY_BYTES).map(Given::Command);
    }
    let prompt = format!("Passphrase of {shown}");
    passphrase::get(&flags.passphrase, no_input, &prompt, false).map(Given::Passphrase)
}

fn recovery(text: &Secret) -> Outcome<RecoveryKey> {
    let odd = || Failure::new(Kind::RecoveryText, "the recovery key is not text");
    let text = std::str::from_utf8(text).map_err(|_| odd())?;
    Ok(text.parse::<RecoveryKey>()?)
}

/// A new credential.
pub struct NewKey<'a> {
    /// A key file, created if it does not exist.
    pub file: Option<&'a Path>,
    /// A command.
    pub command: Option<&'a str>,
    /// Where a passphrase comes from.
    pub passphrase: &'a Passphrase,
    /// For whom a passphrase is asked.
    pub prompt: String,
}

impl NewKey<'_> {
    /// Reads or makes it.
    pub fn get(&self, no_input: bool, output: &Output) -> Outcome<Given> {
        let given = if let Some(path) = self.file {
            if path.symlink_metadata().is_ok() {
                Given::KeyFile(key_file(path)?)
            } else {
                let bytes = create_key_file(path)?;
                output.note(&format!(
                    "{} is new. Keep a copy of it in a safe place: who has it can open the log",
                    path.display()
                ));
                Given::KeyFile(bytes)
            }
        } else if let Some(command) = self.command {
            Given::Command(passphrase::key_from_command(command, MAX_KEY_BYTES)?)
        } else {
            Given::Passphrase(passphrase::get(
                self.passphrase,
                no_input,
                &self.prompt,
                true,
            )?)
        };
        Ok(given)
    }
}

/// The bytes of a key file.
fn key_file(path: &Path) -> Outcome<Secret> {
    let failed = |e: std::io::Error| match e.kind() {
        std::io::ErrorKind::NotFound => {
            let what = format!("there is no key file {}", path.display());
            Failure::of(Kind::NoFile, what, &e)
        }
        _ => Failure::io(format!("cannot read {}", path.display()), &e),
    };
    // A named pipe without a writer must not block.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(path)
        .map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_file() && metadata.mode() & 0o077 != 0 {
        let mode = metadata.mode() & 0o7777;
        let shown = path.display();
        let what = format!("{shown} may be read or written by others (mode {mode:04o})");
        let hint = format!("chmod 600 {shown}; if others may have read it, use another key");
        return Err(Failure::new(Kind::KeyFile, what).with_hint(hint));
    }
    passphrase::whole(file, MAX_KEY_BYTES).map_err(failed)
}

fn create_key_file(path: &Path) -> Outcome<Secret> {
    let failed = |e: std::io::Error| Failure::io(format!("cannot create {}", path.display()), &e);
    let bytes = new_key_bytes()?;
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path).map_err(failed)?;
    let written = file.write_all(&*bytes).and_then(|()| file.sync_all());
    let written = written.and_then(|()| {
        let parent = path.parent().filter(|p| !p.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    });
    written.map_err(failed)?;
    Ok(Secret::new(bytes.to_vec()))
}
