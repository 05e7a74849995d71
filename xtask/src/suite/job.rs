//! One test process: it runs in its package's directory as under `cargo test`, its output goes to a file,
//! and after a time limit it is ended with all its children.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::Sum;

/// A test process to run.
#[derive(Debug, Clone)]
pub struct Job {
    /// `cli/cli network::`: directory of the package, target, and the module of its tests.
    pub name: String,
    pub program: OsString,
    pub args: Vec<String>,
    /// A variable that it gets in addition.
    pub env: Option<(&'static str, &'static str)>,
    /// The directory of the package.
    pub directory: PathBuf,
    /// The file for stdout and stderr. A file, because a process that outlives the tests would keep a pipe
    /// open.
    pub log: PathBuf,
    pub limit: Duration,
    pub place: Place,
    /// How long it usually takes; long ones start first.
    pub expected_s: u32,
}

/// Beside what a process may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Place {
    /// Beside others.
    #[default]
    Together,
    /// Beside nothing but what only computes.
    Alone,
    /// Anywhere: it only computes, and no clock bounds it. It runs in one thread and at the lowest priority.
    Behind,
}

/// How a job ended.
#[derive(Debug)]
pub struct Outcome {
    pub name: String,
    pub sum: Sum,
    pub output: String,
    took: Duration,
    /// What went wrong, if anything.
    wrong: Option<String>,
}

impl Job {
    /// Runs it to its end.
    pub fn run(self) -> Outcome {
        let began = Instant::now();
        let ended = self.execute();
        let output = std::fs::read(&self.log).unwrap_or_default();
        let output = String::from_utf8_lossy(&output).into_owned();
        let sum = Sum::read(&output);
        let wrong = match ended {
            Err(error) => Some(format!("could not be run: {error}")),
            // The exit codes of timeout(1) after a time-out.
            Ok(Some(124 | 137)) => Some(format!("no end within {} s", self.limit.as_secs())),
            Ok(Some(0)) if sum.is_none() => Some("ended without a result".to_owned()),
            Ok(Some(0)) => None,
            Ok(Some(_)) if sum.is_some_and(|sum| sum.failed > 0) => Some("failed".to_owned()),
            Ok(code) => Some(format!("ended with {code:?}")),
        };
        Outcome {
            name: self.name,
            sum: sum.unwrap_or_default(),
            output,
            took: began.elapsed(),
            wrong,
        }
    }

    /// Runs it under timeout(1), which ends the whole process group.
    fn execute(&self) -> io::Result<Option<i32>> {
        let log = File::create(&self.log)?;
        let timeout = ["--kill-after=5", &self.limit.as_secs().to_string()];
        let mut command = match self.place {
            Place::Behind => {
                let mut command = Command::new("nice");
                command
                    .args(["-n", "19", "timeout"])
                    .env("RUST_TEST_THREADS", "1");
                command
            }
            Place::Together | Place::Alone => Command::new("timeout"),
        };
        command
            .args(timeout)
            .arg(&self.program)
            .args(&self.args)
            .current_dir(&self.directory)
            .env("CARGO_MANIFEST_DIR", &self.directory)
            .envs(self.env)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        Ok(command.status()?.code())
    }
}

impl Outcome {
    /// One line; after a failure the whole output follows.
    pub fn report(&self) -> String {
        let seconds = self.took.as_secs_f32();
        match &self.wrong {
            None => format!(
                "{seconds:6.1} s  {}: {} passed\n",
                self.name, self.sum.passed
            ),
            Some(wrong) => format!(
                "{seconds:6.1} s  {}: {wrong}\n{}\n---- end of {}\n",
                self.name, self.output, self.name
            ),
        }
    }

    /// Name and cause of a failure.
    pub fn failure(&self) -> Option<String> {
        let wrong = self.wrong.as_ref()?;
        Some(format!("{}: {wrong}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a shell script as if it were a test binary.
    fn run(script: &str, limit_s: u64) -> Outcome {
        run_at(Place::Together, script, limit_s)
    }

    fn run_at(place: Place, script: &str, limit_s: u64) -> Outcome {
        let directory = tempfile::tempdir().unwrap();
        let job = Job {
            name: "x/lib".to_owned(),
            program: "sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: None,
            directory: directory.path().to_path_buf(),
            log: directory.path().join("log"),
            limit: Duration::from_secs(limit_s),
            place,
            expected_s: 0,
        };
        job.run()
    }

    #[test]
    fn what_runs_behind_others_has_the_lowest_priority_and_one_thread() {
        let script = "[ $(nice) = 19 ] && [ \"$RUST_TEST_THREADS\" = 1 ] && \
                      echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'";
        assert_eq!(run_at(Place::Behind, script, 60).failure(), None);
        assert!(run_at(Place::Together, script, 60).failure().is_some());
    }

    #[test]
    fn a_passing_binary_passes_and_is_counted() {
        let outcome = run(
            "echo 'test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured'",
            60,
        );
        assert_eq!(outcome.failure(), None);
        assert_eq!((outcome.sum.passed, outcome.sum.ignored), (2, 1));
    }

    #[test]
    fn a_failing_binary_fails_and_its_output_is_shown_whole() {
        let script = "echo out; echo err >&2; \
            echo 'test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured'; exit 101";
        let outcome = run(script, 60);
        assert_eq!(outcome.failure().unwrap(), "x/lib: failed");
        assert!(
            outcome.report().contains("out\nerr\n"),
            "{}",
            outcome.report()
        );
        assert_eq!(outcome.sum.failed, 1);
    }

    #[test]
    fn a_binary_that_reports_nothing_or_dies_fails() {
        let silent = run("true", 60).failure().unwrap();
        assert!(silent.contains("without a result"), "{silent}");
        let ok = "echo 'test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured'";
        let dies = run(&format!("{ok}; kill -SEGV $$"), 60);
        assert!(dies.failure().is_some());
        assert!(run(&format!("{ok}; exit 101"), 60).failure().is_some());
    }

    #[test]
    fn a_hanging_binary_is_ended_with_its_children_and_named() {
        let began = Instant::now();
        let outcome = run("sleep 61 & echo $!; wait", 1);
        assert_eq!(outcome.failure().unwrap(), "x/lib: no end within 1 s");
        assert!(began.elapsed() < Duration::from_secs(30));
        let child = PathBuf::from("/proc").join(outcome.output.trim());
        let ended = (0..500).any(|_| {
            let state = std::fs::read_to_string(child.join("stat")).unwrap_or_default();
            let is_gone = !state.contains("(sleep)") || state.contains(") Z ");
            std::thread::sleep(Duration::from_millis(10));
            is_gone
        });
        assert!(ended, "the child outlives the test: {}", child.display());
    }

    #[test]
    fn a_binary_runs_in_the_directory_of_its_package() {
        let script = "[ \"$PWD\" = \"$CARGO_MANIFEST_DIR\" ] && \
            echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'";
        assert_eq!(run(script, 60).failure(), None);
    }
}
