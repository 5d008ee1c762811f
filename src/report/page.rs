//! The page: one HTML file with its style, its script and the data of the report. Tables are readable without the script, which
//! draws the graph, the roofline and the memory plan.

mod tables;

use std::fmt::Write;

use super::ModelReport;
use tables::{cell_bytes, cell_time, errors, memory, passes, signature, steps, unsupported};

const STYLE: &str = include_str!("page/page.css");
/// The script, in the order in which its files need each other.
const SCRIPT: [&str; 8] = [
    include_str!("page/data.js"),
    include_str!("page/tree.js"),
    include_str!("page/layout.js"),
    include_str!("page/draw.js"),
    include_str!("page/details.js"),
    include_str!("page/graph.js"),
    include_str!("page/charts.js"),
    include_str!("page/main.js"),
];

/// The whole page.
pub(super) fn html(report: &ModelReport) -> String {
    let title = escaped(&report.model);
    let data = serde_json::to_string(report).unwrap_or_default();
    // A script element ends at the first `</script`, whatever stands around it.
    let data = data.replace('<', "\\u003c");
    let mut out = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'; img-src data:\">\n\
         <link rel=\"icon\" href=\"data:,\">\n\
         <title>{title} · tensorc</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n"
    );
    let sections = sections(report);
    let links = sections.iter().map(|s| format!("<a href=\"#{}\">{}</a>", s.id, s.title)).collect::<String>();
    let _ = write!(
        out,
        "<header class=\"top\"><div class=\"brand\"><h1>{title}</h1><span>{}</span></div>\
         <nav aria-label=\"Sections\">{links}</nav></header>\n<main>\n",
        subtitle(report)
    );
    for section in sections {
        let (id, title, body) = (section.id, section.title, section.body);
        let _ = writeln!(
            out,
            "<section id=\"{id}\" aria-labelledby=\"{id}-title\"><h2 id=\"{id}-title\">{title}</h2>\n{body}</section>"
        );
    }
    let _ = write!(
        out,
        "</main>\n<footer>tensorc {}</footer>\n<script type=\"application/json\" id=\"data\">{data}</script>\n\
         <script>\n\"use strict\";\n(() => {{\n{}}})();\n</script>\n</body>\n</html>\n",
        report.version,
        SCRIPT.concat()
    );
    out
}

struct Section {
    id: &'static str,
    title: &'static str,
    body: String,
}

fn sections(report: &ModelReport) -> Vec<Section> {
    let mut all = vec![Section { id: "overview", title: "Overview", body: overview(report) }];
    let mut add = |id, title, body: String| all.push(Section { id, title, body });
    if !report.unsupported.is_empty() {
        add("unsupported", "Not supported", unsupported(&report.unsupported));
    }
    if let Some(found) = &report.errors {
        add("errors", "Differences", errors(found, report));
    }
    if !report.rows.is_empty() {
        add("graph", "Graph", GRAPH.to_owned());
    }
    if !report.parts.is_empty() {
        add("kernels", "Kernels", steps(report));
        add("memory", "Memory", memory(report));
        add("passes", "Passes", passes(report));
    }
    all
}

/// The place of the graph; the script fills it.
const GRAPH: &str = include_str!("page/graph.html");

/// What it was compiled for.
fn subtitle(report: &ModelReport) -> String {
    match report.target.as_str() {
        "" => "not compiled".to_owned(),
        target => escaped(target),
    }
}

fn overview(report: &ModelReport) -> String {
    let mut out = String::from("<div class=\"cards\">");
    let mut card = |value: String, name: &str| {
        let _ = write!(out, "<div class=\"card\"><b>{value}</b><span>{name}</span></div>");
    };
    card(report.operators().to_string(), "nodes in the model");
    if !report.parts.is_empty() {
        let sum = |of: &dyn Fn(&super::PartRecord) -> u64| report.parts.iter().map(of).sum::<u64>();
        card(sum(&|part| part.steps.kinds.len() as u64).to_string(), "kernels and library calls");
        card(format!("{:.3}", sum(&|part| part.steps.flops.iter().sum()) as f64 / 1e9), "GFLOP");
        card(cell_bytes(sum(&|part| part.steps.bytes.iter().sum())), "moved");
        card(cell_bytes(report.parts.iter().map(|part| part.memory.bytes).max().unwrap_or(0)), "memory of a run");
        card(cell_bytes(sum(&|part| part.memory.weights)), "weights");
    }
    let times: Option<Vec<f64>> = report.parts.iter().map(|part| part.run_ms).collect();
    if let Some(times) = times.filter(|times| !times.is_empty()) {
        card(cell_time(times.iter().sum::<f64>() * 1e6), "median time of a run");
    }
    if let Some(machine) = &report.machine {
        if let Some(flops) = machine.flops {
            card(format!("{:.0} GFLOP/s", flops / 1e9), "peak of this machine, f32");
        }
        card(format!("{:.1} GB/s", machine.memory / 1e9), "read from memory, measured");
    }
    out.push_str("</div>\n");
    for note in &report.notes {
        let _ = writeln!(out, "<p class=\"note\">{}</p>", escaped(note));
    }
    out.push_str(&signature(report));
    out
}

/// A time in nanoseconds as the page writes it.
pub(super) fn time_text(ns: f64) -> String {
    cell_time(ns)
}

/// Text as HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
