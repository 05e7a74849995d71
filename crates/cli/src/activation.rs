//! Sockets that a service manager opened and passed on: `LISTEN_FDS`, `LISTEN_PID` and
//! `LISTEN_FDNAMES`, as sd_listen_fds(3) describes them. The name of a socket says what it serves.

use std::net::TcpListener;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

use crate::failure::{Failure, Kind, Outcome};

/// Limit of passed sockets. A larger number is a mistake.
const MAX_SOCKETS: usize = 64;

/// What a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Bulla,
    Http,
    Metrics,
    Shared,
    Witness,
}

/// The sockets that were passed to this process, by role.
#[derive(Debug, Default)]
pub struct Passed {
    /// For the protocol of `bulla://`.
    pub bulla: Vec<TcpListener>,
    /// For HTTP.
    pub http: Vec<TcpListener>,
    /// For metrics.
    pub metrics: Vec<TcpListener>,
    /// For the devices of shared volumes.
    pub shared: Vec<TcpListener>,
    /// For logs that ask a witness.
    pub witness: Vec<TcpListener>,
}

impl Passed {
    /// Takes the sockets that were passed to this process, if any.
    ///
    /// Must be called once, before a second thread starts.
    pub fn take() -> Outcome<Passed> {
        let variable = |name| std::env::var(name).unwrap_or_default();
        let words = Words {
            count: &variable("LISTEN_FDS"),
            pid: &variable("LISTEN_PID"),
            names: &variable("LISTEN_FDNAMES"),
        };
        let roles = words.roles(std::process::id())?;
        let mut passed = Passed::default();
        if roles.is_empty() {
            return Ok(passed);
        }
        let mut sockets = ListenFd::from_env();
        for (index, role) in roles.into_iter().enumerate() {
            let number = index + 1;
            let failed = |cause: String| {
                let what = format!("cannot use socket {number} of the service manager");
                let hint = "bulla serves TCP: write ListenStream=PORT or ADDRESS:PORT, and \
                            Accept=no, in the socket unit";
                let mut failure = Failure::new(Kind::Config, what).with_hint(hint);
                failure.push_cause(cause);
                failure
            };
            let socket = sockets.take_tcp_listener(index);
            let socket = socket.map_err(|e| failed(e.to_string()))?;
            let socket = socket.ok_or_else(|| failed("the descriptor is not open".to_owned()))?;
            if !socket_acceptconn(&socket).is_ok_and(|listens| listens) {
                return Err(failed("it does not listen".to_owned()));
            }
            match role {
                Role::Bulla => passed.bulla.push(socket),
                Role::Http => passed.http.push(socket),
                Role::Metrics => passed.metrics.push(socket),
                Role::Shared => passed.shared.push(socket),
                Role::Witness => passed.witness.push(socket),
            }
        }
        Ok(passed)
    }
}

/// The variables of the environment.
struct Words<'a> {
    count: &'a str,
    pid: &'a str,
    names: &'a str,
}

impl Words<'_> {
    /// The role of each socket, in order.
    fn roles(&self, own_pid: u32) -> Outcome<Vec<Role>> {
        // A child of the process that the sockets were passed to inherits the variables.
        if self.count.is_empty() || self.pid.parse() != Ok(own_pid) {
            return Ok(Vec::new());
        }
        let hint = "the service manager sets this variable, see sd_listen_fds(3)";
        let count = self.count.parse().ok().filter(|n| *n <= MAX_SOCKETS);
        let count = count.ok_or_else(|| {
            let what = format!(
                "LISTEN_FDS is `{}`, which is not a number of sockets (0 to 64)",
                self.count
            );
            Failure::new(Kind::Config, what).with_hint(hint)
        })?;
        if self.names.is_empty() {
            return Ok(vec![Role::Bulla; count]);
        }
        let names: Vec<&str> = self.names.split(':').collect();
        if names.len() != count {
            let what = format!(
                "the service manager passed {count} sockets but {} names",
                names.len()
            );
            return Err(Failure::new(Kind::Config, what).with_hint(hint));
        }
        names.into_iter().map(role).collect()
    }
}

fn role(name: &str) -> Outcome<Role> {
    match name {
        "http" => Ok(Role::Http),
        "metrics" => Ok(Role::Metrics),
        "shared" => Ok(Role::Shared),
        "witness" => Ok(Role::Witness),
        // Names of sockets without a name of their own: empty, `unknown`, or the name of the unit.
        "bulla" | "unknown" | "" => Ok(Role::Bulla),
        unit if unit.ends_with(".socket") => Ok(Role::Bulla),
        other => {
            let what = format!("a socket has the name `{other}`, which bulla does not know");
            let hint = "write FileDescriptorName=bulla, http, metrics, shared or witness in the socket unit";
            Err(Failure::new(Kind::Config, what).with_hint(hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(count: &str, pid: &str, names: &str) -> Option<Vec<Role>> {
        Words { count, pid, names }.roles(7).ok()
    }

    #[test]
    fn names_of_sockets_give_their_roles() {
        use Role::{Bulla, Http, Metrics, Shared, Witness};
        let three = roles("3", "7", "http:bulla-serve.socket:metrics");
        assert_eq!(three, Some(vec![Http, Bulla, Metrics]));
        assert_eq!(roles("1", "7", "shared"), Some(vec![Shared]));
        assert_eq!(roles("1", "7", "witness"), Some(vec![Witness]));
        assert_eq!(roles("2", "7", ""), Some(vec![Bulla, Bulla]));
        assert_eq!(roles("2", "7", "unknown:bulla"), Some(vec![Bulla, Bulla]));
    }

    #[test]
    fn sockets_for_another_process_are_ignored() {
        for pid in ["", "8", "-7", "seven"] {
            assert_eq!(roles("1", pid, ""), Some(Vec::new()), "{pid}");
        }
        assert_eq!(roles("", "7", ""), Some(Vec::new()));
    }

    #[test]
    fn wrong_counts_and_names_are_refused() {
        for (count, names) in [
            ("x", ""),
            ("-1", ""),
            ("65", ""),
            ("18446744073709551616", ""),
            ("2", "http"),
            ("1", "http:metrics"),
            ("1", "htpp"),
        ] {
            assert_eq!(roles(count, "7", names), None, "{count} {names}");
        }
    }
}
