//! A real nginx on a free port of this machine, with its own configuration in a temporary directory: the
//! server that many repositories on the web are behind. It ends with the test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test fails by panicking

use std::io::Write;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A certificate chain and its key, in PEM.
pub struct Identity {
    /// The chain.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// Configuration besides the root directory.
#[derive(Default)]
pub struct Setup {
    /// Lines of the `server` block.
    pub server: String,
    /// Lines of `location /`.
    pub location: String,
    /// https and HTTP/2 instead of http.
    pub tls: Option<Identity>,
}

/// A running nginx.
pub struct Nginx {
    child: Child,
    address: SocketAddr,
    secure: bool,
    dir: TempDir,
}

impl Nginx {
    /// Serves the files below `root`. Gives `None` and prints a line if nginx is not installed.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(root: &Path, setup: Setup) -> Option<Nginx> {
        let found = ["/usr/sbin/nginx", "/usr/bin/nginx", "/usr/local/sbin/nginx"]
            .into_iter()
            .find(|path| Path::new(path).exists());
        let Some(program) = found else {
            // Written directly, because the test harness hides the output of a test that passes.
            let line = "SKIPPED static hosting behind nginx: nginx is not installed\n";
            let _ = std::io::stderr().write_all(line.as_bytes());
            return None;
        };
        // Another process may take the port before nginx does.
        let started = (0..5).find_map(|_| try_start(program, root, &setup));
        Some(started.expect("nginx starts"))
    }

    /// `http://host:port` or `https://host:port`.
    pub fn url(&self) -> String {
        match self.secure {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// The log of the requests, a line each: status, `HTTP/x`, method and path, range. A line is written
    /// after its answer was sent, so this waits until there are `at_least` lines.
    ///
    /// # Panics
    /// When there are fewer after ten seconds.
    pub fn requests(&self, at_least: usize) -> Vec<String> {
        let began = Instant::now();
        loop {
            let log = std::fs::read_to_string(self.dir.path().join("access.log"));
            let log = log.unwrap_or_default();
            if log.lines().count() >= at_least {
                return log.lines().map(str::to_owned).collect();
            }
            if began.elapsed() > Duration::from_secs(60) {
                panic!("nginx logged fewer than {at_least} requests:\n{log}");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn try_start(program: &str, root: &Path, setup: &Setup) -> Option<Nginx> {
    let dir = TempDir::new().expect("a directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let at = |name: &str| dir.path().join(name).display().to_string();
    let mut listen = format!("listen {address}");
    let mut lines = String::new();
    if let Some(Identity { certificate, key }) = &setup.tls {
        std::fs::write(at("server.pem"), certificate).expect("a certificate");
        std::fs::write(at("server.key"), key).expect("a key");
        listen.push_str(" ssl http2");
        lines = format!(
            "ssl_certificate {}; ssl_certificate_key {};",
            at("server.pem"),
            at("server.key")
        );
    }
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {};\n", at(name)))
        .concat();
    let configuration = format!(
        "daemon off; master_process off; pid {pid}; error_log {error} warn;\n\
         events {{ worker_connections 512; }}\n\
         http {{\n{paths}\
         log_format short '$status $server_protocol $request_method $uri $http_range';\n\
         access_log {access} short; default_type application/octet-stream;\n\
         server {{ {listen}; {lines} root {root};\n{server}\n location / {{ {location} }}\n}}\n}}\n",
        pid = at("pid"),
        error = at("error.log"),
        access = at("access.log"),
        root = root.display(),
        server = setup.server,
        location = setup.location,
    );
    std::fs::write(at("nginx.conf"), configuration).expect("a configuration");
    // nginx is killed with the test.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program, "-e", &at("error.log")]);
    command.args(["-p", &at(""), "-c", &at("nginx.conf")]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut nginx = Nginx {
        child: child.expect("setpriv"),
        address,
        secure: setup.tls.is_some(),
        dir,
    };
    let until = Instant::now() + Duration::from_secs(60);
    while Instant::now() < until {
        if nginx.child.try_wait().ok().flatten().is_some() {
            let log = std::fs::read_to_string(nginx.dir.path().join("error.log"));
            eprintln!("nginx ended: {}", log.unwrap_or_default());
            return None;
        }
        if TcpStream::connect(address).is_ok() {
            return Some(nginx);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    None
}
