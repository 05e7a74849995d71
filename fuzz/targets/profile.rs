//! Arbitrary bytes as the profile of a mount. They are refused, or their own text gives the same profile back.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use volume::profile::Profile;

fuzz_target!(
    init: plant([b"# a start\n/usr/bin/a\nusr/lib/b\t0-9,20-29\n\\x23c\\\\\t-\n".to_vec()]),
    |data: &[u8]| {
        if let Ok(profile) = Profile::parse(data) {
            let again = Profile::parse(&profile.to_text()).expect("its own text");
            assert_eq!(again, profile);
        }
    }
);
