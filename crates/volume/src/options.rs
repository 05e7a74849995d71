//! How a volume is opened and read.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use reader::Reads;
use state::Clock;
use store::cache::DiskCache;
use trust::judge::Freshness;

/// How a volume is opened and read.
#[derive(Debug, Clone)]
pub struct VolumeOptions {
    /// The directory that holds the floors.
    pub state_directory: PathBuf,
    /// Memory for verified blocks, bytes.
    pub cache_bytes: u64,
    /// How long any one operation may take, fail-over included.
    pub deadline: Duration,
    /// How fresh a statement must be.
    pub freshness: Freshness,
    /// The hash of a policy. A head is accepted only if this is its genesis policy or one of its newest seven.
    pub policy_pin: Option<[u8; 32]>,
    /// The path that is read first, `/` between its names. Far replicas may send its blocks together
    /// with the head. Only a hint.
    pub toward: Option<Vec<u8>>,
    /// What is read at `toward` and below it, if that is known. Some replicas need an index to find blocks. With this hint
    /// they fetch it while the volume is opened. Without it they fetch parts of it later.
    pub reads: Option<Reads>,
    /// Cache on this machine's disk of blocks that were fetched before.
    pub disk_cache: Option<Arc<DiskCache>>,
    /// The clock by which expiry is judged.
    pub clock: Clock,
}

impl Default for VolumeOptions {
    fn default() -> Self {
        VolumeOptions {
            state_directory: state::default_directory(),
            cache_bytes: 128 << 20,
            deadline: Duration::from_secs(30),
            freshness: Freshness::Strict,
            policy_pin: None,
            toward: None,
            reads: None,
            disk_cache: None,
            clock: Clock::system(),
        }
    }
}
