//! Changes of files by their paths. Each is one call, which has effect as a whole or not at all, and is durable at the
//! server when it returns.

use std::io::Read;

use content::source::Stream;
use content::upload::Upload;
use share::files::{Attributes, Call, FileRef, Over, Replace};
use trust::inode::{Content, Inode};
use trust_shared::principal::FileId;

use super::places::Address;
use super::{Made, SharedVolume, now, places};
use crate::error::Error;

impl SharedVolume {
    /// Puts a regular file: `content` until its end, with these permission bits. A file that had the name loses it, so
    /// readers find the old content or the new one. A directory is not replaced.
    ///
    /// # Errors
    /// [`Error::Content`] if the content cannot be read or stored; else as [`SharedVolume::change`].
    pub async fn put(&self, path: &[u8], content: impl Read, mode: u16) -> Result<FileId, Error> {
        let at = Address::of(self.place(path)?);
        let sink = self.sink();
        let mut upload = Upload::new(self.client().hasher(), &sink);
        let content = upload.content(Stream(content), |_| {}).await?;
        let inode = Inode::new(mode, now(), Content::Regular(content));
        match self.make(&at, inode, None, Replace::Any).await? {
            Made::Alone(file) | Made::Over(file, _) => Ok(file),
            Made::Stale => Err(Error::Defect),
        }
    }

    /// Makes a directory with these permission bits.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn make_directory(&self, path: &[u8], mode: u16) -> Result<FileId, Error> {
        let content = Content::Directory {
            map: None,
            opaque: false,
        };
        self.new_file(path, mode, content).await
    }

    /// Makes a symbolic link that leads to `target`.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn make_symlink(&self, path: &[u8], target: &[u8]) -> Result<FileId, Error> {
        let content = Content::Symlink(target.to_vec().into());
        self.new_file(path, 0o777, content).await
    }

    async fn new_file(&self, path: &[u8], mode: u16, content: Content) -> Result<FileId, Error> {
        let at = Address::of(self.place(path)?);
        self.create(&at, Inode::new(mode, now(), content), None)
            .await
    }

    /// Gives a file that is no directory one more name.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn link(&self, file: &[u8], to: &[u8]) -> Result<(), Error> {
        let to = self.place(to)?;
        let about = || places::shown(&to);
        let file = FileRef::Place(self.place(file)?);
        let link = Call::Link {
            file,
            to: to.clone(),
        };
        self.change(link, &about).await
    }

    /// Moves or renames a file. A file that had the new name loses it; a directory must be empty.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Error> {
        let (from, to) = (self.place(from)?, self.place(to)?);
        let about = || places::shown(&from);
        let rename = Call::Rename {
            from: from.clone(),
            to,
            over: Over::Replace,
        };
        self.change(rename, &about).await
    }

    /// Removes a name of a file that is no directory.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn remove(&self, path: &[u8]) -> Result<(), Error> {
        let place = self.place(path)?;
        let about = || places::shown(&place);
        let place = place.clone();
        self.change(Call::Unlink { place }, &about).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn remove_directory(&self, path: &[u8]) -> Result<(), Error> {
        let place = self.place(path)?;
        let about = || places::shown(&place);
        let place = place.clone();
        self.change(Call::Rmdir { place }, &about).await
    }

    /// Sets attributes of a file. Those that are not given stay.
    ///
    /// # Errors
    /// As [`SharedVolume::change`].
    pub async fn set_attributes(&self, path: &[u8], attributes: Attributes) -> Result<(), Error> {
        let place = self.place(path)?;
        let about = || places::shown(&place);
        let set = Call::SetAttributes {
            file: FileRef::Place(place.clone()),
            attributes,
            expect: None,
        };
        self.change(set, &about).await
    }
}
