//! `bulla protect key`: the ways to open a log.

use std::path::Path;

use keys::slots::{KeySlots, RecoveryKey, SlotError};
use serde_json::json;
use wal::Device;

use super::devices;
use super::unlock::{self, Given, NewKey};
use crate::args::{Global, Passphrase, ProtectKeyAdd, ProtectKeyList, ProtectKeyRemove};
use crate::failure::Outcome;
use crate::output::{Done, Output, fields};

/// Lists the slots.
pub fn list(args: &ProtectKeyList, output: &mut Output) -> Outcome<Done> {
    let (volume, slots) = devices::slots(&args.log)?;
    let mut count = 0;
    for (number, kind) in slots.list() {
        count += 1;
        if output.json() {
            let one = json!({"slot": number, "kind": kind.to_string()});
            output.record("slot", fields(one))?;
        } else {
            output.line(&format!("{number:<3} {kind}"))?;
        }
    }
    Ok(Done::ok(fields(
        json!({"volume": volume.to_string(), "slots": count}),
    )))
}

/// Adds a slot.
pub fn add(args: &ProtectKeyAdd, global: &Global, output: &mut Output) -> Outcome<Done> {
    let device = devices::exclusive(&args.log, "log")?;
    let (volume, mut slots) = devices::slots_on(&device, &args.log)?;
    let (opened, key) = unlock::open(&args.log, &slots, &args.unlock, global.no_input)?;
    let given = match args.new_recovery {
        true => Given::Recovery(RecoveryKey::random()?),
        false => new_key(args, global.no_input, output)?,
    };
    let number = slots.add(&key, &given.credential())?;
    let kind = given.credential().kind().to_string();
    store(&device, &slots, &args.log)?;
    let mut record = fields(json!({
        "volume": volume.to_string(), "slot": number, "kind": kind, "opened": opened}));
    if let Given::Recovery(recovery) = &given {
        let text = recovery.text();
        show_recovery(&text, output)?;
        record.insert("recovery_key".to_owned(), text.as_str().into());
    }
    output.note(&format!("slot {number} opens the log ({kind})"));
    Ok(Done::ok(record))
}

fn new_key(args: &ProtectKeyAdd, no_input: bool, output: &Output) -> Outcome<Given> {
    let passphrase = Passphrase {
        passphrase_file: args.new_passphrase_file.clone(),
        passphrase_fd: args.new_passphrase_fd,
        passphrase_command: args.new_passphrase_command.clone(),
    };
    let new = NewKey {
        file: args.new_key_file.as_deref(),
        command: args.new_key_command.as_deref(),
        passphrase: &passphrase,
        prompt: format!("New passphrase for {}", args.log.display()),
    };
    new.get(no_input, output)
}

/// Prints a recovery key, which is never shown again.
pub fn show_recovery(text: &str, output: &mut Output) -> Outcome<()> {
    if output.json() {
        output.record("recovery", fields(json!({"recovery_key": text})))?;
    } else {
        output.line(&format!("recovery key {text}"))?;
        output.note(
            "Write the recovery key down and keep it in a safe place. It opens the log when every other key is lost, \
             and it is not shown again.",
        );
    }
    Ok(())
}

/// Removes a slot. Another one must open, so that nobody locks himself out.
pub fn remove(args: &ProtectKeyRemove, global: &Global, output: &mut Output) -> Outcome<Done> {
    let device = devices::exclusive(&args.log, "log")?;
    let (volume, mut slots) = devices::slots_on(&device, &args.log)?;
    let mut others = slots.clone();
    others.remove(args.remove)?;
    if args.unlock.slot == Some(args.remove) {
        let number = args.remove;
        return Err(SlotError::NoSlot { number }.into());
    }
    let (opened, _) = unlock::open(&args.log, &others, &args.unlock, global.no_input)?;
    slots.remove(args.remove)?;
    store(&device, &slots, &args.log)?;
    output.note(&format!(
        "slot {} is removed. Old copies of the log still have it: who has one of them and the old key can open \
         the volume",
        args.remove
    ));
    Ok(Done::ok(fields(json!({
        "volume": volume.to_string(), "slot": args.remove, "opened": opened}))))
}

fn store(device: &dyn Device, slots: &KeySlots, path: &Path) -> Outcome<()> {
    let stored = wal::set_key_slots(device, &slots.encode());
    stored.map_err(|error| devices::of_log(error, path))
}
