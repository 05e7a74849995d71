//! nginx on the loopback, with and without TLS, serving a directory (figures 4, 10, 11).
//!
//! No access log, no compression, keep-alive without limit; TLS with a P-256 certificate and neither
//! session cache nor tickets, because a new client has no session.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use crate::field::Field;
use crate::process::{self, Daemon};

/// A running server.
pub struct Nginx {
    daemon: Daemon,
    /// Port of plain HTTP.
    pub http: u16,
    /// Port of HTTPS.
    pub https: u16,
}

impl Nginx {
    /// Serves `root`.
    pub fn start(field: &Field, name: &str, root: &Path) -> Result<Nginx> {
        let home = field.fresh(&format!("nginx-{name}"))?;
        certificate(field, &home)?;
        let (http, https) = (process::free_port()?, process::free_port()?);
        let path = home.join("nginx.conf");
        fs::write(&path, configuration(&home, root, http, https))?;
        let mut command = Command::new("nginx");
        command
            .arg("-p")
            .arg(&home)
            .arg("-e")
            .arg(home.join("error.log"));
        command.arg("-c").arg(&path);
        let mut daemon = Daemon::start("nginx", &mut command, &field.log("nginx"))?;
        daemon.wait_for_port(http)?;
        daemon.wait_for_port(https)?;
        Ok(Nginx {
            daemon,
            http,
            https,
        })
    }

    /// Processor seconds of master and workers so far.
    pub fn cpu_s(&self) -> Result<f64> {
        self.daemon.cpu_s()
    }
}

fn certificate(field: &Field, home: &Path) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
    ]);
    command.args(["-nodes", "-days", "30", "-subj", "/CN=127.0.0.1", "-keyout"]);
    command
        .arg(home.join("key.pem"))
        .arg("-out")
        .arg(home.join("cert.pem"));
    process::run(&mut command, field.work()).map(drop)
}

fn configuration(home: &Path, root: &Path, http: u16, https: u16) -> String {
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .iter()
        .map(|kind| format!("  {kind}_temp_path {}/tmp-{kind};\n", home.display()))
        .collect();
    let home: PathBuf = home.to_owned();
    format!(
        "daemon off;\nuser root;\nworker_processes auto;\npid {home}/pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n{temporary}  access_log off;\n  sendfile on;\n  tcp_nopush on;\n\
           open_file_cache max=10000;\n  keepalive_requests 1000000000;\n  keepalive_timeout 600;\n\
           ssl_certificate {home}/cert.pem;\n  ssl_certificate_key {home}/key.pem;\n\
           ssl_session_cache off;\n  ssl_session_tickets off;\n\
           server {{\n    listen 127.0.0.1:{http} reuseport;\n    listen 127.0.0.1:{https} ssl reuseport;\n\
             root {root};\n  }}\n}}\n",
        home = home.display(),
        root = root.display(),
    )
}
