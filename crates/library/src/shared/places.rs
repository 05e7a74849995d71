//! Paths inside a shared volume, as users write them.

use share::files::{MAX_PLACE_NAMES, Place};
use trust::text::printable;
use trust_shared::principal::{FileId, Name};

use crate::error::Error;
use crate::path::clean;

/// A name in the volume that a command changes. The directory that it is in is known by its number where the command has
/// looked at it; so what others do to names above does not lead the command elsewhere.
#[derive(Debug, Clone)]
pub struct Address {
    /// The name, for calls.
    pub name: Place,
    /// Its path from the root directory, for messages.
    pub path: Place,
}

impl Address {
    /// What the user has named.
    pub fn of(path: Place) -> Address {
        let name = path.clone();
        Address { name, path }
    }

    /// A name in the directory that this address led to.
    pub fn inside(&self, directory: FileId, name: &Name) -> Address {
        Address {
            name: Place {
                start: directory,
                path: vec![name.clone()],
            },
            path: below(&self.path, name),
        }
    }

    /// As a person reads it.
    pub fn shown(&self) -> String {
        shown(&self.path)
    }
}

/// The place at a path from the root directory.
///
/// # Errors
/// For `..`, and for names that no file can have.
pub fn place(root: FileId, path: &[u8]) -> Result<Place, Error> {
    let path = clean(path);
    let mut place = Place {
        start: root,
        path: Vec::new(),
    };
    for name in path.split(|byte| *byte == b'/').filter(|it| !it.is_empty()) {
        match Name::new(name) {
            _ if place.path.len() >= MAX_PLACE_NAMES => {
                return Err(Error::bad_path(&path, "too deep".to_owned()));
            }
            Err(why) => return Err(Error::bad_path(&path, why.to_string())),
            Ok(name) => place.path.push(name),
        }
    }
    Ok(place)
}

/// A place below another one.
pub fn below(directory: &Place, name: &Name) -> Place {
    let mut place = directory.clone();
    place.path.push(name.clone());
    place
}

/// The path of a place, for messages and records.
pub fn path_of(place: &Place) -> Vec<u8> {
    let names: Vec<&[u8]> = place.path.iter().map(Name::as_bytes).collect();
    names.join(&b'/')
}

/// The path of a place as a person reads it.
pub fn shown(place: &Place) -> String {
    match place.path.is_empty() {
        true => "the root directory".to_owned(),
        false => printable(&path_of(place)),
    }
}

#[cfg(test)]
mod tests {
    use trust_shared::principal::{Device, INumber, Principal};

    use super::*;

    #[test]
    fn paths_begin_at_the_root_and_never_lead_up() {
        let number = INumber {
            device: Device(0),
            counter: 0,
        };
        let principal = Principal::from_bytes([1; 32]);
        let root = FileId { principal, number };
        let place = |path: &str| place(root, path.as_bytes());
        for (text, path) in [
            ("", ""),
            ("/", ""),
            ("a", "a"),
            ("/a//b/./c/", "a/b/c"),
            ("...", "..."),
        ] {
            let found = place(text).unwrap();
            assert_eq!(found.start, root);
            assert_eq!(path_of(&found), path.as_bytes(), "{text}");
        }
        for wrong in ["..", "a/../b", "a/\0", &"x".repeat(256)] {
            assert!(
                matches!(place(wrong), Err(Error::BadPath { .. })),
                "{wrong}"
            );
        }
        let deep = "d/".repeat(MAX_PLACE_NAMES + 1);
        assert!(place(&deep).is_err());
        assert_eq!(shown(&place("").unwrap()), "the root directory");
        let inside = below(&place("a").unwrap(), &Name::new(b"b").unwrap());
        assert_eq!(shown(&inside), "a/b");
    }
}
