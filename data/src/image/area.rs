//! Shrinking by the mean over the area of each target pixel, pixels at its border weighted by the part that is covered.

use super::Image;
use super::view::ImageView;

/// The source pixels that make up each target pixel along an axis.
#[derive(Clone, Debug, Default)]
struct AreaTaps {
    /// The first source pixel and the number of them, which is the number of weights taken.
    spans: Vec<(usize, usize)>,
    weights: Vec<f32>,
}

impl AreaTaps {
    /// For `count` target pixels that cover an interval of `limit` source pixels.
    fn set(&mut self, start: f64, extent: f64, count: u32, limit: u32) {
        self.spans.clear();
        self.weights.clear();
        let step = extent / f64::from(count);
        for i in 0..count {
            let from = start + step * f64::from(i);
            let to = (from + step).min(limit.into());
            let first = (from.floor() as u32).min(limit - 1);
            let last = (to.ceil() as u32).clamp(first + 1, limit);
            let covered = |x: u32| (to.min(f64::from(x) + 1.0) - from.max(x.into())).max(0.0);
            let sum: f64 = (first..last).map(covered).sum();
            self.spans.push((first as usize, (last - first) as usize));
            self.weights.extend((first..last).map(|x| if sum > 0.0 { covered(x) / sum } else { 1.0 } as f32));
        }
    }

    /// Spans with their weights.
    fn iter(&self) -> impl Iterator<Item = (usize, &[f32])> {
        let mut rest = &self.weights[..];
        self.spans.iter().map(move |(first, count)| {
            let (weights, after) = rest.split_at(*count);
            rest = after;
            (*first, weights)
        })
    }
}

/// Memory that is used again.
#[derive(Clone, Debug, Default)]
pub(super) struct Area {
    columns: AreaTaps,
    rows: AreaTaps,
    /// The weighted sum of source rows that makes up a target row.
    line: Vec<f32>,
}

impl Area {
    /// Shrinks a view, which lies inside of the image, to all of another image with the same channels.
    pub fn run(&mut self, from: &Image, view: &ImageView, to: &mut Image) {
        self.columns.set(view.left, view.width, to.width(), from.width());
        self.rows.set(view.top, view.height, to.height(), from.height());
        pulp::Arch::new().dispatch(Shrink { area: self, from, to });
    }
}

/// The loops, compiled for the instructions that the machine has.
struct Shrink<'a> {
    area: &'a mut Area,
    from: &'a Image,
    to: &'a mut Image,
}

impl pulp::NullaryFnOnce for Shrink<'_> {
    type Output = ();

    #[inline(always)]
    fn call(self) {
        match self.from.channels() {
            1 => self.channels::<1>(),
            3 => self.channels::<3>(),
            _ => self.channels::<4>(),
        }
    }
}

impl Shrink<'_> {
    #[inline(always)]
    fn channels<const C: usize>(self) {
        let Area { columns, rows, line } = self.area;
        let first = columns.spans.first().map_or(0, |span| span.0);
        let last = columns.spans.last().map_or(0, |span| span.0 + span.1);
        let stride = self.from.stride();
        let target = self.to.stride();
        for (to, (top, weights)) in self.to.pixels_mut().chunks_exact_mut(target).zip(rows.iter()) {
            line.clear();
            line.resize((last - first) * C, 0.0);
            for (row, weight) in self.from.pixels()[top * stride..].chunks_exact(stride).zip(weights) {
                let row = &row[first * C..last * C];
                line.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * f32::from(*value));
            }
            let line = line.as_chunks::<C>().0;
            for (pixel, (left, weights)) in to.as_chunks_mut::<C>().0.iter_mut().zip(columns.iter()) {
                let mut sums = [0.5f32; C];
                for (values, weight) in line[left - first..].iter().zip(weights) {
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
                }
                *pixel = sums.map(|sum| sum as u8);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shrink(pixels: &[u8], (width, height): (u32, u32), view: ImageView, (wide, tall): (u32, u32)) -> Vec<u8> {
        let from = Image::from_pixels(width, height, 1, pixels.to_vec()).unwrap();
        let mut to = Image::new();
        to.reshape(wide, tall, 1).unwrap();
        Area::default().run(&from, &view, &mut to);
        to.pixels().to_vec()
    }

    #[test]
    fn pixels_count_by_what_is_covered() {
        // Three pixels to two: (10 + 40/2) / 1.5 and (40/2 + 100) / 1.5.
        assert_eq!(shrink(&[10, 40, 100], (3, 1), ImageView::all(3, 1), (2, 1)), [20, 80]);
        assert_eq!(shrink(&[10, 40, 100], (1, 3), ImageView::all(1, 3), (1, 2)), [20, 80]);
        assert_eq!(shrink(&[1, 3, 5, 7, 9, 11, 13, 15], (4, 2), ImageView::all(4, 2), (2, 1)), [6, 10]);
        let view = ImageView { left: 0.5, top: 0.0, width: 2.0, height: 1.0 };
        // (10/2 + 40 + 100/2) / 2 = 47.5.
        assert_eq!(shrink(&[10, 40, 100], (3, 1), view, (1, 1)), [48]);
    }

    #[test]
    fn the_whole_range_stays() {
        assert_eq!(shrink(&[255; 49], (7, 7), ImageView::all(7, 7), (3, 5)), [255; 15]);
        assert_eq!(shrink(&[0; 49], (7, 7), ImageView::all(7, 7), (3, 5)), [0; 15]);
    }
}
