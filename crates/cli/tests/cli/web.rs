//! Repositories over HTTP with the real binary: from `bulla serve --http` and nginx, with and without TLS,
//! through a proxy; and the errors for web servers that cannot be used.

use std::io::{Read, Write};
use std::net::TcpListener;

use crate::support::{Home, damage_largest};
use sim::nginx::{Identity, Nginx, Setup};

#[test]
fn volumes_over_http_are_read_like_others() {
    let home = Home::new();
    let volume = home.published();
    let serving = home.serve_both("repo");
    assert!(serving.sources[0].starts_with(&format!("{volume}@bulla://")));
    assert!(serving.sources[1].starts_with(&format!("{volume}@http://")));
    assert!(serving.sources[1].ends_with(&format!("/{volume}")));
    let big = std::fs::read(home.path("tree/sub/deep/big")).unwrap();
    // With the announced URL, and without the volume's directory.
    let whole = serving.sources[1].clone();
    let short = whole.rsplit_once('/').unwrap().0.to_owned();
    for source in [&whole, &short] {
        home.run(&["verify", source]).ends(0);
        let out = home.command(&["cat", source, "sub/deep/big"]).output();
        assert_eq!(out.unwrap().stdout, big);
        let told = home.run(&["ls", "-R", source]).ends(0);
        assert!(told.out.contains("sub/deep/big"), "{}", told.out);
        home.run(&["cat", source, "nothing"]).ends(10);
    }
    home.run(&["extract", &whole, "copy"]).ends(0);
    assert_eq!(std::fs::read(home.path("copy/sub/deep/big")).unwrap(), big);
    // A web server as mirror of a location that does not exist.
    let nowhere = format!("{volume}@bulla://127.0.0.1:9");
    let location = whole.split_once('@').unwrap().1;
    home.run(&["verify", &nowhere, "--mirror", location])
        .ends(0);
    // Without a volume id, the error names the one that the location claims to have.
    for location in [location, short.split_once('@').unwrap().1] {
        let told = home.run(&["ls", location]).ends(2);
        assert!(told.err.contains(&volume), "{}", told.err);
    }
    // A version that was published in the meantime is read.
    std::fs::write(home.path("tree/new"), b"new\n").unwrap();
    home.publish().ends(0);
    assert_eq!(home.run(&["cat", &whole, "new"]).ends(0).out, "new\n");
}

fn authority(home: &Home) -> Identity {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
    let certificate = certificate.signed_by(&key, &issuer).unwrap();
    std::fs::write(home.path("ca.pem"), issuer.pem()).unwrap();
    Identity {
        certificate: certificate.pem(),
        key: key.serialize_pem(),
    }
}

#[test]
fn tls_is_verified_by_an_authority_or_not_at_all() {
    let home = Home::new();
    let volume = home.published();
    let setup = Setup {
        tls: Some(authority(&home)),
        ..Setup::default()
    };
    let Some(nginx) = Nginx::start(&home.path("repo"), setup) else {
        return;
    };
    let source = format!("{volume}@{}", nginx.url());
    let told = home.run(&["ls", &source]).ends(30);
    assert!(
        told.err.contains("vouches for its certificate"),
        "{}",
        told.err
    );
    home.run(&["ls", &source, "--ca", "ca.pem"]).ends(0);
    home.run(&["ls", &source, "--tls-unverified"]).ends(0);
    home.run(&["ls", &source, "--tls-unverified", "--ca", "ca.pem"])
        .ends(2);
    let told = home.run(&["ls", &source, "--ca", "key"]).ends(30);
    assert!(told.err.contains("holds no certificate"), "{}", told.err);
    for (value, code) in [
        ("unverified", 0),
        ("ca.pem", 0),
        ("system", 30),
        ("nowhere", 30),
    ] {
        let mut command = home.command(&["ls", &source]);
        let out = command.env("BULLA_TLS", value).output().unwrap();
        assert_eq!(out.status.code(), Some(code), "{value}");
    }
}

#[test]
fn unusable_and_lying_web_servers_have_different_errors() {
    let home = Home::new();
    let volume = home.published();
    let Some(nginx) = Nginx::start(&home.path("repo"), Setup::default()) else {
        return;
    };
    let source = format!("{volume}@{}", nginx.url());
    home.run(&["verify", &source]).ends(0);
    damage_largest(&home.path("repo/segments"));
    home.run(&["verify", &source]).ends(20);
    home.run(&["cat", &source, "sub/deep/big"]).ends(20);
    let elsewhere = format!("{volume}@{}/elsewhere", nginx.url());
    home.run(&["ls", &elsewhere]).ends(30);
    let login = Setup {
        location: "default_type text/html; return 200 '<html>Log in</html>';".to_owned(),
        ..Setup::default()
    };
    let Some(nginx) = Nginx::start(&home.path("repo"), login) else {
        return;
    };
    let told = home
        .run(&["ls", &format!("{volume}@{}", nginx.url())])
        .ends(30);
    assert!(told.err.contains("a login page"), "{}", told.err);
    for wrong in ["http://", "https://u:p@host", "http://host/?x"] {
        home.run(&["ls", &format!("{volume}@{wrong}")]).ends(2);
    }
}

#[test]
fn a_proxy_of_the_environment_is_used() {
    let home = Home::new();
    let volume = home.published();
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = proxy.local_addr().unwrap();
    let asked = std::thread::spawn(move || {
        let (mut stream, _) = proxy.accept().unwrap();
        let mut request = [0; 4096];
        let len = stream.read(&mut request).unwrap();
        stream
            .write_all(b"HTTP/1.1 418 No\r\nContent-Length: 0\r\n\r\n")
            .unwrap();
        String::from_utf8_lossy(&request[..len]).into_owned()
    });
    let source = format!("{volume}@http://mirror.example/x");
    let mut command = home.command(&["ls", &source]);
    let out = command
        .env("http_proxy", format!("http://{address}"))
        .output();
    assert_eq!(out.unwrap().status.code(), Some(30));
    let asked = asked.join().unwrap();
    assert!(
        asked.starts_with("GET http://mirror.example/x/head HTTP/1.1\r\n"),
        "{asked}"
    );
}
