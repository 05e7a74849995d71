//! Where the server of a shared volume is, as users write it: `bulla://host[:port]`.
//!
//! Only a hint: the orderer's key decides which server is accepted. Relies on [`crate::location`] for the form.

use std::fmt;
use std::str::FromStr;

use super::DEFAULT_PORT;
use crate::location::{LocationError, server};

/// Host and port.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    /// Host name or address, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

impl FromStr for ServerAddress {
    type Err = LocationError;

    fn from_str(text: &str) -> Result<Self, LocationError> {
        let Some(rest) = text.strip_prefix("bulla://") else {
            return Err(LocationError::Syntax {
                text: text.to_owned(),
                why: "the server of a shared volume is written bulla://host[:port]".to_owned(),
            });
        };
        let (host, port) = server(text, rest, DEFAULT_PORT)?;
        Ok(ServerAddress { host, port })
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bulla://{}", self.authority())
    }
}

impl ServerAddress {
    /// `host:port`, with brackets where the host has colons.
    pub fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_has_a_port_of_its_own() {
        for (text, host, port) in [
            ("bulla://host", "host", 28553),
            ("bulla://host:7", "host", 7),
            ("bulla://[::1]", "::1", 28553),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!((&*address.host, address.port), (host, port));
            assert_eq!(
                address.to_string().parse::<ServerAddress>().unwrap(),
                address
            );
        }
        for text in ["host", "http://host", "bulla://", "bulla://host/path"] {
            assert!(text.parse::<ServerAddress>().is_err(), "{text}");
        }
    }
}
