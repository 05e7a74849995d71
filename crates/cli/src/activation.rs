//! Sockets that a service manager opened and passed on: `LISTEN_FDS`, `LISTEN_PID` and
//! `LISTEN_FDNAMES`, as sd_listen_fds(3) describes them. Which socket is for what is told by its name.

use std::net::TcpListener;

use listenfd::ListenFd;
use rustix::net::sockopt::socket_acceptconn;

use crate::failure::{Failure, Kind, Outcome};

/// No service has more; a number beyond is a mistake.
const MAX_SOCKETS: usize = 64;

/// What a socket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Bulla,
    Http,
    Metrics,
}

/// The sockets that were passed to this process, by what they are for.
#[derive(Debug, Default)]
pub struct Passed {
    /// For the protocol of `bulla://`.
    pub bulla: Vec<TcpListener>,
    /// For HTTP.
    pub http: Vec<TcpListener>,
    /// For metrics.
    pub metrics: Vec<TcpListener>,
}

impl Passed {
    /// Takes what was passed to this process; nothing when nothing was, or it was for another.
    ///
    /// To be called once, before there is a second thread.
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
                let what = format!("socket {number} of the service manager is of no use");
                let hint = "bulla serves TCP: write ListenStream=PORT or ADDRESS:PORT, and \
                            Accept=no, in the socket unit";
                let mut failure = Failure::new(Kind::Config, what).with_hint(hint);
                failure.push_cause(cause);
                failure
            };
            let socket = sockets.take_tcp_listener(index);
            let socket = socket.map_err(|e| failed(e.to_string()))?;
            let socket = socket.ok_or_else(|| failed("it is not there".to_owned()))?;
            if !socket_acceptconn(&socket).is_ok_and(|listens| listens) {
                return Err(failed("it does not listen".to_owned()));
            }
            match role {
                Role::Bulla => passed.bulla.push(socket),
                Role::Http => passed.http.push(socket),
                Role::Metrics => passed.metrics.push(socket),
            }
        }
        Ok(passed)
    }
}

/// What the environment says.
struct Words<'a> {
    count: &'a str,
    pid: &'a str,
    names: &'a str,
}

impl Words<'_> {
    /// What each socket is for, in their order.
    fn roles(&self, own_pid: u32) -> Outcome<Vec<Role>> {
        // A process that was started by the one that they were passed to sees the words as well.
        if self.count.is_empty() || self.pid.parse() != Ok(own_pid) {
            return Ok(Vec::new());
        }
        let hint = "this is the service manager's word, see sd_listen_fds(3)";
        let count = self.count.parse().ok().filter(|n| *n <= MAX_SOCKETS);
        let count = count.ok_or_else(|| {
            let what = format!("LISTEN_FDS is `{}`, and no number of sockets", self.count);
            Failure::new(Kind::Config, what).with_hint(hint)
        })?;
        if self.names.is_empty() {
            return Ok(vec![Role::Bulla; count]);
        }
        let names: Vec<&str> = self.names.split(':').collect();
        if names.len() != count {
            let what = format!("{count} sockets were passed and {} names", names.len());
            return Err(Failure::new(Kind::Config, what).with_hint(hint));
        }
        names.into_iter().map(role).collect()
    }
}

fn role(name: &str) -> Outcome<Role> {
    match name {
        "http" => Ok(Role::Http),
        "metrics" => Ok(Role::Metrics),
        // What a socket is called that got no name: nothing, `unknown`, or like its unit.
        "bulla" | "unknown" | "" => Ok(Role::Bulla),
        unit if unit.ends_with(".socket") => Ok(Role::Bulla),
        other => {
            let what = format!("a socket is called `{other}`, and nothing of that name is served");
            let hint = "write FileDescriptorName=bulla, http or metrics in the socket unit";
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
    fn sockets_are_told_apart_by_their_names() {
        use Role::{Bulla, Http, Metrics};
        let three = roles("3", "7", "http:bulla-serve.socket:metrics");
        assert_eq!(three, Some(vec![Http, Bulla, Metrics]));
        assert_eq!(roles("2", "7", ""), Some(vec![Bulla, Bulla]));
        assert_eq!(roles("2", "7", "unknown:bulla"), Some(vec![Bulla, Bulla]));
    }

    #[test]
    fn what_is_meant_for_another_process_is_left_alone() {
        for pid in ["", "8", "-7", "seven"] {
            assert_eq!(roles("1", pid, ""), Some(Vec::new()), "{pid}");
        }
        assert_eq!(roles("", "7", ""), Some(Vec::new()));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
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
