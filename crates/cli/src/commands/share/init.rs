//! `bulla share init NAME`: begins a shared volume. The owner's key signs the genesis policy, which names the server's
//! key, the first user, and this machine as the first device. The server accepts the file (`serve --accept`).

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use ::share::home::{Home, NewHome};
use serde_json::json;
use state::private;
use trust::key::PublicKey;
use trust::policy::Genesis;
use trust::roles::{Roles, Threshold};
use trust::signer::Signer;
use trust::statement::{Signed, VolumeId};
use trust_shared::genesis::{self, Founder, MAX_PATIENCE_MS, SharedRoles, Silence};
use wire::shared::ServerAddress;

use crate::args::{Checkpointer, Global, ShareInit};
use crate::commands::key;
use crate::config::Config;
use crate::failure::{Failure, Kind, Outcome};
use crate::output::{Done, Output, fields};
use crate::sharing::{self, random};

/// How long readers wait for a silent device, if the founder does not say.
const PATIENCE: Duration = Duration::from_secs(5);

/// Makes the volume, and this machine its first device.
pub fn run(
    args: &ShareInit,
    global: &Global,
    config: &Config,
    output: &mut Output,
) -> Outcome<Done> {
    let state = config.path("state-dir").unwrap_or_default();
    sharing::name_is_free(&state, &args.name)?;
    // Made first, so that the owner does not type a passphrase in vain.
    let mut file = create(&args.out)?;
    let made = (|| {
        let owners = key::signers(&args.owner_key, &args.passphrase, global, key::reach())?;
        let device = sharing::new_device()?;
        let owners = key::borrowed(&owners);
        let (volume, signed) = Terms::of(args).sign(&owners, device.public())?;
        write(&mut file, &args.out, &signed)?;
        let home = NewHome {
            volume,
            name: &args.name,
            server: &args.server.to_string(),
            key: &device,
            policies: &[signed],
            begins: None,
        };
        Ok(Home::create(&state, &home)?)
    })();
    let home = made.inspect_err(|_: &Failure| drop(std::fs::remove_file(&args.out)))?;
    tell(args, &home, output)
}

fn tell(args: &ShareInit, home: &Home, output: &mut Output) -> Outcome<Done> {
    let (volume, out) = (home.volume().to_string(), args.out.display());
    if !output.json() {
        output.line(&format!("volume    {volume}"))?;
        output.line(&format!("name      {}", home.name()))?;
        output.line(&format!("server    {}", home.server()))?;
        output.line(&format!("device    {}", home.device()))?;
        output.note(&format!(
            "Next: take {out} to the server (it holds no secret), and run there: bulla serve REPO --accept {out} \
             --orderer-key FILE --shared {}. Then `bulla put FILE {}` works here, and `bulla share invite {}` lets \
             another device in. Keep the owner's key: it changes the rules of the volume, and settles forks.",
            listening(&args.server),
            home.name(),
            home.name(),
        ));
    }
    Ok(Done::ok(fields(json!({
        "volume": volume,
        "name": home.name(),
        "server": home.server(),
        "device": home.device().to_string(),
        "user": args.user.as_str(),
        "genesis": out.to_string(),
    }))))
}

/// The address on which the server listens for a location: on all of its networks, unless it is this machine's own.
fn listening(server: &ServerAddress) -> String {
    let is_here = matches!(server.host.as_str(), "localhost" | "127.0.0.1" | "::1");
    let host = if is_here { "127.0.0.1" } else { "0.0.0.0" };
    format!("{host}:{}", server.port)
}

/// Creates the file for the server; it must not exist.
fn create(path: &Path) -> Outcome<File> {
    let made = OpenOptions::new().write(true).create_new(true).open(path);
    made.map_err(|e| Failure::io(format!("cannot create {}", path.display()), &e))
}

fn write(file: &mut File, path: &Path, signed: &Signed) -> Outcome<()> {
    let written = file.write_all(&signed.to_bytes());
    written
        .and_then(|()| file.sync_all())
        .map_err(|e| Failure::io(format!("cannot write {}", path.display()), &e))?;
    Ok(private::sync_parent(path)?)
}

/// What a genesis policy says beside its random numbers.
struct Terms<'a> {
    name: &'a str,
    user: &'a str,
    orderer: PublicKey,
    silence: Silence,
    patience: Duration,
    checkpointers: &'a [Checkpointer],
    checkpoints_need: Option<u8>,
    owners_need: Option<u8>,
}

impl Terms<'_> {
    fn of(args: &ShareInit) -> Terms<'_> {
        Terms {
            name: &args.name,
            user: args.user.as_str(),
            orderer: args.orderer,
            silence: match args.relaxed {
                true => Silence::Relaxed,
                false => Silence::Strict,
            },
            patience: args.patience.unwrap_or(PATIENCE),
            checkpointers: &args.checkpointer,
            checkpoints_need: args.checkpoints_need,
            owners_need: args.owners_need,
        }
    }

    /// The keys that sign the rules.
    fn owners(&self, owners: &[&dyn Signer]) -> Outcome<Roles> {
        let keys: Vec<PublicKey> = owners.iter().map(|key| key.public()).collect();
        let Some(first) = keys.first() else {
            return Err(Failure::new(Kind::Usage, "a volume has an owner"));
        };
        let all = u8::try_from(keys.len()).unwrap_or(u8::MAX);
        let roles = Roles::single(*first);
        let owners = Threshold::new(self.owners_need.unwrap_or(all), keys)
            .map_err(|why| Failure::of(Kind::Usage, "these cannot be the owners", &why))?;
        Ok(Roles { owners, ..roles })
    }

    /// The keys that sign checkpoints.
    fn checkpointers(&self, device: PublicKey) -> Outcome<Threshold> {
        if self.checkpointers.is_empty() {
            return Ok(Threshold::none());
        }
        let key = |checkpointer: &Checkpointer| match checkpointer {
            Checkpointer::This => device,
            Checkpointer::Key(key) => *key,
        };
        let keys: Vec<PublicKey> = self.checkpointers.iter().map(key).collect();
        let most = if keys.len() > 1 { 2 } else { 1 };
        Threshold::new(self.checkpoints_need.unwrap_or(most), keys)
            .map_err(|why| Failure::of(Kind::Usage, "these cannot be the checkpointers", &why))
    }

    /// The policy, signed by the owners, and the id of its volume.
    fn sign(&self, owners: &[&dyn Signer], device: PublicKey) -> Outcome<(VolumeId, Signed)> {
        let patience_ms = u32::try_from(self.patience.as_millis()).unwrap_or(u32::MAX);
        if !(1..=MAX_PATIENCE_MS).contains(&patience_ms) {
            let error = "--patience is at least a millisecond and at most an hour";
            return Err(Failure::new(Kind::Usage, error));
        }
        let policy = Genesis::new(self.name, random()?, random()?, self.owners(owners)?)
            .map_err(|why| Failure::of(Kind::Usage, "no volume can have these terms", &why))?;
        let shared = SharedRoles {
            orderer: self.orderer,
            checkpointers: self.checkpointers(device)?,
            silence: self.silence,
            patience_ms,
            founder: Some(Founder {
                user: random()?,
                name: self.user.to_owned(),
                device,
            }),
        };
        let statement = genesis::genesis(&policy, &shared);
        let volume = VolumeId::from_bytes(statement.hash());
        Ok((volume, statement.sign_by(owners)?))
    }
}

#[cfg(test)]
mod tests {
    use trust::key::SecretKey;
    use trust::signatures::Signatures;
    use trust_shared::genesis::Policies;

    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_seed(&[seed; 32])
    }

    fn terms() -> Terms<'static> {
        Terms {
            name: "notes",
            user: "ada",
            orderer: key(2).public(),
            silence: Silence::Relaxed,
            patience: Duration::from_secs(7),
            checkpointers: &[],
            checkpoints_need: None,
            owners_need: None,
        }
    }

    #[test]
    fn all_owners_must_sign_unless_the_founder_says_how_many() {
        let role = |owners: &[SecretKey], owners_need| {
            let terms = Terms {
                owners_need,
                ..terms()
            };
            let owners: Vec<&dyn Signer> = owners.iter().map(|key| key as _).collect();
            let (volume, signed) = terms.sign(&owners, key(3).public()).ok()?;
            let policies = Policies::begin(volume, &signed, &mut Signatures::default()).unwrap();
            let owners = &policies.chain().newest().roles().owners;
            Some((owners.needed(), owners.keys().len()))
        };
        assert_eq!(role(&[key(1)], None), Some((1, 1)));
        assert_eq!(role(&[key(9), key(1)], None), Some((2, 2)));
        assert_eq!(role(&[key(9), key(1)], Some(1)), Some((1, 2)));
        assert_eq!(role(&[key(9), key(1)], Some(3)), None);
        assert_eq!(role(&[key(1), key(1)], None), None, "one key twice");
        assert_eq!(role(&[], None), None);
    }

    #[test]
    fn genesis_policy_names_the_checkpointers() {
        let other = Checkpointer::Key(key(4).public());
        let role = |checkpointers: &[Checkpointer], checkpoints_need| {
            let terms = Terms {
                checkpointers,
                checkpoints_need,
                ..terms()
            };
            let (volume, signed) = terms.sign(&[&key(1)], key(3).public()).ok()?;
            let policies = Policies::begin(volume, &signed, &mut Signatures::default()).unwrap();
            let role = &policies.roles().checkpointers;
            Some((role.needed(), role.keys().len()))
        };
        assert_eq!(role(&[], None), Some((0, 0)));
        assert_eq!(role(&[Checkpointer::This], None), Some((1, 1)));
        assert_eq!(role(&[Checkpointer::This, other], None), Some((2, 2)));
        assert_eq!(role(&[Checkpointer::This, other], Some(1)), Some((1, 2)));
        assert_eq!(role(&[Checkpointer::This, other], Some(3)), None);
        assert_eq!(role(&[other, other], None), None, "one key twice");
    }

    #[test]
    fn genesis_policy_says_what_the_founder_chose() {
        let (volume, signed) = terms().sign(&[&key(1)], key(3).public()).unwrap();
        let policies = Policies::begin(volume, &signed, &mut Signatures::default()).unwrap();
        let roles = policies.roles();
        assert_eq!(roles.orderer, key(2).public());
        assert_eq!((roles.silence, roles.patience_ms), (Silence::Relaxed, 7000));
        assert_eq!(policies.founder().name, "ada");
        assert_eq!(policies.founder().device, key(3).public());
        let owners = policies.chain().newest().roles().owners.keys().to_vec();
        assert_eq!(owners, [key(1).public()]);
        let (other, _) = terms().sign(&[&key(1)], key(3).public()).unwrap();
        assert_ne!(volume, other, "the same terms make another volume");
    }

    #[test]
    fn server_listens_where_others_reach_it() {
        let listening = |text: &str| listening(&text.parse().unwrap());
        assert_eq!(listening("bulla://files.example.org"), "0.0.0.0:28553");
        assert_eq!(listening("bulla://localhost:7"), "127.0.0.1:7");
    }

    #[test]
    fn impossible_patience_is_refused() {
        for patience in [Duration::from_micros(1), Duration::from_secs(3601)] {
            let terms = Terms {
                patience,
                ..terms()
            };
            let refused = terms.sign(&[&key(1)], key(3).public()).unwrap_err();
            assert_eq!(refused.kind, Kind::Usage);
        }
    }
}
