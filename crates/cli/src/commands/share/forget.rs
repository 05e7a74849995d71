//! `bulla share forget VOLUME`: removes this device's key and memory of a shared volume from this machine.

use std::time::Instant;

use ::share::home::{Home, Idle};
use serde_json::json;

use crate::args::{Global, ShareForget};
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::{questions, sharing, units};

/// Forgets.
pub fn run(
    args: &ShareForget,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let state = config.path("state-dir").unwrap_or_default();
    Home::clean(&state)?;
    let home = sharing::home(config, &args.volume)?;
    let deadline = match args.waiting.deadline {
        Some(deadline) => deadline,
        None => config.duration("deadline")?,
    };
    let idle = home.idle(Instant::now() + deadline)?;
    refuse_loss(&idle, args)?;
    let home = idle.home();
    let (name, volume) = (home.name().to_owned(), home.volume().to_string());
    let device = home.device().to_string();
    let question = format!(
        "This removes the key and the memory of device {device}\nof the shared volume `{name}` ({volume}) from this \
         machine. The files of the volume stay on its server.\nThe device cannot come back; this machine can join again \
         with a new invitation. Type yes to go on: "
    );
    questions::confirm(global, &question, "nothing was removed")?;
    let unsent = idle.unsent();
    idle.remove()?;
    if !output.json() {
        output.line(&format!("volume    {volume}"))?;
        output.line(&format!("device    {device}"))?;
        output.note(&format!(
            "The volume still counts the device as a member: remove it with another device, `bulla share device remove \
             VOLUME {device}`."
        ));
    }
    Ok(Done::ok(fields(json!({
        "volume": volume,
        "name": name,
        "device": device,
        "unsent": unsent,
    }))))
}

/// What would be lost for others stays, unless the user gives it up.
fn refuse_loss(idle: &Idle, args: &ShareForget) -> Outcome<()> {
    if args.discard {
        return Ok(());
    }
    let name = idle.home().name();
    if idle.unsent() > 0 {
        let entries = units::count(idle.unsent() as u64, "entry", "entries");
        let error =
            format!("this device has sent {entries} without knowing whether the server has them");
        let hint = format!(
            "`bulla share status {name}` sends what is unsent when the server answers; --discard gives it up"
        );
        return Err(Failure::new(Kind::Unsent, error).with_hint(hint));
    }
    if idle.owes() {
        let error = "this device has gone over to another log after a fork, and what it alone has is not back yet";
        let hint = format!(
            "`bulla ls {name}` gives it back when the server answers, and names what lacks its content; --discard gives it up"
        );
        return Err(Failure::new(Kind::Unsent, error).with_hint(hint));
    }
    if let Some(path) = idle.evidence()?.first() {
        let error = format!(
            "there is evidence in this device's memory: {}",
            path.display()
        );
        let hint = "copy it to a safe place, it cannot be made again; then forget with --discard";
        return Err(Failure::new(Kind::Unsent, error).with_hint(hint));
    }
    Ok(())
}
