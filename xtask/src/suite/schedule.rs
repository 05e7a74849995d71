//! The order of the jobs: several lanes take the longest that is left; jobs that must be alone follow one by one.
//! They leave the machine half idle, so jobs that only compute run behind them, one at a time; what is left of
//! these at the end runs in all lanes.

use std::sync::{Mutex, PoisonError};

use super::job::{Job, Outcome, Place};

/// Runs all jobs and calls `report` as soon as each has ended.
pub fn run(jobs: Vec<Job>, lanes: usize, report: impl Fn(&Outcome) + Sync) -> Vec<Outcome> {
    let at = |place: Place| {
        let mut jobs: Vec<Job> = (jobs.iter().filter(|job| job.place == place).cloned()).collect();
        // Taken from the end: the longest last.
        jobs.sort_by_key(|job| job.expected_s);
        Mutex::new(jobs)
    };
    let (together, alone, behind) = (at(Place::Together), at(Place::Alone), at(Place::Behind));
    let ended = Mutex::new(Vec::new());
    let finish = |job: Job| {
        let outcome = job.run();
        let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
        report(&outcome);
        ended.push(outcome);
    };
    let work_off = |jobs: &Mutex<Vec<Job>>| {
        let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(job) = next() {
            finish(job);
        }
    };
    let in_lanes = |jobs: &Mutex<Vec<Job>>| {
        std::thread::scope(|scope| {
            for _ in 0..lanes {
                scope.spawn(|| work_off(jobs));
            }
        });
    };
    in_lanes(&together);
    std::thread::scope(|scope| {
        scope.spawn(|| work_off(&behind));
        work_off(&alone);
        in_lanes(&behind);
    });
    ended.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::Place::{Alone, Behind, Together};
    use super::*;

    /// A job that writes its name into `trace` when it begins and when it ends.
    fn job(directory: &Path, name: &str, expected_s: u32, place: Place) -> Job {
        job_that(directory, name, expected_s, place, "sleep 0.2")
    }

    /// The same; `does` is what it does between.
    fn job_that(directory: &Path, name: &str, expected_s: u32, place: Place, does: &str) -> Job {
        let script = format!(
            "echo +{name} >>trace; {does}; echo -{name} >>trace; \
             echo 'test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured'"
        );
        Job {
            name: name.to_owned(),
            program: "sh".into(),
            args: vec!["-c".to_owned(), script],
            env: None,
            directory: directory.to_path_buf(),
            log: directory.join(name),
            limit: Duration::from_secs(60),
            place,
            expected_s,
        }
    }

    fn trace(jobs: &[(&str, u32, Place)], lanes: usize) -> (Vec<String>, Vec<Outcome>) {
        let directory = tempfile::tempdir().unwrap();
        let jobs = jobs
            .iter()
            .map(|(name, s, place)| job(directory.path(), name, *s, *place));
        let outcomes = run(jobs.collect(), lanes, |_| ());
        let trace = std::fs::read_to_string(directory.path().join("trace")).unwrap();
        (trace.lines().map(str::to_owned).collect(), outcomes)
    }

    #[test]
    fn the_longest_job_starts_first() {
        let (trace, outcomes) = trace(
            &[
                ("short", 1, Together),
                ("long", 9, Together),
                ("mid", 5, Together),
            ],
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
            ("alone", 99, Alone),
            ("a", 1, Together),
            ("b", 1, Together),
            ("apart", 1, Alone),
        ];
        let (trace, outcomes) = trace(&jobs, 4);
        let at = |event: &str| trace.iter().position(|it| it == event).unwrap();
        assert!(at("+a") < at("-b") && at("+b") < at("-a"), "{trace:?}");
        assert_eq!(trace[4..], ["+alone", "-alone", "+apart", "-apart"]);
        assert!(outcomes.iter().all(|outcome| outcome.failure().is_none()));
    }

    /// Each job waits until another one has begun or ended: without that, it would not end.
    #[test]
    fn what_computes_runs_behind_those_alone_and_what_is_left_in_all_lanes() {
        let directory = tempfile::tempdir().unwrap();
        let waiting = |name: &str, expected_s, place, event: &str| {
            let does = format!("until grep -q -- '{event}' trace; do sleep 0.02; done");
            job_that(directory.path(), name, expected_s, place, &does)
        };
        let jobs = vec![
            waiting("first", 1, Together, "+first"),
            waiting("alone", 1, Alone, "+long"),
            waiting("long", 9, Behind, "-alone"),
            waiting("a", 2, Behind, "+b"),
            waiting("b", 1, Behind, "+a"),
        ];
        let outcomes = run(jobs, 2, |_| ());
        assert!(outcomes.iter().all(|outcome| outcome.failure().is_none()));
        let trace = std::fs::read_to_string(directory.path().join("trace")).unwrap();
        assert!(trace.starts_with("+first\n-first\n"), "{trace}");
        assert_eq!(trace.lines().count(), 10);
    }

    #[test]
    fn one_failure_does_not_stop_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let mut failing = job(directory.path(), "failing", 9, Together);
        failing.program = "false".into();
        let jobs = vec![failing, job(directory.path(), "other", 1, Together)];
        let outcomes = run(jobs, 1, |_| ());
        assert_eq!(outcomes.len(), 2);
        assert!(super::super::verdict(&outcomes).is_err());
        assert!(super::super::verdict(&outcomes[1..]).is_ok());
    }
}
