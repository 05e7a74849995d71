//! Medians, spreads and ratios of a few samples. Every number in the tables is computed here.
//!
//! The contestants of a figure run interleaved, so sample *i* of one and sample *i* of another were
//! taken under the same load of the machine. The spread of a ratio is therefore taken round by round,
//! not from the extremes of two unrelated lists.

/// The middle of the samples (mean of the two middle ones), none for no samples.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = *sorted.get(sorted.len() / 2 - 1)?;
    Some(f64::midpoint(lower, upper))
}

/// Smallest and largest sample, none for no samples.
pub fn spread(samples: &[f64]) -> Option<(f64, f64)> {
    let low = samples.iter().copied().min_by(f64::total_cmp)?;
    let high = samples.iter().copied().max_by(f64::total_cmp)?;
    Some((low, high))
}

/// The 95% confidence interval of the median, for any distribution (sign test). At either end it leaves
/// out as many samples as lie below the median in fewer than 2.5 of 100 cases, if each sample is above or
/// below with equal probability. None for fewer than six samples.
pub fn interval(samples: &[f64]) -> Option<(f64, f64)> {
    let count = samples.len();
    // The probability that exactly, and at most, this many samples are below the median.
    let mut exactly = 0.5_f64.powi(i32::try_from(count).ok()?);
    let (mut at_most, mut below) = (exactly, 0);
    while at_most <= 0.025 {
        exactly *= (count - below) as f64 / (below + 1) as f64;
        at_most += exactly;
        below += 1;
    }
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let left_out = below.checked_sub(1)?;
    let low = *sorted.get(left_out)?;
    let high = *sorted.get(count.checked_sub(left_out + 1)?)?;
    Some((low, high))
}

/// The ratio of our samples to a peer's, with the range of the single rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Ratio of the medians.
    pub of_medians: f64,
    /// Smallest ratio of one round.
    pub low: f64,
    /// Largest ratio of one round.
    pub high: f64,
    /// The ratio of each round.
    pub rounds: Vec<f64>,
}

/// Compares two interleaved series; none if either is empty or a peer's sample is not positive.
pub fn ratio(ours: &[f64], peers: &[f64]) -> Option<Ratio> {
    if peers.iter().any(|p| *p <= 0.0) {
        return None;
    }
    let of_medians = median(ours)? / median(peers)?;
    let rounds: Vec<f64> = ours.iter().zip(peers).map(|(o, p)| o / p).collect();
    let (low, high) = spread(&rounds)?;
    Some(Ratio {
        of_medians,
        low,
        high,
        rounds,
    })
}

/// The least or the greatest of several interleaved series in each round (`f64::min`, `f64::max`);
/// empty if one of them is, or there are none.
pub fn round_by_round(series: &[&[f64]], choose: fn(f64, f64) -> f64) -> Vec<f64> {
    let rounds = series.iter().map(|samples| samples.len()).min();
    (0..rounds.unwrap_or(0))
        .filter_map(|round| {
            let samples = series.iter().filter_map(|samples| samples.get(round));
            samples.copied().reduce(choose)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_does_not_depend_on_order() {
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
        assert_eq!(median(&[]), None);
    }

    #[test]
    fn the_spread_of_a_ratio_is_taken_round_by_round() {
        // The machine was half as fast in the second round, for both.
        let r = ratio(&[1.0, 2.0, 1.0], &[2.0, 4.0, 2.0]).unwrap();
        assert_eq!((r.of_medians, r.low, r.high), (0.5, 0.5, 0.5));
    }

    #[test]
    fn interval_agrees_with_a_table_of_the_sign_test() {
        let first = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&first(5)), None);
        assert_eq!(interval(&first(6)), Some((1.0, 6.0)));
        assert_eq!(interval(&first(7)), Some((1.0, 7.0)));
        assert_eq!(interval(&first(9)), Some((2.0, 8.0)));
        assert_eq!(interval(&first(20)), Some((6.0, 15.0)));
        let reversed: Vec<_> = first(20).into_iter().rev().collect();
        assert_eq!(interval(&reversed), Some((6.0, 15.0)));
    }

    #[test]
    fn worst_sample_is_chosen_round_by_round() {
        let series: [&[f64]; 2] = [&[1.0, 5.0, 3.0], &[2.0, 4.0, 9.0]];
        assert_eq!(round_by_round(&series, f64::max), [2.0, 5.0, 9.0]);
        assert_eq!(round_by_round(&series, f64::min), [1.0, 4.0, 3.0]);
        assert!(round_by_round(&[&[1.0], &[]], f64::max).is_empty());
        assert!(round_by_round(&[], f64::max).is_empty());
    }

    #[test]
    fn no_ratio_without_a_peer() {
        assert_eq!(ratio(&[1.0], &[]), None);
        assert_eq!(ratio(&[], &[1.0]), None);
        assert_eq!(ratio(&[1.0], &[0.0]), None);
    }
}
