// The data of the report: what the page holds as columns and shared texts becomes nodes and steps. Also how numbers are written.

const report = JSON.parse(document.getElementById("data").textContent);

function namesOf(coded) {
  let before = "";
  return coded.map(([shared, rest]) => (before = before.slice(0, shared) + rest));
}

// What became of a node, by number (`Fate` in the sources).
const FATES = [
  "computed by kernels",
  "constant: computed when the model is compiled",
  "no code of its own: a view, equal to another node, or rewritten away",
  "computed by the host between parts",
  "input or output of the model",
  "not compiled",
  "not supported",
  "of a branch or loop that the host runs: compiled when it comes up",
];
const EDGE = 4;
const UNSUPPORTED = 6;

const strings = report.strings;
const nodes = namesOf(report.nodes.names).map((name, i) => ({
  i,
  name,
  op: strings[report.nodes.ops[i]],
  type: strings[report.nodes.types[i]],
  args: report.nodes.args[i].map((distance) => i - distance),
  constants: report.nodes.constants[i].map((at) => strings[at]),
  fate: report.nodes.fates[i],
  body: report.nodes.within[i] ? report.nodes.bodies[report.nodes.within[i] - 1] : null,
  users: [],
  steps: [],
  rules: [],
  error: null,
}));
for (const node of nodes) for (const arg of node.args) nodes[arg].users.push(node.i);

const steps = [];
report.parts.forEach((part, p) => {
  const columns = part.steps;
  part.names = namesOf(columns.names);
  part.firstStep = steps.length;
  part.names.forEach((name, i) => {
    const step = {
      i: steps.length,
      part: p,
      name,
      kind: strings[columns.kinds[i]],
      flops: columns.flops[i],
      bytes: columns.bytes[i],
      ns: columns.ns.length ? columns.ns[i] : null,
      roof: columns.shares && columns.shares.length ? columns.shares[i] : null,
      nodes: columns.nodes[i],
      reads: columns.reads[i].map((at) => strings[at]),
      writes: columns.writes[i].map((at) => strings[at]),
    };
    for (const node of step.nodes) nodes[node].steps.push(step.i);
    // Its time belongs to one node, so that times of groups add up: the one that it is named for.
    const named = step.nodes.find((node) => nodes[node].name === name);
    step.anchor = named === undefined ? step.nodes[step.nodes.length - 1] : named;
    steps.push(step);
  });
  for (const pass of part.passes) {
    for (const rule of pass.rules) {
      for (const node of rule.nodes) nodes[node].rules.push(pass.name + ": " + rule.rule);
    }
  }
});
const measured = steps.some((step) => step.ns !== null);
const totalTime = steps.reduce((sum, step) => sum + (step.ns || 0), 0);
if (report.errors) {
  for (const [node, absolute, relative, beyond, elements] of report.errors.rows) {
    // Infinity is no number of JSON.
    const number = (x) => (x === null ? Infinity : x);
    nodes[node].error = { absolute: number(absolute), relative: number(relative), beyond, elements };
  }
}

function formatBytes(bytes) {
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
    if (bytes >= size) return (bytes / size).toFixed(bytes >= 100 * size ? 0 : bytes >= 10 * size ? 1 : 2) + " " + unit;
  }
  return bytes + " B";
}

function formatTime(ns) {
  if (ns === null) return "–";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= size) return (ns / size).toFixed(ns >= 100 * size ? 0 : ns >= 10 * size ? 1 : 2) + " " + unit;
  }
  return ns + " ns";
}

function formatCount(n) {
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e3]]) {
    if (n >= size) return (n / size).toFixed(n >= 100 * size ? 0 : 1) + " " + unit;
  }
  return String(n);
}

const formatShare = (share) => (share * 100).toFixed(share < 0.0995 ? 1 : 0) + " %";
const formatError = (x) => (x === 0 ? "0" : x === Infinity ? "∞" : x.toExponential(1));

// Elements of HTML and SVG: attributes, then children, which are texts or elements.
function element(name, attributes = {}, ...children) {
  return built(document.createElement(name), attributes, children);
}

function svg(name, attributes = {}, ...children) {
  return built(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function built(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}
