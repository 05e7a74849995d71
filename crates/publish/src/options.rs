//! How a tree is to be published: what the caller of [`crate::publish`] decides.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use state::Clock;
use trust::version_name::VersionName;

use crate::cosigning::Cosigning;
use crate::exclude::Exclude;
use crate::new_volume::NewVolume;

/// How a tree is to be published.
#[derive(Debug)]
pub struct PublishOptions {
    /// How long readers may believe the new version.
    pub valid: Duration,
    /// Names to leave out.
    pub exclude: Exclude,
    /// Whether directories on other file systems are published empty.
    pub one_file_system: bool,
    /// Whether files that cannot be read are left out; otherwise they are an error.
    pub skip_unreadable: bool,
    /// Whether owner, group, ACLs and capabilities are published.
    pub with_owner: bool,
    /// Whether key files and other files of bulla's own are published; otherwise they are an error.
    pub publish_keys: bool,
    /// Directory of the stat cache; without it, every file is read.
    pub cache_dir: Option<PathBuf>,
    /// Read every file, whatever the stat cache says.
    pub paranoid: bool,
    /// Compute everything, write nothing.
    pub dry_run: bool,
    /// Directory that remembers which version was signed last; with `None`, the repository is trusted.
    pub state_dir: Option<PathBuf>,
    /// Sign a request although versions lie between it and the last one that this machine signed, and
    /// nothing proves that they continue that one.
    pub accept_skipped_versions: bool,
    /// Sign or install although the last version begins after the time of this machine's clock: it was signed with a clock
    /// that was ahead.
    pub accept_clock: bool,
    /// Name of the volume, if this publication makes a new one.
    pub name: String,
    /// Name of the version.
    pub version_name: Option<VersionName>,
    /// Who may sign what, if this publication makes a new volume. With `None`, the signing key has all roles.
    pub new_volume: Option<NewVolume>,
    /// How the version gets the cosignatures of witnesses, if its policy demands them.
    pub cosigning: Cosigning,
    /// Copies of a timestamp that keys on other machines have signed, for a version or a policy that is installed, or a
    /// renewal.
    pub timestamps: Vec<PathBuf>,
    /// Threads that read and pack; as many as processors when `None`.
    pub readers: Option<usize>,
    /// The clock that gives statements their start, and by which a file counts as changed shortly before.
    pub clock: Clock,
    /// The caller sets this to stop the work.
    pub cancel: AtomicBool,
}

impl Default for PublishOptions {
    fn default() -> Self {
        PublishOptions {
            valid: Duration::from_secs(7 * 24 * 3600),
            exclude: Exclude::default(),
            one_file_system: false,
            skip_unreadable: false,
            with_owner: false,
            publish_keys: false,
            cache_dir: None,
            state_dir: None,
            accept_skipped_versions: false,
            accept_clock: false,
            paranoid: false,
            dry_run: false,
            name: String::new(),
            version_name: None,
            new_volume: None,
            cosigning: Cosigning::default(),
            timestamps: Vec::new(),
            readers: None,
            clock: Clock::system(),
            cancel: AtomicBool::new(false),
        }
    }
}
