//! Calls in short: paths are texts, `/` between names.

use share::files::{Answer, Attributes, Call, File, FileRef, Over, Place};
use trust::inode::{Content, FileContent, Inode, Time};
use trust_shared::principal::{FileId, Name};

use crate::net::Net;

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn directory() -> Inode {
    let content = Content::Directory {
        map: None,
        opaque: false,
    };
    Inode::new(0o755, Time::default(), content)
}

pub fn text(text: &str) -> Content {
    match text {
        "" => Content::Regular(FileContent::Empty),
        text => Content::Regular(FileContent::Inline(text.to_owned().into())),
    }
}

pub fn regular(content: &str) -> Inode {
    Inode::new(0o644, Time::default(), text(content))
}

pub fn symlink(target: &str) -> Inode {
    let content = Content::Symlink(target.to_owned().into());
    Inode::new(0o777, Time::default(), content)
}

pub fn place(start: FileId, path: &str) -> Place {
    let names = path.split('/').filter(|part| !part.is_empty());
    Place {
        start,
        path: names.map(name).collect(),
    }
}

/// The file of a call that had effect.
pub fn file_of(answer: &Answer) -> Option<FileId> {
    match answer {
        Answer::Done(file) | Answer::Replaced(file, _) => Some(*file),
        _ => None,
    }
}

/// The text of a file.
pub fn text_of(file: &File) -> String {
    match &file.inode.content {
        Content::Regular(FileContent::Empty) => String::new(),
        Content::Regular(FileContent::Inline(bytes)) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

impl Net {
    pub fn at(&self, path: &str) -> Place {
        place(self.root(), path)
    }

    pub fn create(&mut self, path: &str, inode: Inode, replace: bool) -> Call {
        Call::Create {
            place: self.at(path),
            number: self.random(1 << 48),
            inode: Box::new(inode),
            owner: None,
            replace: replace.into(),
        }
    }

    pub fn create_at(&self, place: Place, number: u64, inode: Inode) -> Call {
        Call::Create {
            place,
            number,
            inode: Box::new(inode),
            owner: None,
            replace: false.into(),
        }
    }

    pub fn lookup(&self, path: &str, follow: bool) -> Call {
        Call::Lookup {
            place: self.at(path),
            follow,
        }
    }

    pub fn write(&self, path: &str, content: &str) -> Call {
        Call::SetContent {
            file: FileRef::Place(self.at(path)),
            content: text(content),
            mtime: Time::default(),
            expect: None,
        }
    }

    pub fn chmod(&self, path: &str, mode: u16) -> Call {
        Call::SetAttributes {
            file: FileRef::Place(self.at(path)),
            attributes: Attributes {
                mode: Some(mode),
                ..Attributes::default()
            },
            expect: None,
        }
    }

    pub fn unlink(&self, path: &str) -> Call {
        Call::Unlink {
            place: self.at(path),
        }
    }

    pub fn rmdir(&self, path: &str) -> Call {
        Call::Rmdir {
            place: self.at(path),
        }
    }

    pub fn rename(&self, from: &str, to: &str, over: Over) -> Call {
        Call::Rename {
            from: self.at(from),
            to: self.at(to),
            over,
        }
    }

    pub fn link(&self, file: &str, to: &str) -> Call {
        Call::Link {
            file: FileRef::Place(self.at(file)),
            to: self.at(to),
        }
    }

    pub fn list(&self, path: &str, after: Option<&str>, most: u32, inodes: bool) -> Call {
        Call::List {
            directory: FileRef::Place(self.at(path)),
            after: after.map(name),
            most,
            inodes,
        }
    }

    /// A call that must have effect on a file.
    pub fn done(&mut self, at: usize, call: Call) -> FileId {
        let answer = self.call(at, call.clone());
        match file_of(&answer) {
            Some(file) => file,
            None => panic!("{call:?}: {answer:?}"),
        }
    }

    /// The file at a path.
    pub fn found(&mut self, at: usize, path: &str) -> File {
        let call = self.lookup(path, true);
        match self.call(at, call) {
            Answer::Found(file) => file,
            other => panic!("{path}: {other:?}"),
        }
    }

    /// The names of a directory.
    pub fn names(&mut self, at: usize, path: &str) -> Vec<String> {
        let (mut all, mut after) = (Vec::new(), None::<String>);
        loop {
            let call = self.list(path, after.as_deref(), 3, false);
            let Answer::Listed { names, next, .. } = self.call(at, call) else {
                panic!("{path} is not listed");
            };
            let text = |name: &Name| String::from_utf8(name.as_bytes().to_vec()).unwrap();
            all.extend(names.iter().map(|listed| text(&listed.name)));
            after = next.as_ref().map(text);
            if after.is_none() {
                return all;
            }
        }
    }
}
