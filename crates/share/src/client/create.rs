//! New files. A device draws their numbers, so that its programs need no count that would have to be durable.

use std::time::Instant;

use trust::inode::Inode;
use trust::tree::inode::FileKind;
use trust_shared::principal::Principal;

use super::{Answered, Client, ClientError};
use crate::files::{Answer, Call, Place, Refused, Replace, Stamped};

/// Bits of a number. Of 2^24 files of one device, two have drawn the same with probability 1/2; numbers of files that
/// are gone count for nothing.
const NUMBER_BITS: u32 = 48;
/// Most numbers that are drawn for one file.
const DRAWS: usize = 4;

/// A file to be made.
#[derive(Debug, Clone)]
pub struct NewFile {
    /// Its name.
    pub place: Place,
    /// Kind, attributes, content. Its ctime is when the program made it; without one that is now.
    pub inode: Inode,
    /// Whose file it is. None: the owner of the directory.
    pub owner: Option<Principal>,
    /// What it may take the name from.
    pub replace: Replace,
}

impl Client {
    /// Makes a file of any kind. When the number that was drawn is that of another file of this device, another one is
    /// drawn.
    ///
    /// # Errors
    /// As [`Client::call`]; [`ClientError::Unsupported`] when the system gives no random numbers.
    pub async fn create(&self, file: NewFile, deadline: Instant) -> Result<Answered, ClientError> {
        self.create_as(file, deadline, || self.new_number()).await
    }

    /// The same with numbers that are drawn by `draw`.
    pub(super) async fn create_as(
        &self,
        file: NewFile,
        deadline: Instant,
        mut draw: impl FnMut() -> Result<u64, ClientError>,
    ) -> Result<Answered, ClientError> {
        let mut draws = 1;
        loop {
            let call = Call::Create {
                place: file.place.clone(),
                number: draw()?,
                inode: Box::new(file.inode.clone()),
                owner: file.owner,
                replace: file.replace.clone(),
            };
            let call = match file.inode.ctime {
                Some(time) => Stamped { time, call },
                None => call.into(),
            };
            let answered = self.call(call, deadline).await?;
            let exists = answered.answer == Answer::Refused(Refused::Exists);
            if !exists || draws == DRAWS || !self.is_free(&file, deadline).await? {
                return Ok(answered);
            }
            draws += 1;
        }
    }

    /// Whether nothing was in the way of the name of a new file, so it was its number.
    async fn is_free(&self, file: &NewFile, deadline: Instant) -> Result<bool, ClientError> {
        let place = file.place.clone();
        let follow = false;
        let look = self.call(Call::Lookup { place, follow }, deadline).await?;
        Ok(match look.answer {
            Answer::Refused(Refused::NotFound) => true,
            Answer::Found(_) => {
                file.replace != Replace::Nothing && file.inode.kind() != FileKind::Directory
            }
            _ => false,
        })
    }

    /// A number for a new file, for programs that make the call themselves.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] when the system gives no random numbers.
    pub fn new_number(&self) -> Result<u64, ClientError> {
        let mut bytes = [0; 8];
        let drawn = getrandom::fill(&mut bytes);
        drawn.map_err(|e| ClientError::Unsupported(format!("no random numbers: {e}")))?;
        Ok(u64::from_le_bytes(bytes) >> (u64::BITS - NUMBER_BITS))
    }
}
