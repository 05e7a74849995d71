//! Arbitrary text as a source or a location. It is refused, or its displayed form parses to the same value.
#![no_main]

use bulla_fuzz::{honest_head, plant};
use libfuzzer_sys::fuzz_target;
use wire::{Location, Source};

fuzz_target!(
    init: {
        let volume = honest_head().0;
        plant(["bulla://host:1", "bulla://[::1]:28552/", "file:///srv/repo", "repo",
            "https://host/a/b", "http://[::1]:80/"].map(
            |location| format!("{volume}@{location}").into_bytes(),
        ));
        plant([b"bulla://host".to_vec()]);
    },
    |data: &[u8]| {
        let Ok(text) = std::str::from_utf8(data) else {
            return;
        };
        let same = |location: &Location| match location {
            Location::Server { .. } | Location::Web(_) => {
                assert_eq!(location.to_string().parse::<Location>().ok().as_ref(), Some(location));
            }
            Location::Directory(path) => assert!(text.ends_with(&*path.to_string_lossy())),
        };
        if let Ok(location) = text.parse::<Location>() {
            same(&location);
        }
        if let Ok(source) = text.parse::<Source>() {
            same(&source.location);
            assert!(text.starts_with(&format!("{}@", source.volume)));
        }
    }
);
