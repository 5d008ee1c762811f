// The table of steps, the roofline, the memory plan and the differences as drawings.

// Rows of the table at first, and more each time.
const ROWS = 100;

function stepTable(table) {
  const columns = [
    { key: (step) => step.i },
    { key: (step) => step.kind },
    { key: (step) => -(step.ns || 0) },
    { key: (step) => -(step.ns || 0) },
    { key: (step) => -(step.ns ? step.flops / step.ns : 0) },
    { key: (step) => -(step.ns ? step.bytes / step.ns : 0) },
    { key: (step) => (step.roof === null ? Infinity : step.roof) },
    { key: (step) => -step.flops },
    { key: (step) => -step.bytes },
    { key: (step) => -step.nodes.length },
  ];
  const body = table.tBodies[0];
  const more = element("button", { type: "button", class: "more", onclick: () => grow() });
  table.parentElement.after(more);
  let sorted = [...steps];
  let shown = 0;
  const row = (step) => {
    const share = totalTime && step.ns !== null ? step.ns / totalTime : 0;
    const names = step.nodes.slice(0, 3).map((at) => shortName(nodes[at].name));
    if (step.nodes.length > 3) names.push(`and ${step.nodes.length - 3} more`);
    const number = (text) => element("td", {}, text);
    const bar = (of, text) => element("td", { class: "bar", style: `--share:${(100 * Math.min(1, of)).toFixed(1)}%` }, text);
    const open = element("button", { type: "button", class: "link", onclick: () => graph.selectNode(step.anchor) }, step.name);
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, step.anchor === undefined ? step.name : open),
      element("td", {}, step.kind),
      number(formatTime(step.ns)),
      step.ns === null ? number("–") : bar(share, formatShare(share)),
      number(step.ns ? (step.flops / step.ns).toFixed(1) : "–"),
      number(step.ns ? (step.bytes / step.ns).toFixed(1) : "–"),
      step.roof === null ? number("–") : bar(step.roof / 1000, formatShare(step.roof / 1000)),
      number((step.flops / 1e6).toFixed(2)),
      number(formatBytes(step.bytes)),
      element("td", { class: "names", title: step.nodes.map((at) => nodes[at].name).join("\n").slice(0, 2000) }, names.join(", ")),
    );
  };
  const grow = () => {
    body.append(...sorted.slice(shown, shown + ROWS).map(row));
    shown = Math.min(sorted.length, shown + ROWS);
    more.hidden = shown === sorted.length;
    more.textContent = `Show ${Math.min(ROWS, sorted.length - shown)} more of ${sorted.length}`;
  };
  const sort = (column) => {
    const { key } = columns[column];
    sorted.sort((a, b) => (key(a) < key(b) ? -1 : key(a) > key(b) ? 1 : a.i - b.i));
    [...table.tHead.rows[0].cells].forEach((cell, i) => cell.setAttribute("aria-sort", i !== column ? "none" : column < 2 ? "ascending" : "descending"));
    body.replaceChildren();
    shown = 0;
    grow();
  };
  [...table.tHead.rows[0].cells].forEach((cell, i) => {
    const button = element("button", { type: "button", onclick: () => sort(i) }, cell.textContent);
    cell.replaceChildren(button);
  });
  sort(measured ? 2 : 0);
}

// Powers of ten between two numbers.
function decades(least, most) {
  const all = [];
  for (let power = Math.ceil(Math.log10(least) - 1e-9); power <= Math.log10(most) + 1e-9; power++) all.push(10 ** power);
  return all;
}

// Steps by operations for each byte and for each second, under what the machine allows.
function rooflineChart(place) {
  const machine = report.machine;
  const points = steps.filter((step) => step.ns && step.flops && step.bytes);
  if (!machine || !points.length) return;
  const [W, H, L, R, T, B] = [1000, 400, 64, 20, 16, 44];
  const of = (step) => [step.flops / step.bytes, step.flops / step.ns];
  const peak = machine.flops ? machine.flops / 1e9 : null;
  const xs = points.map((step) => of(step)[0]);
  const ys = points.map((step) => of(step)[1]);
  const ridge = peak ? peak / (machine.memory / 1e9) : 1;
  const [x0, x1] = [10 ** Math.floor(Math.log10(Math.min(...xs, ridge / 3))), Math.max(...xs, ridge * 3) * 1.6];
  const [y0, y1] = [10 ** Math.floor(Math.log10(Math.max(Math.min(...ys), Math.max(...ys) / 1e5))), Math.max(...ys, peak || 0) * 1.8];
  const scale = (v, a, b) => (Math.log10(v) - Math.log10(a)) / (Math.log10(b) - Math.log10(a));
  const x = (v) => L + scale(v, x0, x1) * (W - L - R);
  const y = (v) => H - B - Math.max(0, scale(v, y0, y1)) * (H - T - B);
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Roofline: GFLOP/s of each step by its operations for each byte" });
  const text = (at, content, attributes = {}) => {
    const made = svg("text", { x: at[0], y: at[1], ...attributes });
    made.textContent = content;
    drawing.append(made);
  };
  for (const v of decades(x0, x1)) {
    drawing.append(svg("line", { class: "grid", x1: x(v), x2: x(v), y1: T, y2: H - B }));
    text([x(v), H - B + 16], String(v), { "text-anchor": "middle" });
  }
  for (const v of decades(y0, y1)) {
    drawing.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(v), y2: y(v) }));
    text([L - 8, y(v) + 4], String(v), { "text-anchor": "end" });
  }
  text([(L + W - R) / 2, H - 6], "FLOP for each byte", { "text-anchor": "middle", class: "axis" });
  text([L, T - 4], "GFLOP/s", { class: "axis" });
  const roof = (rate, name, kind) => {
    const end = Math.min(x1, peak ? peak / rate : x1);
    const start = Math.max(x0, y0 / rate);
    if (start >= end) return;
    drawing.append(svg("path", { class: kind, d: `M${x(start)} ${y(start * rate)}L${x(end)} ${y(end * rate)}${peak && kind === "roof" ? `H${x(x1)}` : ""}` }));
    const middle = Math.sqrt(start * end);
    const slope = (Math.atan2(y(start * rate) - y(end * rate), x(end) - x(start)) * 180) / Math.PI;
    text([0, 0], name, { class: "roof-name", transform: `translate(${x(middle)} ${y(middle * rate) - 6}) rotate(${-slope})`, "text-anchor": "middle" });
  };
  roof(machine.cache / 1e9, `cache ${(machine.cache / 1e9).toFixed(0)} GB/s`, "roof-cache");
  roof(machine.memory / 1e9, `memory ${(machine.memory / 1e9).toFixed(1)} GB/s`, "roof");
  if (peak) text([W - R, y(peak) - 6], `peak ${peak.toFixed(0)} GFLOP/s`, { "text-anchor": "end", class: "roof-name" });
  for (const step of [...points].sort((a, b) => b.ns - a.ns)) {
    const [u, v] = of(step);
    const radius = 3.5 + 22 * Math.sqrt(step.ns / totalTime);
    const dot = svg("circle", { class: "dot", cx: x(u), cy: y(v), r: radius.toFixed(1), onclick: () => graph.selectNode(step.anchor) });
    const tip = svg("title");
    tip.textContent = `${step.name}\n${step.kind}\n${formatTime(step.ns)}, ${v.toFixed(1)} GFLOP/s, ${u.toFixed(2)} FLOP for each byte`;
    dot.append(tip);
    drawing.append(dot);
  }
  place.append(drawing);
  place.hidden = false;
}

// Buffers by steps, from left to right, and addresses, from bottom to top.
function memoryChart(place) {
  const part = report.parts[Number(place.dataset.part)];
  const memory = part.memory;
  const names = namesOf(memory.names);
  const count = Math.max(1, part.names.length);
  if (!names.length) return;
  const HEIGHT = 380;
  const [L, B, T] = [72, 30, 8];
  const canvas = element("canvas", { role: "img", "aria-label": `Memory plan: ${names.length} buffers over ${count} steps, ${formatBytes(memory.bytes)}` });
  const tip = element("div", { class: "tip", hidden: true });
  place.append(canvas, tip);
  place.hidden = false;
  let hovered = -1;
  const width = () => place.clientWidth;
  const x = (step) => L + ((width() - L - 8) * step) / count;
  const y = (offset) => HEIGHT - B - ((HEIGHT - T - B) * offset) / Math.max(1, memory.bytes);
  const draw = () => {
    const ratio = window.devicePixelRatio || 1;
    const colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name).trim();
    canvas.width = width() * ratio;
    canvas.height = HEIGHT * ratio;
    canvas.style.height = HEIGHT + "px";
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    pen.strokeStyle = colour("--line");
    pen.fillStyle = colour("--quiet");
    pen.lineWidth = 1;
    for (let i = 0; i <= 4; i++) {
      const at = y((memory.bytes * i) / 4);
      pen.beginPath();
      pen.moveTo(L, at);
      pen.lineTo(width() - 8, at);
      pen.stroke();
      pen.textAlign = "right";
      pen.fillText(formatBytes(Math.round((memory.bytes * i) / 4)), L - 8, at + 4);
    }
    pen.textAlign = "center";
    const marks = Math.min(count, 10);
    for (let i = 0; i <= marks; i++) pen.fillText(String(Math.round((count * i) / marks)), x((count * i) / marks), HEIGHT - B + 16);
    pen.fillText("step", (L + width()) / 2, HEIGHT - 2);
    const [light, saturation] = [colour("--block-light"), colour("--block-saturation")];
    names.forEach((name, i) => {
      const [left, right, top, bottom] = [x(memory.first[i]), x(memory.last[i] + 1), y(memory.offsets[i] + memory.sizes[i]), y(memory.offsets[i])];
      // The golden angle keeps neighbours apart.
      const hue = (i * 137.508) % 360;
      pen.fillStyle = i === hovered ? colour("--accent") : `hsl(${hue} ${saturation} ${light})`;
      pen.fillRect(left, top, Math.max(0.5, right - left), Math.max(0.5, bottom - top));
      if (right - left > 3 && bottom - top > 3) {
        pen.strokeStyle = colour("--page");
        pen.strokeRect(left, top, right - left, bottom - top);
      }
      const room = Math.floor((right - left - 8) / 6.2);
      if (bottom - top >= 13 && room >= 4) {
        pen.fillStyle = i === hovered ? colour("--on-accent") : colour("--text");
        pen.fillText(name.length <= room ? name : "…" + name.slice(name.length - room + 1), (left + right) / 2, (top + bottom) / 2 + 4);
      }
    });
  };
  const at = (event) => {
    const { left, top } = canvas.getBoundingClientRect();
    const [u, v] = [event.clientX - left, event.clientY - top];
    for (let i = names.length - 1; i >= 0; i--) {
      const inside = u >= x(memory.first[i]) && u < x(memory.last[i] + 1) && v >= y(memory.offsets[i] + memory.sizes[i]) && v < y(memory.offsets[i]);
      if (inside) return i;
    }
    return -1;
  };
  canvas.addEventListener("pointermove", (event) => {
    const next = at(event);
    if (next !== hovered) {
      hovered = next;
      draw();
    }
    tip.hidden = hovered < 0;
    if (hovered < 0) return;
    const i = hovered;
    tip.replaceChildren(element("b", {}, names[i]), element("br"), `${formatBytes(memory.sizes[i])} at ${memory.offsets[i]}, steps ${memory.first[i]} to ${memory.last[i]}`);
    const { left, top } = place.getBoundingClientRect();
    tip.style.left = Math.min(event.clientX - left + 14, width() - tip.offsetWidth - 4) + "px";
    tip.style.top = event.clientY - top + 16 + "px";
  });
  canvas.addEventListener("pointerleave", () => {
    hovered = -1;
    tip.hidden = true;
    draw();
  });
  canvas.addEventListener("click", (event) => {
    const found = at(event);
    const node = found < 0 ? null : nodes.find((node) => node.name === names[found]);
    if (node) graph.selectNode(node.i);
  });
  new ResizeObserver(draw).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

// Relative differences in the order of data flow.
function errorChart(place) {
  const all = nodes.filter((node) => node.error);
  if (all.length < 2) return;
  const [W, H, L, R, T, B] = [1000, 200, 64, 16, 12, 22];
  const drawing = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": "Relative difference of each value that was looked at, in the order of data flow" });
  const y = (v) => T + ((H - T - B) * (0 - Math.max(-9, Math.min(0, Math.log10(v || 1e-9))))) / 9;
  for (const power of [0, -3, -6, -9]) {
    drawing.append(svg("line", { class: "grid", x1: L, x2: W - R, y1: y(10 ** power), y2: y(10 ** power) }));
    const text = svg("text", { x: L - 8, y: y(10 ** power) + 4, "text-anchor": "end" });
    text.textContent = power === -9 ? "≤ 1e-9" : power === 0 ? "≥ 1" : "1e" + power;
    drawing.append(text);
  }
  const width = (W - L - R) / all.length;
  all.forEach((node, i) => {
    const top = y(node.error.relative);
    const kind = node.i === report.errors.first ? "bar first" : node.error.beyond ? "bar beyond" : "bar";
    const bar = svg("rect", { class: kind, x: L + i * width + width * 0.1, width: Math.max(1, width * 0.8), y: top, height: Math.max(1, H - B - top), onclick: () => graph.selectNode(node.i) });
    const tip = svg("title");
    tip.textContent = `${node.name} (${node.op})\nrelative ${formatError(node.error.relative)}`;
    bar.append(tip);
    drawing.append(bar);
  });
  place.append(drawing);
  place.hidden = false;
}
