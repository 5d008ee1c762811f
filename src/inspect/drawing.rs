//! A memory plan as a drawing: steps from left to right, arena offsets from bottom to top, one
//! rectangle for each buffer, and for the working memory of each step, by its name. Dashed lines divide a buffer into the parts that are written one by one, from the
//! first use of each on.

use std::fmt::Write;

use tensorc_abi::Plan;

use super::lives::{BufferLife, lives};

const WIDTH: f64 = 1400.0;
const HEIGHT: f64 = 700.0;
/// Room for the axis, left and below.
const LEFT: f64 = 90.0;
const BELOW: f64 = 50.0;
const ABOVE: f64 = 40.0;
/// Average width of a character of a label, and the height below which a rectangle has none.
const CHARACTER: f64 = 6.2;
const LABEL_HEIGHT: f64 = 12.0;
/// Marks on an axis, about.
const MARKS: u64 = 10;

/// The drawing as SVG, for a run by so many workers.
pub(super) fn svg(plan: &Plan, workers: usize) -> String {
    let (blocks, height) = (lives(plan, workers), plan.run_bytes(workers));
    let steps = plan.steps.len().max(1);
    let x = |step: usize| LEFT + WIDTH * step as f64 / steps as f64;
    let y = |offset: u64| ABOVE + HEIGHT * (1.0 - offset as f64 / height.max(1) as f64);
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{w:.0}\" height=\"{h:.0}\" viewBox=\"0 0 {w:.0} {h:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        w = LEFT + WIDTH + 20.0,
        h = ABOVE + HEIGHT + BELOW
    );
    let _ = writeln!(
        out,
        "<text x=\"{LEFT}\" y=\"22\" font-size=\"14\">{}: {} steps, {} buffers, {:.2} MB planned, lower bound {:.2} MB</text>",
        escaped(&plan.name),
        plan.steps.len(),
        blocks.len() - plan.scratch.len(),
        height as f64 / 1e6,
        plan.run_lower_bound_bytes(workers) as f64 / 1e6
    );
    axes(&mut out, (steps, height), &x, &y);
    for (i, b) in blocks.iter().enumerate() {
        block(&mut out, i, b, &x, &y);
    }
    out.push_str("</svg>\n");
    out
}

/// A step of 1, 2 or 5 times a power of ten that divides `total` into about [`MARKS`] parts.
fn spacing(total: u64) -> u64 {
    let least = (total / MARKS).max(1);
    let power = 10u64.pow(least.ilog10());
    [1, 2, 5, 10].into_iter().map(|m| m * power).find(|s| *s >= least).unwrap_or(least)
}

fn axes(out: &mut String, (steps, height): (usize, u64), x: &dyn Fn(usize) -> f64, y: &dyn Fn(u64) -> f64) {
    let (left, right, bottom) = (LEFT, LEFT + WIDTH, ABOVE + HEIGHT);
    let every = spacing(steps as u64) as usize;
    for step in (0..=steps).step_by(every) {
        let at = x(step);
        let _ = writeln!(
            out,
            "<line x1=\"{at:.1}\" y1=\"{ABOVE}\" x2=\"{at:.1}\" y2=\"{bottom}\" stroke=\"#e0e0e0\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{step}</text>",
            bottom + 16.0
        );
    }
    let every = spacing(height);
    let (unit, name) = match height {
        0..10_000 => (1.0, "B"),
        10_000..10_000_000 => (1e3, "kB"),
        _ => (1e6, "MB"),
    };
    for offset in (0..=height).step_by(every as usize) {
        let at = y(offset);
        let _ = writeln!(
            out,
            "<line x1=\"{left}\" y1=\"{at:.1}\" x2=\"{right}\" y2=\"{at:.1}\" stroke=\"#e0e0e0\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{} {name}</text>",
            left - 6.0,
            at + 4.0,
            offset as f64 / unit
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">step</text>",
        (left + right) / 2.0,
        bottom + 36.0
    );
}

fn block(out: &mut String, i: usize, b: &BufferLife<'_>, x: &dyn Fn(usize) -> f64, y: &dyn Fn(u64) -> f64) {
    let (left, right, top, bottom) = (x(b.first), x(b.last + 1), y(b.offset + b.bytes), y(b.offset));
    let (width, height) = (right - left, bottom - top);
    // The golden angle keeps neighbours apart.
    let hue = (i as f64 * 137.508) % 360.0;
    let (fill, stroke) = (color(hue, 0.86, 0.12), color(hue, 0.45, 0.25));
    let _ = writeln!(
        out,
        "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"0.6\">\
         <title>{name}: {bytes} bytes at {offset}, steps {first} to {last}</title></rect>",
        name = escaped(b.name),
        bytes = b.bytes,
        offset = b.offset,
        first = b.first,
        last = b.last
    );
    for part in &b.parts {
        let (left, top) = (x(part.first), bottom - height * part.to);
        let _ = writeln!(
            out,
            "<rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"none\" \
             stroke=\"{stroke}\" stroke-width=\"0.6\" stroke-dasharray=\"3 3\" pointer-events=\"all\">\
             <title>{}: {:.1} % of {}, from step {}</title></rect>",
            right - left,
            height * (part.to - part.from),
            escaped(part.name),
            100.0 * (part.to - part.from),
            escaped(b.name),
            part.first
        );
    }
    let room = ((width - 6.0) / CHARACTER).max(0.0) as usize;
    if height >= LABEL_HEIGHT && room >= 3 {
        let _ = writeln!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + width / 2.0,
            top + height / 2.0 + 4.0,
            escaped(&shortened(b.name, room))
        );
    }
}

/// `#rrggbb` of a hue in degrees: channels lie within `spread` of `level`.
fn color(hue: f64, level: f64, spread: f64) -> String {
    let channel = |shift: f64| {
        let wave = (hue + shift).to_radians().cos();
        ((level + spread * wave) * 255.0).clamp(0.0, 255.0).round() as u8
    };
    format!("#{:02x}{:02x}{:02x}", channel(0.0), channel(-120.0), channel(120.0))
}

/// The end of a name that is too long: model names differ there.
fn shortened(name: &str, room: usize) -> String {
    let count = name.chars().count();
    match count <= room {
        true => name.to_owned(),
        false => std::iter::once('…').chain(name.chars().skip(count - (room - 1))).collect(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers() {
        assert_eq!([spacing(0), spacing(7), spacing(100), spacing(1999), spacing(45_000)], [1, 1, 10, 200, 5000]);
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("layer1/conv", 6), "…/conv");
        assert_eq!(shortened("conv", 6), "conv");
        assert_eq!(escaped("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
    }
}
