//! Bytes as the tables of docs/formats write them. `tests/effect` uses this file too.

/// Reads hexadecimal digits, with `(61 * 257)` for 257 bytes 0x61.
pub fn unhex(text: &str) -> Vec<u8> {
    let plain = |text: &str| -> Vec<u8> {
        assert!(text.len().is_multiple_of(2), "{text}");
        let digits = (0..text.len()).step_by(2);
        digits
            .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
            .collect()
    };
    let Some((before, rest)) = text.split_once('(') else {
        return plain(text);
    };
    let (repeated, after) = rest.split_once(')').unwrap();
    let (bytes, count) = repeated.split_once(" * ").unwrap();
    let repeated = plain(bytes).repeat(count.parse().unwrap());
    [plain(before), repeated, unhex(after)].concat()
}
