//! The control: a decoder with a bug behind four compared bytes, which a working fuzzer finds in a moment.
//! When it does not, the instrumentation is broken and other clean runs mean nothing.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((magic, rest)) = data.split_first_chunk::<4>() {
        let len = rest.first().copied().unwrap_or_default();
        assert!(*magic != *b"clay" || len < 200);
    }
});
