//! Paths below the root directory of a volume: names with `/` between them.

use bytes::Bytes;

/// The path without slashes at its ends, empty names and `.`.
pub fn clean(path: &[u8]) -> Vec<u8> {
    let names = path.split(|byte| *byte == b'/');
    let names: Vec<&[u8]> = names.filter(|name| !matches!(*name, b"" | b".")).collect();
    names.join(&b'/')
}

/// The path of an entry of a directory.
pub(crate) fn join(directory: &[u8], name: &[u8]) -> Bytes {
    if directory.is_empty() {
        return Bytes::copy_from_slice(name);
    }
    [directory, b"/", name].concat().into()
}
