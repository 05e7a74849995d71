//! The order of the jobs: several lanes take the longest that is left; jobs that must be alone follow one
//! by one.

use std::sync::{Mutex, PoisonError};

use super::job::{Job, Outcome};

/// Runs all jobs and calls `report` as soon as each has ended.
pub fn run(jobs: Vec<Job>, lanes: usize, report: impl Fn(&Outcome) + Sync) -> Vec<Outcome> {
    let (alone, mut together): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.alone);
    // Taken from the end: the longest last.
    together.sort_by_key(|job| job.expected_s);
    let waiting = Mutex::new(together);
    let ended = Mutex::new(Vec::new());
    let finish = |job: Job| {
        let outcome = job.run();
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        report(&outcome);
        ended.push(outcome);
    };
    let next = || waiting.lock().unwrap_or_else(PoisonError::into_inner).pop();
    std::thread::scope(|scope| {
        for _ in 0..lanes {
            scope.spawn(|| {
                while let Some(job) = next() {
                    finish(job);
                }
            });
        }
    });
    alone.into_iter().for_each(finish);
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    /// A job that writes its name into `trace` when it begins and when it ends.
    fn job(directory: &Path, name: &str, expected_s: u32, alone: bool) -> Job {
        let script = format!(
            "echo +{name} >>trace; sleep 0.2; echo -{name} >>trace; \
             echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'"
        );
        Job {
            name: name.to_owned(),
            program: "sh".into(),
            args: vec!["-c".to_owned(), script],
            directory: directory.to_path_buf(),
            log: directory.join(name),
            limit: Duration::from_secs(60),
            alone,
            expected_s,
        }
    }

    fn trace(jobs: &[(&str, u32, bool)], lanes: usize) -> (Vec<String>, Vec<Outcome>) {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs
            .iter()
            .map(|(name, s, alone)| job(directory.path(), name, *s, *alone));
        let outcomes = run(jobs.collect(), lanes, |_| ());
        let trace = std::fs::read_to_string(directory.path().join("trace")).unwrap();
        (trace.lines().map(str::to_owned).collect(), outcomes)
    }

    #[test]
    fn the_longest_job_starts_first() {
        let (trace, outcomes) = trace(
            &[("short", 1, false), ("long", 9, false), ("mid", 5, false)],
            1,
        );
        assert_eq!(
            trace,
            ["+long", "-long", "+mid", "-mid", "+short", "-short"]
        );
        assert_eq!(outcomes.len(), 3);
    }

    #[test]
    fn lanes_run_at_the_same_time_and_a_job_alone_does_not() {
        let jobs = [
            ("alone", 99, true),
            ("a", 1, false),
            ("b", 1, false),
            ("apart", 1, true),
        ];
        let (trace, outcomes) = trace(&jobs, 4);
        let at = |event: &str| trace.iter().position(|it| it == event).unwrap();
        assert!(at("+a") < at("-b") && at("+b") < at("-a"), "{trace:?}");
        assert_eq!(trace[4..], ["+alone", "-alone", "+apart", "-apart"]);
        assert!(outcomes.iter().all(|outcome| outcome.failure().is_none()));
    }

    #[test]
    fn one_failure_does_not_stop_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let mut failing = job(directory.path(), "failing", 9, false);
        failing.program = "false".into();
        let jobs = vec![failing, job(directory.path(), "other", 1, false)];
        let outcomes = run(jobs, 1, |_| ());
        assert_eq!(outcomes.len(), 2);
        assert!(super::super::verdict(&outcomes).is_err());
        assert!(super::super::verdict(&outcomes[1..]).is_ok());
    }
}
