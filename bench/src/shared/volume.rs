//! A shared volume of a figure: its directory, its keys, and a home for each machine.
//!
//! Keys are derived from numbers, so that a process needs only a number to be a device. They protect nothing.

use std::path::{Path, PathBuf};

use anyhow::Result;
use share::home::{Home, NewHome};
use share_server::host::Host;
use trust::Hasher;
use trust::key::SecretKey;
use trust::policy::Genesis;
use trust::roles::{Roles, Threshold};
use trust::signatures::Signatures;
use trust::statement::Signed;
use trust::volume_id::VolumeId;
use trust_shared::genesis::{Founder, Policies, SharedRoles, Silence, genesis};
use trust_shared::principal::Principal;

/// The user of all devices.
const USER: [u8; 32] = [7; 32];
/// Local name of the volume in each home.
pub const NAME: &str = "bench";
const CONTEXT: &str = "bulla bench 2026-11 key of a shared volume";
/// Numbers of keys that belong to no device.
const OWNER: u32 = u32::MAX;
const ORDERER: u32 = u32::MAX - 1;
/// Length of the server's temporary log.
const RING_BYTES: u64 = 64 << 20;
/// How long a device waits for another one, as by default.
const PATIENCE_MS: u32 = 5000;

/// The founder's device.
pub const FOUNDER: u32 = 0;

/// The key of a device by its number.
pub fn key(number: u32) -> SecretKey {
    SecretKey::from_seed(&blake3::derive_key(CONTEXT, &number.to_le_bytes()))
}

/// The key of every volume's server.
pub fn orderer() -> SecretKey {
    key(ORDERER)
}

/// The user of all devices.
pub fn user() -> Principal {
    Principal::from_bytes(USER)
}

/// A strict volume below a directory.
pub struct Volume {
    /// Its id.
    pub id: VolumeId,
    dir: PathBuf,
    genesis: Signed,
}

impl Volume {
    /// Makes a volume and the directory of its server.
    pub fn create(dir: &Path) -> Result<Volume> {
        let owner = Roles::single(key(OWNER).public());
        let terms = Genesis::new(NAME, [1; 32], [2; 32], owner)?;
        let roles = SharedRoles {
            orderer: orderer().public(),
            checkpointers: Threshold::single(key(FOUNDER).public()),
            silence: Silence::Strict,
            patience_ms: PATIENCE_MS,
            founder: Some(Founder {
                user: USER,
                name: "ada".to_owned(),
                device: key(FOUNDER).public(),
            }),
        };
        let genesis = genesis(&terms, &roles).sign(&[&key(OWNER)]);
        let volume = Volume {
            id: VolumeId::from_bytes(genesis.hash()),
            dir: dir.to_owned(),
            genesis,
        };
        let server = volume.server_dir();
        Host::create(&server, &volume.genesis, &orderer().public(), RING_BYTES)?;
        Ok(volume)
    }

    /// The directory of its server.
    pub fn server_dir(&self) -> PathBuf {
        self.dir.join("server")
    }

    /// Its hash function.
    pub fn hasher(&self) -> Result<Hasher> {
        let policies = Policies::begin(self.id, &self.genesis, &mut Signatures::new(4))?;
        Ok(policies.chain().hasher())
    }

    /// The state directory of a machine.
    pub fn machine(&self, number: u32) -> PathBuf {
        self.dir.join(format!("machine-{number}"))
    }

    /// A new home on a machine, for the device of the same number, with a server at a port of 127.0.0.1.
    pub fn home(&self, number: u32, port: u16) -> Result<Home> {
        let new = NewHome {
            volume: self.id,
            name: NAME,
            server: &format!("bulla://127.0.0.1:{port}"),
            key: &key(number),
            policies: std::slice::from_ref(&self.genesis),
            begins: None,
        };
        let state = self.machine(number);
        std::fs::create_dir_all(&state)?;
        Ok(Home::create(&state, &new)?)
    }
}

/// The home of a machine.
pub fn home_at(state: &Path) -> Result<Home> {
    use anyhow::Context;
    Home::find(state, NAME)?.with_context(|| format!("{} has no home", state.display()))
}
