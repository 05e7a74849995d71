//! `bulla key refer KEY --out FILE`: a file that refers to a key elsewhere, which a program or the ssh-agent signs with.
//! The key is tried before the file is written: what does not work now is easier to repair now.

use std::path::Path;
use std::time::Duration;

use keys::elsewhere::agent::{Agent, Identities};
use keys::elsewhere::{By, Elsewhere, ElsewhereError, Reach, Reference, Wait, public_file};
use keys::keyfile::{self, KeyError};
use serde_json::json;
use trust::key::PublicKey;
use trust::signer;

use super::key;
use crate::args::KeyRefer;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::random;
use crate::{text, units};

/// How long a key may take to sign: a person looks for the token, and touches it.
const WITHIN: Duration = Duration::from_secs(300);
/// What a trial signs, followed by random bytes. Nothing that bulla or others sign begins like this.
const TRIAL: &[u8] = b"bulla key trial 0\n";

/// Writes the file.
pub fn run(args: &KeyRefer, output: &mut Output) -> Outcome<Done> {
    // Checked first, so that nobody touches a token in vain.
    if args.out.symlink_metadata().is_ok() {
        return Err(KeyError::Exists {
            path: args.out.clone(),
        }
        .into());
    }
    let reach = key::reach();
    let within = args.within.unwrap_or(WITHIN).as_secs().max(1);
    let within = Duration::from_secs(within);
    let reference = Reference {
        public: public(args, within, &reach)?,
        within,
        by: by(args)?,
    };
    // What the file cannot hold fails here.
    let bad = |why| Failure::new(Kind::Usage, format!("no file can refer to this key: {why}"));
    reference.to_text().map_err(bad)?;
    if !args.untried {
        try_out(&reference, reach)?;
    }
    keyfile::refer(&args.out, &reference)?;
    if !output.json() {
        output.line(&reference.public.to_string())?;
        output.note(&format!(
            "{} refers to the key and holds no secret. Name it as --key FILE where a key signs.",
            args.out.display()
        ));
    }
    let mut told = fields(json!({
        "key": reference.public.to_string(),
        "by": reference.by.word(),
        "within_s": within.as_secs(),
        "tried": !args.untried,
    }));
    text::put_name(&mut told, "file", args.out.as_os_str().as_encoded_bytes());
    Ok(Done::ok(told))
}

fn by(args: &KeyRefer) -> Outcome<By> {
    let Some((program, rest)) = args.command.split_first() else {
        return Ok(By::Agent);
    };
    let mut command = vec![program.clone()];
    if program.contains('/') {
        // The file is used from other directories too.
        let whole = std::path::absolute(program).map_err(|e| Failure::io(program.clone(), &e))?;
        let whole = whole.into_os_string().into_string();
        let bad = |_| Failure::new(Kind::Usage, "the path of the program is not UTF-8");
        command = vec![whole.map_err(bad)?];
    }
    command.extend_from_slice(rest);
    Ok(By::Command(command))
}

/// The key that is meant.
fn public(args: &KeyRefer, within: Duration, reach: &Reach) -> Outcome<PublicKey> {
    match (&args.key, args.ssh_agent) {
        (Some(named), _) => named_key(named),
        (None, true) => only_key(within, reach),
        (None, false) => Err(Failure::new(Kind::Usage, "the public key is missing").with_hint(
            "a program does not say which key it signs with: name KEY1..., or the file of its public key (PEM, or one line of OpenSSH)",
        )),
    }
}

/// A key in text, or the file of one.
fn named_key(named: &str) -> Outcome<PublicKey> {
    if let Ok(key) = named.parse() {
        return Ok(key);
    }
    let path = Path::new(named);
    if keyfile::claims_to_be_one(path).unwrap_or(false) {
        return key::public(path);
    }
    public_file::read(path).map_err(|why| {
        let error = format!("{named} is neither a public key nor the file of one");
        Failure::of(Kind::Usage, error, &why)
            .with_hint("name KEY1..., an OpenSSH file such as id_ed25519.pub, or a PEM file (`openssl pkey -pubout`)")
    })
}

/// The key of an agent that has one.
fn only_key(within: Duration, reach: &Reach) -> Outcome<PublicKey> {
    let Identities { keys, others } = listed(within, reach).map_err(|why| {
        let error = "the ssh-agent does not list its keys";
        Failure::of(Kind::NoSignature, error, &why)
    })?;
    match keys.as_slice() {
        [only] => Ok(only.key),
        [] if others > 0 => Err(Failure::new(
            Kind::NoSignature,
            "the ssh-agent has only keys of other types than ssh-ed25519",
        )
        .with_hint(
            "`ssh-keygen -t ed25519 -f FILE` makes a key, and `ssh-add FILE` gives it to the agent",
        )),
        [] => Err(Failure::new(Kind::NoSignature, "the ssh-agent has no key")
            .with_hint("`ssh-add FILE` gives it one")),
        several => {
            let mut failure = Failure::new(Kind::Usage, "the ssh-agent has several keys: name one");
            for one in several {
                failure.push_cause(format!("{} {}", one.key, text::printable(&one.comment)));
            }
            Err(failure.with_hint("run the command again with KEY1..., or the file of the public key (id_ed25519.pub)"))
        }
    }
}

fn listed(within: Duration, reach: &Reach) -> Result<Identities, ElsewhereError> {
    let wait = Wait::begin(within, reach.stop.clone());
    Agent::of(reach.agent.as_deref(), &wait)?.identities()
}

/// Asks for a signature that nobody needs.
fn try_out(reference: &Reference, reach: Reach) -> Outcome<()> {
    let message = [TRIAL, random::<32>()?.as_slice()].concat();
    let elsewhere = Elsewhere::new(reference.clone(), reach);
    let tried = signer::signature(&elsewhere, &message);
    tried.map(drop).map_err(|none| {
        let within = units::span(reference.within);
        Failure::from(none).with_hint(format!(
            "no file was written. The program gets the message as its stdin and must print the 64 bytes of the Ed25519 signature \
             within {within} (--within); an agent must have the key (`ssh-add -L`). --untried writes the file all the same"
        ))
    })
}
