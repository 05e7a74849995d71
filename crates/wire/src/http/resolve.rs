//! Resolves host names, and keeps redirects out of private networks.
//!
//! [`super::redirect`] judges a redirect by its URL, but a host name may resolve to any address. The
//! connection uses the addresses that this resolver returns, so a name cannot change its mind in between.
//! Names that the user chose (the repository's host and the proxies of the environment) are not filtered. A
//! proxy resolves names itself; then the proxy must keep the reader out of its network.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use store::BoxFuture;

use super::proxy::Proxies;
use super::redirect::{is_near, is_near_address};

/// Looks up the addresses of a name.
type LookUp = dyn Fn(String) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync;

/// The resolver of one repository.
#[derive(Clone)]
pub(super) struct Resolver(Arc<Inner>);

struct Inner {
    /// The host of the repository.
    own: String,
    /// The repository is on this machine or in a private network by its URL.
    own_is_near: bool,
    proxies: Vec<String>,
    look_up: Box<LookUp>,
}

impl Resolver {
    /// For the repository at `url`, read through `proxies`.
    pub(super) fn new(url: &Url, proxies: &Proxies) -> Resolver {
        let proxies = proxies.hosts().iter().map(|host| normal(host)).collect();
        Resolver::with(url, proxies, Box::new(|name| Box::pin(system(name))))
    }

    fn with(url: &Url, proxies: Vec<String>, look_up: Box<LookUp>) -> Resolver {
        Resolver(Arc::new(Inner {
            own: normal(url.host_str().unwrap_or_default()),
            own_is_near: is_near(url),
            proxies,
            look_up,
        }))
    }
}

impl Inner {
    async fn addresses(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let name = normal(name);
        let found = (self.look_up)(name.clone()).await?;
        let is_chosen = name == self.own || self.proxies.contains(&name);
        if is_chosen || self.own_is_near || !found.iter().any(|ip| is_near_address(*ip)) {
            return Ok(found);
        }
        // A repository in a private network may redirect within it.
        let own = (self.look_up)(self.own.clone()).await.unwrap_or_default();
        if own.iter().any(|ip| is_near_address(*ip)) {
            return Ok(found);
        }
        let far = found.into_iter().filter(|ip| !is_near_address(*ip));
        let far: Vec<IpAddr> = far.collect();
        if far.is_empty() {
            return Err(io::Error::other(format!(
                "it redirects to {name}, which is in a private network"
            )));
        }
        Ok(far)
    }
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let inner = Arc::clone(&self.0);
        Box::pin(async move {
            let found = inner.addresses(name.as_str()).await?;
            // The port of the URL replaces 0.
            let found = found.into_iter().map(|ip| SocketAddr::new(ip, 0));
            Ok(Box::new(found) as Addrs)
        })
    }
}

async fn system(name: String) -> io::Result<Vec<IpAddr>> {
    let found = tokio::net::lookup_host((name, 0)).await?;
    Ok(found.map(|address| address.ip()).collect())
}

/// A host name in its one spelling.
fn normal(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolver(repository: &str) -> Resolver {
        let look_up = |name: String| -> BoxFuture<'static, io::Result<Vec<IpAddr>>> {
            let found: &[&str] = match name.as_str() {
                "mirror.example" | "far.example" => &["198.51.100.7", "2001:db8::7"],
                "mirror.corp" | "files.corp" | "proxy.corp" => &["10.1.2.3"],
                "loop.example" => &["127.0.0.1", "::1"],
                "both.example" => &["::ffff:192.168.1.1", "198.51.100.9", "169.254.169.254"],
                "nat64.example" => &["64:ff9b::7f00:1"],
                _ => return Box::pin(async { Err(io::ErrorKind::NotFound.into()) }),
            };
            let found = found.iter().map(|ip| ip.parse().unwrap()).collect();
            Box::pin(async move { Ok(found) })
        };
        let proxies = vec![normal("Proxy.corp")];
        Resolver::with(&repository.parse().unwrap(), proxies, Box::new(look_up))
    }

    async fn resolve(repository: &str, name: &str) -> Result<Vec<String>, String> {
        let name: Name = name.parse().unwrap();
        match resolver(repository).resolve(name).await {
            Ok(found) => Ok(found.map(|a| a.ip().to_string()).collect()),
            Err(error) => Err(error.to_string()),
        }
    }

    #[tokio::test]
    async fn redirect_to_a_name_of_a_private_network_gets_no_address() {
        let far = ["198.51.100.7", "2001:db8::7"].map(str::to_owned);
        let mirror = "https://mirror.example/repo/";
        assert_eq!(resolve(mirror, "mirror.example").await.unwrap(), far);
        assert_eq!(resolve(mirror, "far.example").await.unwrap(), far);
        for name in ["loop.example", "files.corp", "FILES.corp.", "nat64.example"] {
            let refused = resolve(mirror, name).await.unwrap_err();
            assert!(refused.contains("private network"), "{refused}");
        }
        let some = resolve(mirror, "both.example").await.unwrap();
        assert_eq!(some, ["198.51.100.9"]);
        assert!(resolve(mirror, "none.example").await.is_err());
    }

    #[tokio::test]
    async fn names_that_the_user_chose_are_not_filtered() {
        let own = resolve("http://loop.example:81/", "loop.example").await;
        assert_eq!(own.unwrap(), ["127.0.0.1", "::1"]);
        let proxy = resolve("http://mirror.example/", "proxy.corp").await;
        assert_eq!(proxy.unwrap(), ["10.1.2.3"]);
        // A repository in a private network may redirect within it.
        for own in [
            "http://10.0.0.1/",
            "http://localhost/",
            "http://mirror.corp/",
        ] {
            assert_eq!(resolve(own, "files.corp").await.unwrap(), ["10.1.2.3"]);
        }
    }
}
