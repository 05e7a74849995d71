//! The number of tests that ran, read from the closing lines of test binaries and printed as one of them.

use std::iter;

/// The counts of `test result:` lines.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Sum {
    pub passed: u64,
    pub failed: u64,
    pub ignored: u64,
}

impl Sum {
    /// Adds up all closing lines of an output; `None` if there is none.
    pub fn read(output: &str) -> Option<Sum> {
        let lines: Vec<Sum> = output.lines().filter_map(closing_line).collect();
        (!lines.is_empty()).then(|| lines.into_iter().sum())
    }

    /// The closing line for all tests, in the words of the test harness.
    pub fn line(&self, is_ok: bool) -> String {
        let is_ok = is_ok && self.failed == 0 && self.passed > 0;
        let word = if is_ok { "ok" } else { "FAILED" };
        format!(
            "test result: {word}. {} passed; {} failed; {} ignored",
            self.passed, self.failed, self.ignored
        )
    }
}

impl iter::Sum for Sum {
    fn sum<I: Iterator<Item = Sum>>(sums: I) -> Sum {
        sums.fold(Sum::default(), |a, b| Sum {
            passed: a.passed + b.passed,
            failed: a.failed + b.failed,
            ignored: a.ignored + b.ignored,
        })
    }
}

/// Reads `test result: ok. 3 passed; 0 failed; 1 ignored; ...`.
fn closing_line(line: &str) -> Option<Sum> {
    let (_, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let mut counts = counts.split("; ");
    let mut next = |word: &str| -> Option<u64> {
        let (number, name) = counts.next()?.split_once(' ')?;
        (name == word).then(|| number.parse().ok())?
    };
    Some(Sum {
        passed: next("passed")?,
        failed: next("failed")?,
        ignored: next("ignored")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_added_up() {
        let output = "running 2 tests\n..\n\
            test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 5 filtered out; finished in 0.00s\n\
            test result: FAILED. 1 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out\n\
            the text test result: ok. is no closing line\n";
        let sum = Sum::read(output).unwrap();
        assert_eq!((sum.passed, sum.failed, sum.ignored), (3, 3, 4));
        assert_eq!(Sum::read("running 1 test\n"), None);
    }

    #[test]
    fn last_line_has_the_format_of_the_harness() {
        let sum = Sum {
            passed: 7,
            failed: 0,
            ignored: 1,
        };
        let line = sum.line(true);
        assert_eq!(line, "test result: ok. 7 passed; 0 failed; 1 ignored");
        assert_eq!(Sum::read(&line), Some(sum));
        assert!(sum.line(false).starts_with("test result: FAILED."));
        let failed = Sum { failed: 1, ..sum };
        assert!(failed.line(true).starts_with("test result: FAILED."));
        assert!(
            Sum::default()
                .line(true)
                .starts_with("test result: FAILED.")
        );
    }
}
