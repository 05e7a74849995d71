//! Decides which redirects a reader follows.
//!
//! Every byte is verified, so redirects to other hosts are allowed: object stores and delivery networks use
//! them. A redirect must not leave TLS, loop, make the reader send credentials, or make it connect to
//! addresses that only its own machine or network can reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use reqwest::Url;
use reqwest::redirect::Policy;

/// Most redirects of one request.
pub(super) const MAX_REDIRECTS: usize = 4;

/// The rules, as a policy of the HTTP client.
pub(super) fn policy() -> Policy {
    Policy::custom(|attempt| match judge(attempt.previous(), attempt.url()) {
        Ok(()) => attempt.follow(),
        Err(why) => attempt.error(why),
    })
}

fn judge(previous: &[Url], next: &Url) -> Result<(), &'static str> {
    if previous.len() > MAX_REDIRECTS {
        return Err("it redirects too often");
    }
    if previous.contains(next) {
        return Err("it redirects in a circle");
    }
    if !matches!(next.scheme(), "http" | "https") {
        return Err("it redirects to something that is not on the web");
    }
    if next.scheme() == "http" && previous.iter().any(|url| url.scheme() == "https") {
        return Err("it redirects from https to http");
    }
    if !next.username().is_empty() || next.password().is_some() {
        return Err("it redirects to an address with a user name");
    }
    let first = previous.first();
    let same_host = first.is_some_and(|first| first.host() == next.host());
    if !same_host && is_near(next) && !first.is_some_and(is_near) {
        return Err("it redirects into a private network");
    }
    Ok(())
}

/// Whether a URL names this machine or a private network. [`super::resolve`] looks at what
/// a host name resolves to.
pub(super) fn is_near(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let literal = host.trim_start_matches('[').trim_end_matches(']');
    match literal.parse::<IpAddr>() {
        Ok(address) => is_near_address(address),
        Err(_) => {
            let name = host.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

/// Whether an address is of this machine or of a private network.
pub(super) fn is_near_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_near_v4(v4),
        IpAddr::V6(v6) => match embedded(v6) {
            Some(v4) => is_near_v4(v4),
            None => {
                v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_unique_local()
                    || v6.is_unicast_link_local()
            }
        },
    }
}

/// The IPv4 address in a mapped one, or in one that a translator (64:ff9b::/96, RFC 6052) connects to it.
fn embedded(v6: Ipv6Addr) -> Option<Ipv4Addr> {
    match v6.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            let bits = (u32::from(high) << 16) | u32::from(low);
            Some(Ipv4Addr::from_bits(bits))
        }
        _ => v6.to_ipv4_mapped(),
    }
}

fn is_near_v4(v4: Ipv4Addr) -> bool {
    let [a, b, ..] = v4.octets();
    let shared = a == 100 && (64..128).contains(&b);
    v4.is_loopback() || v4.is_private() || v4.is_link_local() || a == 0 || shared
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(chain: &[&str]) -> Result<(), &'static str> {
        let urls: Vec<Url> = chain.iter().map(|u| u.parse().unwrap()).collect();
        let (next, previous) = urls.split_last().unwrap();
        judge(previous, next)
    }

    #[test]
    fn redirects_to_other_hosts_are_allowed_and_unsafe_ones_refused() {
        for good in [
            &["https://a.example/x", "https://b.example/y"][..],
            &["http://a.example/x", "https://a.example/x"],
            &["http://127.0.0.1/x", "http://127.0.0.1:81/y"],
            &["http://10.0.0.1/x", "http://10.0.0.2/x"],
            &[
                "http://a/1",
                "http://a/2",
                "http://a/3",
                "http://a/4",
                "http://a/5",
            ],
        ] {
            assert_eq!(judged(good), Ok(()), "{good:?}");
        }
        for (bad, why) in [
            (
                &["https://a.example/x", "http://a.example/x"][..],
                "from https",
            ),
            (
                &["http://a/", "https://a/", "http://b/"],
                "from https to http",
            ),
            (&["http://a/x", "http://a/x"], "circle"),
            (&["http://a/x", "http://a/y", "http://a/x"], "circle"),
            (&["http://a/x", "file:///etc/passwd"], "not on the web"),
            (&["http://a/x", "ftp://a/x"], "not on the web"),
            (&["http://a/x", "http://u:p@b/x"], "user name"),
            (&["http://a.example/x", "http://127.0.0.1/x"], "private"),
            (&["http://a.example/x", "http://2130706433/x"], "private"),
            (&["http://a.example/x", "http://[::1]/x"], "private"),
            (
                &["http://a.example/x", "http://[::ffff:127.0.0.1]/"],
                "private",
            ),
            (&["http://a.example/x", "http://[fd00::1]/x"], "private"),
            (
                &["http://a.example/x", "http://169.254.169.254/x"],
                "private",
            ),
            (&["http://a.example/x", "http://192.168.1.1/x"], "private"),
            (&["http://a.example/x", "http://0.0.0.0/x"], "private"),
            (&["http://a.example/x", "http://localhost:22/x"], "private"),
            (&["http://a.example/x", "http://x.localhost./x"], "private"),
            (
                &[
                    "http://a/1",
                    "http://a/2",
                    "http://a/3",
                    "http://a/4",
                    "http://a/5",
                    "http://a/6",
                ],
                "too often",
            ),
        ] {
            let got = judged(bad).expect_err(&format!("{bad:?}"));
            assert!(got.contains(why), "{bad:?}: {got}");
        }
    }
}
