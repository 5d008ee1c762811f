//! Tables of the page, as HTML that needs no script.

use std::fmt::Write;

use super::super::passes::{Census, PassRecord, RuleRecord};
use super::super::unsupported::Refused;
use super::super::{Errors, ModelReport};
use super::escaped;

/// Rows of steps and buffers in the page; the script shows all.
const MAX_ROWS: usize = 200;
/// Names of nodes in one cell.
const MAX_NAMES: usize = 12;

/// A number of bytes.
pub(super) fn cell_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

/// A time in nanoseconds.
pub(super) fn cell_time(ns: f64) -> String {
    match ns {
        ..1e6 => format!("{:.1} µs", ns / 1e3),
        1e6..1e9 => format!("{:.2} ms", ns / 1e6),
        _ => format!("{:.2} s", ns / 1e9),
    }
}

/// A difference.
fn cell_number(x: f64) -> String {
    match x {
        0.0 => "0".to_owned(),
        _ if x.is_infinite() => "∞".to_owned(),
        _ => format!("{x:.2e}"),
    }
}

/// Inputs and outputs with their types.
pub(super) fn signature(report: &ModelReport) -> String {
    let mut out = String::new();
    let sides = [("Inputs", &report.inputs), ("Outputs", &report.outputs)];
    if sides.iter().all(|(_, side)| side.is_empty()) {
        return out;
    }
    out.push_str("<div class=\"pair\">");
    for (title, side) in sides {
        let _ = write!(out, "<table><caption>{title}</caption><tbody>");
        for (name, ty) in side {
            let _ =
                write!(out, "<tr><th scope=\"row\">{}</th><td class=\"type\">{}</td></tr>", escaped(name), escaped(ty));
        }
        out.push_str("</tbody></table>");
    }
    out.push_str("</div>\n");
    out
}

/// What is not supported, with its nodes.
pub(super) fn unsupported(all: &[Refused]) -> String {
    let mut out = String::from(
        "<p>The model is not imported. These operators and values are not supported:</p>\n<table><thead><tr>\
         <th scope=\"col\">what</th><th scope=\"col\">nodes</th><th scope=\"col\">why</th></tr></thead><tbody>\n",
    );
    for refused in all {
        let names: Vec<String> = refused.nodes.iter().map(|name| format!("<code>{}</code>", escaped(name))).collect();
        let _ = writeln!(
            out,
            "<tr><th scope=\"row\">{}</th><td>{}<div class=\"names\">{}</div></td><td>{}</td></tr>",
            escaped(&refused.what),
            refused.nodes.len(),
            names.join(" "),
            escaped(&refused.reason)
        );
    }
    out.push_str("</tbody></table>\n");
    out
}

/// Differences of values.
pub(super) fn errors(errors: &Errors, report: &ModelReport) -> String {
    let mut out = format!(
        "<p>{}</p>\n<p class=\"verdict\">{}</p>\n<div class=\"chart\" id=\"error-chart\" hidden></div>\n\
         <div class=\"scroll\"><table id=\"error-table\"><thead><tr><th scope=\"col\">node</th>\
         <th scope=\"col\">operator</th><th scope=\"col\">largest difference</th><th scope=\"col\">relative</th>\
         <th scope=\"col\">beyond tolerance</th></tr></thead><tbody>\n",
        escaped(&errors.title),
        escaped(&errors.verdict)
    );
    for (node, absolute, relative, beyond, elements) in &errors.rows {
        let row = &report.rows[*node as usize];
        let mark = if errors.first == Some(*node) { " class=\"first\"" } else { "" };
        let _ = writeln!(
            out,
            "<tr{mark} data-node=\"{node}\"><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td><td>{beyond} of {elements}</td></tr>",
            escaped(&row.name),
            escaped(&row.op),
            cell_number(*absolute),
            cell_number(*relative)
        );
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// The steps that take longest, or the first ones.
pub(super) fn steps(report: &ModelReport) -> String {
    let mut rows: Vec<(usize, usize)> = vec![];
    for (p, part) in report.parts.iter().enumerate() {
        rows.extend((0..part.steps.kinds.len()).map(|i| (p, i)));
    }
    let time = |(p, i): &(usize, usize)| report.parts[*p].steps.ns.get(*i).copied();
    let total: u64 = rows.iter().filter_map(&time).sum();
    let count = rows.len();
    if total > 0 {
        rows.sort_by_key(|at| std::cmp::Reverse(time(at)));
    }
    let shown = if count > MAX_ROWS { format!("{MAX_ROWS} of {count} shown without script. ") } else { String::new() };
    let measured = match total {
        0 => "Nothing was measured.",
        _ => {
            "Each step was run by itself: caches are as the step before left them, and what runs side by side in a whole run does not here. \
              Above 100 % of the roofline, data came from a cache."
        }
    };
    let mut out = format!(
        "<p>{shown}{measured}</p>\n<div class=\"chart\" id=\"roofline\" hidden></div>\n<div class=\"scroll\"><table id=\"step-table\">\
         <thead><tr><th scope=\"col\">step</th><th scope=\"col\">what</th><th scope=\"col\">time</th><th scope=\"col\">share</th>\
         <th scope=\"col\">GFLOP/s</th><th scope=\"col\">GB/s</th><th scope=\"col\">of roofline</th><th scope=\"col\">MFLOP</th>\
         <th scope=\"col\">moved</th><th scope=\"col\">nodes</th></tr></thead><tbody>\n"
    );
    for at in rows.into_iter().take(MAX_ROWS) {
        out.push_str(&step_row(report, at, total));
    }
    out.push_str("</tbody></table></div>\n");
    out
}

/// The row of a step, by its part and position; `total` is the time of all.
fn step_row(report: &ModelReport, (p, i): (usize, usize), total: u64) -> String {
    let steps = &report.parts[p].steps;
    let (flops, bytes) = (steps.flops[i], steps.bytes[i]);
    let rate = |n: u64, ns: u64| format!("{:.1}", n as f64 / ns.max(1) as f64);
    let of_time = steps.ns.get(i).map(|ns| {
        let share = steps.shares.get(i).copied().flatten();
        let share = share.map_or_else(|| "–".to_owned(), |n| format!("{} %", n.div_ceil(10)));
        let of_all = format!("{:.1} %", *ns as f64 / total.max(1) as f64 * 100.0);
        [cell_time(*ns as f64), of_all, rate(flops, *ns), rate(bytes, *ns), share]
    });
    let times = of_time.unwrap_or_else(|| std::array::from_fn(|_| "–".to_owned()));
    let times: String = times.iter().map(|cell| format!("<td>{cell}</td>")).collect();
    let names = steps.nodes[i].iter().take(MAX_NAMES).map(|node| escaped(&report.rows[*node as usize].name));
    let more = steps.nodes[i].len().saturating_sub(MAX_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td>{times}<td>{:.2}</td><td>{}</td><td class=\"names\">{}{more}</td></tr>\n",
        escaped(&steps.labels[i]),
        escaped(report.strings.text(steps.kinds[i])),
        flops as f64 / 1e6,
        cell_bytes(bytes),
        names.collect::<Vec<_>>().join(", ")
    )
}

/// The memory of each part: sums, a place for the drawing, and the largest buffers.
pub(super) fn memory(report: &ModelReport) -> String {
    let mut out = String::new();
    for (p, part) in report.parts.iter().enumerate() {
        let memory = &part.memory;
        let title = if report.parts.len() > 1 { format!("Part {}: ", p + 1) } else { String::new() };
        let _ = writeln!(
            out,
            "<p>{title}{} buffers in {}, {:.3} times the least for this order of steps ({}). Working memory of steps is among them.</p>\n\
             <div class=\"chart memory\" data-part=\"{p}\" hidden></div>",
            memory.sizes.len(),
            cell_bytes(memory.bytes),
            memory.bytes as f64 / memory.bound.max(1) as f64,
            cell_bytes(memory.bound)
        );
        let mut largest: Vec<usize> = (0..memory.sizes.len()).collect();
        largest.sort_by_key(|i| (std::cmp::Reverse(memory.sizes[*i]), *i));
        out.push_str(
            "<details><summary>Largest buffers</summary><div class=\"scroll\"><table><thead><tr><th scope=\"col\">buffer</th>\
             <th scope=\"col\">size</th><th scope=\"col\">address</th><th scope=\"col\">steps</th></tr></thead><tbody>\n",
        );
        for i in largest.into_iter().take(MAX_ROWS / 4) {
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{} to {}</td></tr>",
                escaped(&memory.labels[i]),
                cell_bytes(memory.sizes[i]),
                memory.offsets[i],
                memory.first[i],
                memory.last[i]
            );
        }
        out.push_str("</tbody></table></div></details>\n");
    }
    out
}

/// What passes did to each part.
pub(super) fn passes(report: &ModelReport) -> String {
    let mut out = String::new();
    for (p, part) in report.parts.iter().enumerate() {
        if report.parts.len() > 1 {
            let _ = writeln!(out, "<h3>Part {}</h3>", p + 1);
        }
        for pass in &part.passes {
            out.push_str(&of_pass(pass, report));
        }
        if !part.phases.is_empty() {
            let phases = part.phases.iter().map(|(name, ms)| format!("{} {}", escaped(name), cell_time(ms * 1e6)));
            let _ = writeln!(out, "<p class=\"note\">Then: {}</p>", phases.collect::<Vec<_>>().join(", "));
        }
    }
    out
}

fn of_pass(pass: &PassRecord, report: &ModelReport) -> String {
    let time = pass.ms.map_or_else(String::new, |ms| cell_time(ms * 1e6));
    let fired: usize = pass.rules.iter().map(|rule| rule.count).sum();
    let changed = pass.lines != (0, 0) || fired > 0 || pass.before != pass.after;
    let head = format!(
        "<span class=\"pass\">{}</span><span class=\"census\">{}</span><span>{}</span><span>{}</span><span>{time}</span>",
        pass.name,
        census(&pass.before, &pass.after),
        if fired > 0 { format!("{fired} rewrites") } else { String::new() },
        match pass.lines {
            (0, 0) => String::new(),
            (removed, added) => format!("<del>−{removed}</del> <ins>+{added}</ins> lines"),
        }
    );
    if !changed {
        return format!("<div class=\"pass-row idle\">{head}</div>\n");
    }
    let mut out = format!("<details class=\"pass-row\"><summary>{head}</summary>\n");
    if !pass.rules.is_empty() {
        out.push_str(
            "<table><thead><tr><th scope=\"col\">rewrite</th><th scope=\"col\">times</th><th scope=\"col\">keeps</th>\
             <th scope=\"col\">saved</th><th scope=\"col\">nodes</th></tr></thead><tbody>\n",
        );
        pass.rules.iter().for_each(|rule| out.push_str(&of_rule(rule, report)));
        out.push_str("</tbody></table>\n");
    }
    if pass.lines != (0, 0) {
        out.push_str("<pre class=\"lines\">");
        for (tag, sign, lines, count) in
            [("del", '−', &pass.removed, pass.lines.0), ("ins", '+', &pass.added, pass.lines.1)]
        {
            for line in lines {
                let _ = writeln!(out, "<{tag}>{sign} {}</{tag}>", escaped(line));
            }
            if count > lines.len() {
                let _ = writeln!(out, "  … {} more", count - lines.len());
            }
        }
        out.push_str("</pre>\n");
    }
    out.push_str("</details>\n");
    out
}

fn of_rule(rule: &RuleRecord, report: &ModelReport) -> String {
    let saved = if rule.saved > 0 { format!("{} {}", rule.saved, rule.unit) } else { String::new() };
    let name = |node: &u32| escaped(&report.rows[*node as usize].name);
    let names: Vec<String> = rule.nodes.iter().take(MAX_NAMES).map(name).collect();
    let more = if rule.nodes.len() > MAX_NAMES { ", …" } else { "" };
    format!(
        "<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{saved}</td><td class=\"names\">{}{more}</td></tr>\n",
        escaped(&rule.rule),
        rule.count,
        rule.keeps,
        names.join(", ")
    )
}

/// How the numbers of nodes changed; those that are 0 before and after are left out.
fn census(before: &Census, after: &Census) -> String {
    let kinds = [
        ("operators", before.operators, after.operators),
        ("primitives", before.primitives, after.primitives),
        ("clusters", before.clusters, after.clusters),
        ("constants", before.constants, after.constants),
    ];
    let shown = kinds.into_iter().filter(|(_, a, b)| a + b > 0).map(|(kind, a, b)| match a == b {
        true => format!("{a} {kind}"),
        false => format!("<b>{a} → {b}</b> {kind}"),
    });
    shown.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units() {
        assert_eq!([cell_bytes(999), cell_bytes(1_500), cell_bytes(2_000_000)], ["999 B", "1.5 kB", "2.00 MB"]);
        assert_eq!([cell_time(1500.0), cell_time(2.5e6), cell_time(3e9)], ["1.5 µs", "2.50 ms", "3.00 s"]);
        assert_eq!([cell_number(0.0), cell_number(f64::INFINITY), cell_number(0.00123)], ["0", "∞", "1.23e-3"]);
    }
}
