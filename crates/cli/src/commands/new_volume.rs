//! The first policy of a new volume, as the flags of `publish` describe it, with the defaults for what they leave out.

use std::time::Duration;

use publish::NewVolume;
use trust::key::PublicKey;
use trust::policy::{Roles, Threshold};
use trust::roles::DEFAULT_RECORD_MAX;

use crate::args::Publish;
use crate::failure::{Failure, Kind, Outcome};
use crate::roles::{POLICY_VALID, PolicyEnd, RECORD_MAX, TIMESTAMP_MAX, not_after, threshold};

/// What the flags of `publish` say of a new volume. `None` if they say nothing, so that `own` has all roles. `valid` is
/// the validity of the first version, `now` the time in unix seconds.
///
/// # Errors
/// A usage failure for a role without a key, and for a threshold that its keys cannot reach.
pub fn described(
    args: &Publish,
    own: Option<PublicKey>,
    valid: Duration,
    now: u64,
) -> Outcome<Option<NewVolume>> {
    let named = &args.roles;
    let own = args.publisher.or(own);
    let keys = [&named.owner_key, &named.publisher_key, &named.timestamp_key];
    let is_plain = keys.iter().all(|keys| keys.is_empty());
    if is_plain && named.record_max.is_none() && named.policy_valid.is_none() {
        return Ok(args.publisher.map(|key| NewVolume::single(key, valid)));
    }
    let of = |keys: &[PublicKey], flag: &str| match (keys, own) {
        ([], Some(own)) => Ok(vec![own]),
        ([], None) => Err(Failure::new(
            Kind::NoPublisher,
            format!(
                "a new volume needs {flag} KEY1..., or --publisher KEY1... for a key of all roles"
            ),
        )),
        (keys, _) => Ok(keys.to_vec()),
    };
    let owners = of(&named.owner_key, "--owner-key")?;
    let most = u8::try_from(owners.len() / 2 + 1).unwrap_or(u8::MAX);
    let longest = match is_plain {
        true => Duration::from_secs(DEFAULT_RECORD_MAX),
        false => RECORD_MAX,
    };
    let mut roles = Roles {
        owners: threshold(named.owners_needed.unwrap_or(most), owners)?,
        publishers: threshold(
            named.publishers_needed.unwrap_or(1),
            of(&named.publisher_key, "--publisher-key")?,
        )?,
        record_max: named.record_max.unwrap_or(longest.max(valid)).as_secs(),
        timestamps: Threshold::none(),
        timestamp_max: 0,
        log: Threshold::none(),
        witnesses: Threshold::none(),
    };
    if !named.timestamp_key.is_empty() {
        let needed = named.timestamps_needed.unwrap_or(1);
        roles.timestamps = threshold(needed, named.timestamp_key.clone())?;
        roles.timestamp_max = named.timestamp_max.unwrap_or(TIMESTAMP_MAX).as_secs();
    }
    let end = named.policy_valid.unwrap_or(match is_plain {
        true => PolicyEnd::Never,
        false => PolicyEnd::After(POLICY_VALID),
    });
    Ok(Some(NewVolume {
        roles,
        not_after: not_after(end, now),
        is_plain: false,
    }))
}
