//! Medians and spreads: robust against the few runs that something else disturbed.

/// Returns the median; of an even number of values the mean of the middle two.
///
/// # Panics
/// If there is no value.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 }
}

/// Returns the median absolute error as a share of each value: nanobench's `err%`, as a fraction.
pub fn median_absolute_error(values: &[f64]) -> f64 {
    let middle = median(values.iter().copied());
    median(values.iter().map(|value| if *value == 0.0 { 0.0 } else { ((value - middle) / value).abs() }))
}

/// Returns the standard deviation as a share of the mean.
pub fn coefficient_of_variation(values: &[f64]) -> f64 {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    variance.sqrt() / mean
}

/// Returns the median of the ratios of pairs taken in the same rounds.
pub fn median_ratio(pairs: impl IntoIterator<Item = (f64, f64)>) -> f64 {
    median(pairs.into_iter().map(|(value, base)| value / base))
}
