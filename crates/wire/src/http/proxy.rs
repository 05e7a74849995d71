//! Which proxy a request goes through: the variables that curl knows, with curl's meaning.
//!
//! `http_proxy`, `https_proxy` and `all_proxy`, each also in capitals; an empty variable counts as absent. `no_proxy`
//! lists hosts that are asked without a proxy, between commas or spaces: a name with all names below it, with or
//! without a dot before it; an address, an IPv6 address also in brackets; a network such as `10.0.0.0/8`; `*` for all.
//! A client that got its proxies from here can tell which one a failed request went through.

use std::net::IpAddr;
use std::sync::Arc;

use reqwest::{ClientBuilder, Url};

/// Schemes of proxies.
const SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

/// The proxies of the environment.
#[derive(Debug, Clone)]
pub(super) struct Proxies(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    http: Option<Named>,
    https: Option<Named>,
    without: Vec<Pattern>,
}

/// A proxy, and the variable that names it.
#[derive(Debug, Clone)]
struct Named {
    variable: String,
    /// `None` if it is not the address of a proxy.
    url: Option<Url>,
}

/// One entry of `no_proxy`.
#[derive(Debug, PartialEq, Eq)]
enum Pattern {
    All,
    Network(IpAddr, u32),
    Domain(String),
}

impl Proxies {
    /// Those of this process.
    pub(super) fn of_environment() -> Proxies {
        Proxies::with(|name| std::env::var(name).ok())
    }

    fn with(variable: impl Fn(&str) -> Option<String>) -> Proxies {
        let first = |names: &[&'static str]| {
            let mut set = names
                .iter()
                .filter_map(|name| Some((*name, variable(name)?)));
            set.find(|(_, value)| !value.trim().is_empty())
        };
        // A server that runs this program for a request fills HTTP_PROXY from that request's headers.
        let is_cgi = variable("REQUEST_METHOD").is_some();
        let named = |names: &[&'static str]| {
            let (variable, value) = first(names).filter(|_| !is_cgi)?;
            Some(Named {
                variable: variable.to_owned(),
                url: parse(value.trim()),
            })
        };
        let without = first(&["no_proxy", "NO_PROXY"]).map(|(_, value)| value);
        let without = without.unwrap_or_default();
        let patterns = without.split(|c: char| c == ',' || c.is_whitespace());
        Proxies(Arc::new(Inner {
            http: named(&["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"]),
            https: named(&["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"]),
            without: patterns.filter_map(pattern).collect(),
        }))
    }

    /// Makes a client use them.
    pub(super) fn give(&self, client: ClientBuilder) -> ClientBuilder {
        // Those that the client finds by itself have another meaning in some places.
        let client = client.no_proxy();
        if self.0.http.is_none() && self.0.https.is_none() {
            return client;
        }
        let proxies = self.clone();
        client.proxy(reqwest::Proxy::custom(move |url| {
            proxies.of(url).and_then(|named| named.url.clone())
        }))
    }

    /// The hosts of all proxies.
    pub(super) fn hosts(&self) -> Vec<String> {
        let named = self.0.http.iter().chain(&self.0.https);
        let hosts = named.filter_map(|named| named.url.as_ref()?.host_str());
        hosts.map(str::to_owned).collect()
    }

    fn of(&self, url: &Url) -> Option<&Named> {
        let named = match url.scheme() {
            "https" => self.0.https.as_ref()?,
            _ => self.0.http.as_ref()?,
        };
        let host = url.host_str().unwrap_or_default();
        let host = host.trim_matches(['[', ']']).trim_end_matches('.');
        let is_without = self.0.without.iter().any(|pattern| pattern.has(host));
        Some(named).filter(|_| !is_without)
    }

    /// Whether a proxy can be used for `url`, if one is named.
    ///
    /// # Errors
    /// What is wrong with its variable.
    pub(super) fn check(&self, url: &Url) -> Result<(), String> {
        match self.of(url) {
            Some(Named {
                url: None,
                variable,
            }) => Err(format!(
                "the variable {variable} does not hold the address of a proxy, such as http://host:port or socks5h://host:port"
            )),
            _ => Ok(()),
        }
    }

    /// Why a request for `url` failed, with the name of the proxy that it went through.
    pub(super) fn blame(&self, url: &Url, why: String) -> String {
        match self.of(url) {
            Some(Named {
                url: Some(proxy),
                variable,
            }) => {
                let host = proxy.host_str().unwrap_or_default();
                // Without the password that the address may have.
                let mut shown = format!("{}://{host}", proxy.scheme());
                if let Some(port) = proxy.port() {
                    shown.push_str(&format!(":{port}"));
                }
                format!("through the proxy {shown} (variable {variable}): {why}")
            }
            _ => why,
        }
    }
}

/// The address of a proxy, with or without a scheme.
fn parse(text: &str) -> Option<Url> {
    let url = match text.contains("://") {
        true => Url::parse(text),
        false => Url::parse(&format!("http://{text}")),
    };
    let url = url.ok()?;
    let is_proxy = SCHEMES.contains(&url.scheme()) && url.has_host();
    Some(url).filter(|_| is_proxy)
}

fn pattern(entry: &str) -> Option<Pattern> {
    if entry == "*" {
        return Some(Pattern::All);
    }
    let (address, bits) = match entry.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (entry, None),
    };
    if let Ok(address) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok());
        // A network with a wrong number of bits has no address.
        return Some(Pattern::Network(
            address,
            bits.filter(|bits| *bits <= most)?,
        ));
    }
    let name = entry.trim_start_matches('.').trim_end_matches('.');
    (!name.is_empty()).then(|| Pattern::Domain(name.to_ascii_lowercase()))
}

impl Pattern {
    fn has(&self, host: &str) -> bool {
        match (self, host.parse::<IpAddr>()) {
            (Pattern::All, _) => true,
            (Pattern::Network(network, bits), Ok(address)) => is_within(address, *network, *bits),
            (Pattern::Domain(name), Err(_)) => {
                let host = host.to_ascii_lowercase();
                let above = host.strip_suffix(name.as_str());
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            _ => false,
        }
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u32) -> bool {
    let differs = match (address, network) {
        (IpAddr::V4(a), IpAddr::V4(b)) => u128::from(a.to_bits() ^ b.to_bits()) << 96,
        (IpAddr::V6(a), IpAddr::V6(b)) => a.to_bits() ^ b.to_bits(),
        _ => return false,
    };
    differs.leading_zeros() >= bits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(variables: &[(&str, &str)]) -> Proxies {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Proxies::with(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn goes_through(proxies: &Proxies, url: &str) -> Option<String> {
        let url = url.parse().unwrap();
        let named = proxies.of(&url)?;
        Some(named.url.as_ref().unwrap().to_string())
    }

    #[test]
    fn hosts_of_no_proxy_are_asked_directly_in_each_form_that_curl_knows() {
        // The value, a host that it has, and one that it does not have.
        for (value, has, lacks) in [
            ("*", "a.example", None),
            ("*", "127.0.0.1", None),
            ("*", "[::1]", None),
            ("example.com", "example.com", Some("notexample.com")),
            ("example.com", "www.EXAMPLE.com", Some("example.com.org")),
            (".example.com", "example.com", Some("com")),
            (".example.com", "www.example.com", Some("wwwexample.com")),
            ("example.com.", "www.example.com.", Some("example.net")),
            ("a.test, b.test", "b.test", Some("c.test")),
            ("a.test b.test", "b.test", Some("c.test")),
            (" a.test,,b.test ,", "a.test", Some("c.test")),
            ("127.0.0.1", "127.0.0.1", Some("127.0.0.2")),
            ("10.0.0.0/8", "10.9.8.7", Some("11.0.0.1")),
            ("10.9.8.7/8", "10.0.0.1", Some("11.0.0.1")),
            ("192.168.1.0/25", "192.168.1.127", Some("192.168.1.128")),
            ("0.0.0.0/0", "198.51.100.1", Some("[::1]")),
            ("::1", "[::1]", Some("[::2]")),
            ("[::1]", "[::1]", Some("[::2]")),
            ("fd00::/8", "[fdff::1]", Some("[fe80::1]")),
        ] {
            let all = proxies(&[("all_proxy", "http://p:1"), ("no_proxy", value)]);
            let url = |host: &str| format!("http://{host}:81/");
            assert_eq!(goes_through(&all, &url(has)), None, "{value}: {has}");
            if let Some(lacks) = lacks {
                let proxy = goes_through(&all, &url(lacks));
                assert!(proxy.is_some(), "{value}: {lacks}");
            }
        }
        for nothing in ["", " ", ".", "10.0.0.0/33", "10.0.0.0/x", "1.2.3.4.5"] {
            let all = proxies(&[("all_proxy", "http://p:1"), ("no_proxy", nothing)]);
            let proxy = goes_through(&all, "http://10.0.0.1/");
            assert!(proxy.is_some(), "{nothing}");
        }
    }

    #[test]
    fn scheme_chooses_the_proxy_and_small_letters_and_values_go_first() {
        let some = proxies(&[
            ("http_proxy", ""),
            ("HTTP_PROXY", "plain:3128"),
            ("https_proxy", "socks5h://u:p@tls"),
            ("HTTPS_PROXY", "http://wrong:1"),
            ("ALL_PROXY", "http://wrong:2"),
            ("no_proxy", ""),
            ("NO_PROXY", "near.test"),
        ]);
        let through = |url| goes_through(&some, url);
        assert_eq!(through("http://a.test/").unwrap(), "http://plain:3128/");
        assert_eq!(through("https://a.test/").unwrap(), "socks5h://u:p@tls");
        assert_eq!(through("https://near.test/"), None);
        assert_eq!(some.hosts(), ["plain", "tls"]);
        let why = some.blame(&"https://a.test/".parse().unwrap(), "x".to_owned());
        assert_eq!(
            why,
            "through the proxy socks5h://tls (variable https_proxy): x"
        );
        let cgi = proxies(&[("HTTP_PROXY", "http://p:1"), ("REQUEST_METHOD", "GET")]);
        assert_eq!(goes_through(&cgi, "http://a.test/"), None);
    }

    #[test]
    fn variable_without_the_address_of_a_proxy_is_named() {
        for wrong in ["ftp://p:1", "http://", "http://p:port", "p p"] {
            let some = proxies(&[("http_proxy", wrong)]);
            let told = some.check(&"http://a.test/".parse().unwrap()).unwrap_err();
            assert!(told.contains("http_proxy"), "{told}");
            assert_eq!(some.check(&"https://a.test/".parse().unwrap()), Ok(()));
        }
    }
}
