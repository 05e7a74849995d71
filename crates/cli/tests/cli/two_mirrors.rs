//! A walk over two mirrors at the same time.

use std::fs;
use std::time::{Duration, Instant};

use sim::network::{Host, Network};

use crate::links::{run, same};
use crate::network::hosts;
use crate::support::{Home, noise};

/// Two mirrors, each with a narrow line of its own, the second one farther away: together they give a tree in less time
/// than the nearer one.
#[test]
fn mirrors_at_different_distances_share_one_walk() {
    const MBIT: u64 = 1_000_000;
    let mut network = Network::new(Duration::from_millis(5), 0, 3);
    let Some([near, far, reader]) = hosts(&mut network) else {
        return;
    };
    network.line(&near, Duration::from_millis(5), 8 * MBIT);
    network.line(&far, Duration::from_millis(50), 8 * MBIT);
    let home = Home::new();
    for file in 0..500 {
        let path = home.path(&format!("tree/t{}/d{}", file % 5, file % 30));
        fs::create_dir_all(&path).unwrap();
        let content = noise(file, 24_000);
        fs::write(path.join(format!("f{file}")), content).unwrap();
    }
    home.run(&["key", "new", "--out", "key", "--no-passphrase"])
        .ends(0);
    let told = home.publish().ends(0);
    let volume = told.field("volume").as_str().unwrap().to_owned();
    let serve = |host: &Host| {
        let address = host.address();
        let http = format!("{address}:80");
        let places = ["--listen", &format!("{address}:0"), "--http", &http];
        (host.inside(|| home.serve_at("repo", &places)), http)
    };
    let (servers, expected) = ([serve(&near), serve(&far)], home.path("tree"));
    let [native, http] = [false, true].map(|is_http| {
        servers.each_ref().map(|(server, http)| match is_http {
            true => format!("{volume}@http://{http}"),
            false => server.source.clone(),
        })
    });
    for (scheme, [near, far]) in [("native", native), ("http", http)] {
        let place = far.split_once('@').unwrap().1;
        let timed = |out: &str, more: &[&str]| {
            let out = format!("{scheme}-{out}");
            let began = Instant::now();
            let args = [&["extract", &near, &out], more].concat();
            run(&home, &reader, scheme, &args);
            let took = began.elapsed();
            same(&expected, &home.path(&out));
            took
        };
        let alone = timed("alone", &[]);
        let both = timed("both", &["--mirror", place]);
        // 12 MB at 8 Mbit/s.
        assert!(alone > Duration::from_secs(11), "{alone:?}");
        assert!(
            both < alone.mul_f64(0.75),
            "{scheme}: {both:?}, alone {alone:?}"
        );
    }
}
