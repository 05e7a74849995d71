//! What a volume needs after a command has ended: its first timestamp, a later end of its policy.

use std::path::Path;

use publish::pipeline::PublishOptions;
use publish::rotation;

use crate::output::Output;
use crate::units;

/// What is left to do for a new volume with timestamp keys.
pub const CONFIRM_FIRST: &str = "Nobody can read the volume before its first timestamp: `bulla renew REPO --key \
    TIMESTAMPKEY`, on the machine that will do so every hour.";

/// Warns if the newest policy of the repository ends soon. After its end nothing of the volume is believed.
pub fn warn_of_end(repo: &Path, output: &Output) {
    // What went before has succeeded. An error here would say otherwise.
    let Ok(current) = rotation::current(repo) else {
        return;
    };
    let now = PublishOptions::default().clock.now();
    let not_after = current.policy.not_after();
    if not_after.saturating_sub(now) < units::POLICY_WARNING.as_secs() {
        output.warn(&format!(
            "the policy of this volume ends at {}; nothing of the volume is believed after that. Owners renew it: `bulla \
             policy new {} --out FILE`",
            units::time(not_after),
            repo.display()
        ));
    }
}

/// Warns what --accept-clock relies on. A clock that is behind makes versions that have ended.
pub fn warn_of_clock(accepts: bool, output: &Output) {
    if accepts {
        let now = PublishOptions::default().clock.now();
        output.warn(&format!(
            "--accept-clock: this machine's clock says {}. If that is wrong, no reader believes what is signed now; never put \
             the flag into a timer",
            units::time(now)
        ));
    }
}
