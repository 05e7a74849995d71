//! Which files of lost work have come back, as long as others have not: the file `returned` beside a journal of an
//! earlier epoch. Bytes: `docs/formats/shared-home.md`.

use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;

use state::private;
use trust_shared::principal::{Device, FileId, INumber, Principal};

use super::ClientError;

const RETURNED: &str = "returned";
/// Bytes of one file.
const FILE_BYTES: usize = 44;
/// Longest list, bytes. Files beyond it come back twice.
const MAX_BYTES: u64 = 64 << 20;

/// Files that have come back.
#[derive(Debug, Default)]
pub(super) struct Returned {
    pub(super) files: HashSet<FileId>,
    /// An earlier try has told what was lost.
    pub(super) has_begun: bool,
}

impl Returned {
    /// What earlier tries noted. A list that cannot be read costs a copy that is made twice.
    pub(super) fn read(memories: &[PathBuf]) -> Returned {
        let mut returned = Returned::default();
        for memory in memories {
            let mut bytes = Vec::new();
            let read = std::fs::File::open(memory.join(RETURNED))
                .and_then(|file| file.take(MAX_BYTES).read_to_end(&mut bytes));
            match read {
                Ok(_) => returned.has_begun = true,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => tracing::warn!(%error, "files may come back twice"),
            }
            returned
                .files
                .extend(bytes.chunks_exact(FILE_BYTES).filter_map(decode));
        }
        returned
    }

    pub(super) fn has(&self, file: FileId) -> bool {
        self.files.contains(&file)
    }

    /// Notes them, durably.
    pub(super) fn write(&self, memories: &[PathBuf]) -> Result<(), ClientError> {
        let bytes: Vec<u8> = self.files.iter().flat_map(encode).collect();
        for memory in memories {
            let written = private::replace(&memory.join(RETURNED), &bytes);
            written.map_err(|error| ClientError::Home(error.to_string()))?;
        }
        Ok(())
    }
}

fn encode(file: &FileId) -> Vec<u8> {
    let INumber { device, counter } = file.number;
    let numbers = [&device.0.to_le_bytes()[..], &counter.to_le_bytes()];
    [&file.principal.as_bytes()[..], &numbers.concat()].concat()
}

fn decode(bytes: &[u8]) -> Option<FileId> {
    let (principal, rest) = bytes.split_first_chunk::<32>()?;
    let (device, rest) = rest.split_first_chunk()?;
    Some(FileId {
        principal: Principal::from_bytes(*principal),
        number: INumber {
            device: Device(u32::from_le_bytes(*device)),
            counter: u64::from_le_bytes(*rest.first_chunk()?),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frozen bytes: docs/formats/shared-home.md gives the same.
    #[test]
    fn row_of_the_page_is_written_and_read() {
        let page = include_str!("../../../../docs/formats/shared-home.md");
        let hex: String = page
            .lines()
            .skip_while(|line| !line.starts_with("```vector"))
            .skip(1)
            .take_while(|line| !line.starts_with("```"))
            .collect();
        let file = FileId {
            principal: Principal::from_bytes([0x70; 32]),
            number: INumber {
                device: Device(3),
                counter: 9,
            },
        };
        let directory = tempfile::tempdir().unwrap();
        let memories = [directory.path().to_owned()];
        let returned = Returned {
            files: HashSet::from([file]),
            has_begun: true,
        };
        returned.write(&memories).unwrap();
        let path = directory.path().join(RETURNED);
        let bytes = std::fs::read(&path).unwrap();
        let written: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(written, hex);
        // A part of a row at the end is passed over.
        std::fs::write(&path, [&bytes[..], &bytes[..43]].concat()).unwrap();
        let read = Returned::read(&memories);
        assert!(read.has_begun && read.has(file) && read.files.len() == 1);
    }
}
