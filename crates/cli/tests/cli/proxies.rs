//! Proxies of the environment: which requests go through one, and who is blamed when it is the trouble.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use crate::support::{Home, Ran};

/// Nobody listens there.
const CLOSED: &str = "http://user:secret@127.0.0.1:9";

fn ls(home: &Home, source: &str, variables: &[(&str, &str)]) -> Ran {
    let mut command = home.command(&["ls", source]);
    command.envs(variables.iter().copied());
    Ran::of(command.output().unwrap())
}

#[test]
fn hosts_of_no_proxy_are_read_without_a_proxy() {
    let home = Home::new();
    home.published();
    let serving = home.serve_both("repo");
    let source = &serving.sources[1];
    assert!(source.contains("http://127.0.0.1:"), "{source}");
    for without in [
        "*",
        "127.0.0.1",
        "127.0.0.0/8",
        "a.test 127.0.0.1",
        "b.test,127.0.0.1",
    ] {
        let ran = ls(
            &home,
            source,
            &[("http_proxy", CLOSED), ("no_proxy", without)],
        );
        assert_eq!(ran.code, 0, "no_proxy={without}: {}", ran.err);
    }
    let ran = ls(
        &home,
        source,
        &[("http_proxy", CLOSED), ("no_proxy", "127.0.0.2")],
    );
    ran.ends(30);
    // An empty variable counts as absent.
    let variables = [("http_proxy", ""), ("no_proxy", ""), ("NO_PROXY", "x")];
    ls(&home, source, &variables).ends(0);
}

#[test]
fn proxy_that_is_the_trouble_is_named_without_its_password() {
    let home = Home::new();
    let source = format!("{}@http://mirror.example/x", home.published());
    let told = ls(&home, &source, &[("http_proxy", CLOSED)]).ends(30).err;
    assert!(
        told.contains("through the proxy http://127.0.0.1:9"),
        "{told}"
    );
    assert!(told.contains("http_proxy"), "{told}");
    assert!(!told.contains("secret"), "{told}");
    let told = ls(&home, &source, &[("all_proxy", "ftp://127.0.0.1:9")]);
    let told = told.ends(30).err;
    assert!(told.contains("all_proxy"), "{told}");
    // One that refuses.
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    thread::spawn(move || {
        for stream in proxy.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 4096]);
            let answer = "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n";
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    for (scheme, variable) in [("http", "http_proxy"), ("https", "https_proxy")] {
        let source = source.replace("http:", &format!("{scheme}:"));
        let told = ls(&home, &source, &[(variable, &format!("http://{address}"))]);
        let told = told.ends(30).err;
        assert!(told.contains(&format!("proxy http://{address}")), "{told}");
    }
}

/// A SOCKS5 proxy (RFC 1928) without authentication that connects to `server`, whatever name it is asked for. Returns
/// its address.
fn socks_proxy(server: String) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut client, server) = (stream.unwrap(), server.clone());
            thread::spawn(move || {
                let mut hello = [0; 2];
                client.read_exact(&mut hello).unwrap();
                let mut methods = vec![0; hello[1].into()];
                client.read_exact(&mut methods).unwrap();
                client.write_all(&[5, 0]).unwrap();
                let mut asked = [0; 5];
                client.read_exact(&mut asked).unwrap();
                assert_eq!(asked[..4], [5, 1, 0, 3], "connect, by name");
                let mut name = vec![0; usize::from(asked[4]) + 2];
                client.read_exact(&mut name).unwrap();
                assert!(name.starts_with(b"mirror.example"));
                let far = TcpStream::connect(server).unwrap();
                client.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
                let (mut back, mut to) = (client.try_clone().unwrap(), far.try_clone().unwrap());
                let mut far = far;
                thread::spawn(move || std::io::copy(&mut far, &mut back));
                let _ = std::io::copy(&mut client, &mut to);
            });
        }
    });
    address
}

#[test]
fn repository_is_read_through_a_socks_proxy_that_resolves_its_name() {
    let home = Home::new();
    home.published();
    let serving = home.serve_both("repo");
    let (volume, location) = serving.sources[1].split_once('@').unwrap();
    let server = location.strip_prefix("http://").unwrap();
    let (server, path) = server.split_once('/').unwrap();
    let proxy = format!("socks5h://{}", socks_proxy(server.to_owned()));
    let source = format!("{volume}@http://mirror.example/{path}");
    let ran = ls(&home, &source, &[("ALL_PROXY", &proxy)]).ends(0);
    assert!(ran.out.contains("link"), "{}", ran.out);
}
