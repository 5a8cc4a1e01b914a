//! Values with given quantiles, of which made-up fleets are drawn.

/// The value at a place from 0 to 1, between the quantiles that are given in order.
pub fn at<const N: usize>(quantiles: &[(f64, f64); N], place: f64) -> f64 {
    let next = quantiles.iter().position(|(known, _)| place <= *known).unwrap_or(N - 1).max(1);
    let ((begin, from), (end, to)) = (quantiles[next - 1], quantiles[next]);
    from + (to - from) * (place - begin) / (end - begin)
}

#[test]
fn values_are_between_the_quantiles_beside_them() {
    let quantiles = [(0.0, 0.0), (0.25, 0.0), (0.5, 98.0), (1.0, 100.0)];
    let values = [0.0, 0.2, 0.25, 0.375, 0.5, 0.75, 1.0].map(|place| at(&quantiles, place));
    assert_eq!(values, [0.0, 0.0, 0.0, 49.0, 98.0, 99.0, 100.0]);
}
