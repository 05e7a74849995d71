//! SOURCE and LOCATION as people write them (design `cli.md`).
//!
//! `VOLUMEID@LOCATION`: the volume id is the trust, the location only a hint.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

use store::Replica;
use store::repository::Repository;
use trust::Reject;
use trust::head::Head;
use trust::statement::VolumeId;
use wire::DEFAULT_PORT;
use wire::http::{HttpAddress, HttpOptions, HttpStore, Tls};
use wire::remote::{RemoteOptions, RemoteStore};

use crate::error::ReadError;

/// Where blocks may be had; believed in nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A repository in a directory of this machine.
    Directory(PathBuf),
    /// A `bulla serve`: `bulla://host[:port]`.
    Server {
        /// Host name or address, without brackets.
        host: String,
        /// TCP port.
        port: u16,
    },
    /// A repository behind a web server: `http(s)://host[:port]/path`.
    Web(HttpAddress),
}

/// A volume and a place to read it from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Which volume: the only thing that is trusted.
    pub volume: VolumeId,
    /// Where to ask first.
    pub location: Location,
}

fn bad(text: &str, why: impl Into<String>) -> ReadError {
    ReadError::BadSource {
        text: text.to_owned(),
        why: why.into(),
    }
}

impl FromStr for Location {
    type Err = ReadError;

    fn from_str(text: &str) -> Result<Self, ReadError> {
        if text.is_empty() {
            return Err(bad(text, "an empty location"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(Location::Directory(PathBuf::from(text)));
        };
        match scheme {
            "bulla" => server(text, rest),
            "http" | "https" => match text.parse() {
                Ok(address) => Ok(Location::Web(address)),
                Err(why) => Err(bad(text, why)),
            },
            "file" => Ok(Location::Directory(PathBuf::from(rest))),
            other => Err(bad(
                text,
                format!("`{other}://` is no location that this bulla can read"),
            )),
        }
    }
}

fn server(text: &str, rest: &str) -> Result<Location, ReadError> {
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let (host, port) = if let Some(v6) = rest.strip_prefix('[') {
        let (host, tail) = v6
            .split_once(']')
            .ok_or_else(|| bad(text, "`[` without `]`"))?;
        let port = tail.strip_prefix(':');
        if port.is_none() && !tail.is_empty() {
            return Err(bad(text, "after `]` comes `:port` or nothing"));
        }
        (host, port)
    } else {
        match rest.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    let port = match port {
        None => DEFAULT_PORT,
        // `parse` would take a sign as well.
        Some(port) => Some(port)
            .filter(|port| port.bytes().all(|b| b.is_ascii_digit()))
            .and_then(|port| port.parse().ok())
            .ok_or_else(|| bad(text, "the port is not a number"))?,
    };
    let bracketed = rest.starts_with('[');
    // The host goes into messages and logs, and its colons must not be taken for the port's.
    let possible = |b: u8| match b {
        b':' => bracketed,
        b'/' | b'@' | b'[' | b']' => false,
        _ => b.is_ascii_graphic(),
    };
    if host.is_empty() || !host.bytes().all(possible) {
        return Err(bad(text, "a server is written bulla://host[:port]"));
    }
    Ok(Location::Server {
        host: host.to_owned(),
        port,
    })
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Location::Directory(path) => path.display().fmt(f),
            Location::Server { host, port } if host.contains(':') => {
                write!(f, "bulla://[{host}]:{port}")
            }
            Location::Server { host, port } => write!(f, "bulla://{host}:{port}"),
            Location::Web(address) => address.fmt(f),
        }
    }
}

impl FromStr for Source {
    type Err = ReadError;

    fn from_str(text: &str) -> Result<Self, ReadError> {
        let Some((id, location)) = text.split_once('@') else {
            return Err(bad(
                text,
                "a source is written VOLUMEID@LOCATION; the volume id is missing",
            ));
        };
        let volume = id
            .parse::<VolumeId>()
            .map_err(|e| bad(id, format!("volume id: {e}")))?;
        Ok(Source {
            volume,
            location: location.parse()?,
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", self.volume, self.location)
    }
}

/// The volume id that a place claims to have: to be shown to people who named none, and to be
/// believed in nothing.
///
/// # Errors
/// [`ReadError`] when the place does not answer, has no single volume, or has no head.
pub async fn claimed_id(location: &Location, tls: &Tls) -> Result<VolumeId, ReadError> {
    // A server with one volume answers for it when asked for the volume that nobody has.
    let replica = location.open_with(VolumeId::UNBORN, tls)?;
    let bytes = replica.head().await;
    let bytes = bytes.map_err(|e| ReadError::from_store("the head", &e))?;
    if bytes.is_empty() {
        return Err(ReadError::Place(format!(
            "{location}: nothing is published here yet"
        )));
    }
    let refused = |why| ReadError::Statement {
        place: location.to_string(),
        why,
    };
    claimed_in(&Head::decode(&bytes).map_err(refused)?).map_err(refused)
}

/// The volume id that a head claims: the hash of its first policy.
///
/// # Errors
/// [`Reject::Malformed`] when there is none.
pub fn claimed_in(head: &Head) -> Result<VolumeId, Reject> {
    let genesis = head.policies.first().ok_or(Reject::Malformed {
        what: "head",
        why: "no policy",
    })?;
    Ok(VolumeId::from_bytes(genesis.statement().hash()))
}

impl Location {
    /// Opens the place. A server is not contacted before the first question.
    ///
    /// # Errors
    /// [`ReadError::Place`] when a directory holds no repository.
    pub fn open(&self, volume: VolumeId) -> Result<Arc<dyn Replica>, ReadError> {
        self.open_with(volume, &Tls::System)
    }

    /// The same, where `tls` says who vouches for an https server.
    ///
    /// # Errors
    /// Also [`ReadError::Place`] when the file of authorities cannot be used.
    pub fn open_with(&self, volume: VolumeId, tls: &Tls) -> Result<Arc<dyn Replica>, ReadError> {
        match self {
            Location::Web(address) => {
                let options = HttpOptions {
                    tls: tls.clone(),
                    ..HttpOptions::default()
                };
                match HttpStore::new(address, *volume.as_bytes(), &options) {
                    Ok(store) => Ok(Arc::new(store)),
                    Err(e) => Err(ReadError::Place(e.to_string())),
                }
            }
            Location::Directory(path) => match Repository::open(path) {
                Ok(repository) => Ok(Arc::new(repository)),
                Err(e) => Err(ReadError::from_store("the repository", &e)),
            },
            Location::Server { host, port } => {
                let address = if host.contains(':') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                };
                let options = RemoteOptions::default();
                Ok(Arc::new(RemoteStore::new(
                    &address,
                    *volume.as_bytes(),
                    options,
                )))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_address_is_read_back_as_it_is_shown() {
        for text in ["http://host", "https://host/a/b", "http://[::1]:8080/vol1x"] {
            let location: Location = text.parse().unwrap();
            assert!(matches!(location, Location::Web(_)));
            assert_eq!(location.to_string(), text);
        }
    }

    #[test]
    fn a_server_has_one_reading_or_none() {
        for (text, host, port) in [
            ("bulla://mirror.example", "mirror.example", DEFAULT_PORT),
            ("bulla://mirror.example:80/", "mirror.example", 80),
            ("bulla://[::1]", "::1", DEFAULT_PORT),
            ("bulla://[fe80::1%eth0]:9", "fe80::1%eth0", 9),
        ] {
            let server = Location::Server {
                host: host.to_owned(),
                port,
            };
            assert_eq!(text.parse::<Location>().ok().as_ref(), Some(&server));
            assert_eq!(server.to_string().parse::<Location>().ok(), Some(server));
        }
        for text in [
            "",
            "bulla://",
            "bulla://:80",
            "bulla://host:",
            "bulla://host:+80",
            "bulla://host:65536",
            "bulla://::1",
            "bulla://::1:80",
            "bulla://[::1",
            "bulla://[::1]80",
            "bulla://[::1].example:80",
            "bulla://.[::1]x:80",
            "bulla://[]:80",
            "bulla://user@host",
            "bulla://host/path",
            "bulla://host\u{1b}[2J:80",
            "bulla://host\n:80",
            "https://",
            "https://user@host",
            "ftp://host",
        ] {
            assert!(text.parse::<Location>().is_err(), "{text:?} was taken");
        }
    }
}
