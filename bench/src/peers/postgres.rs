//! PostgreSQL with its defaults on the disk of the work directory: every commit waits for its sync. Clients are those of
//! its own pgbench, over a Unix socket, with prepared statements.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::field::Field;
use crate::process::{self, Daemon};

/// Where Debian puts the programs of each version.
const PROGRAMS: &str = "/usr/lib/postgresql";
/// It does not run as root.
const USER: &str = "postgres";
const CONNECTIONS: &str = "200";

/// A running server.
pub struct Postgres {
    daemon: Daemon,
    programs: PathBuf,
    home: PathBuf,
}

impl Postgres {
    /// Makes a database and serves it.
    pub fn start(field: &Field) -> Result<Postgres> {
        let programs = newest(Path::new(PROGRAMS)).context("PostgreSQL is not installed")?;
        let home = field.fresh("postgres")?;
        let (user, group) = (id("-u")?, id("-g")?);
        chown(&home, Some(user), Some(group))?;
        fs::set_permissions(&home, fs::Permissions::from_mode(0o700))?;
        let data = home.join("data");
        let mut init = as_user(&programs.join("initdb"));
        init.args(["--auth=trust", "--no-instructions", "--encoding=UTF8"]);
        init.args(["--username", USER, "--pgdata"]).arg(&data);
        process::short(init.current_dir("/"))?;
        let mut serve = as_user(&programs.join("postgres"));
        serve.arg("-D").arg(&data).arg("-k").arg(&home);
        serve.args(["-c", "listen_addresses=", "-c"]);
        serve.arg(format!("max_connections={CONNECTIONS}"));
        let log = field.log("postgres");
        let daemon = Daemon::start("PostgreSQL", serve.current_dir("/"), &log)?;
        let mut server = Postgres {
            daemon,
            programs,
            home,
        };
        let ready = server.program("pg_isready");
        let ready = std::cell::RefCell::new(ready);
        server.daemon.wait_until("answered", || {
            let status = ready.borrow_mut().arg("-q").status();
            status.is_ok_and(|status| status.success())
        })?;
        for (setting, value) in [("fsync", "on"), ("synchronous_commit", "on")] {
            let shown = server.ask(&format!("show {setting}"))?;
            ensure!(shown.trim() == value, "{setting} is {shown}");
        }
        Ok(server)
    }

    /// Its address for programs that take one, over its Unix socket.
    pub fn address(&self) -> String {
        let home = self.home.display();
        format!("postgres://{USER}@/{USER}?host={home}&sslmode=disable")
    }

    /// Makes a table that is a log, and the statement that appends to it.
    pub fn make_log(&self, leaf: &[u8], body: &[u8]) -> Result<()> {
        self.ask(
            "create table log (position bigint generated always as identity primary key, \
             leaf bytea not null, body bytea not null)",
        )?;
        let script = format!(
            "insert into log (leaf, body) values ('\\x{}', '\\x{}');\n",
            hex(leaf),
            hex(body)
        );
        Ok(fs::write(self.script(), script)?)
    }

    /// Rows that so many clients append, each waiting for its commit.
    pub fn insert(&self, clients: usize, time: Duration) -> Result<f64> {
        let before = self.rows()?;
        let mut bench = self.program("pgbench");
        bench.args(["-n", "-M", "prepared", "-j", "2", "-c"]);
        bench.arg(clients.to_string()).arg("-T");
        bench.arg(time.as_secs().to_string()).arg("-f");
        bench.arg(self.script()).arg(USER);
        process::short(&mut bench)?;
        Ok(self.rows()? - before)
    }

    /// Processor seconds of the server and its backends so far.
    pub fn cpu_s(&self) -> Result<f64> {
        self.daemon.cpu_s()
    }

    fn rows(&self) -> Result<f64> {
        let rows = self.ask("select count(*) from log")?;
        Ok(rows.trim().parse::<u64>()? as f64)
    }

    fn script(&self) -> PathBuf {
        self.home.join("append.sql")
    }

    fn ask(&self, query: &str) -> Result<String> {
        let mut psql = self.program("psql");
        psql.args(["-q", "-A", "-t", "-c", query, USER]);
        process::short(&mut psql)
    }

    fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.arg("-h").arg(&self.home).args(["-U", USER]);
        command
    }
}

/// The directory of the newest version's programs.
fn newest(programs: &Path) -> Option<PathBuf> {
    let versions = fs::read_dir(programs).ok()?.filter_map(Result::ok);
    let numbers = versions.filter_map(|version| version.file_name().to_str()?.parse::<u32>().ok());
    let newest = numbers.max()?;
    Some(programs.join(newest.to_string()).join("bin"))
}

fn id(option: &str) -> Result<u32> {
    let id = process::short(Command::new("id").args([option, USER]))?;
    Ok(id.trim().parse()?)
}

/// The command as the server's user; the kernel ends it if this program is killed.
fn as_user(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups"]);
    command.args(["--pdeathsig", "INT", "--"]).arg(program);
    command
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
