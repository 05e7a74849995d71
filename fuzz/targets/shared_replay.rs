//! Arbitrary bytes as the stored state of a replay of a shared volume's log, which a device reads at its start. They are
//! refused, or they are a replay that gives these bytes again and answers questions.
#![no_main]

use bulla_fuzz::plant;
use libfuzzer_sys::fuzz_target;
use trust::encode::{Decoder, Encoder};
use trust::volume_id::VolumeId;
use trust::{Hasher, Reject};
use trust_shared::effect::replay::{Sink, Source};
use trust_shared::effect::{Replay, Volume};

/// All pieces in a row.
struct Written(Vec<u8>);

impl Sink for Written {
    fn put(&mut self, write: impl FnOnce(&mut Encoder) -> &mut Encoder) {
        let mut e = Encoder::onto(std::mem::take(&mut self.0));
        write(&mut e);
        self.0 = e.finish();
    }
}

struct Rest<'a>(Decoder<'a>);

impl Source for Rest<'_> {
    fn take<T>(
        &mut self,
        read: impl FnOnce(&mut Decoder<'_>) -> Result<T, Reject>,
    ) -> Result<T, Reject> {
        read(&mut self.0)
    }
}

fn volume() -> Volume {
    Volume::new(VolumeId::from_bytes([5; 32]), Hasher::new(&[2; 32]))
}

fn seeds() -> Vec<Vec<u8>> {
    let mut empty = Written(Vec::new());
    Replay::new(volume()).store(&mut empty);
    vec![empty.0]
}

fuzz_target!(init: plant(seeds()), |data: &[u8]| {
    let mut from = Rest(Decoder::new(data, "replay"));
    if let Ok(replay) = Replay::restore(volume(), &mut from) {
        let mut again = Written(Vec::new());
        replay.store(&mut again);
        let mut from = Rest(Decoder::new(&again.0, "replay"));
        let same = Replay::restore(volume(), &mut from);
        assert!(same.is_ok_and(|same| same.size() == replay.size()));
    }
});
