//! The address of a repository on the web: `http(s)://host[:port]/path`. Each has exactly one spelling.

use std::fmt;
use std::str::FromStr;

use reqwest::Url;

/// Longest address, bytes, with the slash at its end.
const MAX_ADDRESS_BYTES: usize = 2048;

/// The URL of a repository's directory.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpAddress {
    /// Its path ends with a slash, so that names can be joined to it.
    url: Url,
}

impl HttpAddress {
    /// The URL of the directory.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The URL of a file below the directory.
    pub(super) fn join(&self, name: &str) -> Option<Url> {
        self.url.join(name).ok()
    }

    /// The directory of this name below it.
    pub(super) fn below(&self, name: &str) -> Option<HttpAddress> {
        let url = self.url.join(&format!("{name}/")).ok()?;
        Some(HttpAddress { url })
    }

    /// Whether the last part of its path is `name`.
    pub(super) fn ends_with(&self, name: &str) -> bool {
        let path = self.url.path().trim_end_matches('/');
        path.rsplit('/').next() == Some(name)
    }
}

impl FromStr for HttpAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<HttpAddress, String> {
        // The URL parser would drop or repair some of these. We refuse text that can be read in two ways.
        if !text.bytes().all(|b| b.is_ascii_graphic() && b != b'\\') {
            return Err("percent-encode what is not plain ASCII".to_owned());
        }
        let rest = text.strip_prefix("http://");
        let Some(rest) = rest.or_else(|| text.strip_prefix("https://")) else {
            return Err("a web address begins with http:// or https://".to_owned());
        };
        if rest.is_empty() || rest.starts_with('/') {
            return Err("the host is missing".to_owned());
        }
        let mut url = Url::parse(text).map_err(|e| e.to_string())?;
        if !url.username().is_empty() || url.password().is_some() || text.contains('@') {
            return Err("an address must not contain a user name or password".to_owned());
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err("the address of a directory must not contain `?` or `#`".to_owned());
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&format!("{path}/"));
        // Checked on the normalized URL: percent-encoding may have made it longer.
        if url.as_str().len() > MAX_ADDRESS_BYTES {
            return Err(format!("longer than {MAX_ADDRESS_BYTES} bytes"));
        }
        Ok(HttpAddress { url })
    }
}

impl fmt::Display for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.url.as_str().trim_end_matches('/'))
    }
}

impl fmt::Debug for HttpAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_one_spelling_and_is_a_directory() {
        for (text, shown) in [
            ("http://mirror.example", "http://mirror.example"),
            ("http://mirror.example/", "http://mirror.example"),
            (
                "https://mirror.example:443/a/b//",
                "https://mirror.example/a/b",
            ),
            (
                "http://mirror.example:8080/a",
                "http://mirror.example:8080/a",
            ),
            ("http://[::1]:80/x", "http://[::1]/x"),
            (
                "https://bucket.example/a%20b",
                "https://bucket.example/a%20b",
            ),
        ] {
            let address: HttpAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert_eq!(shown.parse(), Ok(address.clone()));
            let head = address.join("head").unwrap();
            assert_eq!(head.as_str(), format!("{shown}/head"));
            let deep = address.below("vol1x").unwrap();
            assert_eq!(deep.to_string(), format!("{shown}/vol1x"));
            assert!(deep.ends_with("vol1x") && !address.ends_with("vol1x"));
        }
    }

    #[test]
    fn ambiguous_addresses_are_refused() {
        for text in [
            "",
            "mirror.example",
            "http://",
            "https:///path",
            "http:mirror.example",
            "ftp://mirror.example/",
            "file:///etc/passwd",
            "HTTP://mirror.example",
            "http://user@mirror.example/",
            "http://user:secret@mirror.example/",
            "http://@mirror.example/",
            "http://mirror.example/?a=b",
            "http://mirror.example/#top",
            "http://mirror.example:99999/",
            "http://mirror.example/a b",
            "http://mirror.example/a\tb",
            "http://mirror.example\\@other.example/",
            "http://mirror.example/\u{1b}[2J",
            "http://münchen.example/",
            &format!("http://mirror.example/{}", "a".repeat(2048)),
            &format!("http://mirror.example/{}", "`".repeat(700)),
        ] {
            assert!(text.parse::<HttpAddress>().is_err(), "{text:?} was taken");
        }
    }
}
