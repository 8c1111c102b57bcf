//! A chart of blocks: one column per piece of time, eighths of a row high.

const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Rows of a chart, top first. `values` are per column; `most` fills the whole height.
pub(super) fn rows(values: &[u64], most: u64, height: usize) -> Vec<String> {
    let steps = (height * 8) as u128;
    (0..height)
        .rev()
        .map(|row| {
            let column = |value: &u64| {
                let mut filled = (u128::from(*value) * steps / u128::from(most.max(1))) as usize;
                // A little is not nothing.
                if *value > 0 && filled == 0 {
                    filled = 1;
                }
                EIGHTHS[filled.saturating_sub(row * 8).min(8)]
            };
            values.iter().map(column).collect()
        })
        .collect()
}

/// The highest value in each of `columns` equal pieces of time; a piece without a point repeats what was before.
pub(super) fn columns(points: &[(u64, u64)], columns: usize) -> Vec<u64> {
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return vec![0; columns] };
    let span = u128::from(last.0.saturating_sub(first.0)) + 1;
    let mut values = vec![None; columns];
    let mut carried: Vec<u64> = vec![0; columns];
    for (time, value) in points {
        let column = (u128::from(time.saturating_sub(first.0)) * columns as u128 / span) as usize;
        let column = column.min(columns - 1);
        values[column] = values[column].max(Some(*value));
        carried[column] = *value;
    }
    let mut before = 0;
    values
        .iter()
        .zip(&carried)
        .map(|(value, carry)| {
            let shown = value.unwrap_or(before);
            if value.is_some() {
                before = *carry;
            }
            shown
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_as_high_as_its_value_and_a_little_is_not_nothing() {
        assert_eq!(rows(&[0, 1, 8, 16], 16, 2), ["   █", " ▁██"]);
    }

    #[test]
    fn the_highest_point_of_a_column_counts_and_the_last_one_carries_on() {
        assert_eq!(columns(&[(0, 5), (1, 9), (2, 3), (39, 7)], 4), [9, 3, 3, 7]);
        assert_eq!(columns(&[], 2), [0, 0]);
    }
}
